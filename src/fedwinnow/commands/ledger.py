"""`fedwinnow ledger verify`: whether a site's ledger is whole and unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedwinnow.commands.common import Flags
from fedwinnow.errors import UsageError


@dataclass(frozen=True)
class LedgerVerify(Flags):
    """Check the ledger of a site: no line was changed, dropped or moved, and none is missing at the end.

    Only a head that the coordinator was sent proves it: whoever rewrites all lines gets a ledger that is consistent,
    and a missing end cannot be seen in the rest. Without a head the answer is "consistent, unproven". Exit code 3: the
    ledger does not fit.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path()
    """The folder of a site (sites/NAME), or its ledger.jsonl."""
    head: str | None = None
    """A head that the coordinator was sent, as text; it stores them in ledger_heads.jsonl."""
    heads: Path | None = None
    """The coordinator's ledger_heads.jsonl, or its run folder: every head of the site is compared."""
    site: str | None = None
    """The name of the site in that file; none: the name under which it joined."""

    def run(self) -> int:
        """Check, and print what is known."""
        from fedwinnow.deployment.ledger_heads import heads_in
        from fedwinnow.deployment.ledger_proof import site_of_ledger, verify

        if self.folder == Path():
            raise UsageError("no folder was given; write: fedwinnow ledger verify sites/NAME.")
        name = self.site or site_of_ledger(self.folder)
        told = [] if self.heads is None else heads_in(self.heads, name)
        found = verify(self.folder, told, self.head)
        self.emit(found.as_value())
        console = self.console()
        if found.proven:
            console.print(f"proven: lines 1 to {found.proven} of {found.lines} are those the coordinator was told of")
            if found.lines > found.proven:
                rest = found.lines - found.proven
                console.print(f"consistent, unproven: {rest} later lines; no head of them was given")
        else:
            console.print(
                f"consistent, unproven: {found.lines} lines follow from each other. A head of the coordinator would "
                f"prove that none was changed or is missing (--head or --heads)"
            )
        console.print(f"head: {found.head}", markup=False)
        return 0
