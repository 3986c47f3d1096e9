"""The order of labels in an audit against rivals, on ten sets of the battery: features, tables and texts.

    python -m benchmarks.battery --out FOLDER --only uniform10/lot
    python -m benchmarks.audit_rivals --out FOLDER [--seeds 0 1 2] [--collect]
    python -m benchmarks.audit_rivals --cost

The audit's opinions are those that the battery kept. Rivals get the same features, labels and sites: alone at each
site, which is what a site can do without the others, and pooled, which sites may not do. `--cost` measures processor
seconds of an audit against five folds of twenty epochs of the same model on pooled data. `--collect` writes
results/audit-rivals.csv and results/audit-rivals.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from benchmarks import rivals
from benchmarks.audit_compare import precision_at_errors
from benchmarks.audits import keep
from benchmarks.battery import RESULTS, Saved, file_of, lines_of, measured, saved_in, settings_of
from benchmarks.battery_cases import Case
from benchmarks.results import machine
from fedwinnow.auditing.audit import AuditSettings, ask_judge
from fedwinnow.experiment.play import Execution
from fedwinnow.experiment.prepare import prepare
from fedwinnow.metrics.detection import auroc, average_precision

SETS = (
    "digits",
    "cancer",
    "dermatology",
    "soybean",
    "segment",
    "hypothyroid",
    "fashion",
    "cifar10",
    "words",
    "tfidf",
)
ERRORS = "uniform10"
FIGURES = ("auroc", "average_precision", "precision_at_errors")
AUDIT = "the audit"
FEWEST = 10  # samples of a site below which a rival has nothing to say
LEVEL = 0.01  # of average precision: so much behind is level
TEXT = "tfidf"
Found = dict[str, rivals.Scores]


def main(words: list[str] | None = None) -> None:
    """Compare what is not compared yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the folder of the battery; none: one that is deleted")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--errors", default=ERRORS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--cost", action="store_true", help="measure processor seconds and nothing else: seed 0")
    parser.add_argument("--collect", action="store_true", help="write the tables into results/")
    parser.add_argument("--smallest", action="store_true", help="the least work: does it run? Its numbers mean nothing")
    asked = parser.parse_args(words)
    if asked.smallest:
        vars(asked).update(sets=["iris"], seeds=[0])
    if asked.cost:
        print(cost(asked.sets))
        return
    with tempfile.TemporaryDirectory() as folder:
        comparison(asked, asked.out or Path(folder))


def comparison(asked: argparse.Namespace, out: Path) -> None:
    """A line per set, seed and rival."""
    path = out / "rivals.csv"
    done = {(line["case"], line["seed"]) for line in lines_of(path)}
    for seed in asked.seeds:
        for data in asked.sets:
            case = Case(data, asked.errors)
            if not file_of(out, case.name, seed).exists():
                if not asked.smallest:
                    print(f"<!-- {case.name}, seed {seed}: not in the battery yet -->", flush=True)
                    continue
                measured(case, seed, out)
            if (case.name, str(seed)) not in done:
                for who, figures in compared(case, seed, saved_in(out, case.name, seed)).items():
                    keep(path, {"case": case.name, "seed": seed, "who": who, **figures})
    text = page(lines_of(path))
    print(text)
    if asked.collect:
        (RESULTS / "audit-rivals.csv").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        (RESULTS / "audit-rivals.md").write_text(text, encoding="utf-8")


def compared(case: Case, seed: int, saved: Saved) -> dict[str, dict[str, str]]:
    """The figures of the audit and of every rival."""
    stage = prepare(settings_of(case, seed, None).experiment)
    rows = stage.scene.holdings.rows
    x = np.asarray(stage.judged.features.take(rows), np.float32).reshape(len(rows), -1)
    classes, model = saved.classes.shape[1], stage.experiment.model
    found: Found = {AUDIT: saved.score}
    found |= {f"{name}, pooled": score for name, score in scores_of(x, saved.given, classes, model, seed)}
    alone = [dict(scores_of(x[mine], saved.given[mine], classes, model, seed)) for mine in saved.sites()]
    for name in alone[0]:
        score = np.zeros(len(rows))
        for mine, scores in zip(saved.sites(), alone, strict=True):
            score[mine] = scores[name]
        found[f"{name}, each site alone"] = score
    return {who: figures_of(score, saved.wrong) for who, score in found.items()}


def scores_of(
    x: rivals.Matrix, y: rivals.Labels, classes: int, model: Any, seed: int
) -> Iterator[tuple[str, rivals.Scores]]:
    """The scores of every rival from these samples alone."""
    names = (
        "neighbours",
        "SimiFeat",
        "AUM",
        "self-confidence",
        "normalised margin",
        "confident learning",
        "regression",
    )
    if len(y) < FEWEST:
        yield from ((name, np.zeros(len(y))) for name in names)
        return
    distance = rivals.cosine_distances(x)
    p = rivals.held_out(x, y, classes, model, seed)
    yield from zip(
        names,
        (
            rivals.neighbour_disagreement(distance, y),
            rivals.simifeat(distance, y, classes, seed),
            rivals.aum(x, y, classes, model, seed),
            rivals.self_confidence(p, y),
            rivals.normalised_margin(p, y),
            rivals.confident_learning(p, y),
            rivals.self_confidence(rivals.regression(x, y, classes, seed), y),
        ),
        strict=True,
    )


def figures_of(score: rivals.Scores, wrong: Any) -> dict[str, str]:
    """How well the order finds wrong labels."""
    found = (auroc(score, wrong), average_precision(score, wrong), precision_at_errors(score, wrong))
    return {name: "" if value is None else f"{value:.4f}" for name, value in zip(FIGURES, found, strict=True)}


