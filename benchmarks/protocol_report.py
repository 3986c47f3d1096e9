"""The tables of results/PROTOCOL.md: `python -m benchmarks.protocol_report results/protocol-small.csv [--out FILE]`.

A column is a set and a scene, `texts-heavy`; a seed of a column counts once every row has a run there. Differences are
between `--ours` and each other row on the same seed of the same column.
"""

from __future__ import annotations

import argparse
import csv
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from fedwinnow.study.statistics import average_ranks, holm, paired_p

Column = tuple[str, str]  # set, scene
Values = dict[str, dict[Column, float]]  # by row, then by column: the mean over the seeds
OURS, PLAIN, TRUTH = "winnow:preset=second", "fedavg:steady=0.8", "oracle:steady=0.8"
UNEVEN = ("hypothyroid",)  # sets where balanced accuracy takes the place of accuracy
FIGURES = {"accuracy": "last10", "AUROC": "auroc", "average precision": "average_precision"}
ENOUGH = 6  # sets for a p value
MODERATE = "symmetric"  # the scene with 40 % noise


def main(words: list[str] | None = None) -> None:
    """Read the runs and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", default=Path("results/protocol-small.csv"))
    parser.add_argument("--ours", default=OURS)
    parser.add_argument("--out", type=Path, help="write the tables into this file, too")
    parser.add_argument("--smallest", action="store_true", help="two made columns: does it run?")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        text = report(made(Path(folder)) if asked.smallest else asked.runs, asked.ours)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n", encoding="utf-8")


def report(path: Path, ours: str = OURS) -> str:
    """All tables, as Markdown."""
    lines = lines_of(path)
    seeds = whole(lines)
    found = {name: values_of(lines, seeds, key) for name, key in FIGURES.items()}
    accuracy = found["accuracy"]
    scenes = list(dict.fromkeys(scene for _, scene in seeds))
    count = sum(map(len, seeds.values()))
    parts = [
        f"{len(seeds)} columns, {count} seeds of them, {len(lines)} runs. Scenes: {', '.join(scenes)}.",
        "## Accuracy by set",
        by_set(accuracy, scale=100),
        "## Accuracy by scene",
        by_scene(accuracy),
        "## AUROC of verdicts by set",
        by_set(found["AUROC"]),
        "## Average precision of verdicts by set",
        by_set(found["average precision"]),
        f"## Accuracy of {ours} minus that of each other row",
        differences(accuracy, ours),
        "## Aims",
        aims(accuracy, found, ours),
    ]
    return "\n\n".join(parts)


# --- reading ---------------------------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[dict[str, str]]:
    """A line per run."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def column_of(line: dict[str, str]) -> Column:
    """The set and the scene."""
    name, _, scene = line["scene"].rpartition("-")
    return name, scene


def whole(lines: Iterable[dict[str, str]]) -> dict[Column, list[str]]:
    """The seeds of every column at which all rows have a run."""
    held: dict[tuple[Column, str], set[str]] = {}
    for line in lines:
        held.setdefault((column_of(line), line["seed"]), set()).add(line["method"])
    every = set().union(*held.values())
    found: dict[Column, list[str]] = {}
    for (column, seed), rows in sorted(held.items()):
        if rows == every:
            found.setdefault(column, []).append(seed)
    return found


def values_of(lines: Iterable[dict[str, str]], seeds: Mapping[Column, list[str]], key: str) -> Values:
    """One figure of every row in every whole column, the mean over seeds; only columns where all have one."""
    single: dict[tuple[str, Column], list[float]] = {}
    for line in lines:
        column = column_of(line)
        name = "last10_balanced" if key == "last10" and column[0] in UNEVEN else key
        if line["seed"] in seeds.get(column, ()) and line[name]:
            single.setdefault((line["method"], column), []).append(float(line[name]))
    found: Values = {}
    for (row, column), values in single.items():
        found.setdefault(row, {})[column] = mean(values)
    shared = set.intersection(*(set(columns) for columns in found.values())) if found else set()
    return {row: {column: columns[column] for column in sorted(shared)} for row, columns in found.items()}


# --- tables ----------------------------------------------------------------------------------------------------------


def by_set(values: Values, scale: float = 1) -> str:
    """The mean of every row on every set, and its average rank over them."""
    sets = sorted({name for columns in values.values() for name, _ in columns})
    means = {row: [mean_over(values[row], name, 0) for name in sets] for row in values}
    ranks = ranks_of([{row: means[row][place] for row in values if row != TRUTH} for place in range(len(sets))])
    return table(["", *sets, "rank"], means, scale, ranks)


