"""Two attacks against what leaves a site: a crafted first layer, and membership by a threshold on the loss.

Each is played against a plain reply, against what a server learns by secure sums (the protocol itself), and against
private runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedwinnow.all_settings import Training
from fedwinnow.data.dataset import InputStep, Resident
from fedwinnow.experiment.play import Execution, Player
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.client import Client
from fedwinnow.federation.noisy_mean import NoisyMean, clipped_reply
from fedwinnow.federation.private_training import PrivateTraining, mechanism_of
from fedwinnow.federation.summing.secure_sums import Session, sum_here
from fedwinnow.mathematics.accountant import most_advantage
from fedwinnow.mathematics.optimizers import Sgd
from fedwinnow.mathematics.payload import FlatModel, Payload
from fedwinnow.mathematics.privacy import ClientPrivacy, SamplePrivacy
from fedwinnow.mathematics.private_noise import FromSeed
from fedwinnow.methods.fedavg import FedAvg
from fedwinnow.metrics.detection import auroc
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape

ROWS, COLUMNS, CLASSES = 150, 8, 3
NEAR = 0.02  # standard deviations: a row counts as given back if every number of it is as near as this
TRAINING = Training(epochs=1, batch_size=100_000, rounds=1)


# --- the crafted first layer -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Crafted:
    """A model whose neurons all look one way, each from a little farther on, and sites with rows to find."""

    neurons: int
    sites: int

    def model(self) -> FlatModel:
        """The model that the coordinator sends."""
        model = FlatModel(make_model(f"mlp:hidden={self.neurons}", Shape("rows", (COLUMNS,), CLASSES)))
        first, last = model.module.hidden1, model.module.fc  # type: ignore[union-attr]
        places = (torch.arange(self.neurons) + 0.5) / self.neurons
        with torch.no_grad():
            direction = torch.randn(COLUMNS, generator=torch.Generator().manual_seed(5))
            first.weight.copy_((direction / direction.norm()).expand(self.neurons, COLUMNS))
            first.bias.copy_(-torch.distributions.Normal(0.0, 1.0).icdf(places))
            last.weight.copy_(torch.tensor([[0.01], [-0.02], [0.03]]).expand(CLASSES, self.neurons))
        return model

    def client(self, site: int, privacy: SamplePrivacy | None) -> tuple[Client, NDArray[np.float32]]:
        """A site, and its rows."""
        chance = np.random.RandomState(site)
        rows, labels = chance.normal(size=(ROWS, COLUMNS)).astype(np.float32), chance.randint(0, CLASSES, ROWS)
        client = Client(
            id=site,
            round=1,
            rounds=1,
            features=Resident(rows),
            given=torch.from_numpy(labels),
            classes=CLASSES,
            model=self.model(),
            training=TRAINING,
            optimizer=Sgd(lr=10_000.0, momentum=0.0),
            input_step=InputStep("rows", (), ()),
            generator=torch.Generator().manual_seed(site),
        )
        if privacy is not None:
            noise = mechanism_of(privacy, TRAINING, ROWS).noise
            client.private = PrivateTraining(privacy, noise, FromSeed(site))
        return client, rows

    def replies(self, privacy: SamplePrivacy | None = None) -> tuple[list[Payload], list[NDArray[np.float32]]]:
        """What each site would send, and what it has."""
        found = [self.client(site, privacy) for site in range(self.sites)]
        return [FedAvg().train(client, client.model.payload()) for client, _ in found], [rows for _, rows in found]

    def given_back(self, weights: torch.Tensor, rows: NDArray[np.float32]) -> int:
        """How many of these rows the differences between neighbouring neurons show."""
        model = self.model()
        before = {name: value.double() for name, value in model.named(model.payload()).items()}
        after = {name: value.double() for name, value in model.named({"weights": weights}).items()}
        weight, bias = (
            (moved[:-1] - moved[1:])
            for moved in (after[name] - before[name] for name in ("hidden1.weight", "hidden1.bias"))
        )
        seen = (weight / bias.unsqueeze(1))[bias.abs() > 1e-9].numpy()
        if not len(seen):
            return 0
        return int(sum(bool((np.abs(seen - row).max(1) < NEAR).any()) for row in rows))


def summed(replies: list[Payload], start: torch.Tensor) -> torch.Tensor:
    """The model that has moved by the sum of all updates, from the mean that the protocol of secure sums gives."""
    session = Session("attack", "train", 1, 0, 0.5)
    mean = sum_here(dict(enumerate(replies)), FedAvg().summed(), 0, session)
    return start.double() + (mean["weights"].double() - start) * len(replies)


def crafted_rows(sites: int, neurons: int) -> list[tuple[str, str]]:
    """The rows of the table: who sees what, and how many rows that gives back."""
    crafted = Crafted(neurons, sites)
    start = crafted.model().payload()
    plain, rows = crafted.replies()
    everything = np.concatenate(rows)
    found = [("one plain reply", f"{crafted.given_back(plain[0]['weights'], rows[0])} of {ROWS}")]
    for count in sorted({3, sites}):
        seen = crafted.given_back(summed(plain[:count], start["weights"]), everything[: count * ROWS])
        found.append((f"the secure sum of {count} plain replies", f"{seen} of {count * ROWS}"))
    for epsilon in (8.0, 100.0):
        noisy, _ = crafted.replies(SamplePrivacy(epsilon=epsilon).planned(1, 1))
        seen = crafted.given_back(noisy[0]["weights"], rows[0])
        found.append((f"one reply with `sample:epsilon={epsilon:g}`", f"{seen} of {ROWS}"))
    promise = ClientPrivacy(epsilon=8.0).planned(1, 1)
    size = len(start["weights"])
    clipped = [clipped_reply(reply, start, size, promise.clip) for reply in plain]
    seen = crafted.given_back(clipped[0]["weights"], rows[0])
    found.append(("one reply with `client:epsilon=8`, as the coordinator sees it", f"{seen} of {ROWS}"))
    mean = NoisyMean(start, size, promise.clip, mechanism_of(promise, TRAINING, 0).noise, sites, FromSeed(0))
    for reply in clipped:
        mean.add(reply, 1.0)
    seen = crafted.given_back(mean.result()["weights"], everything)
    found.append((f"the new model of {sites} sites with `client:epsilon=8`", f"{seen} of {sites * ROWS}"))
    return found


# --- membership ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Membership:
    """A run that memorises: few samples, wrong labels, many epochs."""

    rounds: int
    sites: int
    privacy: str | None
    seed: int

    def played(self) -> tuple[Player, list[Payload], Payload]:
        """The run, the replies of its last round, and its last global model."""
        settings: dict[str, Any] = {
            "data": "digits:train=1000",
            "clients": self.sites,
            "noise": "constant:rate=0.3",
            "model": "mlp:hidden=128",
            "participation": 1.0,
            "rounds": self.rounds,
            "epochs": 5,
            "batch_size": 32,
            "optimizer": "sgd:lr=0.1,momentum=0.5",
            "privacy": self.privacy,
            "seed": self.seed,
        }
        stage = prepare(Experiment(**settings))
        with tempfile.TemporaryDirectory() as folder:
            player = Player(stage, RunFolder(Path(folder)), Execution(), ())
            replies: list[Payload] = []
            usual = player.federation.backend.exchange

            def kept(tasks: Any) -> Any:
                replies.clear()
                for answer in usual(tasks):
                    replies.append(answer.reply)
                    yield answer

            player.federation.backend.exchange = kept  # type: ignore[method-assign]
            player.federation.start()
            for number in range(1, self.rounds + 1):
                player.federation.play_round(number)
            return player, list(replies), dict(player.server.weights)

    def figures(self) -> dict[str, tuple[float, float]]:
        """AUROC and advantage of the threshold, for a site's reply and for the global model."""
        player, replies, merged = self.played()
        stage = player.stage
        mine = stage.sites.holdings.of(0)
        loss = losses_of(player)
        given = torch.from_numpy(stage.sites.given)
        rows = stage.sites.features.take(stage.sites.holdings.rows)
        others = stage.parts["test"].take(np.arange(len(stage.parts["test"])))
        wrong = as_wrong(stage.labels["test"], 0.3, self.seed)
        strangers = torch.from_numpy(wrong)
        return {
            "reply": threshold(loss(replies[0], rows[mine], given[mine]), loss(replies[0], others, strangers)),
            "model": threshold(loss(merged, rows, given), loss(merged, others, strangers)),
        }


