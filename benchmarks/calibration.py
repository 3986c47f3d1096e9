"""Whether p_wrong means what it says, and whether the self-test tells the truth about the audit.

    python -m benchmarks.calibration [--data fashion-mnist] [--train 2000] [--rates 0.08 0.4] [--seeds 0 1 2]

Here every site has the same rate, so that low and high rates can be told apart.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.audits import SCENES, experiment, flags, keep, parsed, spread
from benchmarks.results import machine
from fedwinnow.auditing.audit import DEFAULT_JUDGEMENT, DEFAULT_METHOD, DEFAULT_THRESHOLD, AuditSettings, judge
from fedwinnow.auditing.calibration import by_mixture
from fedwinnow.auditing.self_test import SelfTest
from fedwinnow.experiment.play import Manner
from fedwinnow.randomness import Floats

BINS = 10
FIGURES = (
    "rate",
    "estimated_rate",
    "error",
    "error_without_self_test",
    "precision_said",
    "precision",
    "recall_said",
    "recall",
)


def main(words: list[str] | None = None) -> None:
    """Measure and print a Markdown table: a line per scene, means over seeds."""
    parser = flags("calibration", __doc__)
    parser.add_argument("--flips", nargs="+", default=["symmetric", "pair"])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.08, 0.4])
    parser.add_argument("--scenes", nargs="+", default=list(SCENES), choices=SCENES)
    parser.add_argument("--method", default=DEFAULT_METHOD)
    parser.add_argument("--judgement", default=DEFAULT_JUDGEMENT)
    chosen = parsed(parser, words)
    print(f"Machine: {machine()}.\nSettings: {vars(chosen)}\n")
    print("| scene | flip | " + " | ".join(FIGURES).replace("_", " ") + " |")
    print("|---|---|" + "---:|" * len(FIGURES), flush=True)
    for scene in chosen.scenes:
        for flip in chosen.flips:
            for rate in chosen.rates:
                runs = [one(chosen, scene, flip, rate, seed) for seed in chosen.seeds]
                cells = (spread([run[name] for run in runs if run[name] is not None]) for name in FIGURES)
                print(f"| {scene} | {flip} | " + " | ".join(cells) + " |", flush=True)


def one(chosen: argparse.Namespace, scene: str, flip: str, rate: float, seed: int) -> dict[str, Any]:
    """One audit with its self-test, against the truth."""
    noise = f"constant:rate={rate},flip={flip}"
    settings = AuditSettings(experiment(chosen, scene, noise, chosen.method, seed), chosen.judgement)
    with tempfile.TemporaryDirectory() as folder:
        judged, tested = judge(settings, Path(folder), Manner(checkpoint_every=1000), ())
    wrong = judged.stage.scene.wrong
    assert wrong is not None
    found = compared(judged.score, wrong, tested)
    names = ("data", "method", "model", "train", "clients", "rounds", "epochs", "batch_size", "learning_rate")
    known = {name: getattr(chosen, name) for name in names}
    keep(chosen.csv, {**known, "scene": scene, "flip": flip, "seed": seed, **found})
    return found


def compared(score: Floats, wrong: np.ndarray, tested: SelfTest) -> dict[str, Any]:
    """What the self-test said, beside what is true."""
    said = tested.figures(DEFAULT_THRESHOLD)
    assert said is not None
    p_wrong = tested.calibration.p_wrong(score)
    called = p_wrong >= DEFAULT_THRESHOLD
    return {
        "rate": float(wrong.mean()),
        "estimated_rate": float(p_wrong.mean()),
        "error": calibration_error(p_wrong, wrong),
        "error_without_self_test": calibration_error(by_mixture(score).p_wrong(score), wrong),
        "precision_said": said.get("precision"),
        "precision": float(wrong[called].mean()) if called.any() else None,
        "recall_said": said.get("recall"),
        "recall": float(called[wrong].mean()),
    }


def calibration_error(p_wrong: Floats, wrong: np.ndarray) -> float:
    """The mean distance between p_wrong and the true share of wrong labels, over bins of p_wrong, by their labels."""
    place = np.minimum((p_wrong * BINS).astype(np.int64), BINS - 1)
    gap = np.bincount(place, p_wrong - wrong, BINS)
    return float(np.abs(gap).sum() / len(wrong))


if __name__ == "__main__":
    main()
