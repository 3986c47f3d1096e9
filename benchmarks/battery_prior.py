"""Whether the site's class mix belongs in the score: audits with and without it, at sites dealt out in three ways.

    python -m benchmarks.battery_prior --out FOLDER [--seeds 0 1 2] [--collect]

Sites are dealt out by lot, by the true classes, and by the given labels (Dirichlet 0.5). By true classes a wrong label
is often one that its site hardly has, which the class mix shows; by given labels it never is. FOLDER may be that of the
battery; audits that it has are not made again. `--collect` writes results/battery-prior.csv and .md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.audits import keep
from benchmarks.battery import RESULTS, figures, file_of, lines_of, number, said_of, saved_in, shown, trained, values
from benchmarks.battery_cases import GIVEN, LOT, Case
from benchmarks.results import machine
from fedwinnow.files import package_source

SETS = ("segment", "fashion", "cifar10", "soybean", "digits")
ERRORS = ("uniform10", "conf10")
DEALT = {LOT: "by lot", "dirichlet": "by true classes", GIVEN: "by given labels"}
JUDGES = {"on": "mean", "off": "mean:prior=false"}
KEPT = ("auroc", "average_precision", "calls", "claimed", "precision", "over", "recall")


def main(words: list[str] | None = None) -> None:
    """Audit what is not audited yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where lines are kept; none: a folder that is deleted")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--collect", action="store_true", help="write the tables into results/")
    parser.add_argument("--smallest", action="store_true", help="the least work: does it run? Its numbers mean nothing")
    asked = parser.parse_args(words)
    errors, dealt = ERRORS, tuple(DEALT)
    if asked.smallest:
        asked.sets, asked.seeds, errors, dealt = ["iris"], [0], ERRORS[:1], (LOT,)
    with tempfile.TemporaryDirectory() as folder:
        out = asked.out or Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        path = out / "prior.csv"
        done = {(line["case"], line["seed"], line["prior"]) for line in lines_of(path)}
        cases = [Case(data, kind, way) for data in asked.sets for kind in errors for way in dealt]
        for case, seed, prior in ((case, seed, prior) for case in cases for seed in asked.seeds for prior in JUDGES):
            if (case.name, str(seed), prior) not in done:
                keep(path, line_of(case, seed, prior, out))
        print(text := page(lines_of(path)))
        if asked.collect:
            (RESULTS / "battery-prior.csv").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
            (RESULTS / "battery-prior.md").write_text(text, encoding="utf-8")


def line_of(case: Case, seed: int, prior: str, out: Path) -> dict[str, Any]:
    """The figures of one audit."""
    if prior == "on" and file_of(out, case.name, seed).exists():
        saved = saved_in(out, case.name, seed)
    else:
        with tempfile.TemporaryDirectory() as folder:
            saved = trained(case, seed, Path(folder), JUDGES[prior])
    found = figures(saved, said_of(saved))
    line = {"case": case.name, "seed": seed, "prior": prior} | {name: found[name] for name in KEPT}
    return {name: shown(value) for name, value in line.items()}


def page(lines: list[dict[str, str]]) -> str:
    """Means by way of dealing out, then a line per case."""
    seeds = {line["seed"] for line in lines}
    text = [
        "# The site's class mix in the score",
        "",
        f"Command: `python -m benchmarks.battery_prior --out FOLDER --seeds {' '.join(sorted(seeds))}`. "
        f"Source: {package_source()[:16]}. Machine: {machine()}.",
        "",
        f"{len(lines)} audits, {len({line['case'] for line in lines})} cases, seeds: {len(seeds)}; on / off. Means; "
        "`over` is claimed minus true precision where there are calls.",
        "",
        "| sites | cases | AUROC | average precision | recall | over |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    both = [[line for line in lines if line["prior"] == prior] for prior in JUDGES]
    for way, words in DEALT.items():
        text.append(row_of(words, [[line for line in side if line["case"].endswith(f"/{way}")] for side in both]))
    uneven = [[line for line in side if not line["case"].endswith(f"/{LOT}")] for side in both]
    text += [row_of("by true classes and by given labels", uneven), row_of("all", both), ""]
    text += ["| case | cases | AUROC | average precision | recall | over |", "|---|---:|---:|---:|---:|---:|"]
    for case in dict.fromkeys(line["case"] for line in lines):
        text.append(row_of(case, [[line for line in side if line["case"] == case] for side in both]))
    return "\n".join([*text, "", verdict(uneven)]) + "\n"


def row_of(words: str, sides: list[list[dict[str, str]]]) -> str:
    """A line: every figure with the class mix and without."""
    cells = []
    for name in ("auroc", "average_precision", "recall", "over"):
        found = [values(side, name) for side in sides]
        cells.append(" / ".join(f"{mean(one):.3f}" if one else "–" for one in found))
    return f"| {words} | {len({line['case'] for line in sides[0]})} | {' | '.join(cells)} |"


def verdict(sides: list[list[dict[str, str]]]) -> str:
    """Which of the two the default should be: the better one in average precision over both uneven ways."""
    known = [{(line["case"], line["seed"]): number(line, "average_precision") for line in side} for side in sides]
    pairs = [(known[0][key], known[1][key]) for key in known[0] if key in known[1]]
    gains = [on - off for on, off in pairs if on is not None and off is not None]
    if not gains:
        return "Not measured at uneven sites."
    better = sum(gain > 0 for gain in gains)
    return (
        f"Over both uneven ways the class mix changes average precision by {mean(gains):+.3f} on average; it is better "
        f"in {better} of {len(gains)} audits. It is {'on' if mean(gains) > 0 else 'off'} by this rule."
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