def losses_of(player: Player) -> Callable[[Payload, NDArray[Any], torch.Tensor], NDArray[np.float64]]:
    """A function that gives the loss of stored samples under a model."""
    model, sites = player.server.model, player.stage.sites
    step = InputStep(sites.shape.kind, sites.mean, sites.std, "cpu")

    def losses(weights: Payload, rows: NDArray[Any], labels: torch.Tensor) -> NDArray[np.float64]:
        model.load(weights)
        model.module.eval()
        with torch.inference_mode():
            logits = model.module(step(torch.from_numpy(rows)))
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none").double().numpy()

    return losses


def as_wrong(labels: NDArray[np.int64], rate: float, seed: int) -> NDArray[np.int64]:
    """The labels of strangers, as wrong as those of members: otherwise the attack would find wrong labels instead."""
    chance = np.random.RandomState(seed)
    other = (labels + chance.randint(1, 10, len(labels))) % 10
    return np.where(chance.rand(len(labels)) < rate, other, labels)


def threshold(members: NDArray[np.float64], strangers: NDArray[np.float64]) -> tuple[float, float]:
    """AUROC of "small loss means member", and the true less the false positive rate at the members' mean loss.

    That threshold is fixed beforehand (Yeom et al. 2018); the best of all would find something in chance alone.
    """
    area = auroc(np.concatenate([-members, -strangers]), np.repeat([True, False], [len(members), len(strangers)]))
    gain = (members <= members.mean()).mean() - (strangers <= members.mean()).mean()
    return (float("nan") if area is None else float(area)), float(gain)


