"""How far the figures that follow from thirty looks can be trusted, where the truth is known.

    python -m benchmarks.looks [--cases FOLDER] [--looks 30] [--errors 0 0.05 0.1] [--runs 20]

Without `--cases` the scores are made up: good and bad orders, few and many wrong labels, none at all. With it, every
.npz file of the folder is a case: `score` (log-odds that the label is wrong), `wrong` (true or false), if there are
sites `site`, and if the audit had an opinion before any look `p` (a chance per label, or several rows of them).
Programs call `measure_looks`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.mathematics.look_curves import Curves, error_of_reviewers, estimate, estimate_sites
from fedwinnow.mathematics.strata import Strata, first_looks, histogram, next_looks

FIGURES = (
    "covers",
    "width",
    "overclaims",
    "claim_false",
    "recall_at_least_half",
    "over_calls",
    "calls_cover",
    "calls_width",
    "calls_overclaim",
    "settled",
    "settled_right",
)
FEWEST_CALLS = 10
TOP = 0.02


@dataclass(frozen=True, eq=False)
class Case:
    """Labels with known truth and their scores."""

    name: str
    score: NDArray[np.float64]
    wrong: NDArray[np.bool_]
    site: NDArray[np.int64] | None = None
    opinions: tuple[NDArray[np.float64], ...] = ()  # a chance per label each, formed without looks


def main(words: list[str] | None = None) -> None:
    """Measure and print a Markdown table: a line per case, then all of them together."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.looks", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=Path, help="a folder of .npz files")
    parser.add_argument("--looks", type=int, default=30)
    parser.add_argument("--errors", type=float, nargs="+", default=[0.0, 0.05, 0.1])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--smallest", action="store_true", help="the least work: does it run? Its numbers mean nothing")
    chosen = parser.parse_args(words)
    cases = made_up() if chosen.cases is None else [read_case(path) for path in sorted(chosen.cases.glob("*.npz"))]
    runs, errors = (1, chosen.errors[:1]) if chosen.smallest else (chosen.runs, chosen.errors)
    print("| case | reviewer errs | " + " | ".join(name.replace("_", " ") for name in FIGURES) + " |")
    print("|---|---:|" + "---:|" * len(FIGURES))
    for error in errors:
        found = []
        for case in cases[:2] if chosen.smallest else cases:
            found.append(
                measure_looks(case.score, case.wrong, case.site, case.opinions, chosen.looks, error, runs=runs)
            )
            show(case.name, error, found[-1])
        show(f"all {len(found)}, mean", error, {name: mean_of([one[name] for one in found]) for name in FIGURES})


def show(name: str, error: float, figures: dict[str, float | None]) -> None:
    """A line of the table."""
    cells = ("-" if figures[one] is None else f"{figures[one]:.2f}" for one in FIGURES)
    print(f"| {name} | {error} | " + " | ".join(cells) + " |", flush=True)


