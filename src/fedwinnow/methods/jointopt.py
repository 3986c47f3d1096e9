"""Joint optimisation: train the model and the labels in turn; a label is the mean of the model's last predictions.

Tanaka, Ikami, Yamasaki, Aizawa: Joint Optimization Framework for Learning with Noisy Labels, CVPR 2018. Federated as
in FedRN: labels and the last predictions stay on the site, the warm-up counts rounds.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| α | alpha | | p | prior |
| β | beta | | begin | warm_up |
| s, s̄ | a prediction, the mean of a batch | | second step | retrain |
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Exchange, Method, Replies, Verdict
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import Payload, Summing
from fedwinnow.mathematics.two_gaussians import exact
from fedwinnow.options import option
from fedwinnow.steps.regularisers import SMALLEST, distance_to_prior, entropy, expected_classes
from fedwinnow.steps.site_labels import History
from fedwinnow.steps.stages import after_warm_up

FIRST = "first."  # the initial model, kept for the second step


@dataclass(frozen=True)
class JointOpt(Method):
    """Labels follow the mean of the model's last predictions; two penalties keep them from collapsing."""

    name: ClassVar[str] = "jointopt"
    sums: ClassVar[dict[str, Summing]] = {**Method.sums}
    citation: ClassVar[str] = "Tanaka et al., Joint Optimization Framework for Learning with Noisy Labels, CVPR 2018"
    stages: ClassVar[tuple[str, ...]] = ("warm_up", "correct", "retrain")

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or FedRN's code where they differ.")
    alpha: float = option(1.2, "Weight of L_p, the distance to the prior.", symbol="α", source="FedRN", at_least=0)
    beta: float = option(0.8, "Weight of L_e, the entropy.", symbol="β", source="FedRN", at_least=0)
    warm_up: int | None = option(
        None, "Rounds with the labels as given first; none: a fifth of all, as 100 of 500.", at_least=0
    )
    history: int = option(
        None, "Predictions of a sample that are averaged.", at_least=1, presets={"paper": 10, "code": 15}
    )
    half_full: Literal["seen", "zeros"] = option(
        None,
        "Before the history is full: average the predictions that are there, or count missing ones as 0.",
        presets={"paper": "seen", "code": "zeros"},
    )
    labels: Literal["soft", "hard"] = option("soft", "New labels are mean predictions, or their largest class.")
    prior: Literal["uniform", "local"] = option(
        "uniform", "Classes are expected equally often, or as often as the site's given labels have them.", symbol="p"
    )
    retrain: float = option(
        0.0, "Share of the rounds for the second step: a new model on the final labels.", at_least=0, at_most=1
    )

    # --- the server's half -----------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        if self.retrain:
            server.state |= {f"{FIRST}{key}": value.clone() for key, value in server.weights.items()}

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        if self.retraining(server) and f"{FIRST}weights" in server.state:
            server.start_anew({key: server.state.pop(f"{FIRST}{key}") for key in server.weights})
        yield from super().exchanges(server)

    def retraining(self, server: Server) -> bool:
        """Whether the second step has begun."""
        return server.round > server.rounds - round(self.retrain * server.rounds)

    def question(self, server: Server) -> tuple[str, str]:
        if self.retraining(server):
            return "retrain", "train_on_final_labels"
        return after_warm_up(server, self.warm_up, "correct")

    # --- the client's half -----------------------------------------------------------------------------------------

    def train_plainly(self, client: Client, got: Payload) -> Payload:
        """Warm-up: fixed labels; predictions go into the history."""
        return self.visit(client, got, correcting=False)

    def train(self, client: Client, got: Payload) -> Payload:
        return self.visit(client, got, correcting=True)

    def visit(self, client: Client, got: Payload, *, correcting: bool) -> Payload:
        """Local training; with `correcting`, labels are updated after each epoch."""
        history = History(client, "predictions", self.history, client.classes)
        labels = self.current(client)
        prior, begun = expected_classes(client, self.prior), False

        def rows_of_epoch() -> Tensor:
            nonlocal begun
            if begun and correcting:
                self.correct(history, labels)
            begun = True
            return torch.arange(len(client))

        def objective(rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
            logits = client.model.module(x)
            history.add(rows, logits.softmax(1))
            return self.joint_loss(client, logits, labels[rows.to(labels.device)], prior)

        client.model.load(got)
        client.fit(objective, rows=rows_of_epoch)
        if correcting:
            self.correct(history, labels)
            client.state["labels"] = labels
            client.note(pseudo_labels=labels.argmax(1))
        return self.reply(client)

    def joint_loss(self, client: Client, logits: Tensor, labels: Tensor, prior: Tensor) -> Tensor:
        """L = L_c + alpha L_p + beta L_e."""
        loss = self.criterion.mean(logits, labels, client.class_counts)
        return loss + self.alpha * distance_to_prior(logits, prior) + self.beta * entropy(logits)

    def correct(self, history: History, labels: Tensor) -> None:
        """New labels for all samples that have a prediction in the history."""
        mean = history.mean(whole=self.half_full == "zeros")
        if self.labels == "hard":
            mean = one_hot(mean.argmax(1), labels.shape[1]).to(mean)
        seen = history.seen > 0
        labels[seen] = mean[seen]

    def current(self, client: Client) -> Tensor:
        """The labels as rows of probabilities; at first the given ones."""
        given = one_hot(client.given, client.classes).float()
        return client.state.get("labels", given).to(client.given.device)

    def train_on_final_labels(self, client: Client, got: Payload) -> Payload:
        """The second step: fixed labels, no penalties."""
        client.model.load(got)
        client.fit(
            lambda rows, x, y: self.criterion.mean(client.model(x), y, client.class_counts), labels=self.current(client)
        )
        return self.reply(client)

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """1 minus the given class's share in the corrected label; samples without one are judged by their losses."""
        verdict = super().verdict(client, got)
        if "labels" not in client.state:
            return verdict
        mine = client.given if client.trained is None else client.given[client.trained.to(client.given.device)]
        labels = client.state["labels"].to(mine.device)
        left = labels.gather(1, mine.unsqueeze(1)).squeeze(1) / labels.sum(1).clamp(min=SMALLEST)
        p_wrong = client.for_all(exact((1.0 - left).clamp(0, 1)), exact(verdict.p_wrong))
        return Verdict(p_wrong, client.for_all(labels.argmax(1), verdict.suggested))
