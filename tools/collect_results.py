"""Runs into one line each of a table that is kept: `python tools/collect_results.py RUNS --out results/laptop.csv`.

RUNS is a sweep, or a folder with a folder per scene and in it the run folders. Lines of scenes that are not there stay.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedwinnow.experiment.settings import Experiment
from fedwinnow.files import source_in
from fedwinnow.flags import with_values
from fedwinnow.study.run_records import read_identity
from fedwinnow.study.sweep_plan import read_book

COLUMNS = (
    "scene",
    "method",
    "seed",
    "last10",
    "last",
    "best",
    "last10_balanced",
    "auroc",
    "average_precision",
    "memorised",
    "realised_rate",
    "quality_correlation",
    "noisy_clients_recall",
    "noisy_clients_precision",
    "forward_samples",
    "backward_samples",
    "bytes_up",
    "scene_hash",
    "version",
    "source",
    "command",
)
MANNERS = ("--out", "--checkpoint-every", "--backend", "--device", "--resume", "--redo", "--json", "--quiet")
ALONE = ("--resume", "--json", "--quiet")


def main() -> None:
    """Read the finished runs and write the table anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    rows = {key(row): row for row in read(asked.out)}
    found = [*asked.runs.glob("*/*/summary.json"), *asked.runs.glob("*/*/seed-*/summary.json")]
    rows |= {key(row): row for path in sorted(found) if (row := line(path, asked.runs)) is not None}
    with asked.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows.values(), key=key))
    print(f"{asked.out}: {len(rows)} runs")
    for scene, settings in uneven(rows.values()).items():
        print(f"CAREFUL, the runs of {scene} differ in more than method and seed:", *sorted(settings), sep="\n  ")


def uneven(rows: Iterable[dict[str, str]]) -> dict[str, set[str]]:
    """The scenes whose runs were not all asked for alike, with what was asked for: no fair comparison."""
    asked: dict[str, set[str]] = {}
    for row in rows:
        words = shlex.split(row["command"])
        own = {place for flag in ("--method", "--seed") for place in (words.index(flag), words.index(flag) + 1)}
        rest = (word for place, word in enumerate(words) if place not in own)
        asked.setdefault(row["scene"], set()).add(shlex.join(rest))
    return {scene: settings for scene, settings in asked.items() if len(settings) > 1}


def read(path: Path) -> list[dict[str, str]]:
    """The lines of a table; none where there is none yet."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def key(row: dict[str, str]) -> tuple[str, str, int, str]:
    """By which a run is known; one method may be there with several promises of privacy."""
    words = shlex.split(row["command"])
    privacy = words[words.index("--privacy") + 1] if "--privacy" in words else ""
    return row["scene"], row["method"], int(row["seed"]), privacy


def line(path: Path, runs: Path) -> dict[str, str] | None:
    """A run in one line; None for one that has not finished."""
    summary, run = json.loads(path.read_text(encoding="utf-8")), path.parent
    if summary["status"] != "finished":
        return None
    environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    book, place = read_book(runs), run.relative_to(runs).as_posix()
    command = as_command(book["runs"][place]) if book else environment["command"]
    detection, cost = summary["detection"], summary["cost"]
    samples, quality, clients = (detection.get(name) or {} for name in ("samples", "quality", "clients"))
    figures: dict[str, Any] = {
        "last10": summary["last10"]["accuracy"],
        "last": summary["last"]["accuracy"],
        "best": summary["best"]["accuracy"],
        "last10_balanced": summary["last10"]["balanced_accuracy"],
        "auroc": samples.get("auroc"),
        "average_precision": samples.get("average_precision"),
        "memorised": (summary["memorisation"] or {}).get("memorised"),
        "realised_rate": summary["scene"]["realised_rate"],
        "quality_correlation": quality.get("pearson"),
        "noisy_clients_recall": clients.get("recall"),
        "noisy_clients_precision": clients.get("precision"),
    }
    return {
        "scene": book["names"][place]["scene"] if book else run.parent.name,
        "method": command[command.index("--method") + 1],
        "seed": str(summary["seed"]),
        **{name: "" if value is None else f"{value:.4f}" for name, value in figures.items()},
        **{name: str(cost[name]) for name in ("forward_samples", "backward_samples", "bytes_up")},
        "scene_hash": summary["scene"]["hash"],
        "version": environment["fedwinnow"],
        "source": source_in(read_identity(run)) or "",  # runs from before it was noted have none
        "command": what_matters(command),
    }


def as_command(asked: dict[str, str]) -> list[str]:
    """The command of one run that gives what a sweep was asked for."""
    usual = {field.name: str(field.default) for field in dataclasses.fields(Experiment)}
    first = {name: asked[name] for name in ("method", "seed")}
    rest = {name: value for name, value in asked.items() if name not in first and value != usual[name]}
    flags = [(f"--{name.replace('_', '-')}", value) for name, value in (first | rest).items()]
    return ["fedwinnow", "run", *(word for flag in flags for word in flag)]


def what_matters(command: list[str]) -> str:
    """The command without the flags that cannot change a number."""
    words, rest = [], iter(with_values(command))
    for word in rest:
        if word not in MANNERS:
            words.append(word)
        elif word not in ALONE:
            next(rest)
    return shlex.join(words)


if __name__ == "__main__":
    main()
