"""Runs as a table sees them: what was set, what came out, read from their folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedwinnow.errors import DataError, UsageError
from fedwinnow.metrics.defined import Figure
from fedwinnow.store import RunFolder
from fedwinnow.study.plan import read_book

Names = dict[str, dict[str, str]]  # by a run's folder within its sweep: the names of its row and its scene


@dataclass(frozen=True, eq=False)
class Record:
    """One run: its folder, its settings, its summary."""

    folder: Path
    settings: dict[str, str]  # every key of config.toml as a text; the method as the shortest spec
    summary: dict[str, Any]
    sweep: Path | None = None  # the sweep that asked for it, and what it is called there
    row: str = ""
    column: str = ""

    @property
    def seed(self) -> int:
        """The pair to which the run belongs."""
        return int(self.summary["seed"])

    @property
    def finished(self) -> bool:
        """Whether all its rounds were played."""
        return bool(self.summary["status"] == "finished")

    @property
    def competes(self) -> bool:
        """Whether it played by the rules: it did not see the truth, and the data stayed on the sites."""
        return not self.summary.get("cheats") and bool(self.summary.get("federated", True))

    @property
    def scene(self) -> str:
        """The hash of the scene it was played on."""
        return str(self.summary["scene"]["hash"])

    @property
    def figures(self) -> set[str]:
        """The dotted names of the numbers in the summary."""
        return set(dotted(self.summary))

    def figure(self, path: str) -> Figure:
        """A number of the summary by its dotted name; None where it is unknown."""
        value: Any = self.summary
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return float(value) if isinstance(value, int | float) else None


def read_records(places: Iterable[str | Path]) -> list[Record]:
    """Every run in these folders and below them, in the order of their paths."""
    given = [Path(place) for place in places]
    if not given:
        raise UsageError("no run folder was given; allowed: one or more, for example runs, or runs/fedavg-digits-0.")
    found: dict[Path, Record] = {}
    books: dict[Path, Names] = {}
    for place in given:
        if not place.is_dir():
            reason = "it is a file" if place.exists() else "there is no such folder"
            raise DataError(f"{place}: {reason}. Allowed: run folders, or folders that have some.")
        for config in sorted([*place.glob("config.toml"), *place.glob("**/*/config.toml")]):
            if (config.parent / "summary.json").exists():
                found.setdefault(config.parent.resolve(), named(read_record(config.parent), books))
    if not found:
        raise DataError(
            f"{', '.join(map(str, given))}: no run in there (no folder has config.toml and summary.json). Allowed: run "
            "folders, or folders that have some; `fedwinnow run` and `fedwinnow sweep` make them."
        )
    return list(found.values())


def finished(records: Sequence[Record]) -> list[Record]:
    """The runs that came to their end; at least one."""
    done = [record for record in records if record.finished]
    if not done:
        first = f"{records[0].folder} ({records[0].summary['status']})"
        more = f" and {len(records) - 1} more" if len(records) > 1 else ""
        raise DataError(f"no run is finished: {first}{more}. Continue one with its command and --resume.")
    return done


def read_record(folder: Path) -> Record:
    """One run folder."""
    run = RunFolder(folder)
    config, summary = run.settings(), run.read_json("summary.json")
    settings = {key: as_text(value) for key, value in config.items() if key != "method"}
    return Record(folder, settings | {"method": str(summary["method"])}, summary)


def named(record: Record, books: dict[Path, Names]) -> Record:
    """A record with the names that its sweep has for its row and its scene, where a sweep made it.

    `books` keeps what was read: a sweep's list is as long as the sweep, and all its runs ask for it.
    """
    folder = record.folder.resolve()
    for sweep in folder.parents[:3]:
        if sweep not in books:
            books[sweep] = read_book(sweep).get("names", {})
        if names := books[sweep].get(folder.relative_to(sweep).as_posix()):
            return replace(record, sweep=sweep, row=names["row"], column=names["scene"])
    return record


def as_text(value: Any) -> str:
    """A setting as the command line would have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_number(value: Any) -> bool:
    """Whether a value of a file is a number; Python takes true for 1."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def dotted(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The names of the numbers in nested tables, joined with dots."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")
        elif is_number(value):
            yield f"{prefix}{key}"
