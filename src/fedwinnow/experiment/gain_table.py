"""gain.csv: what a federation gives to each site, read from a run folder and written to it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.run_folder import GAIN, RunFolder
from fedwinnow.files import text_of
from fedwinnow.metrics.task import Figure, mean_of

COLUMNS = ("alone", "together", "left_out", "this_run")
MEASURES = ("accuracy", "balanced_accuracy")
BALANCED = "_balanced"
HEADER = (
    *("row", "site", "part", "samples", "called_wrong", "trained_on_left", "test_rows"),
    *COLUMNS,
    *(f"{name}{BALANCED}" for name in COLUMNS),
)
CLEAR = 2.0  # standard errors beyond which a difference is more than the chance of the test rows

# What is compared: what a site would have, what it would have instead, and the change in words.
CHANGES = (
    ("together", "alone", "training together instead of alone"),
    ("left_out", "together", "leaving out the labels that were called wrong, instead of plain training together"),
    ("left_out", "alone", "leaving them out and training together, instead of alone"),
    ("this_run", "alone", "this run's method instead of alone"),
    ("this_run", "together", "this run's method instead of plain training together"),
)


@dataclass(frozen=True)
class SiteGain:
    """One site: how many samples it has, and its accuracies by what it took part in; None where none is stated."""

    site: str
    samples: int
    called_wrong: int  # labels that the run's verdicts called wrong
    trained_on_left: int  # samples that it trained on when these were left out
    test_rows: int  # how many test rows the figures are worth
    accuracy: dict[str, Figure]
    balanced_accuracy: dict[str, Figure]


@dataclass(frozen=True)
class SitesCompared:
    """How many sites are better and worse off with one thing than with another."""

    better: int
    worse: int
    same: int
    # By more than the chance of the test rows; that of the training is not in it. None for balanced accuracy.
    clearly_better: int | None
    clearly_worse: int | None


@dataclass(frozen=True)
class Gain:
    """What a federation gives to each site, of one run and one seed."""

    part: str  # what a site was measured on: its own rows, or its own mixture of classes
    sites: tuple[SiteGain, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that have a figure."""
        return tuple(name for name in COLUMNS if any(site.accuracy[name] is not None for site in self.sites))

    @property
    def paired(self) -> tuple[SiteGain, ...]:
        """The sites with a figure in every column; the means are over these, so that they can be compared."""
        columns = self.columns
        return tuple(site for site in self.sites if all(site.accuracy[name] is not None for name in columns))

    def mean(self, column: str, measure: str = "accuracy") -> Figure:
        """The mean over the sites that have a figure in every column."""
        return mean_of(figures(site, measure)[column] for site in self.paired)

    def compare(self, now: str, instead_of: str, measure: str = "accuracy") -> SitesCompared:
        """How many sites are better and worse off with one column than with another."""
        pairs = [(figures(site, measure)[now], figures(site, measure)[instead_of], site) for site in self.sites]
        known = [(first, second, site) for first, second, site in pairs if first is not None and second is not None]
        clear = [
            first - second
            for first, second, site in known
            if abs(first - second) > CLEAR * error_of_difference(first, second, site.test_rows)
        ]
        stated = measure == "accuracy"  # the rows of a rare class weigh more in balanced accuracy than is known here
        return SitesCompared(
            better=sum(first > second for first, second, _ in known),
            worse=sum(first < second for first, second, _ in known),
            same=sum(first == second for first, second, _ in known),
            clearly_better=sum(difference > 0 for difference in clear) if stated else None,
            clearly_worse=sum(difference < 0 for difference in clear) if stated else None,
        )


def figures(site: SiteGain, measure: str) -> dict[str, Figure]:
    """The figures of a site by accuracy or by balanced accuracy."""
    if measure not in MEASURES:
        raise UsageError(f"measure={measure!r} was given; allowed: 'accuracy' or 'balanced_accuracy'.")
    return site.accuracy if measure == "accuracy" else site.balanced_accuracy


def error_of_difference(first: float, second: float, rows: int) -> float:
    """The standard error of the difference of two shares of so many rows.

    As if each had rows of its own: both models answer the same rows, so the real one is rather smaller.
    """
    return math.sqrt((first * (1 - first) + second * (1 - second)) / max(rows, 1))


# --- the file ------------------------------------------------------------------------------------------------------


def gain_text(gain: Gain) -> str:
    """gain.csv: a line per site, then the means."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for site in gain.sites:
        counts = [site.samples, site.called_wrong, site.trained_on_left, site.test_rows]
        shares = [site.accuracy[name] for name in COLUMNS] + [site.balanced_accuracy[name] for name in COLUMNS]
        writer.writerow(["site", site.site, gain.part, *counts, *map(cell, shares)])
    means = [gain.mean(name, measure) for measure in MEASURES for name in COLUMNS]
    writer.writerow(["mean", "", gain.part, "", "", "", "", *map(cell, means)])
    return text.getvalue()


def cell(figure: Figure) -> str:
    """A share as the file has it; empty where there is none."""
    return "" if figure is None else f"{figure:.6g}"


def read_gain(folder: RunFolder) -> Gain | None:
    """The gain of a run; None if it was not measured."""
    path = folder.path / GAIN
    if not path.exists():
        return None
    rows = list(csv.DictReader(io.StringIO(text_of(path))))
    try:
        sites = tuple(site_of(row) for row in rows if row["row"] == "site")
        part = str(rows[0]["part"])
    except (KeyError, ValueError, TypeError, IndexError) as problem:
        raise DataError(
            f"{path}: not what fedwinnow gain has written ({type(problem).__name__}: {problem}). Delete it, and repeat "
            f"fedwinnow gain {folder.path}."
        ) from None
    return Gain(part, sites)


def site_of(row: dict[str, str]) -> SiteGain:
    """A line of the file."""
    return SiteGain(
        site=row["site"],
        samples=int(row["samples"]),
        called_wrong=int(row["called_wrong"]),
        trained_on_left=int(row["trained_on_left"]),
        test_rows=int(row["test_rows"]),
        accuracy={name: share_in(row[name]) for name in COLUMNS},
        balanced_accuracy={name: share_in(row[f"{name}{BALANCED}"]) for name in COLUMNS},
    )


def share_in(text: str) -> Figure:
    """A share between 0 and 1, or None for an empty cell."""
    if text == "":
        return None
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(f"{text} is not a share from 0 to 1")
    return value


# --- in words ------------------------------------------------------------------------------------------------------


def compared_in_words(gain: Gain, measure: str = "accuracy") -> Iterator[tuple[str, SitesCompared]]:
    """Every change that has figures: what is done instead of what, and how many sites are better and worse off."""
    columns = gain.columns
    for now, instead_of, words in CHANGES:
        if now in columns and instead_of in columns:
            yield words, gain.compare(now, instead_of, measure)
