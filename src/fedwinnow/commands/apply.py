"""`fedwinnow apply`: write corrected labels in the format of the data."""

from __future__ import annotations

import dataclasses
import shlex
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
    """Also accept suggestions that nobody has looked at, from this p_wrong on; needs looks (review --anchor 30)."""
    without_looks: bool = False
    """Let --accept-above work without looks; how many of the changed labels were wrong is then not known."""
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
        for flag in ("accept_above", "reviewer", "data", "without_looks") if self.undo is not None else ():
            if getattr(self, flag) not in (None, False):
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
        if self.without_looks and self.accept_above is None:
            raise UsageError("--without-looks was given without --accept-above, which alone needs looks; leave it out.")
        plan = plan_for(self.folder, self.accept_above, self.reviewer, without_looks=self.without_looks)
        if not plan.changes:
            raise UsageError(f"nothing to apply: {unchanged(plan)}. Review first: fedwinnow review.")
        if plan.unseen:
            console.print(announced(plan), markup=False)
        receipt = apply_plan(plan, destination, self.data)
        expected = None if plan.expected is None else dataclasses.asdict(plan.expected)
        facts = {
            "unseen": plan.unseen,
            "expected_wrong": expected,
            "kept": plan.kept,
            "undecided": plan.open,
            "disputed": plan.disputed,
            "backup": receipt.backup,
        }
        self.emit({"changed": len(plan.changes), **facts, "target": receipt.target})
        console.print(f"{len(plan.changes)} labels changed in {receipt.target} ({unchanged(plan)})", markup=False)
        if receipt.backup is not None:
            console.print(f"backup of the old file: {receipt.backup}", markup=False)
        console.print(f"to undo: {way_back(Path(receipt.target), self.in_place)}", markup=False)
        return 0


def unchanged(plan: CorrectionPlan) -> str:
    """How many labels were not changed, and why."""
    return f"{plan.kept} kept by people, {plan.open} undecided, {len(plan.disputed)} disputed between reviewers"


def announced(plan: CorrectionPlan) -> str:
    """What will change unseen, and how much of that is expected to be right."""
    first = f"{len(plan.changes)} labels will be changed, {plan.unseen} of them unseen by any person."
    found = plan.expected
    if found is None:
        return f"{first} How many of these are wrong is not known."
    met = f"; of the {found.found_wrong} wrong labels that a person found, {found.as_suggested} were what is suggested"
    return (
        f"{first} Of these about {100 * found.mean:.0f} % are expected to be wrong, so that a change is right (90 % "
        f"interval {100 * found.low:.0f} to {100 * found.high:.0f} %, from {found.looked} looks)"
        f"{met if found.found_wrong else ''}."
    )


def way_back(target: Path, in_place: bool) -> str:
    """The command that undoes a correction."""
    command = f"fedwinnow apply --undo {shlex.quote(str(target))}"
    if in_place:
        return f"{command} --in-place"
    number, new = 1, target.with_name(f"{target.stem}-undone{target.suffix}")
    while new.exists():
        number += 1
        new = target.with_name(f"{target.stem}-undone-{number}{target.suffix}")
    return f"{command} --out {shlex.quote(str(new))}"