def by_scene(values: Values) -> str:
    """The mean of every row on every scene, over the sets that have it."""
    scenes = list(dict.fromkeys(scene for columns in values.values() for _, scene in columns))
    means = {row: [mean_over(values[row], scene, 1) for scene in scenes] for row in values}
    ranks = ranks_of([{row: means[row][place] for row in values if row != TRUTH} for place in range(len(scenes))])
    return table(["", *scenes, "rank"], means, 100, ranks)


def mean_over(columns: Mapping[Column, float], name: str, place: int) -> float:
    """The mean over the columns of a set (place 0) or of a scene (place 1)."""
    return mean(value for column, value in columns.items() if column[place] == name)


def ranks_of(blocks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average ranks; 1 is best."""
    return average_ranks(blocks, higher_is_better=True)


def table(head: list[str], means: Mapping[str, list[float]], scale: float, ranks: Mapping[str, float]) -> str:
    """The rows by rank; who is out of competition comes last."""
    digits = 1 if scale == 100 else 3
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for row in sorted(means, key=lambda row: ranks.get(row, math.inf)):
        cells = [f"{scale * value:.{digits}f}" for value in means[row]]
        lines.append(f"| {row} | {' | '.join(cells)} | {f'{ranks[row]:.2f}' if row in ranks else '–'} |")
    return "\n".join(lines)


def differences(values: Values, ours: str) -> str:
    """Per set the mean difference with a 95 % interval over its scenes; over six sets or more a p value."""
    sets = sorted({name for name, _ in values[ours]})
    rivals = [row for row in values if row not in (ours, TRUTH)]
    gaps = {row: {name: gaps_of(values, ours, row, name) for name in sets} for row in rivals}
    raw = {
        row: paired_p([mean(gaps[row][name]) for name in sets], [0.0] * len(sets), "wilcoxon")
        if len(sets) >= ENOUGH
        else None
        for row in rivals
    }
    corrected = holm(raw)
    lines = [
        f"| against | {' | '.join(sets)} | above 0 | p |",
        "|---" * (len(sets) + 3) + "|",
    ]
    for row in rivals:
        cells, above = [], 0
        for name in sets:
            middle, half = interval(gaps[row][name])
            cells.append(f"{middle:+.1f} ± {half:.1f}" if half is not None else f"{middle:+.1f}")
            above += half is not None and middle - half > 0
        p = corrected[row]
        lines.append(f"| {row} | {' | '.join(cells)} | {above} of {len(sets)} | {'–' if p is None else f'{p:.3f}'} |")
    return "\n".join(lines)


def gaps_of(values: Values, ours: str, row: str, name: str) -> list[float]:
    """By how many points we are ahead in every scene of a set."""
    return [100 * (values[ours][column] - values[row][column]) for column in values[ours] if column[0] == name]


def interval(gaps: Sequence[float]) -> tuple[float, float | None]:
    """The mean and half of its 95 % interval by Student's t; one value has none."""
    from scipy import stats

    if len(gaps) < 2:
        return mean(gaps), None
    return mean(gaps), float(stats.t.ppf(0.975, len(gaps) - 1)) * stdev(gaps) / math.sqrt(len(gaps))


def aims(accuracy: Values, found: Mapping[str, Values], ours: str) -> str:
    """What the protocol calls reached, with the figures."""
    lines = []
    for name, values in found.items():
        sets = sorted({column[0] for column in values[ours]})
        ranks = ranks_of([{row: mean_over(values[row], one, 0) for row in values if row != TRUTH} for one in sets])
        best = min(ranks, key=lambda row: ranks[row])
        lines.append(f"- Average rank by {name}: {ranks[ours]:.2f}; the best is {best}, {ranks[best]:.2f}.")
    if PLAIN in accuracy:
        low, column = min((accuracy[ours][one] - accuracy[PLAIN][one], one) for one in accuracy[ours])
        lines.append(f"- Farthest below FedAvg (aim: -0.5): {100 * low:+.1f} points, on {'-'.join(column)}.")
    if TRUTH in accuracy:
        gaps = {
            one[0]: 100 * (accuracy[TRUTH][one] - accuracy[ours][one]) for one in accuracy[ours] if one[1] == MODERATE
        }
        shown = ", ".join(f"{name} {gap:.1f}" for name, gap in gaps.items())
        lines.append(f"- Points below the oracle with 40 % noise (aim: 3; cancer: 30 %): {shown or 'not run yet'}.")
    return "\n".join(lines)


def made(folder: Path) -> Path:
    """A file of runs that nobody made."""
    path = folder / "made.csv"
    rows = ["scene,method,seed,last10,last10_balanced,auroc,average_precision"]
    for place, method in enumerate((OURS, PLAIN, TRUTH)):
        rows += [
            f"made-{scene},{method},0,0.{7 + place}{digit},0.5,0.9,0.8" for digit, scene in enumerate(("a", MODERATE))
        ]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
