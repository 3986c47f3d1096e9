"""What the coordinator stores of the sites' ledgers: their heads, as they came with the answers of each round."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedwinnow.deployment.ledger_chain import HASH, HEAD
from fedwinnow.deployment.site import now
from fedwinnow.errors import DataError
from fedwinnow.files import parsed, text_of

HEADS = "ledger_heads.jsonl"
MOST_LINES = 10**12
FORM = {"site": str, "round": int, "lines": int, "head": str}


class Heads:
    """The last head of every site, written to a file at the end of each exchange."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.path, self.say = folder / HEADS, say
        self.last: dict[str, int] = {}  # site -> lines
        self.new: dict[str, dict[str, Any]] = {}

    def note(self, site: str, number: int, facts: dict[str, Any]) -> None:
        """Keep the head that a site sent with an answer of this round, if it is one."""
        told = facts.get(HEAD)
        if not isinstance(told, dict):
            return
        lines, head = told.get("lines"), told.get("head")
        if type(lines) is not int or not 0 < lines < MOST_LINES:
            return
        if not isinstance(head, str) or not HASH.fullmatch(head):
            return
        if lines <= self.last.get(site, 0):
            self.say(f"the ledger of {site} has fewer lines than before: it was begun anew, or cut")
        self.last[site] = lines
        self.new[site] = {"site": site, "round": number, "lines": lines, "head": head, "time": now()}

    def write(self) -> None:
        """Append what came since the last call."""
        if not self.new:
            return
        with self.path.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(line) + "\n" for line in self.new.values())
        self.new.clear()


def heads_in(path: Path, site: str) -> list[dict[str, Any]]:
    """The heads of one site from a coordinator's file, in the order in which they came."""
    place = path / HEADS if path.is_dir() else path
    rows = [
        parsed(place, line, FORM, f", line {number}")
        for number, line in enumerate(text_of(place).splitlines(), 1)
        if line.strip()
    ]
    found = [row for row in rows if row["site"] == site]
    if not found:
        names = ", ".join(sorted({row["site"] for row in rows})) or "none"
        raise DataError(f"{place}: there is no head of site '{site}'; it has: {names}. Name the site with --site.")
    return found
