"""`fedwinnow apply`: write corrected labels in the format of the data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fedwinnow.commands.common import Flags
from fedwinnow.errors import UsageError

if TYPE_CHECKING:
    from fedwinnow.auditing.applying.changes import CorrectionPlan

Where = Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


@dataclass(frozen=True)
class Apply(Flags):
    """Write the data with the labels that people decided on, in the same format; nothing is overwritten.

    A CSV or Parquet file gets the columns label_given and label_source; images go to the folder of their class.
    """

    folder: Where = None
    """The folder of an audited site, or of the whole audit."""
    out: Path | None = None
    """The new file or folder."""
    in_place: bool = False
    """Change the data itself; a backup is kept beside it."""
    undo: Path | None = None
    """Undo an earlier apply: the corrected file or folder."""
    accept_above: float | None = None
    """Also accept suggestions that nobody has looked at, from this p_wrong on; how many are right is not known."""
    reviewer: str | None = None
    """Use the decisions of this reviewer only; none: those on which all agree."""
    data: str | None = None
    """Where the data is now, if not where the audit found it."""
    link: Literal["copy", "hard", "symbolic"] = "copy"
    """How a folder of images is made: copies, or links to the originals."""

    def run(self) -> int:
        """Apply or undo, and print what was done."""
        from fedwinnow.auditing.applying.apply import Destination, apply_plan, undo
        from fedwinnow.auditing.applying.changes import plan_for

        if (self.folder is None) == (self.undo is None):
            raise UsageError("give the folder of an audit, or --undo with a corrected file or folder.")
        for flag in ("accept_above", "reviewer", "data") if self.undo is not None else ():
            if getattr(self, flag) is not None:
                raise UsageError(f"--{flag.replace('_', '-')} was given with --undo, which undoes everything.")
        destination = Destination(self.out, self.in_place, self.link)
        console = self.console()
        if self.undo is not None:
            receipt = undo(self.undo, destination)
            target = str(self.out or receipt.target)
            self.emit({"undone": len(receipt.changes), "target": target})
            console.print(f"{len(receipt.changes)} labels are back: {target}", markup=False)
            return 0
        assert self.folder is not None
        plan = plan_for(self.folder, self.accept_above, self.reviewer)
        if not plan.changes:
            raise UsageError(f"nothing to apply: {unchanged(plan)}. Review first: fedwinnow review.")
        receipt = apply_plan(plan, destination, self.data)
        facts = {"kept": plan.kept, "undecided": plan.open, "disputed": plan.disputed, "backup": receipt.backup}
        self.emit({"changed": len(plan.changes), **facts, "target": receipt.target})
        console.print(f"{len(plan.changes)} labels changed in {receipt.target} ({unchanged(plan)})", markup=False)
        if plan.unseen:
            console.print(
                f"nobody has looked at {plan.unseen} of them: how many of these are right now is not known",
                markup=False,
            )
        if receipt.backup is not None:
            console.print(f"backup of the old file: {receipt.backup}", markup=False)
        console.print("to undo: fedwinnow apply --undo, with this file or folder", markup=False)
        return 0


def unchanged(plan: CorrectionPlan) -> str:
    """How many labels were not changed, and why."""
    return f"{plan.kept} kept by people, {plan.open} undecided, {len(plan.disputed)} disputed between reviewers"
