"""What an audit says of data that tempt it to call right labels wrong, and what wrong answers of people do to looks.

    python -m benchmarks.audit_attacks --out FOLDER [--only copies] [--seeds 0 1 2]
    python -m benchmarks.audit_attacks --out FOLDER --again
    python -m benchmarks.audit_attacks --out FOLDER --reviewers BATTERY
    python -m benchmarks.audit_attacks --out FOLDER --collect

The cases are in `attack_cases.py`. Every case is an audit with the defaults, without an encoder. As in the battery, the
opinions are kept in FOLDER/opinions, `--again` asks today's rule about them, and an interrupted measurement goes on.
`--reviewers` has thirty labels looked at in audits that the battery kept in its folder BATTERY, by people who err.
`--collect` writes results/audit-attacks.csv and .md.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.attack_cases import ATTACKS, OTHER_SITE, TOLD_APART_BY_NOBODY, Attack
from benchmarks.audits import keep
from benchmarks.battery import (
    RESULTS,
    Said,
    Saved,
    figures,
    file_of,
    lines_of,
    opinions_of,
    said_of,
    saved_in,
    shown,
)
from benchmarks.looks import measure_looks
from benchmarks.results import machine
from fedwinnow.auditing.audit import settings_asked
from fedwinnow.auditing.audit_folder import TOO_FEW
from fedwinnow.auditing.audit_settings import AuditAsked
from fedwinnow.files import package_source, replacing

MOST_CALLS = 1 / 200  # per label, where none is wrong
SMALLEST = "random-60-tiny-sites"
COLUMNS = ("samples", "said", "skill", "calls", "false_calls", "claimed", "precision", "recall")

# --- reviewers -------------------------------------------------------------------------------------------------------

LOOKS, RUNS = 30, 10
REVIEWERS = {
    "right": (0.0, False),
    "errs in 1 of 10": (0.1, False),
    "errs in 1 of 5": (0.2, False),
    "answers by lot": (0.5, False),
    "errs in 1 of 10, a second one too": (0.1, True),
    "errs in 1 of 5, a second one too": (0.2, True),
    "answers by lot, a second one too": (0.5, True),
}
OF_LOOKS = ("covers", "width", "overclaims", "calls", "calls_overclaim", "settled", "settled_right")


def main(words: list[str] | None = None) -> None:
    """Measure what is not measured yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where lines and opinions are kept; none: a folder that is deleted")
    parser.add_argument("--only", nargs="+", default=[], help="cases whose names or kinds contain one of these texts")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--again", action="store_true", help="train nothing, let today's rule judge the kept opinions")
    parser.add_argument("--reviewers", type=Path, help="the folder of a battery, whose labels are looked at by people")
    parser.add_argument("--collect", action="store_true", help="write the tables into results/")
    parser.add_argument("--smallest", action="store_true", help="the least work: does it run? Its numbers mean nothing")
    asked = parser.parse_args(words)
    if asked.smallest:
        vars(asked).update(only=[SMALLEST], seeds=[0])
    with tempfile.TemporaryDirectory() as folder:
        out = asked.out or Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        measure(asked, out)
        text = page(lines_of(out / "attacks.csv"), lines_of(out / "reviewers.csv"))
        print(text)
        if asked.collect:
            (RESULTS / "audit-attacks.csv").write_text(
                (out / "attacks.csv").read_text(encoding="utf-8"), encoding="utf-8"
            )
            (RESULTS / "audit-attacks.md").write_text(text, encoding="utf-8")


def measure(asked: argparse.Namespace, out: Path) -> None:
    """What was asked for and is not there yet."""
    path, attacks = out / "attacks.csv", {attack.name: attack for attack in ATTACKS}
    if asked.reviewers is not None:
        measure_reviewers(asked, out)
    elif asked.again:
        lines = lines_of(path)
        path.unlink(missing_ok=True)
        for line in lines:
            attack, seed = attacks[line["case"]], int(line["seed"])
            keep(path, line | line_of(attack, seed, saved_in(out, attack.name, seed)))
    elif not asked.collect:
        done = {(line["case"], int(line["seed"])) for line in lines_of(path)}
        wanted = [one for one in ATTACKS if not asked.only or any(text in one.name + one.kind for text in asked.only)]
        for attack, seed in ((attack, seed) for attack in wanted for seed in asked.seeds):
            if (attack.name, seed) not in done:
                keep(path, line_of(attack, seed, trained(attack, seed, out)) | {"source": package_source()[:16]})


