"""Pictures of runs against rounds or against an option: curves, memorisation, stability, sensitivity, detection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.study.figures.run_view import Group, View, groups
from fedwinnow.study.figures.style import BLUE, GREEN, RED, count_rounds, legend, picture
from fedwinnow.study.run_records import is_number
from fedwinnow.study.statistics import sample_std
from fedwinnow.study.table_figures import TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_TICKS = 10  # more values than this are not all written below the axis
SHARES = ("accuracy", "recall", "precision", "memorised", "corrected", "correct", "f1", "top5")


def draw_curves(views: Sequence[View], path: Path, column: str = "accuracy") -> Path:
    """One line per method over the rounds: the mean over seeds, and a band of one sample deviation."""
    percent = any(column.endswith(word) for word in SHARES)
    with picture(path, 6, 3.8) as (figure, axes):
        for group in groups(views):
            draw_group(axes, group, column, 100 if percent else 1)
        words = column.replace("_", " ")
        axes.set(xlabel="round", ylabel=f"{words} (%)" if percent else words, title=f"{words.capitalize()} by round")
        count_rounds(axes)
        axes.grid(alpha=0.2)
        legend(figure)
    return path


def draw_group(axes: Axes, group: Group, column: str, scale: float) -> None:
    """One line with its band, over the rounds that all its runs have."""
    curves = [view.column(column) for view in group.views]
    common = sorted(set.intersection(*(set(rounds.tolist()) for rounds, _ in curves)))
    values = np.array([[dict(zip(*curve, strict=True))[number] for number in common] for curve in curves]) * scale
    centre, seeds = values.mean(0), len(curves)
    label = group.label if seeds == 1 else f"{group.label} (n={seeds})"
    step = max(1, len(common) // 8)
    axes.plot(common, centre, linewidth=1.4, markersize=4, markevery=step, label=label, **group.line)
    if seeds > 1:
        spread = values.std(0, ddof=1)
        axes.fill_between(common, centre - spread, centre + spread, color=group.style.colour, alpha=0.12, linewidth=0)


def draw_memorisation(views: Sequence[View], path: Path) -> Path:
    """Of the wrong labels, the shares for which the global model predicts the wrong label, and the true one."""
    found = groups(views)
    with picture(path, 6, 5.2) as (figure, axes):
        axes.remove()
        upper, lower = figure.subplots(2, 1, sharex=True)
        for frame, key, words in ((upper, "memorised", "wrong label"), (lower, "corrected", "true label")):
            for group in found:
                draw_group(frame, group, key, 100)
            frame.set(ylabel=f"{words} predicted (%)")
            frame.set_ylim(bottom=0)
            frame.grid(alpha=0.2)
        upper.set_title("What the global model makes of wrong labels")
        lower.set(xlabel="round")
        count_rounds(lower)
        legend(figure)
    return path


def draw_stability(views: Sequence[View], path: Path) -> Path:
    """Mean squared distance of the trained models from the global one, and accuracy, per round."""
    with picture(path, 6, 5.2) as (figure, axes):
        axes.remove()
        upper, lower = figure.subplots(2, 1, sharex=True)
        for group in groups(views):
            draw_group(upper, group, "stability", 1)
            draw_group(lower, group, "accuracy", 100)
        upper.set(ylabel="mean squared distance", title="Training stability")
        lower.set(xlabel="round", ylabel="accuracy (%)")
        count_rounds(lower)
        for one in (upper, lower):
            one.grid(alpha=0.2)
        legend(figure)
    return path


def draw_sensitivity(views: Sequence[View], path: Path, option: str) -> Path:
    """Last-ten and best accuracy against the value of one option; bars are a sample deviation over seeds."""
    if not option:
        raise UsageError("figure sensitivity needs --option, the name of an option of the method, such as neighbours.")
    found: dict[float, list[View]] = {}
    for view in views:
        found.setdefault(value_of(view, option), []).append(view)
    if len(found) < 2:
        raise DataError(f"all runs have the same {option}; allowed: runs that differ in it.")
    places = sorted(found)
    with picture(path, 5, 3.6) as (figure, axes):
        for pick, colour, mark in (("last10", BLUE, "o"), ("best", RED, "s")):
            values = [[accuracy(view, pick) for view in found[place]] for place in places]
            centre = [float(np.mean(one)) for one in values]
            spread = [sample_std(one) or 0.0 for one in values]
            axes.errorbar(places, centre, spread, marker=mark, color=colour, capsize=3, label=TITLES[pick])
        if len(places) <= MOST_TICKS:
            axes.set_xticks(places)
        name = option.replace("_", " ")
        axes.set(xlabel=name, ylabel="accuracy (%)")
        axes.set_title(f"{views[0].name.partition(' (')[0]}: sensitivity to {name}")
        axes.grid(alpha=0.2)
        legend(figure)
    return path


def accuracy(view: View, pick: str) -> float:
    """The accuracy in per cent; NaN if it was not measured."""
    found = view.record.figure(f"{pick}.accuracy")
    return np.nan if found is None else 100 * found


def value_of(view: View, option: str) -> float:
    """The value of an option in a run; config.toml has all options, also the defaults."""
    method = RunFolder(view.record.folder).settings()["method"]
    value = method.get(option)
    if not is_number(value):
        numbers = [key for key, value in method.items() if is_number(value)]
        raise DataError(
            f"{view.record.folder}: {view.name} has no number {option}; its numbers: {', '.join(numbers) or 'none'}. "
            "Give runs of one method that has it."
        )
    return float(value)


def draw_detection(views: Sequence[View], path: Path, fits: int = 1000) -> Path:
    """Recall, precision and matching ratio of noisy clients, by the round in which they were detected."""
    from fedwinnow.experiment.detection_study import Fitting, study_detection

    names = {"recall": (BLUE, "o"), "precision": (RED, "s"), "matching_ratio": (GREEN, "^")}
    rows = study_detection(views[0].record.folder, Fitting(fits=fits, normalise=None))
    with picture(path, 5, 3.6) as (figure, axes):
        for name, (colour, mark) in names.items():
            values = [100 * row[name] if row[name] is not None else np.nan for row in rows]
            axes.plot([row["round"] for row in rows], values, marker=mark, color=colour, label=name.replace("_", " "))
        count_rounds(axes)
        axes.set(xlabel="round", ylabel="%", ylim=(-3, 103), title=f"Noisy clients found by {fits} mixtures")
        axes.grid(alpha=0.2)
        legend(figure)
    return path
