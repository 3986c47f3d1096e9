"""The audit against confident learning (cleanlab, extra `audit-compare`): alone at each site, and on pooled data.

    python -m benchmarks.audit_compare [--data fashion-mnist] [--train 3000] [--seeds 0 1 2] [--csv results/audit.csv]

cleanlab gets out-of-sample probabilities from cross-validation with the same model and optimiser, at the learning rate
and after the number of epochs (at most those of the audit) that give the best accuracy on held-out given labels: what
somebody who has these samples alone would choose by. The audit's own settings are not chosen by anything.
Pooling the data is what sites may not do; that line is what there is to be reached.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.audits import MOMENTUM, NOISES, SCENES, experiment, flags, keep, parsed, spread
from benchmarks.results import machine
from fedwinnow.auditing.audit import DEFAULT_JUDGE
from fedwinnow.auditing.audit_settings import DEFAULT_METHOD
from fedwinnow.auditing.judging_models import find_judge, prepare_audit, train_and_judge
from fedwinnow.data.dataset import InputStep
from fedwinnow.errors import missing_extra
from fedwinnow.experiment.play import Execution
from fedwinnow.experiment.prepare import Stage
from fedwinnow.metrics.detection import auroc, average_precision
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape
from fedwinnow.randomness import Floats, Integers, permutation

FOLDS = 3
STOPS = (0.1, 0.25, 0.5, 1.0)  # when cleanlab's models may stop, as shares of all epochs


def main(words: list[str] | None = None) -> None:
    """Measure and print a Markdown table."""
    parser = flags("audit_compare", __doc__)
    parser.add_argument("--noise", default="uniform", help="uniform, pair, any noise spec, or `data` for human errors")
    parser.add_argument("--methods", nargs="+", default=[DEFAULT_METHOD, "fedavg", "winnow"])
    parser.add_argument("--judge", default=DEFAULT_JUDGE)
    parser.add_argument(
        "--cleanlab-rates", nargs="*", type=float, default=[0.002, 0.005, 0.01, 0.03], help="none: leave cleanlab out"
    )
    parser.add_argument("--scenes", nargs="+", default=list(SCENES), choices=SCENES)
    chosen = parsed(parser, words)
    if chosen.cleanlab_rates:
        check_cleanlab()
    print(f"Machine: {machine()}.\nSettings: {vars(chosen)}\n")
    print("| scene | who | wrong | AUROC | average precision | precision at the number of errors |")
    print("|---|---|---:|---:|---:|---:|", flush=True)
    for name in chosen.scenes:
        found: dict[str, list[dict[str, float]]] = {}
        for seed in chosen.seeds:
            for who, figures in compare(chosen, name, seed).items():
                found.setdefault(who, []).append(figures)
                keep(chosen.csv, {**described(chosen, name, seed), "who": who, **figures})
        for who, runs in found.items():
            cells = (spread([run[figure] for run in runs]) for figure in runs[0])
            print(f"| {name} | {who} | " + " | ".join(cells) + " |", flush=True)


def described(chosen: argparse.Namespace, scene: str, seed: int) -> dict[str, object]:
    """What was measured, for a line of a file."""
    names = ("data", "model", "train", "clients", "rounds", "epochs", "learning_rate", "noise")
    return {**{name: getattr(chosen, name) for name in names}, "scene": scene, "seed": seed}


def check_cleanlab() -> None:
    """Say what to install where it is missing."""
    try:
        import cleanlab  # noqa: F401
    except ImportError:
        raise SystemExit(str(missing_extra("audit-compare", "comparing with cleanlab"))) from None


def compare(chosen: argparse.Namespace, scene: str, seed: int) -> dict[str, dict[str, float]]:
    """Who finds how much on one scene; all have the same samples, labels and number of epochs."""
    noise = None if chosen.noise == "data" else NOISES.get(chosen.noise, chosen.noise)
    judge = find_judge(chosen.judge)
    named: dict[str, Floats] = {}
    for method in chosen.methods:
        stage = prepare_audit(experiment(chosen, scene, noise, method, seed), judge)
        with tempfile.TemporaryDirectory() as folder:
            judged = train_and_judge(stage, Path(folder), judge, Execution(checkpoint_every=1000))
        named[f"audit ({method}, {chosen.judge})"] = judged.score
    wrong = stage.scene.wrong
    assert wrong is not None
    if chosen.cleanlab_rates:
        named |= by_cleanlab(stage, chosen)
    return {
        who: {
            "wrong": float(wrong.mean()),
            "auroc": auroc(score, wrong) or 0.0,
            "average_precision": average_precision(score, wrong) or 0.0,
            "precision_at_errors": precision_at_errors(score, wrong),
        }
        for who, score in named.items()
    }


def by_cleanlab(stage: Stage, chosen: argparse.Namespace) -> dict[str, Floats]:
    """cleanlab's opinion of every label: from the samples of its site alone, and from the pooled data."""
    holdings = stage.scene.holdings
    alone = [suspicion(stage, holdings.of(site), chosen) for site in range(holdings.clients)]
    pooled = suspicion(stage, slice(0, len(holdings.rows)), chosen)
    return {"cleanlab, each site alone": np.concatenate(alone), "cleanlab, pooled": pooled}