def mean_of(values: list[float | None]) -> float | None:
    """The mean of the values there are."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def read_case(path: Path) -> Case:
    """A saved case."""
    with np.load(path, allow_pickle=False) as arrays:
        opinions = tuple(np.atleast_2d(arrays["p"])) if "p" in arrays and arrays["p"].size else ()
        site = arrays["site"].astype(np.int64) if "site" in arrays and arrays["site"].dtype.kind in "iu" else None
        return Case(path.stem, arrays["score"].astype(np.float64), arrays["wrong"].astype(bool), site, opinions)


def measure_looks(
    score: NDArray[np.float64],
    wrong: NDArray[np.bool_],
    site: NDArray[np.int64] | None = None,
    opinions: Any = (),
    looks: int = 30,
    error: float = 0.05,
    *,
    runs: int = 20,
    seed: int = 0,
    second: bool = False,
) -> dict[str, float | None]:
    """Means over runs of simulated looks, in which the reviewer's answers are turned round at the rate `error`.

    `second`: a second person who errs as often looks at the same labels, as `review --reviewer` allows.

    `covers`: of all lists that end with a stratum, how many true shares lie in the 90 % interval, and `width` of
    these intervals; `overclaims`: of these lists, how many lower ends are more than 0.10 above the truth;
    `recall_at_least_half`: of the wrong labels, how many are in the longest list whose lower end is 0.5 or more, and
    `claim_false`: how often less than half of that list is wrong; `over_calls`: claimed minus true precision of the
    labels in strata with p_wrong of 0.5 or more, from 10 such labels on, and `calls_cover`, `calls_width` and
    `calls_overclaim` of the interval of that list; `settled`: a list of 10 or more has a lower
    end of 0.5, or the first 2 % an upper end below it, and `settled_right`: whether that is so. With sites also
    `site_covers`, `site_over` (claimed minus true share of all labels) for sites with 20 looks or more. None: it
    never happened.
    """
    score, wrong = np.asarray(score, np.float64), np.asarray(wrong, bool)
    shares = [np.asarray(one, np.float64) for one in np.atleast_2d(opinions)] if np.size(opinions) else []
    lines = [one_run(score, wrong, site, shares, looks, error, seed + run, second=second) for run in range(runs)]
    names = dict.fromkeys([*FIGURES, *(name for line in lines for name in line)])
    return {name: mean_of([line.get(name) for line in lines]) for name in names}


def one_run(
    score: NDArray[np.float64],
    wrong: NDArray[np.bool_],
    site: NDArray[np.int64] | None,
    opinions: list[NDArray[np.float64]],
    looks: int,
    error: float,
    seed: int,
    *,
    second: bool = False,
) -> dict[str, float | None]:
    """The figures of one set of looks."""
    luck = np.random.default_rng(seed)
    strata = Strata.of(histogram(score))
    place = strata.places(score)
    means = [np.bincount(place, one, len(strata)) / np.maximum(strata.sizes, 1) for one in opinions]
    lot = luck.permutation(len(score))
    by_stratum = [lot[place[lot] == number] for number in range(len(strata))]
    said = [wrong ^ (luck.random(len(wrong)) < error) for _ in range(2 if second else 1)]
    first = first_looks(strata.sizes, looks // 2)
    found, assumed = answers(said, by_stratum, first)
    likely = Curves.over(strata).with_opinions(means).after(first, found, assumed).likely()
    looked = first + next_looks(strata.sizes, first, likely, looks - looks // 2)
    found, assumed = answers(said, by_stratum, looked)
    result = estimate(strata, looked, found, opinions=means, error=assumed, seed=seed)
    truth = np.cumsum([wrong[rows].sum() for rows in by_stratum])
    figures = figures_of(result, truth, wrong)
    if site is not None:
        figures |= site_figures(strata, by_stratum, looked, said[0], wrong, site, means, seed)
    return figures


def answers(
    said: list[NDArray[np.bool_]], by_stratum: list[NDArray[np.int64]], looked: NDArray[np.int64]
) -> tuple[NDArray[np.float64], float]:
    """How many of the labels looked at are called wrong, per stratum, and how many answers are taken to be wrong.

    Where two people differ, a label counts half.
    """
    shown = [rows[:many] for rows, many in zip(by_stratum, looked.tolist(), strict=True)]
    found = np.mean([[one[rows].sum() for rows in shown] for one in said], 0)
    if len(said) == 1:
        return found, error_of_reviewers(0, 0)
    seen = np.concatenate(shown)
    return found, error_of_reviewers(len(seen), int((said[0][seen] != said[1][seen]).sum()))


def figures_of(result: Any, truth: NDArray[np.int64], wrong: NDArray[np.bool_]) -> dict[str, float | None]:
    """What the lists claim, against the truth."""
    lists = result.lists()
    true_shares = truth / np.array([one.labels for one in lists])
    inside = [one.low - 1e-9 <= share <= one.high + 1e-9 for one, share in zip(lists, true_shares, strict=True)]
    figures: dict[str, float | None] = {
        "covers": float(np.mean(inside)),
        "width": float(np.mean([one.high - one.low for one in lists])),
        "overclaims": float(np.mean([one.low - share > 0.10 for one, share in zip(lists, true_shares, strict=True)])),
        "calls": float(result.calls(0.5)),
    }
    held = [number for number, one in enumerate(lists) if one.low >= 0.5 - 1e-9 and one.labels >= FEWEST_CALLS]
    if wrong.any():
        figures["recall_at_least_half"] = float(truth[held[-1]] / wrong.sum()) if held else 0.0
    if held:
        figures["claim_false"] = float(true_shares[held[-1]] < 0.5)
    calls = result.calls(0.5)
    if calls >= FEWEST_CALLS:
        number = [one.labels for one in lists].index(calls)
        figures["over_calls"] = lists[number].mean - float(true_shares[number])
        figures["calls_cover"] = float(inside[number])
        figures["calls_width"] = lists[number].high - lists[number].low
        figures["calls_overclaim"] = float(lists[number].low - true_shares[number] > 0.10)
    top = result.first(max(1, round(TOP * len(wrong))))
    figures["settled"] = float(bool(held) or top.high < 0.5)
    if held or top.high < 0.5:
        # The true share of the top is that of the strata it lies in.
        number = int(np.searchsorted([one.labels for one in lists], top.labels))
        figures["settled_right"] = float((true_shares[held[-1]] >= 0.5) if held else (true_shares[number] < 0.5))
    return figures


def site_figures(
    strata: Strata,
    by_stratum: list[NDArray[np.int64]],
    looked: NDArray[np.int64],
    said: NDArray[np.bool_],
    wrong: NDArray[np.bool_],
    site: NDArray[np.int64],
    means: list[NDArray[np.float64]],
    seed: int,
) -> dict[str, float | None]:
    """The share of wrong labels of every site with 20 looks or more."""
    names = np.unique(site)
    shape = (len(names), len(strata))
    sizes, seen, found = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
    for number, (rows, many) in enumerate(zip(by_stratum, looked.tolist(), strict=True)):
        at = np.searchsorted(names, site[rows])
        sizes[:, number] = np.bincount(at, minlength=len(names))
        seen[:, number] = np.bincount(at[:many], minlength=len(names))
        found[:, number] = np.bincount(at[:many], said[rows[:many]], len(names))
    parts = estimate_sites(strata, sizes, seen, found, opinions=means, seed=seed)
    told = [place for place in range(len(names)) if seen[place].sum() >= 20]
    claims = [parts[place].first(int(sizes[place].sum())) for place in told]
    true_shares = [float(wrong[site == names[place]].mean()) for place in told]
    return {
        "site_covers": mean_of(
            [float(c.low - 1e-9 <= t <= c.high + 1e-9) for c, t in zip(claims, true_shares, strict=True)]
        ),
        "site_over": mean_of([c.mean - t for c, t in zip(claims, true_shares, strict=True)]),
    }


def made_up() -> list[Case]:
    """Scores of right and of wrong labels from normal distributions, closer together or further apart."""
    cases = []
    for number, (name, rate, apart, size) in enumerate(
        [
            ("good order", 0.1, 6.0, 2000),
            ("fair order", 0.1, 3.5, 2000),
            ("poor order", 0.1, 1.5, 2000),
            ("useless order", 0.1, 0.0, 2000),
            ("few wrong", 0.02, 5.0, 4000),
            ("many wrong", 0.3, 4.0, 2000),
            ("half wrong", 0.5, 4.0, 1000),
            ("none wrong", 0.0, 4.0, 2000),
            ("few labels", 0.1, 4.0, 300),
            ("many labels", 0.05, 4.5, 50000),
        ]
    ):
        luck = np.random.default_rng(number)
        wrong = luck.random(size) < rate
        cases.append(Case(name, luck.normal(-4, 2, size) + apart * wrong, wrong, luck.integers(0, 3, size)))
    return cases


if __name__ == "__main__":
    main()
