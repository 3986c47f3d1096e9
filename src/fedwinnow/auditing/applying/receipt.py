"""The receipt of a correction: a file beside the corrected data with everything that undoing it needs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedwinnow.auditing.applying.changes import Change
from fedwinnow.errors import DataError
from fedwinnow.files import FORMAT, Form, Maybe, check_format, demand, json_of, replacing

FORM: Form = {
    **dict.fromkeys(("kind", "target", "original", "label", "sha256"), str),
    "backup": Maybe(str),
    "changes": {"*": {"given": str, "label": str, "source": str}},
    "moves": {"*": str},
}
BESIDE, WITHIN = ".apply.json", ".fedwinnow-apply.json"  # hidden in a folder, so that it is not read as data


@dataclass(frozen=True)
class Receipt:
    """What was changed in which file or folder."""

    kind: str  # csv, parquet, excel, npz or folder
    target: str  # the corrected file or folder
    original: str  # what it was made from
    backup: str | None  # the file as it was, where it was changed in place
    label: str = ""  # the column, where there are columns
    sha256: str = ""  # of the corrected file
    changes: dict[str, Change] = field(default_factory=dict)
    moves: dict[str, str] = field(default_factory=dict)  # of a folder: path before -> path after

    def write(self) -> Path:
        """Write it beside the corrected data."""
        path = place_for(Path(self.target))
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1, ensure_ascii=False) + "\n"
        put(path, text.encode())
        return path


def place_for(target: Path) -> Path:
    """Where the receipt of a file or folder is."""
    return target / WITHIN if target.is_dir() else target.with_name(f"{target.name}{BESIDE}")


def read_receipt(given: Path) -> Receipt:
    """The receipt of a corrected file or folder; `given` is either, and both may have moved together."""
    named = given.resolve()
    target = named.parent if named.name == WITHIN else named.with_name(named.name.removesuffix(BESIDE))
    path = place_for(target)
    if not path.is_file():
        raise DataError(
            f"{given}: nothing to undo: there is no receipt {path.name}. It is written beside the corrected data."
        )
    content: dict[str, Any] = json_of(path)
    check_format(path, content.pop("format", None))
    demand(str(path), content, FORM)
    try:
        changes = {name: Change(**change) for name, change in content.pop("changes").items()}
        return Receipt(**content | {"target": str(target)}, changes=changes)
    except TypeError as problem:
        raise DataError(f"{path}: not a receipt of `fedwinnow apply` ({problem}).") from None


def digest(content: bytes) -> str:
    """The hash of a file's content."""
    return hashlib.sha256(content).hexdigest()


def back_up(path: Path) -> Path:
    """Copy a file to a new name beside it, and return that name."""
    number, kept = 1, path.with_name(f"{path.name}.before-apply")
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.name}.before-apply-{number}")
    put(kept, path.read_bytes())
    if place_for(path).exists():  # it was corrected before, and that can still be undone
        put(place_for(kept), place_for(path).read_bytes())
    return kept


def put(path: Path, content: bytes) -> None:
    """Write a whole file."""
    try:
        with replacing(path) as stream:
            stream.write(content)
    except OSError as problem:
        raise DataError(f"{path}: cannot be written ({problem.strerror}).") from None
