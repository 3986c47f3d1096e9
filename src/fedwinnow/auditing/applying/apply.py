"""Write corrected labels in the format of the data, and undo that. Data is changed in place only with --in-place."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedwinnow import catalogue
from fedwinnow.auditing.applying import excel_labels, image_folders, npz_labels, table_labels
from fedwinnow.auditing.applying.changes import CorrectionPlan
from fedwinnow.auditing.applying.receipt import Receipt, back_up, digest, place_for, put, read_receipt
from fedwinnow.data.load import understood
from fedwinnow.data.source import Source
from fedwinnow.data.source_files import existing_file
from fedwinnow.data.sources.excel import Excel
from fedwinnow.data.sources.folder import Folder
from fedwinnow.data.sources.labelled_files import LabelledFiles
from fedwinnow.data.sources.npz import Npz
from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.errors import UsageError

WRITABLE = "csv, parquet, excel, npz, folder, and the table of labels of dicom, h5 and embeddings"


@dataclass(frozen=True)
class Destination:
    """Where corrected labels go: to a new file or folder, or in place of the old one."""

    out: Path | None = None
    in_place: bool = False
    link: image_folders.Link = "copy"

    def __post_init__(self) -> None:
        if (self.out is None) == (not self.in_place):
            raise UsageError(
                "give --out with a new file or folder, or --in-place to change the data itself (a backup is kept)."
            )
        if self.in_place:
            self.refuse_links("nothing is copied with --in-place")

    def refuse_links(self, reason: str) -> None:
        """Refuse --link where no new folder of images is made."""
        if self.link != "copy":
            raise UsageError(f"--link {self.link} was given, but {reason}; allowed: for a folder of images with --out.")

    def file(self, original: Path) -> Path:
        """The file to write; only --in-place overwrites a file."""
        self.refuse_links(f"{original} is a file")
        if self.out is None:
            return original
        if self.out.exists():
            raise UsageError(f"--out {self.out} exists already. Choose another name, or use --in-place.")
        return self.out


def apply_plan(plan: CorrectionPlan, destination: Destination, data: str | None = None) -> Receipt:
    """Write the corrected data and its receipt."""
    source = source_of(data or plan.source)
    if isinstance(source, Folder):
        return apply_to_folder(source, plan, destination)
    if isinstance(source, LabelledFiles):
        source, plan = table_beside(source, plan)
    assert isinstance(source, TableSource | Npz)
    path = source.path.resolve()  # --in-place changes the file that a link points to, not the link
    target = destination.file(path)
    if isinstance(source, Npz):
        content, label = npz_labels.corrected_npz(path, plan.changes), "y"
    else:
        content, label = corrected_table(path, source, plan), source.label
    backup = back_up(path) if destination.in_place else None
    receipt = Receipt(
        kind=source.name,
        target=str(target.resolve()),
        original=str(path),
        backup=None if backup is None else str(backup),
        label=label,
        sha256=digest(content),
        changes=plan.changes,
    )
    receipt.write()  # before the data, so that an interrupted change can be undone
    put(target, content)
    return receipt


def table_beside(source: LabelledFiles, plan: CorrectionPlan) -> tuple[TableSource, CorrectionPlan]:
    """The table of labels that stands beside files, and the changes by its ids, or by its rows.

    The audit named samples by their row where their ids would have given a patient away.
    """
    if not all(re.fullmatch(r"row \d+", name) for name in plan.changes):
        return source.label_source(source.id), plan
    known = source.label_source(source.id)
    if set(plan.changes) <= set(known.read_file(known.path).column(source.id)):
        return known, plan
    return source.label_source(), replace(
        plan, changes={name.removeprefix("row "): change for name, change in plan.changes.items()}
    )


def corrected_table(path: Path, source: TableSource, plan: CorrectionPlan) -> bytes:
    """The file of a table with corrected labels."""
    if isinstance(source, Excel):
        return excel_labels.corrected_excel(path, source, plan.changes)
    correct = table_labels.corrected_csv if source.name == "csv" else table_labels.corrected_parquet
    return correct(path, source, plan.changes)


REVERSING = {
    "csv": table_labels.reversed_csv,
    "parquet": table_labels.reversed_parquet,
    "excel": excel_labels.reversed_excel,
}


def apply_to_folder(source: Folder, plan: CorrectionPlan, destination: Destination) -> Receipt:
    """Move images to the folder of their class, in a copy or in place; the receipt lists the moves."""
    moves = image_folders.moves_for(source.path, plan.changes)
    receipt = Receipt(
        kind="folder",
        target=str((destination.out or source.path).resolve()),
        original=str(source.path.resolve()),
        backup=None,
        changes=plan.changes,
        moves=moves,
    )
    if destination.out is not None:
        image_folders.rebuild(source.path, destination.out, moves, destination.link)
        receipt.write()
        return receipt
    if place_for(source.path).exists():
        raise UsageError(f"{source.path} was corrected in place before. Undo that first: fedwinnow apply --undo ...")
    receipt.write()  # before the first move, so that an interrupted change can be undone
    image_folders.move_within(source.path, moves)
    return receipt


def undo(target: Path, destination: Destination) -> Receipt:
    """Undo a correction, into a new file or folder or in place."""
    receipt = read_receipt(target)
    if receipt.kind == "folder":
        undo_folder(receipt, destination)
        return receipt
    place = existing_file(Path(receipt.target))
    backup = None if receipt.backup is None else Path(receipt.backup)
    untouched = backup is not None and backup.exists() and digest(place.read_bytes()) == receipt.sha256
    if backup is not None and untouched:
        content = backup.read_bytes()
    elif receipt.kind == "npz":
        content = npz_labels.reversed_npz(place)
    else:
        content = REVERSING[receipt.kind](place, receipt.label)
    put(destination.file(place), content)
    if destination.in_place:
        place_for(place).unlink(missing_ok=True)
        if backup is not None and untouched and place_for(backup).exists():  # the receipt of an earlier correction
            put(place_for(place), place_for(backup).read_bytes())
    return receipt


def undo_folder(receipt: Receipt, destination: Destination) -> None:
    """Move every image back to where it was, except those that an interruption left there."""
    root = Path(receipt.target)
    back = {after: before for before, after in receipt.moves.items() if (root / after).is_file()}
    if destination.out is not None:
        image_folders.rebuild(root, destination.out, back, destination.link)
        return
    image_folders.move_within(root, back)
    place_for(root).unlink(missing_ok=True)


def source_of(spec: str) -> Source:
    """The data source; refuses kinds that cannot be written."""
    if not spec:
        raise UsageError("the audit does not know where its data came from (arrays in memory?). Give it with --data.")
    found: Any = catalogue.make("data", understood(spec))
    if not isinstance(found, TableSource | Npz | Folder | LabelledFiles):
        raise UsageError(f"'{spec}' cannot be written back; allowed: {WRITABLE}.")
    return found
