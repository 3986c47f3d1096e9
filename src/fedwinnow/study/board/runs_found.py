"""Every run in a folder for the board, whatever state it is in: nothing that is broken ends the search."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedwinnow.errors import DataError, FedwinnowError
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.files import is_current
from fedwinnow.method_names import title_of
from fedwinnow.study.run_records import (
    Names,
    Record,
    changed_files,
    is_number,
    is_part_of_gain,
    named,
    read_identity,
    read_record,
)
from fedwinnow.study.scene_words import data_in_words, scene_in_words
from fedwinnow.study.sweep_plan import read_book

MOST_POINTS = 250  # of one curve; more are not visible
NOT_CURVES = {"round", "seconds", "evaluation_seconds", "memory_mb"}
# The numbers of the table: name in print -> place in summary.json.
NUMBERS = {
    "last 10 rounds": "last10.accuracy",
    "last round": "last.accuracy",
    "best round": "best.accuracy",
    "balanced, last 10": "last10.balanced_accuracy",
    "macro F1, last 10": "last10.macro_f1",
    "AUROC of wrong labels": "detection.samples.auroc",
    "precision": "detection.samples.precision",
    "recall": "detection.samples.recall",
    "bytes sent": "cost.bytes_up",
    "seconds": "cost.seconds",
}
SHOWN = ("method", "data", "partition", "noise", "seed", "scene")  # settings that have a place of their own
Run = dict[str, Any]


def runs_in(folder: Path) -> list[Run]:
    """Every run in the folder and below it, in the order of their paths; those of a sweep that are missing as well."""
    books: dict[Path, Names] = {}
    found = {}
    for place in run_folders(folder):
        found[place] = one_run(place, folder, books)
    told_apart(list(found.values()))
    return [*found.values(), *not_started(folder, found)]


def told_apart(runs: list[Run]) -> None:
    """Add to a scene's name what else differs where one seed of a method has several runs there.

    Without that the page would take them for seeds and show their mean.
    """
    settings = [run.pop("settings", {}) for run in runs]
    cells: dict[tuple[str, ...], list[int]] = {}
    for number, run in enumerate(runs):
        cells.setdefault((run["row"], run["data"], run["scene"]), []).append(number)
    for numbers in cells.values():
        seeds = [runs[number]["seed"] for number in numbers]
        if len(set(seeds)) == len(seeds):
            continue
        keys = dict.fromkeys(key for number in numbers for key in settings[number] if key not in SHOWN)
        differing = [key for key in keys if len({settings[number].get(key) for number in numbers}) > 1]
        words = [[f"{key.replace('_', ' ')} {settings[n].get(key, 'none')}" for key in differing] for n in numbers]
        told = {(seed, *said) for seed, said in zip(seeds, words, strict=True)}
        for number, said in zip(numbers, words, strict=True):
            place = [] if len(told) == len(numbers) else [f"in {runs[number]['folder'].partition('/')[0]}"]
            runs[number]["scene"] = ", ".join(filter(None, [runs[number]["scene"], *said, *place]))


def run_folders(folder: Path) -> Iterator[Path]:
    """The folders with a config.toml, sorted; folders that may not be read, and links to others, are passed by."""
    for place, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith("."))
        if "config.toml" in files and not is_part_of_gain(Path(place), folder):
            yield Path(place)


def one_run(place: Path, folder: Path, books: dict[Path, Names]) -> Run:
    """What the board shows of one run."""
    run: Run = {"folder": where(place, folder), "report": report_of(place, folder), "curves": {}, "numbers": {}}
    try:
        record, status, note = state_of(place)
        with contextlib.suppress(DataError):  # a damaged sweep.json takes the names, not the runs
            record = named(record, books)
        described(run, record)
        run |= {"status": status, "note": note, "rounds": 0}
        rows = RunFolder(place).rounds()
        run |= {"rounds": rows[-1]["round"] if rows else 0, "curves": curves_of(rows)}
        values = {name: record.figure(path) for name, path in NUMBERS.items()}
        run["numbers"] = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    except (FedwinnowError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        # A damaged file can raise nearly anything; the board names it and goes on with the next run.
        words = str(problem) if isinstance(problem, FedwinnowError) else f"{type(problem).__name__}: {problem}"
        bare: Run = {"row": "", "title": place.name, "data": "", "scene": "", "seed": None, "rounds": 0}
        run = bare | run
        run |= {"status": "broken", "note": words.replace(str(folder), "."), "curves": {}, "numbers": {}}
    return run


def state_of(place: Path) -> tuple[Record, str, str]:
    """The record of a run, its state, and a remark."""
    run = RunFolder(place)
    if not (place / "summary.json").exists():
        return unsummarised(run), "unfinished", "no summary yet: it is running, or was killed"
    record = read_record(place)
    status = record.summary["status"]
    if record.changed:
        return record, "stale", f"made before {', '.join(record.changed)} was changed"
    if not record.finished:
        return record, "failed" if status == "failed" else "unfinished", last_line(place / "error.txt") or status
    return record, "finished", "" if record.current else "made by another version of the source"


def unsummarised(run: RunFolder) -> Record:
    """The record of a run that has only its config so far."""
    config = run.settings()
    method = config.get("method")
    kind = str(method.get("kind", "")) if isinstance(method, dict) else str(method)
    texts = {key: str(value) for key, value in config.items()} | {"method": kind}
    identity = read_identity(run.path)
    seed = config.get("seed")
    return Record(
        run.path,
        texts,
        {"seed": seed if isinstance(seed, int) else 0, "status": "unfinished"},
        current=is_current(identity),
        changed=changed_files(identity, config if isinstance(method, dict) else {}),
    )


def described(run: Run, record: Record) -> None:
    """Method, data, scene and seed, as texts."""
    row = record.row or record.settings["method"]
    data = record.settings.get("data", "?")
    parts = [record.settings[key] for key in ("partition", "noise") if key in record.settings]
    column = record.column or ", ".join(parts)
    run |= {"row": row, "title": title_of(row), "data": data_in_words(data) or data}
    run |= {"scene": scene_in_words(column), "seed": record.seed, "settings": record.settings}


def curves_of(rows: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """Every number of rounds.jsonl by round."""
    curves: dict[str, list[list[float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in NOT_CURVES and is_number(value) and math.isfinite(value):
                curves.setdefault(name, []).append([row["round"], float(f"{value:.5g}")])
    return {name: thinned(points) for name, points in curves.items()}


def thinned(points: list[list[float]]) -> list[list[float]]:
    """At most about 250 points, the last one always."""
    step = -(-len(points) // MOST_POINTS)
    kept = points[::step]
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def not_started(folder: Path, found: dict[Path, Run]) -> list[Run]:
    """The runs that a sweep in this folder names and that have no folder yet."""
    missing = []
    for book in sorted(folder.glob("**/sweep.json")):
        try:
            names = read_book(book.parent).get("names", {})
        except DataError:
            continue  # its runs are found by their folders
        for place, name in names.items():
            if book.parent / place not in found and not (book.parent / place / "config.toml").exists():
                row, seed = name["row"], place.rpartition("seed-")[2]
                run: Run = {"folder": where(book.parent / place, folder), "report": None, "curves": {}, "numbers": {}}
                run |= {"row": row, "title": title_of(row), "data": "", "scene": scene_in_words(name["scene"])}
                run |= {"seed": int(seed) if seed.isdigit() else None, "status": "not started", "note": "", "rounds": 0}
                missing.append(run)
    return missing


def where(place: Path, folder: Path) -> str:
    """The path of a run, seen from the board."""
    return place.relative_to(folder).as_posix()


def report_of(place: Path, folder: Path) -> str | None:
    """The address of a run's report, seen from the board; with a dot in front it can be no other kind of address."""
    file = place / "report.html"
    # The name as bytes, because a folder may have a name that is no text.
    return f"./{quote(os.fsencode(where(file, folder)))}" if file.is_file() else None


def last_line(path: Path) -> str:
    """The last line of a file, which names the error; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1][:300]
    except (OSError, IndexError):
        return ""


def as_script(value: Any) -> str:
    """JSON that can stand in a script element: no text in it can end the element or begin another."""
    text = json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
