"""A site's ledger: a line for everything that leaves, each with the hash of the line before it.

Whoever changes, drops or moves a line must change the hash of every line after it, and so the last one, the head. The
coordinator is sent the head with every answer: against a head that it has stored, the ledger cannot be rewritten.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedwinnow.deployment.exposure_limit import LEVELS
from fedwinnow.errors import DataError
from fedwinnow.files import FORMAT, demand, write_text

LINES, SUMS = "ledger.jsonl", "ledger.json"
UNCHAINED = "ledger-unchained.jsonl"  # the name that a ledger of version 0.1, without hashes, is given
START = "0" * 64  # in place of the hash of a line before the first
HEAD = "ledger"  # the name of the head in a message
HASH = re.compile(r"[0-9a-f]{64}")
END = re.compile(rb',"hash":"([0-9a-f]{64})"\}')
LENGTH_OF_END = len(',"hash":""}') + 64
LINE = {
    "line": int,
    "before": str,
    "said": dict,
    "sent": {"*": {"exposes": str, "receivers": [str], "shape": [int], "bytes": int}},
}


@dataclass
class LedgerHead:
    """The end of a ledger: how many lines it has, and the hash of the last."""

    lines: int = 0
    hash: str = START

    def as_value(self) -> dict[str, Any]:
        return {"lines": self.lines, "head": self.hash}


def sealed(line: dict[str, Any], before: LedgerHead) -> tuple[bytes, LedgerHead]:
    """A line as it stands in the file, and the new head. The hash is that of the line's own bytes without it."""
    numbered = {"line": before.lines + 1, "before": before.hash} | line
    text = json.dumps(numbered, separators=(",", ":"), allow_nan=False).encode("ascii")
    digest = hashlib.sha256(text).hexdigest()
    return text[:-1] + f',"hash":"{digest}"}}\n'.encode(), LedgerHead(before.lines + 1, digest)


class Broken(DataError):
    """A ledger whose lines do not follow from each other: something was changed, dropped or moved."""


@dataclass
class Chain:
    """The lines of a ledger, checked one after the other."""

    head: LedgerHead = field(default_factory=LedgerHead)
    hashes: list[str] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(self, raw: bytes) -> None:
        """Check the next line; raises Broken."""
        place = f"line {self.head.lines + 1}"
        found = END.fullmatch(raw[-LENGTH_OF_END:])
        if found is None:
            raise Broken(f"{place} does not end with a hash")
        body, stated = raw[:-LENGTH_OF_END] + b"}", found[1].decode()
        if hashlib.sha256(body).hexdigest() != stated:
            raise Broken(f"{place} was changed: its hash is not that of its content")
        try:
            line = json.loads(body)
            demand(place, line, LINE)
        except (ValueError, RecursionError, DataError):
            raise Broken(f"{place} is not a line that a site writes") from None
        if line["before"] != self.head.hash or line["line"] != self.head.lines + 1:
            raise Broken(f"{place} does not follow the line before it: a line was changed, dropped or moved")
        self.head = LedgerHead(self.head.lines + 1, stated)
        self.hashes.append(stated)
        self.lines.append(line)


def read_chain(path: Path) -> Chain:
    """All lines of a ledger, checked; raises Broken, which says which line is the first that does not fit."""
    raw = path.read_bytes()
    chain = Chain()
    for line in raw.removesuffix(b"\n").split(b"\n") if raw else ():
        chain.add(line)
    if raw and not raw.endswith(b"\n"):
        raise Broken("the last line has no end: the file was cut")
    return chain


class SiteLedger:
    """The ledger of a site, to which lines are added; a line is on the disk before what it describes leaves."""

    def __init__(self, folder: Path, site: str) -> None:
        self.folder, self.site = folder, site
        self.head: LedgerHead | None = None  # not opened yet
        self.sums = Counted()

    @property
    def path(self) -> Path:
        return self.folder / LINES

    def book(self, line: dict[str, Any]) -> None:
        """Write one line, and the sums over all lines; an error if it cannot be written."""
        try:
            self.open()
            assert self.head is not None
            text, head = sealed(line, self.head)
            add_line(self.path, text)
            self.head = head
            self.sums.add(line)
            write_text(self.folder / SUMS, json.dumps(self.as_json(), indent=1) + "\n", durable=False)
        except OSError as problem:
            raise DataError(f"{self.path}: cannot be written ({problem.strerror}); nothing was sent.") from None

    def told(self) -> dict[str, Any]:
        """The head as it is sent with an answer; nothing if no line could be written."""
        return {HEAD: self.head.as_value()} if self.head is not None and self.head.lines else {}

    def open(self) -> None:
        """Read what is there, once; refuse a ledger that was changed."""
        if self.head is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            self.head = LedgerHead()
            return
        set_aside_unchained(self.path)
        cut_unfinished(self.path)
        try:
            chain = read_chain(self.path) if self.path.exists() else Chain()
        except Broken as problem:
            raise Broken(
                f"{self.path}: {problem}. A ledger that was changed cannot be continued; keep it as it is, and choose "
                f"another --out."
            ) from None
        for line in chain.lines:
            self.sums.add(line)
        self.head = chain.head

    def as_json(self) -> dict[str, Any]:
        """ledger.json: what left the site in all, in the form that a coordinator's has; and the head."""
        assert self.head is not None
        return {"format": FORMAT, **self.sums.as_json(self.site), **self.head.as_value()}


@dataclass
class Counted:
    """What the lines of a ledger add up to."""

    keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    sent: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    def add(self, line: dict[str, Any]) -> None:
        """Count one line."""
        for key, value in line["sent"].items():
            known = self.keys.setdefault(key, {"exposes": value["exposes"], "receivers": value["receivers"]})
            known["exposes"] = max(known["exposes"], value["exposes"], key=LEVELS.index)
            known["receivers"] = sorted({*known["receivers"], *value["receivers"]})
            count = self.sent.setdefault(key, {"count": 0, "bytes": 0})
            count["count"] += 1
            count["bytes"] += value["bytes"]
        if "error" in line["said"]:
            code = str(line["said"]["error"])
            self.errors[code] = self.errors.get(code, 0) + 1

    def as_json(self, site: str) -> dict[str, Any]:
        sent = {key: {"exposes": self.keys[key]["exposes"], **self.sent[key]} for key in sorted(self.sent)}
        return {"keys": self.keys, "sites": {site: sent}, "errors": self.errors}


def counted(lines: Iterable[dict[str, Any]], site: str) -> dict[str, Any]:
    """What these lines add up to, as ledger.json has it."""
    found = Counted()
    for line in lines:
        found.add(line)
    return found.as_json(site)


def add_line(path: Path, text: bytes) -> None:
    """Add a line to the disk, or leave the file as it was: after half a line the ledger could not be continued."""
    with path.open("ab", buffering=0) as stream:
        size = stream.tell()
        try:
            if stream.write(text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(stream.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                stream.truncate(size)
            raise


def set_aside_unchained(path: Path) -> None:
    """Give a ledger of version 0.1, whose lines have no hashes, another name; a new one begins."""
    with path.open("rb") as stream:
        first = stream.readline()
    if first.startswith(b'{"time": ') and b'"before"' not in first:
        path.rename(path.with_name(UNCHAINED))


def cut_unfinished(path: Path) -> None:
    """Drop the beginning of a line that a power cut left: what it describes has not left the site."""
    if not path.exists():
        return
    with path.open("r+b") as stream:
        content = stream.read()
        if content and not content.endswith(b"\n"):
            stream.truncate(content.rfind(b"\n") + 1)
