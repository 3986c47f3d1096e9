"""The folder of an evaluation: scores.json, confusion.csv, by_site.csv, predictions.csv and report.html."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.report.run_report import shaded
from fedwinnow.experiment.report.templates import render
from fedwinnow.experiment.trained.own_test_part import same_data
from fedwinnow.experiment.trained.predictions import Predictions
from fedwinnow.files import json_of, write_text
from fedwinnow.version import __version__

TEMPLATE = Path(__file__).with_name("evaluation.html")
SCORES = "scores.json"
CLASSES_SHOWN = 20
MIX_UPS_SHOWN = 10
SITES_SHOWN = 60
SITE_LEAST = 20  # a site with fewer samples gets no percentage


def default_place(run: Path, data: str, site: str | None) -> Path:
    """RUN/evaluation/<data name>; where every site has its own model, with the site's name behind."""
    words = [re.sub(r"[^\w.-]+", "-", name).strip("-.")[:80] for name in (data, site or "")]
    return run / "evaluation" / ("-".join(filter(None, words)) or "data")


def check_place(folder: Path, source: str) -> None:
    """Refuse a folder with other files than those of an evaluation of the same data."""
    if folder.is_file():
        raise UsageError(f"--out {folder} is a file; give a folder.")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / SCORES).is_file():
        raise UsageError(f"--out {folder} has other files in it; give a folder that is empty or not there yet.")
    before = json_of(folder / SCORES).get("source")
    if before != source and not same_data(before, source):
        raise UsageError(
            f"--out {folder} has the evaluation of other data ({str(before)[:80]}); give another folder with --out."
        )


def write_evaluation(
    folder: Path, scores: dict[str, Any], predictions: Predictions, added: dict[str, list[str]]
) -> Path:
    """Write every file, the page last; `added` are columns beside the predictions."""
    check_place(folder, scores["source"])
    names = scores["class_names"]
    try:
        write_text(folder / SCORES, json.dumps(scores, indent=1, allow_nan=False) + "\n")
        matrix = ([name, *row] for name, row in zip(names, scores["confusion"], strict=True))
        write_text(folder / "confusion.csv", csv_text(["label", *names], matrix))
        if scores["by_site"]:
            rows = ([blank(value) for value in row.values()] for row in scores["by_site"])
            write_text(folder / "by_site.csv", csv_text(list(scores["by_site"][0]), rows))
        else:
            (folder / "by_site.csv").unlink(missing_ok=True)  # of an earlier evaluation of the same data
        predictions.write(folder / "predictions.csv", added)
        write_text(folder / "report.html", render(TEMPLATE, collect(scores)))
    except OSError as problem:
        raise DataError(f"--out {folder}: cannot be written: {problem.strerror or problem}.") from None
    return folder


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as the text of a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def blank(value: Any) -> Any:
    """A cell: a share with six digits, nothing for a figure that is not there."""
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else value


def collect(scores: dict[str, Any]) -> dict[str, Any]:
    """The values that the template shows."""
    few = len(scores["class_names"]) <= CLASSES_SHOWN
    temperature = scores["temperature"]
    kinds = ("before", "after") if temperature["value"] is not None else ()
    return {
        "scores": scores,
        "temperature": temperature,
        "whose": f" of the site {scores['site']}" if scores["site"] else "",
        "confusion": confusion_rows(scores) if few else [],
        "mix_ups": mix_ups(scores),
        "classes": scores["by_class"] if few else lowest_recall(scores["by_class"]),
        "all_classes": len(scores["class_names"]),
        "sites": sorted(scores["by_site"], key=by_accuracy)[:SITES_SHOWN],
        "all_sites": len(scores["by_site"]),
        "small_sites": sum(row["accuracy"] is None for row in scores["by_site"]),
        "site_least": SITE_LEAST,
        "diagrams": [{"name": kind, **temperature[kind]} for kind in kinds] or [{"name": "", **scores}],
        "version": __version__,
    }


def confusion_rows(scores: dict[str, Any]) -> list[dict[str, Any]]:
    """The confusion matrix, shaded by the share of its row."""
    return [
        {"name": name, "cells": shaded(row, max(sum(row), 1))}
        for name, row in zip(scores["class_names"], scores["confusion"], strict=True)
    ]


def mix_ups(scores: dict[str, Any]) -> list[dict[str, Any]]:
    """The commonest pairs of a label and another predicted class."""
    counts = np.array(scores["confusion"])
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:MIX_UPS_SHOWN]
    names = scores["class_names"]
    pairs = [tuple(map(int, np.unravel_index(place, counts.shape))) for place in order]
    return [
        {
            "label": names[row],
            "predicted": names[column],
            "count": int(counts[row, column]),
            "share": counts[row, column] / sum(scores["confusion"][row]),
        }
        for row, column in pairs
        if counts[row, column]
    ]


def lowest_recall(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The classes that the model finds worst, of those that the data has."""
    present = [row for row in rows if row["samples"]]
    return sorted(present, key=lambda row: row["recall"])[:CLASSES_SHOWN]


def by_accuracy(row: dict[str, Any]) -> tuple[bool, float, str]:
    """The worst site first, and those without a figure at the end."""
    return row["accuracy"] is None, row["accuracy"] or 0.0, row["site"]
