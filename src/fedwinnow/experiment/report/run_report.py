"""report.html: a run on one page with everything in it, made from the files in the run folder."""

from __future__ import annotations

import csv
import io
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import UndefinedError

from fedwinnow import catalogue, files
from fedwinnow.data.source_files import read_npz
from fedwinnow.errors import DataError
from fedwinnow.experiment.evaluation import LEAST_ROWS
from fedwinnow.experiment.gain_table import Gain, SitesCompared, compared_in_words, read_gain
from fedwinnow.experiment.report.templates import LEARNS, RECEIVERS, render
from fedwinnow.experiment.run_folder import GAIN, RunFolder, flatten
from fedwinnow.files import text_of
from fedwinnow.scene.scene import Scene, or_null

TEMPLATE = Path(__file__).with_name("run.html")
CLIENTS_SHOWN = 40
CLASSES_SHOWN = 20


def write_report(folder: RunFolder, summary: dict[str, Any] | None = None) -> None:
    """Make the report of a run and write it to its folder; `summary` if summary.json is not written yet."""
    folder.write_text("report.html", render(TEMPLATE, collect(folder, summary)))


def report_of(folder: str | Path) -> Path:
    """Make the report of a run folder again, and return its path."""
    run = RunFolder.existing(Path(folder))
    try:
        write_report(run)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, UndefinedError) as problem:
        raise DataError(
            f"{run.path}: its files are not those of a run, or are damaged ({type(problem).__name__}: {problem}). "
            f"Restore summary.json, clients.csv and the others, or start the run again with --redo."
        ) from None
    return run.path / "report.html"


def collect(folder: RunFolder, summary: dict[str, Any] | None = None) -> dict[str, Any]:
    """The values that the template shows, read from the run folder."""
    config = folder.settings()
    environment = folder.read_json("environment.json") or {}
    summary = summary or folder.read_json("summary.json") or {}
    identity = folder.read_json("identity.json")
    rounds = folder.rounds()
    scene = Scene.load(folder.path)
    return {
        "summary": summary,
        "method": method_of(config, environment),
        "environment": environment,
        "source": files.source_in(identity),
        "current": files.is_current(identity),
        "scene": scene,
        "scene_rates": {"nominal": or_null(scene.nominal_rate), "realised": or_null(scene.realised_rate)},
        "curve": curve_of(rounds, summary),
        "stages": stages_of(rounds),
        "dropped": sum(len(row.get("dropped", {})) for row in rounds),
        "clients": client_rows(folder.path / "clients.csv"),
        "gain": gain_of(folder, scene),
        "class_map": class_map(scene),
        "confusion": confusion_of(summary, scene),
        "ledger": ledger_rows(folder.read_json("ledger.json")),
        "config": flatten(config),
        "command": command_of(config, environment, scene),
        "clients_shown": CLIENTS_SHOWN,
        "classes_shown": CLASSES_SHOWN,
        "least_rows": LEAST_ROWS,
        "folder_name": folder.path.resolve().name,
    }


def method_of(config: dict[str, Any], environment: dict[str, Any]) -> dict[str, Any]:
    """The method's name, description and paper."""
    said = environment.get("method") or {}
    return {
        "name": str(config.get("method", {}).get("kind", "unknown")),
        "summary": said.get("summary", ""),
        "citation": said.get("citation", ""),
    }


