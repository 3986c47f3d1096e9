"""Whether p_wrong means what it says, and whether the self-test tells the truth about the audit.

python -m benchmarks.calibration [--data fashion-mnist] [--train 3000] [--rounds 15]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.audits import NOISES, SCENES, experiment, flags
from benchmarks.results import machine
from fedwinnow.auditing.audit import DEFAULT_JUDGEMENT, DEFAULT_THRESHOLD, AuditSettings, judge
from fedwinnow.auditing.calibration import by_mixture, reliability
from fedwinnow.experiment.play import Manner


def main() -> None:
    """Measure and print a Markdown table: a line per scene."""
    parser = flags("calibration", __doc__)
    parser.add_argument("--noise", default="uniform", choices=NOISES)
    parser.add_argument("--judgement", default=DEFAULT_JUDGEMENT)
    chosen = parser.parse_args()
    print(f"Machine: {machine()}.\nSettings: {vars(chosen)}\n")
    print("Columns `p to q`: of the labels with a p_wrong between them, how many there are and how many are wrong.\n")
    bins = " | ".join(f"{number / 5:.1f} to {(number + 1) / 5:.1f}" for number in range(5))
    print(f"| scene | {bins} | mean error | the same without self-test | recall: said, true | precision: said, true |")
    print("|---|" + "---:|" * 9, flush=True)
    for name in SCENES:
        print(line(chosen, name), flush=True)


def line(chosen: argparse.Namespace, name: str) -> str:
    """One audit with its self-test, against the truth."""
    settings = AuditSettings(experiment(chosen, name, NOISES[chosen.noise]), chosen.judgement)
    with tempfile.TemporaryDirectory() as folder:
        judged, tested = judge(settings, Path(folder), Manner(checkpoint_every=1000), ())
    wrong = judged.stage.scene.wrong
    said = tested.figures(DEFAULT_THRESHOLD)
    assert wrong is not None
    assert said is not None
    p_wrong = tested.calibration.p_wrong(judged.score)
    lines, error = compared(p_wrong, wrong)
    _, guessed = compared(by_mixture(judged.score).p_wrong(judged.score), wrong)
    called = p_wrong >= DEFAULT_THRESHOLD
    recall, precision = float(called[wrong].mean()), float(wrong[called].mean())
    return (
        f"| {name} | " + " | ".join(lines) + f" | {error:.3f} | {guessed:.3f} | {said['recall']:.3f}, {recall:.3f} "
        f"| {said['precision']:.3f}, {precision:.3f} |"
    )


def compared(p_wrong: np.ndarray, wrong: np.ndarray) -> tuple[list[str], float]:
    """The bins as text, and the mean distance between what is said and what is true."""
    found = reliability(p_wrong, wrong.astype(float), np.ones(len(wrong)))
    texts = [f"{one['labels']}: {100 * one['observed']:.0f} %" if one["labels"] else "0" for one in found]
    gaps = [abs(one["stated"] - one["observed"]) * one["labels"] for one in found if one["labels"]]
    return texts, sum(gaps) / len(wrong)


if __name__ == "__main__":
    main()
