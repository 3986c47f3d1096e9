"""What thirty looks settle, on the audits of the battery: intervals, claims and recall against the truth.

    python -m benchmarks.battery --out FOLDER
    python -m benchmarks.battery_looks --out FOLDER [--looks 30] [--runs 20] [--collect]

Nothing is trained: the opinions are those that the battery kept. In every run other labels are drawn by lot, and
somebody who knows the truth answers; with `--error 0.05`, one answer in twenty is turned round. `--collect` writes
results/battery-looks.csv and results/battery-looks.md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from benchmarks.audits import keep
from benchmarks.battery import RESULTS, SIGNAL, lines_of, number, play_smallest, said_of, saved_in, shown, values
from benchmarks.looks import FIGURES, measure_looks
from benchmarks.results import machine
from fedwinnow.auditing.audit_folder import TOO_FEW
from fedwinnow.files import package_source


def main(words: list[str] | None = None) -> None:
    """Measure what is not measured yet, and print the goals and a line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the folder of the battery; none: one that is deleted")
    parser.add_argument("--looks", type=int, default=30)
    parser.add_argument("--runs", type=int, default=20, help="draws of looks per audit")
    parser.add_argument("--error", type=float, default=0.0, help="the share of answers that are turned round")
    parser.add_argument("--collect", action="store_true", help="write the tables into results/")
    parser.add_argument("--smallest", action="store_true", help="the least work: does it run? Its numbers mean nothing")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        out = asked.out or Path(folder)
        if asked.smallest:
            asked.runs = 1
            play_smallest(out)
        print(text := measured(asked, out))
        if asked.collect:
            path = file_of(asked, out)
            (RESULTS / "battery-looks.csv").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
            (RESULTS / "battery-looks.md").write_text(text, encoding="utf-8")


def file_of(asked: argparse.Namespace, out: Path) -> Path:
    """Where the lines are kept: those of another rule or another number of looks are not mixed in."""
    return out / f"looks-{asked.looks}-{asked.error:g}-{asked.runs}-{package_source()[:8]}.csv"


def measured(asked: argparse.Namespace, out: Path) -> str:
    """The page, after all audits of the battery have been looked at."""
    path = file_of(asked, out)
    done = {(line["case"], line["seed"]) for line in lines_of(path)}
    for line in lines_of(out / "battery.csv"):
        if (line["case"], line["seed"]) not in done:
            keep(path, line_for(line["case"], int(line["seed"]), out, asked))
    return page(lines_of(path), asked)


