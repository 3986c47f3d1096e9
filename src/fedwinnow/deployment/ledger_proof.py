"""Whether a site's ledger is the one that it had when its heads were sent."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from fedwinnow.deployment.ledger_chain import HASH, LINES, START, SUMS, Broken, counted, read_chain
from fedwinnow.deployment.site import JOINED
from fedwinnow.errors import DataError, UsageError
from fedwinnow.files import json_of

PROVEN, UNPROVEN = "proven", "consistent, unproven"


@dataclasses.dataclass(frozen=True)
class Proof:
    """What is known of a ledger: how many lines it has, and how many of them a head of the coordinator proves."""

    lines: int
    head: str
    proven: int

    @property
    def said(self) -> str:
        return PROVEN if self.proven else UNPROVEN

    def as_value(self) -> dict[str, Any]:
        return {"said": self.said, "lines": self.lines, "proven": self.proven, "head": self.head}


def ledger_in(place: Path) -> Path:
    """The ledger of a site's folder, or the file itself."""
    path = place / LINES if place.is_dir() else place
    if not path.is_file():
        raise UsageError(f"{place}: there is no {LINES}. Give the folder of a site, for example sites/NAME.")
    return path


def site_of_ledger(place: Path) -> str:
    """The name of the site whose ledger this is: what join has written beside it, or the name of the folder."""
    folder = ledger_in(place).resolve().parent
    joined = folder / JOINED
    return str(json_of(joined, {"site": str})["site"]) if joined.is_file() else folder.name


def verify(place: Path, heads: list[dict[str, Any]], pasted: str | None) -> Proof:
    """Check the lines of a ledger against each other, and against heads; an error names what does not fit."""
    path = ledger_in(place)
    try:
        chain = read_chain(path)
    except Broken as problem:
        raise DataError(f"{path}: {problem}.") from None
    sums = path.with_name(SUMS)
    if sums.is_file():
        compare_sums(sums, chain.lines, chain.hashes)
    proven = 0
    for told in heads:
        if told["lines"] > len(chain.hashes):
            raise DataError(
                f"{path}: it has {len(chain.hashes)} lines, but in round {told['round']} the coordinator was told of "
                f"{told['lines']}: the end was cut off."
            )
        if told["lines"] < 1 or chain.hashes[told["lines"] - 1] != told["head"]:
            raise DataError(
                f"{path}: line {told['lines']} is another than in round {told['round']}, when the coordinator was sent "
                f"the head: this line or one before it was changed, dropped or moved."
            )
        proven = max(proven, told["lines"])
    if pasted is not None:
        proven = max(proven, line_of(path, chain.hashes, pasted))
    return Proof(chain.head.lines, chain.head.hash, proven)


def line_of(path: Path, hashes: list[str], pasted: str) -> int:
    """The line whose hash is a pasted head."""
    head = pasted.strip().lower()
    if not HASH.fullmatch(head):
        raise UsageError(f"--head {pasted[:80]} was given; allowed: the 64 figures and letters a to f of a head.")
    if head not in hashes:
        raise DataError(
            f"{path}: no line has the hash {head[:12]}...: the ledger was changed before it, the end was cut off, "
            f"or it is the head of another ledger."
        )
    return hashes.index(head) + 1


def compare_sums(path: Path, lines: list[dict[str, Any]], hashes: list[str]) -> None:
    """Refuse a ledger.json that does not say what the lines add up to."""
    stated = json_of(path, {"sites": dict, "lines": int, "head": str})
    number, site = stated["lines"], next(iter(stated["sites"]), "")
    if number > len(hashes):
        raise DataError(f"{path}: it counts {number} lines, but {LINES} has {len(hashes)}: the end was cut off.")
    # It is written after the lines, so a power cut may have left it behind.
    due = counted(lines[:number], site) | {"lines": number, "head": hashes[number - 1] if number > 0 else START}
    if {key: stated.get(key) for key in due} != due:
        raise DataError(f"{path}: it does not say what the lines of {LINES} add up to: one of the two was changed.")
