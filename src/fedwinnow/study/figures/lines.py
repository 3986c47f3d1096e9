"""Pictures of runs against rounds or against an option: curves, memorisation, stability, sensitivity, detection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.study.figures.run_view import View, by_name
from fedwinnow.study.figures.style import BLUE, GREEN, MARKS, RED, count_rounds, line_style, picture
from fedwinnow.study.run_records import is_number
from fedwinnow.study.statistics import sample_std

SHARES = ("accuracy", "recall", "precision", "memorised", "corrected", "correct", "f1", "top5")


def draw_curves(views: Sequence[View], path: Path, column: str = "accuracy") -> Path:
    """One line per method over the rounds: the mean over seeds, and a band of one sample deviation."""
    percent = any(column.endswith(word) for word in SHARES)
    with picture(path, 6, 3.8) as (figure, axes):
        named = by_name(views)
        for place, (name, runs) in enumerate(named.items()):
            style = line_style(place, len(named))
            curves = [run.column(column) for run in runs]
            common = sorted(set.intersection(*(set(rounds.tolist()) for rounds, _ in curves)))
            values = np.array([[dict(zip(*curve, strict=True))[number] for number in common] for curve in curves])
            values = values * (100 if percent else 1)
            centre = values.mean(0)
            label = name if len(runs) == 1 else f"{name} (n={len(runs)})"
            axes.plot(common, centre, linewidth=1.6, label=label, **style)
            if len(runs) > 1:
                spread = values.std(0, ddof=1)
                axes.fill_between(
                    common, centre - spread, centre + spread, color=style["color"], alpha=0.15, linewidth=0
                )
        words = column.replace("_", " ")
        axes.set(xlabel="round", ylabel=f"{words} (%)" if percent else words, title=f"{words.capitalize()} by round")
        count_rounds(axes)
        axes.grid(alpha=0.2)
        figure.legend(frameon=False, loc="outside lower center", ncols=2)
    return path


def draw_memorisation(views: Sequence[View], path: Path) -> Path:
    """Of the wrong labels, the shares for which the global model predicts the wrong label, and the true one."""
    names = {"memorised": (RED, "-", "wrong label predicted"), "corrected": (GREEN, "--", "true label predicted")}
    with picture(path, 6, 3.8) as (figure, axes):
        for place, view in enumerate(views):
            for key, (colour, dashes, words) in names.items():
                rounds, values = view.column(key)
                label = words if len(views) == 1 else f"{view.name}, seed {view.record.seed}: {words}"
                mark = MARKS[place % len(MARKS)]
                axes.plot(rounds, 100 * values, dashes, marker=mark, markersize=4, color=colour, label=label)
        axes.set(xlabel="round", ylabel="wrongly labelled samples (%)", ylim=(0, 100))
        axes.set_title("What the global model has memorised")
        count_rounds(axes)
        axes.grid(alpha=0.2)
        figure.legend(frameon=False, loc="outside lower center", ncols=2)
    return path


def draw_stability(views: Sequence[View], path: Path) -> Path:
    """Mean squared distance of the trained models from the global one, and accuracy, per round."""
    with picture(path, 6, 5) as (figure, axes):
        axes.remove()
        upper, lower = figure.subplots(2, 1, sharex=True)
        for place, view in enumerate(views):
            label, style = f"{view.name}, seed {view.record.seed}", line_style(place, len(views))
            upper.plot(*view.column("stability"), label=label, **style)
            rounds, accuracy = view.column("accuracy")
            lower.plot(rounds, 100 * accuracy, **style)
        upper.set(ylabel="mean squared distance", title="Training stability")
        lower.set(xlabel="round", ylabel="accuracy (%)")
        count_rounds(lower)
        for one in (upper, lower):
            one.grid(alpha=0.2)
        figure.legend(frameon=False, loc="outside lower center", ncols=2)
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
            axes.errorbar(places, centre, spread, marker=mark, color=colour, capsize=3, label=pick)
        axes.set_xticks(places)
        axes.set(xlabel=option, ylabel="accuracy (%)", title=f"Sensitivity to {option}")
        axes.grid(alpha=0.2)
        figure.legend(frameon=False, loc="outside lower center", ncols=2)
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
        axes.set_xticks([row["round"] for row in rows])
        axes.set(xlabel="round", ylabel="%", ylim=(-3, 103), title=f"Noisy clients found by {fits} mixtures")
        axes.grid(alpha=0.2)
        figure.legend(frameon=False, loc="outside lower center", ncols=3)
    return path