def stages_of(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The stages of the run in order, with their first and last round."""
    found: list[dict[str, Any]] = []
    for row in rounds:
        stage = str(row.get("stage", "train"))
        if found and found[-1]["name"] == stage:
            found[-1]["last"] = row["round"]
        else:
            found.append({"name": stage, "first": row["round"], "last": row["round"]})
    return found


def client_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of clients.csv with rates as numbers; empty if the run is not finished."""
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = []
    for row in csv.DictReader(io.StringIO(text_of(path))):
        rates = {name: float(row[name]) if row[name] else None for name in row if name.endswith("_rate")}
        rows.append({**row, **rates})
    return rows


@dataclass(frozen=True)
class GainShown:
    """What `fedwinnow gain` has found, for the page."""

    gain: Gain
    changes: tuple[tuple[str, SitesCompared, SitesCompared], ...]  # in words; by accuracy and by balanced accuracy
    called_wrong: int
    nothing_left: tuple[str, ...]  # sites of which no training sample was left
    few_rows: tuple[str, ...]  # sites with too few test rows for a share
    classes_gone: tuple[str, ...]  # of which no sample was left at any site


def gain_of(folder: RunFolder, scene: Scene) -> GainShown | None:
    """The gain of a run; None if it was not measured."""
    gain = read_gain(folder) if (folder.path / GAIN).exists() else None
    if gain is None:
        return None
    balanced = [found for _, found in compared_in_words(gain, "balanced_accuracy")]
    changes = [(words, found, other) for (words, found), other in zip(compared_in_words(gain), balanced, strict=True)]
    return GainShown(
        gain,
        tuple(changes),
        sum(site.called_wrong for site in gain.sites),
        tuple(site.site for site in gain.sites if site.trained_on_left == 0),
        tuple(site.site for site in gain.sites if site.test_rows < LEAST_ROWS),
        classes_gone(folder, scene),
    )


def classes_gone(folder: RunFolder, scene: Scene) -> tuple[str, ...]:
    """The classes, by the labels as given, of which every sample was called wrong."""
    p_wrong = read_npz(folder.path / "verdicts.npz", ("p_wrong",))["p_wrong"]
    before, after = (
        np.bincount(labels, minlength=scene.classes) for labels in (scene.given, scene.given[~(p_wrong > 0.5)])
    )
    return tuple(scene.data.class_names[number] for number in np.flatnonzero((before > 0) & (after == 0)))


def class_map(scene: Scene) -> list[dict[str, Any]]:
    """How many samples of each given label every site has, as a number and as a shade."""
    counts = scene.counts()[:CLIENTS_SHOWN, :CLASSES_SHOWN]
    darkest = max(int(counts.max(initial=0)), 1)
    names = scene.site_names[:CLIENTS_SHOWN]
    return [{"site": name, "cells": shaded(row, darkest)} for name, row in zip(names, counts, strict=True)]


def confusion_of(summary: dict[str, Any], scene: Scene) -> list[dict[str, Any]]:
    """The confusion matrix of the last model, shaded by the share of its row; empty if it has too many classes."""
    matrix = (summary.get("test") or {}).get("confusion")
    if matrix is None or len(matrix) > CLASSES_SHOWN:
        return []
    counts = np.asarray(matrix)
    return [
        {"name": name, "cells": shaded(row, max(int(row.sum()), 1))}
        for name, row in zip(scene.data.class_names, counts, strict=True)
    ]


def shaded(row: Any, darkest: int) -> list[dict[str, Any]]:
    """Counts with a shade between 0 and 45 percent, so that the number on it stays readable."""
    return [{"count": int(count), "shade": round(45 * min(int(count) / darkest, 1))} for count in row]


def ledger_rows(ledger: dict[str, Any] | None) -> dict[str, Any] | None:
    """What left the sites: per key for all together, and per site."""
    if ledger is None:
        return None
    keys = []
    for key, facts in ledger["keys"].items():
        sent = [site[key] for site in ledger["sites"].values() if key in site]
        if sent:
            keys.append(
                {
                    "key": key,
                    "learns": LEARNS.get(facts["exposes"], facts["exposes"]),
                    "kind": facts["exposes"],
                    "receivers": RECEIVERS[tuple(facts.get("receivers", ["server"]))],
                    "sites": len(sent),
                    "count": sum(line["count"] for line in sent),
                    "bytes": sum(line["bytes"] for line in sent),
                }
            )
    sites = [{"site": name, "key": key, **line} for name, sent in ledger["sites"].items() for key, line in sent.items()]
    return {"keys": keys, "sites": sites[: 4 * CLIENTS_SHOWN], "left_out": max(len(sites) - 4 * CLIENTS_SHOWN, 0)}


def command_of(config: dict[str, Any], environment: dict[str, Any], scene: Scene) -> dict[str, str]:
    """The command that repeats the run: the original one, or one that reads config.toml."""
    command = environment.get("command")
    if command:
        alone = command[1:2] in (["run"], ["serve"])
        note = "The command of this run; give it another --out folder." if alone else "One of the runs of this command."
        return {"line": shlex.join(command), "note": note}
    kind = config.get("method", {}).get("kind")
    if scene.data.source and kind in catalogue.entries("methods"):
        line = "fedwinnow run --config config.toml --out ../again"
        return {"line": line, "note": "The run was started from Python; this line, in the run folder, repeats it."}
    return {"line": "", "note": "The run was started from Python with data or a method that only that program has."}


LARGEST = 600  # points in one line; more are not visible


@dataclass(frozen=True)
class Mark:
    """A named point of the curve."""

    x: float
    y: float
    name: str
    value: float
    round: int


@dataclass(frozen=True)
class Curve:
    """The accuracy of every measured round, with last, best and the mean of the last ten."""

    points: str  # for an SVG polyline in a frame of 100 by 100
    first: int
    last: int
    marks: tuple[Mark, ...]
    mean_from: float
    mean_to: float
    mean_y: float
    mean: float
    averaged: int  # rounds in that mean: ten, or as many as there are


def curve_of(rounds: list[dict[str, Any]], summary: dict[str, Any]) -> Curve | None:
    """The accuracy curve of a run; None if accuracy was not measured."""
    rows = [(int(row["round"]), float(row["accuracy"])) for row in rounds if row.get("accuracy") is not None]
    if not rows:
        return None
    first, last = rows[0][0], rows[-1][0]

    def x(round_number: int) -> float:
        return 50.0 if last == first else 100 * (round_number - first) / (last - first)

    best = max(rows, key=lambda row: row[1])
    marks = [
        Mark(x(number), 100 * (1 - value), name, value, number)
        for name, (number, value) in (("best", best), ("last", rows[-1]))
    ]
    step = -(-len(rows) // LARGEST)
    drawn = [*rows[::step], rows[-1]]
    ten = rows[-10:]
    mean = (summary.get("last10") or {}).get("accuracy") or sum(value for _, value in ten) / len(ten)
    return Curve(
        points=" ".join(f"{x(number):.2f},{100 * (1 - value):.2f}" for number, value in drawn),
        first=first,
        last=last,
        marks=tuple(marks),
        mean_from=x(ten[0][0]),
        mean_to=x(ten[-1][0]),
        mean_y=100 * (1 - mean),
        mean=mean,
        averaged=len(ten),
    )
