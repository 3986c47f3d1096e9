"""How many of the labels that an audit calls worth a look are wrong, where the truth is known.

    python -m benchmarks.audit_calls [--data fashion-mnist] [--train 2000] [--rates 0.08 0.4] [--seeds 0 1 2]
    python -m benchmarks.audit_calls --nothing-wrong

Every site has the same rate, so that low and high rates can be told apart. With `--nothing-wrong` the labels are drawn
by lot and all of them are right: whatever is called there is a false alarm.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.audits import SCENES, experiment, flags, keep, parsed, spread
from benchmarks.results import machine
from fedwinnow.auditing.audit import DEFAULT_JUDGE, DEFAULT_THRESHOLD, AuditSettings, ask_judge
from fedwinnow.auditing.audit_settings import DEFAULT_METHOD
from fedwinnow.auditing.judging_models import Judged
from fedwinnow.data.arrays import from_arrays
from fedwinnow.experiment.play import Execution
from fedwinnow.experiment.settings import Experiment

FIGURES = ("labels", "wrong", "called", "precision", "recall")


def main(words: list[str] | None = None) -> None:
    """Measure and print a Markdown table: a line per scene, means over seeds."""
    parser = flags("audit_calls", __doc__)
    parser.add_argument("--flips", nargs="+", default=["symmetric", "pair"])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.08, 0.4])
    parser.add_argument("--scenes", nargs="+", default=list(SCENES), choices=SCENES)
    parser.add_argument("--method", default=DEFAULT_METHOD)
    parser.add_argument("--judge", default=DEFAULT_JUDGE)
    parser.add_argument("--threshold", type=float, default=DEFAULT_THRESHOLD)
    parser.add_argument("--nothing-wrong", action="store_true", help="1,000 rows without a wrong label instead")
    chosen = parsed(parser, words)
    print(f"Machine: {machine()}.\nSettings: {vars(chosen)}\n")
    print("| scene | flip | " + " | ".join(FIGURES) + " |")
    print("|---|---|" + "---:|" * len(FIGURES), flush=True)
    if chosen.nothing_wrong:
        for name, strength in (("by lot", 0.0), ("one weak column", 0.6)):
            show(name, "none", [without_errors(chosen, name, strength, seed) for seed in chosen.seeds])
        return
    for scene in chosen.scenes:
        for flip in chosen.flips:
            for rate in chosen.rates:
                show(scene, flip, [planted(chosen, scene, flip, rate, seed) for seed in chosen.seeds])


def show(scene: str, flip: str, runs: list[dict[str, Any]]) -> None:
    """A line of the table."""
    cells = (spread([run[name] for run in runs if run[name] is not None]) for name in FIGURES)
    print(f"| {scene} | {flip} | " + " | ".join(cells) + " |", flush=True)


def planted(chosen: argparse.Namespace, scene: str, flip: str, rate: float, seed: int) -> dict[str, Any]:
    """One audit of labels of which some were made wrong."""
    judged = judged_by(chosen, experiment(chosen, scene, f"constant:rate={rate},flip={flip}", chosen.method, seed))
    wrong = judged.stage.scene.wrong
    assert wrong is not None
    return counted(chosen, judged, wrong, {"scene": scene, "flip": flip, "rate": rate, "seed": seed})


def without_errors(chosen: argparse.Namespace, name: str, strength: float, seed: int) -> dict[str, Any]:
    """One audit of 1,000 rows at five sites: one label of five is the rarer class, none is wrong."""
    luck = np.random.RandomState(seed)
    labels = (luck.rand(1000) < 0.2).astype(np.int64)
    features = luck.normal(size=(1000, 3)).astype(np.float32)
    features[:, 0] += strength * labels
    data = from_arrays(features, labels, sites=luck.randint(0, 5, 1000), name="chance")
    made = experiment(chosen, "iid", None, chosen.method, seed)
    judged = judged_by(chosen, dataclasses.replace(made, data=data, clients=1, partition="column"))
    place = {"data": "chance", "train": 1000, "clients": 5, "scene": name, "flip": "none", "rate": 0.0, "seed": seed}
    return counted(chosen, judged, np.zeros(1000, bool), place)


def judged_by(chosen: argparse.Namespace, made: Experiment) -> Judged:
    """The audit itself, without its files."""
    with tempfile.TemporaryDirectory() as folder:
        return ask_judge(AuditSettings(made, chosen.judge), Path(folder), Execution(checkpoint_every=1000), ())


def counted(chosen: argparse.Namespace, judged: Judged, wrong: np.ndarray, place: dict[str, Any]) -> dict[str, Any]:
    """What was called, beside what is true."""
    called = judged.p_wrong >= chosen.threshold
    found = {
        "labels": len(wrong),
        "wrong": int(wrong.sum()),
        "called": int(called.sum()),
        "precision": float(wrong[called].mean()) if called.any() else None,
        "recall": float(called[wrong].mean()) if wrong.any() else None,
    }
    names = (
        "data",
        "method",
        "model",
        "train",
        "clients",
        "rounds",
        "epochs",
        "batch_size",
        "learning_rate",
        "threshold",
    )
    keep(chosen.csv, {**{name: getattr(chosen, name) for name in names}, **place, **found})
    return found


if __name__ == "__main__":
    main()
