"""Which judge finds wrong labels best: every candidate on the same scenes, with AUROC and average precision.

    python -m benchmarks.judging [--train 3000] [--rounds 15] [--seeds 0 1 2] [--methods fedavg feddiv]

Judges that need the same training share it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import ClassVar

import numpy as np

from benchmarks.audits import NOISES, SCENES, experiment, flags, keep, parsed
from benchmarks.results import machine
from fedwinnow.auditing.judging_models import ask, find_judge, parts_of, prepare_audit
from fedwinnow.experiment.play import Execution, play_stage
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.client import Client
from fedwinnow.federation.judge import Judge
from fedwinnow.federation.method import Method
from fedwinnow.mathematics.payload import Payload
from fedwinnow.metrics.detection import auroc, average_precision

JUDGES = (
    "final:prior=false",
    "final",
    "mean:prior=false",
    "mean",
    "mean:of=local",
    "mean:of=both",
    "halves:prior=false",
    "halves",
    "own_model:prior=false",
    "own_model",
    "filter",
)


@dataclass(frozen=True)
class Several(Judge):
    """Judges side by side in one training, each with its own part of what the site keeps."""

    name: ClassVar[str] = "several"
    members: tuple[Judge, ...] = field(default=(), kw_only=True)

    def observe(self, method: Method, client: Client, got: Payload, reply: Payload) -> None:
        everything, client.kept = client.kept, {}
        for number, member in enumerate(self.members):
            client.kept = part(everything, number)
            member.observe(method, client, got, reply)
            everything |= {f"{number}.{key}": value for key, value in client.kept.items()}
        client.kept = everything

    def opinions(self, method: Method, client: Client, got: Payload) -> Payload:
        everything, replies = client.kept, {}
        for number, member in enumerate(self.members):
            client.kept = part(everything, number)
            replies[str(number)] = member.opinions(method, client, got)["score"]
        return replies


def part(everything: Payload, number: int) -> Payload:
    """What one of the members keeps."""
    return {key.split(".", 1)[1]: value for key, value in everything.items() if key.startswith(f"{number}.")}


def main(words: list[str] | None = None) -> None:
    """Measure and print a Markdown table: a row per judge, a column per scene."""
    parser = flags("judging", __doc__)
    parser.add_argument("--methods", nargs="+", default=["fedavg"])
    parser.add_argument("--judges", nargs="+", default=list(JUDGES))
    parser.add_argument("--noises", nargs="+", default=list(NOISES), choices=NOISES)
    parser.add_argument("--scenes", nargs="+", default=list(SCENES), choices=SCENES)
    chosen = parsed(parser, words)
    print(f"Machine: {machine()}.\nSettings: {vars(chosen)}\n", flush=True)
    cells: dict[tuple[str, str], list[str]] = defaultdict(list)
    sums: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    columns = []
    for scene in chosen.scenes:
        for noise in chosen.noises:
            columns.append(f"{scene}, {noise}")
            for method in chosen.methods:
                for spec, pair in measure(chosen, method, scene, noise).items():
                    cells[method, spec].append(f"{pair[0]:.3f} / {pair[1]:.3f}")
                    sums[method, spec].append(pair)
                    print(f"<!-- {columns[-1]}: {method} {spec} {cells[method, spec][-1]} -->", flush=True)
    print("\nAUROC / average precision of wrong labels\n")
    print("| method | judge | " + " | ".join(columns) + " | mean |")
    print("|---|---|" + "---:|" * (len(columns) + 1))
    for (method, spec), texts in cells.items():
        both = [mean(pair[side] for pair in sums[method, spec]) for side in (0, 1)]
        print(f"| {method} | {spec} | " + " | ".join(texts) + f" | {both[0]:.3f} / {both[1]:.3f} |")


def measure(chosen: argparse.Namespace, method: str, scene: str, noise: str) -> dict[str, tuple[float, float]]:
    """All judges on one kind of scene: means over seeds."""
    found: dict[str, list[tuple[float, float]]] = {spec: [] for spec in chosen.judges}
    for seed in chosen.seeds:
        groups: dict[tuple[bool, int], list[str]] = defaultdict(list)
        for spec in chosen.judges:
            judge = find_judge(spec)
            groups[judge.prior, judge.federations].append(spec)
        for specs in groups.values():
            for spec, pair in trained_once(experiment(chosen, scene, NOISES[noise], method, seed), specs).items():
                found[spec].append(pair)
                known = {"data": chosen.data, "scene": scene, "noise": noise, "method": method, "judge": spec}
                keep(chosen.csv, {**known, "seed": seed, "auroc": pair[0], "average_precision": pair[1]})
    return {spec: (mean(p[0] for p in pairs), mean(p[1] for p in pairs)) for spec, pairs in found.items()}


def trained_once(training: Experiment, specs: list[str]) -> dict[str, tuple[float, float]]:
    """Judges that share a training, against the truth."""
    members = tuple(find_judge(spec) for spec in specs)
    stage = prepare_audit(training, members[0])
    execution = Execution(checkpoint_every=1000, judge=Several(members=members))
    holdings, wrong = stage.scene.holdings, stage.scene.wrong
    assert wrong is not None
    scores = np.zeros((len(specs), len(wrong)))
    with tempfile.TemporaryDirectory() as folder:
        for part in parts_of(stage, members[0]):
            place = RunFolder(Path(folder) / part.folder)
            with place.locked():
                play_stage(part.stage, place, execution)
                replies = ask(part.stage, place, execution, part.sites)
            for site, reply in replies.items():
                mine = np.flatnonzero(part.judged[holdings.of(site)])
                said = np.stack([reply[str(member)].numpy() for member in range(len(specs))])
                scores[:, holdings.of(site).start + mine] = said[:, mine]
    return {
        spec: (auroc(score, wrong) or 0.0, average_precision(score, wrong) or 0.0)
        for spec, score in zip(specs, scores, strict=True)
    }


if __name__ == "__main__":
    main()