def trained(attack: Attack, seed: int, out: Path) -> Saved:
    """The opinions of one audit, kept in a file."""
    place = file_of(out, attack.name, seed)
    if place.exists():
        return saved_in(out, attack.name, seed)
    asked = dataclasses.replace(AuditAsked(), encoder=None, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        saved = opinions_of(settings_asked(asked, attack.data(seed), {}), Path(folder))
    place.parent.mkdir(exist_ok=True)
    with replacing(place) as stream:
        np.savez_compressed(stream, **vars(saved))
    return saved


def line_of(attack: Attack, seed: int, saved: Saved) -> dict[str, Any]:
    """A line of the table."""
    said = said_of(saved)
    found = figures(saved, said) | {"case": attack.name, "kind": attack.kind, "seed": seed}
    found["false_calls"] = false_calls(attack, saved, said)
    return {name: shown(found[name]) for name in ("case", "kind", "seed", "wrong", *COLUMNS)}


def false_calls(attack: Attack, saved: Saved, said: Said) -> int:
    """Calls where no label is wrong: all of them, or where one site has wrong labels, those at the others."""
    called = said.called & (saved.site != OTHER_SITE) if saved.wrong.any() else said.called
    return int(called.sum())


# --- people who err --------------------------------------------------------------------------------------------------


def measure_reviewers(asked: argparse.Namespace, out: Path) -> None:
    """Thirty looks by each kind of reviewer in every audit of the battery that FOLDER has."""
    path = out / "reviewers.csv"
    done = {(line["case"], line["seed"], line["reviewer"]) for line in lines_of(path)}
    for line in lines_of(asked.reviewers / "battery.csv"):
        if int(line["seed"]) not in asked.seeds:
            continue
        saved = saved_in(asked.reviewers, line["case"], int(line["seed"]))
        said = said_of(saved)
        judged = said.decision != TOO_FEW
        p_wrong = said.p_wrong[judged]
        opinions = [] if np.isnan(p_wrong).any() else p_wrong
        for reviewer, (error, second) in REVIEWERS.items():
            if (line["case"], line["seed"], reviewer) in done:
                continue
            found = measure_looks(
                saved.score[judged],
                saved.wrong[judged],
                None,
                opinions,
                LOOKS,
                error,
                runs=RUNS,
                seed=int(line["seed"]),
                second=second,
            )
            values = {name: shown(found[name]) for name in OF_LOOKS}
            first = {"case": line["case"], "seed": line["seed"], "reviewer": reviewer}
            keep(path, first | {"wrong": int(saved.wrong[judged].sum())} | values)


# --- the page --------------------------------------------------------------------------------------------------------


def page(lines: list[dict[str, str]], reviewers: list[dict[str, str]]) -> str:
    """The goal, a line per case with sums and means over seeds, and a line per kind of reviewer."""
    seeds = sorted({line["seed"] for line in lines})
    sources = ", ".join(sorted({line["source"] for line in lines if line.get("source")}))
    text = [
        "# Data that tempt an audit to call right labels wrong",
        "",
        f"Command: `python -m benchmarks.audit_attacks --out FOLDER --seeds {' '.join(seeds)}`. Source of the "
        f"training: {sources}; of the rule: {package_source()[:16]}. Machine: {machine()}.",
        "",
        f"{len(lines)} audits, {len({line['case'] for line in lines})} cases. No label is wrong, except where "
        "`recall` has a number; then only those of the second site are. `false calls`: calls where no label is wrong, "
        "of all seeds together.",
        "",
        *goal(lines),
        "",
        f"| what is tried | case | {' | '.join(name.replace('_', ' ') for name in COLUMNS)} |",
        f"|---|---|{'---:|' * len(COLUMNS)}",
    ]
    for case in dict.fromkeys(line["case"] for line in lines):
        mine = [line for line in lines if line["case"] == case]
        text.append(f"| {mine[0]['kind']} | {case} | {' | '.join(cell(mine, name) for name in COLUMNS)} |")
    return "\n".join(text + table_of_reviewers(reviewers)) + "\n"


def goal(lines: list[dict[str, str]]) -> list[str]:
    """How many calls there are per label where none is wrong."""
    told = [line for line in lines if line["kind"] not in TOLD_APART_BY_NOBODY]
    if not told:
        return ["Not measured."]
    rates = {f"{line['case']} (seed {line['seed']})": int(line["false_calls"]) / int(line["samples"]) for line in told}
    above = sorted((name for name in rates if rates[name] > MOST_CALLS), key=lambda name: -rates[name])
    calls, labels = (sum(int(line[name]) for line in told) for name in ("false_calls", "samples"))
    missed = ", ".join(f"{name} {rates[name]:.3f}" for name in above)
    return [
        f"Goal: at most 1 call in 200 labels in every audit, where no label is wrong. {len(told) - len(above)} of "
        f"{len(told)} audits reach it{f'; missed: {missed}' if above else ''}. {calls} false calls in {labels} labels."
    ]


def cell(lines: list[dict[str, str]], name: str) -> str:
    """A figure of a case: what was said with how often, the sum of false calls, else the mean."""
    found = [line[name] for line in lines if line[name] != ""]
    if name == "said":
        return ", ".join(f"{word} {found.count(word)}" for word in dict.fromkeys(found))
    if not found:
        return "–"
    return f"{sum(map(int, found))}" if name == "false_calls" else f"{mean(map(float, found)):.3g}"


def table_of_reviewers(lines: list[dict[str, str]]) -> list[str]:
    """A line per kind of reviewer: means over audits."""
    if not lines:
        return []
    text = [
        "",
        "## People who err",
        "",
        f"Command: `python -m benchmarks.audit_attacks --out FOLDER --reviewers BATTERY`, after the battery. "
        f"{len({(line['case'], line['seed']) for line in lines})} of its audits, {LOOKS} looks, {RUNS} draws in each. "
        "`covers`: 90 % intervals of the first labels that hold; `width` of these; `overclaims`: lower ends more than "
        "0.10 too high; `calls overclaim`: the same of the labels that are called after the looks; `settled`: of what "
        "was `cannot tell`; `calls without errors`: per audit where no label is wrong.",
        "",
        f"| reviewer | {' | '.join(name.replace('_', ' ') for name in OF_LOOKS)} | calls without errors |",
        f"|---|{'---:|' * (len(OF_LOOKS) + 1)}",
    ]
    for reviewer in dict.fromkeys(line["reviewer"] for line in lines):
        mine = [line for line in lines if line["reviewer"] == reviewer]
        clean = [float(line["calls"]) for line in mine if line["wrong"] == "0"]
        cells = [[float(line[name]) for line in mine if line[name] != ""] for name in OF_LOOKS]
        means = [f"{mean(one):.3f}" if one else "–" for one in [*cells, clean]]
        text.append(f"| {reviewer} | {' | '.join(means)} |")
    return text


if __name__ == "__main__":
    main()