def precision_at_errors(score: Floats, wrong: np.ndarray) -> float:
    """How many of the most suspicious labels are wrong, when as many are taken as there are errors."""
    count = int(wrong.sum())
    return float(wrong[np.argsort(-score, kind="stable")[:count]].mean())


def suspicion(stage: Stage, mine: slice, chosen: argparse.Namespace) -> Floats:
    """cleanlab's label quality, turned round, from out-of-sample probabilities of a model of these samples alone."""
    from cleanlab.rank import get_label_quality_scores

    given = stage.scene.given[mine]
    if len(given) < 2 * FOLDS:
        return np.zeros(len(given))
    candidates = [found for rate in chosen.cleanlab_rates for found in out_of_sample(stage, mine, chosen, rate)]
    best = max(candidates, key=lambda found: float((found.argmax(1) == given).mean()))
    return -np.asarray(get_label_quality_scores(given, best, method="self_confidence"), np.float64)


def out_of_sample(stage: Stage, mine: slice, chosen: argparse.Namespace, rate: float) -> list[Floats]:
    """Probabilities of all these samples by models that did not see them, one for every number of epochs."""
    given, rows = stage.scene.given[mine], stage.scene.holdings.rows[mine]
    found = [np.zeros((len(given), stage.scene.classes)) for _ in STOPS]
    fold = permutation(stage.experiment.seed, "folds", len(given)) % FOLDS
    stops = [max(1, round(share * chosen.rounds * chosen.epochs)) for share in STOPS]
    for number in range(FOLDS):
        rest, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        for place, answers in enumerate(trained(stage, rows[rest], given[rest], rows[held], rate, stops)):
            found[place][held] = answers
    return found


def trained(
    stage: Stage, rows: Integers, labels: Integers, held: Integers, rate: float, stops: list[int]
) -> Iterator[Floats]:
    """Probabilities for held-out samples, from a plain loop with the model and the optimiser of the audit."""
    dataset = stage.scene.dataset
    step = InputStep(dataset.kind, dataset.mean, dataset.std, "cpu")
    module = make_model(stage.experiment.model, Shape.of(dataset), stage.experiment.seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=rate, momentum=MOMENTUM)
    x, y = step(torch.from_numpy(dataset.train.features.take(rows))), torch.from_numpy(labels)
    asked = step(torch.from_numpy(dataset.train.features.take(held)))
    generator = torch.Generator().manual_seed(stage.experiment.seed)
    for epoch in range(1, max(stops) + 1):
        module.train()
        for batch in torch.randperm(len(y), generator=generator).split(stage.experiment.batch_size):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimizer.step()
        module.eval()
        for _ in range(stops.count(epoch)):
            with torch.inference_mode():
                yield module(asked).softmax(1).double().numpy()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