def page(lines: list[dict[str, str]]) -> str:
    """Average precision by set, the means of all figures, and what was wanted."""
    sets, seeds = list(dict.fromkeys(line["case"].split("/")[0] for line in lines)), {line["seed"] for line in lines}
    by_who: dict[str, dict[str, dict[str, float]]] = {}
    for line in lines:
        by_who.setdefault(line["who"], {})
    for who in by_who:
        for name in sets:
            mine = [line for line in lines if line["who"] == who and line["case"].split("/")[0] == name]
            by_who[who][name] = {figure: mean(float(line[figure]) for line in mine) for figure in FIGURES}
    text = [
        "# The audit against rivals",
        "",
        f"Command: `python -m benchmarks.audit_rivals --out FOLDER --seeds {' '.join(sorted(seeds))}`, after the "
        f"battery. Machine: {machine()}.",
        "",
        f"One label in ten is wrong at five sites; sets: {len(sets)}, seeds: {len(seeds)}. "
        "Average precision of the order of labels per set, then means over "
        "sets; all are means over seeds.",
        "",
        f"| who | {' | '.join(sets)} | average precision | AUROC | precision at the number of errors |",
        f"|---|{'---:|' * (len(sets) + 3)}",
    ]
    for who, found in by_who.items():
        cells = [f"{found[name]['average_precision']:.3f}" for name in sets]
        means = [
            f"{mean(found[name][figure] for name in sets):.3f}"
            for figure in ("average_precision", "auroc", "precision_at_errors")
        ]
        text.append(f"| {who} | {' | '.join([*cells, *means])} |")
    return "\n".join([*text, "", *verdicts(by_who, sets)]) + "\n"


def verdicts(by_who: dict[str, dict[str, dict[str, float]]], sets: list[str]) -> list[str]:
    """Whether the audit is ahead of all rivals at sites, and level with the best on pooled data."""
    if AUDIT not in by_who:
        return []
    own = {name: by_who[AUDIT][name]["average_precision"] for name in sets}
    sides = {
        side: {
            name: max((found[name]["average_precision"], who) for who, found in by_who.items() if who.endswith(side))
            for name in sets
        }
        for side in ("alone", "pooled")
    }
    ahead = [name for name in sets if own[name] >= sides["alone"][name][0]]
    behind = [
        f"{name} {own[name]:.3f} against {sides['alone'][name][0]:.3f} ({sides['alone'][name][1]})"
        for name in sets
        if name not in ahead
    ]
    pooled = {who: mean(found[name]["average_precision"] for name in sets) for who, found in by_who.items()}
    best = max((value, who) for who, value in pooled.items() if who.endswith("pooled"))
    level = mean(own.values()) >= best[0] - LEVEL
    text = [
        f"- Ahead of every rival at a site alone, in average precision: {len(ahead)} of {len(sets)} sets"
        + (f"; behind on {'; '.join(behind)}. " if behind else ". ")
        + f"Wanted: 9 of 10, {'reached' if len(ahead) >= 0.9 * len(sets) else 'missed'}.",
        f"- The best rival on pooled data, on average: {best[1]}, {best[0]:.3f}; the audit {mean(own.values()):.3f}. "
        f"Wanted: level with it, at most {LEVEL:.2f} behind, {'reached' if level else 'missed'}.",
    ]
    if TEXT in sets:
        pooled_text = by_who["regression, pooled"][TEXT]["average_precision"]
        text.append(
            f"- Texts ({TEXT}): the audit {own[TEXT]:.3f}, logistic regression on pooled data {pooled_text:.3f}. "
            f"Wanted: level, {'reached' if own[TEXT] >= pooled_text - LEVEL else 'missed'}."
        )
    return text


def cost(sets: list[str]) -> str:
    """Processor seconds of an audit against those of five folds of twenty epochs of the same model, pooled.

    Beside it an audit with half of the rounds: what it costs, and what its order of labels loses.
    """
    text = [
        "| set | samples | five folds, s | audit: times as much | average precision | half of the rounds: times as "
        "much | average precision |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    found = []
    for data in sets:
        whole = settings_of(Case(data, ERRORS), 0, None)
        stage = prepare(whole.experiment)
        rows = stage.scene.holdings.rows
        x = np.asarray(stage.judged.features.take(rows), np.float32).reshape(len(rows), -1)
        began = time.process_time()
        rivals.held_out(x, stage.scene.given, stage.scene.classes, stage.experiment.model, 0)
        folds, cells = time.process_time() - began, []
        for rounds in (whole.experiment.rounds, whole.experiment.rounds // 2):
            seconds, precision = audited(
                dataclasses.replace(whole, experiment=dataclasses.replace(whole.experiment, rounds=rounds))
            )
            cells += [seconds / folds, precision]
        found.append(cells)
        line = f"{cells[0]:.2f} | {cells[1]:.3f} | {cells[2]:.2f} | {cells[3]:.3f}"
        print(f"<!-- {data}: {line} -->", flush=True)
        text.append(f"| {data} | {len(rows)} | {folds:.1f} | {line} |")
    means = [mean(column) for column in zip(*found, strict=True)]
    text.append(f"| mean | | | {means[0]:.2f} | {means[1]:.3f} | {means[2]:.2f} | {means[3]:.3f} |")
    return "\n".join(text)


def audited(settings: AuditSettings) -> tuple[float, float]:
    """Processor seconds of an audit, and the average precision of its order of labels."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        judged = ask_judge(settings, Path(folder), Execution(checkpoint_every=1000), ())
    seconds, scene = time.process_time() - began, judged.stage.scene
    assert scene.true is not None
    return seconds, average_precision(judged.score, scene.given != scene.true) or 0.0


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