def membership_rows(rounds: int, sites: int, seeds: int) -> list[tuple[str, ...]]:
    """The rows of the table: means over seeds, beside what the promise allows."""
    found: list[tuple[str, ...]] = []
    for name, privacy, epsilon in (
        ("plain", None, None),
        ("`sample:epsilon=8`", "sample:epsilon=8", 8.0),
        ("`sample:epsilon=1`", "sample:epsilon=1", 1.0),
    ):
        every = [Membership(rounds, sites, privacy, seed).figures() for seed in range(seeds)]
        bound = "-" if epsilon is None else f"{most_advantage(epsilon, 1e-5):.3f}"
        for key, seen in (("reply", "the reply of one site"), ("model", f"the sum of {sites} sites")):
            area, gain = np.mean([figures[key] for figures in every], axis=0)
            found.append((f"{name}, {seen}", f"{area:.3f}", f"{gain:.3f}", bound))
    return found


def run(*, smallest: bool = False) -> str:
    """Both tables as Markdown."""
    neurons, sites = (100, 3) if smallest else (4000, 20)
    lines = [f"A crafted first layer of {neurons} neurons, rows within {NEAR} standard deviations:", ""]
    lines += ["| what is seen | rows given back |", "|---|---|"]
    lines += [f"| {seen} | {count} |" for seen, count in crafted_rows(sites, neurons)]
    lines += ["", "Membership by a threshold on the loss:", ""]
    lines += ["| what is seen | AUROC | advantage | most that epsilon allows |", "|---|---|---|---|"]
    rounds, seeds = (2, 1) if smallest else (20, 3)
    lines += [f"| {' | '.join(cells)} |" for cells in membership_rows(rounds, 4 if smallest else 20, seeds)]
    return "\n".join(lines) + "\n"