def line_for(case: str, seed: int, out: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """The figures of one audit: means over draws of looks."""
    saved = saved_in(out, case, seed)
    said = said_of(saved)
    judged = said.decision != TOO_FEW
    p_wrong = said.p_wrong[judged]
    opinions = [] if np.isnan(p_wrong).any() else p_wrong  # as the update takes them: all labels or none
    found = measure_looks(
        saved.score[judged], saved.wrong[judged], None, opinions, asked.looks, asked.error, runs=asked.runs, seed=seed
    )
    line = {"case": case, "seed": seed, "wrong": int(saved.wrong[judged].sum()), "skill": said.skill}
    line |= {"cannot_tell": int(np.isnan(p_wrong).any()), "calls": found["calls"]}
    return {name: shown(value) for name, value in (line | {name: found[name] for name in FIGURES}).items()}


def page(lines: list[dict[str, str]], asked: argparse.Namespace) -> str:
    """The goals, and a line per case with means over seeds."""
    seeds = {line["seed"] for line in lines}
    text = [
        f"# {asked.looks} looks over the battery",
        "",
        f"Command: `python -m benchmarks.battery_looks --out FOLDER --looks {asked.looks} --runs {asked.runs}"
        f"{f' --error {asked.error:g}' if asked.error else ''}`, after the battery. "
        f"Source: {package_source()[:16]}. Machine: {machine()}.",
        "",
        f"{len(lines)} audits, {len({line['case'] for line in lines})} cases, {asked.runs} draws of looks in each; "
        f"{'the truth answers' if not asked.error else f'{asked.error:.0%} of the answers are turned round'}. Lists "
        "are the first labels in order down to the end of a stratum. `recall at least half`: the wrong labels in the "
        "longest list of which at least half is claimed to be wrong; `claim false`: less than half of it is. "
        "`calls ...`: the list of the labels that are called after the looks, from 10 calls on.",
        "",
        "| goal | wanted | found | |",
        "|---|---:|---:|---|",
    ]
    text += [f"| {' | '.join(row)} |" for row in goals(lines)]
    text += [
        "",
        f"| case (seeds: {len(seeds)}) | wrong | {' | '.join(name.replace('_', ' ') for name in FIGURES)} |",
        f"|---|{'---:|' * (len(FIGURES) + 1)}",
    ]
    for case in dict.fromkeys(line["case"] for line in lines):
        mine = [line for line in lines if line["case"] == case]
        found = [values(mine, name) for name in ("wrong", *FIGURES)]
        cells = (
            "–" if not one else f"{mean(one):.0f}" if place == 0 else f"{mean(one):.2f}"
            for place, one in enumerate(found)
        )
        text.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def goals(lines: list[dict[str, str]]) -> list[tuple[str, str, str, str]]:
    """Every goal: what was wanted, what was found, and whether it is reached."""
    faulty = [line for line in lines if line["wrong"] != "0"]
    signal = [line for line in faulty if (number(line, "skill") or 0) >= SIGNAL]
    clean = [line for line in lines if line["wrong"] == "0"]
    open_before = [line for line in lines if line["cannot_tell"] == "1"]
    rows: list[tuple[str, list[float], float | None, float | None, Any]] = [
        ("90 % intervals of all lists that cover the truth: share", values(lines, "covers"), 0.85, 0.97, mean),
        ("the same, audits with wrong labels", values(faulty, "covers"), 0.85, 0.97, mean),
        ("width of the intervals: median of the audits", values(lines, "width"), None, 0.35, median),
        ("the same, audits with wrong labels", values(faulty, "width"), None, 0.35, median),
        (
            "lower ends more than 0.10 above the truth: share of all lists",
            values(lines, "overclaims"),
            None,
            0.03,
            mean,
        ),
        ("intervals of the called labels that cover: share", values(lines, "calls_cover"), 0.85, 0.97, mean),
        ("width of these: median", values(lines, "calls_width"), None, 0.35, median),
        ("lower ends of these more than 0.10 above the truth", values(lines, "calls_overclaim"), None, 0.03, mean),
        ("recall at a claimed precision of 0.5, with skill", values(signal, "recall_at_least_half"), 0.60, None, mean),
        ("calls where no label is wrong: mean", values(clean, "calls"), None, None, mean),
        ("claims of at least half that are false: share", values(lines, "claim_false"), None, None, mean),
        ("'cannot tell' before that the looks settle: share", values(open_before, "settled"), None, None, mean),
        ("of these, rightly: share", values(open_before, "settled_right"), None, None, mean),
    ]
    return [(name, wanted(low, high), *reached(found, low, high, how)) for name, found, low, high, how in rows]


def wanted(low: float | None, high: float | None) -> str:
    """A goal in words."""
    if low is not None and high is not None:
        return f"{low:.2f} to {high:.2f}"
    return f"at least {low:.2f}" if low is not None else f"at most {high:.2f}" if high is not None else "–"


def reached(found: list[float], low: float | None, high: float | None, how: Any) -> tuple[str, str]:
    """What was found, and whether that is the goal."""
    if not found:
        return "–", "not measured"
    value = how(found)
    if low is None and high is None:
        return f"{value:.3f}", "no goal"
    return f"{value:.3f}", "reached" if (low is None or value >= low) and (high is None or value <= high) else "missed"


if __name__ == "__main__":
    main()
