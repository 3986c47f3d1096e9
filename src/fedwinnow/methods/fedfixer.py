"""FedFixer: each client has its own model beside the global one; each picks the samples from which the other learns.

Ji, Zhu, Xi, Gadyatskaya, Song, Cai, Liu: FedFixer: Mitigating Heterogeneous Label Noise in Federated Learning,
AAAI 2024.

| symbol | field or state | | symbol | field or state |
|---|---|---|---|---|
| w | the global model | | θ_k | client.state["personal.weights"] |
| T_s (rounds) | warm_up | | β | beta |
| λ | lambda_d | | P̃_k | client.class_counts |

A clean sample of a kind that only this client has looks wrong to the global model, but not to the client's own. A
confidence regulariser (CR) makes both models surer; a distance regulariser (DR) keeps the own model near the global
one. The sieve is that of CORES² (Cheng et al., ICLR 2021). There is no published code: where the paper is open, an
option has the readings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.errors import RunError
from fedwinnow.federation.client import Client, Step
from fedwinnow.federation.method import Method, Verdict
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import FlatModel, Payload, is_finite
from fedwinnow.mathematics.proximal import distance_to
from fedwinnow.mathematics.small_loss import kept_count, smallest
from fedwinnow.mathematics.two_gaussians import exact, fit_two_gaussians
from fedwinnow.options import option
from fedwinnow.steps.site_labels import sample_losses
from fedwinnow.steps.stages import first_rounds

PERSONAL = "personal."  # before the keys of the client's own model in its memory
FLOOR = 1e-8  # added to probabilities, because CR is unbounded below without it


@dataclass(frozen=True)
class FedFixer(Method):
    """A global and a personal model on every client, each trained on the samples that the other one takes for clean."""

    name: ClassVar[str] = "fedfixer"
    citation: ClassVar[str] = "Ji et al., FedFixer: Mitigating Heterogeneous Label Noise, AAAI 2024"
    stages: ClassVar[tuple[str, ...]] = ("warm_up", "select")

    warm_up: int | None = option(
        None, "Rounds with all samples; none: a tenth of all, but 10 or half of them.", symbol="T_s", at_least=0
    )
    beta: float = option(2.0, "Weight of the confidence regulariser; 0: none (ablation).", symbol="β", at_least=0)
    rising_beta: bool = option(True, "The weight grows from 0 to its value over all rounds.")
    lambda_d: float = option(1.0, "Weight of the distance regulariser; 0: none (ablation).", symbol="λ", at_least=0)
    distance_on: Literal["personal", "both"] = option("personal", "Which models are held to the global one.")
    select: Literal["cores", "small_loss", "gmm"] = option(
        "cores", "What is clean: a loss below the mean over all labels, the smallest losses, or a mixture of two."
    )
    forget: float = option(0.2, "Share that small_loss leaves out.", at_least=0, at_most=1)
    alternate: Literal["batch", "epoch"] = option("batch", "The models select for each other in every batch or epoch.")
    dual: bool = option(True, "Have a personal model; else the global one selects for itself (ablation).")

    # --- the server's half: FedAvg of w_k -----------------------------------------------------------------------------

    def question(self, server: Server) -> tuple[str, str]:
        early = server.round <= first_rounds(server.rounds, self.warm_up)
        return "warm_up" if early else "select", "train"

    # --- the client's half -----------------------------------------------------------------------------------------

    def train(self, client: Client, got: Payload) -> Payload:
        models = self.models_of(client, got)
        masks = torch.ones(len(models), len(client), dtype=torch.bool, device=client.given.device)
        early = client.round <= first_rounds(client.rounds, self.warm_up)
        learned = torch.ones(len(models), dtype=torch.bool, device=client.given.device)
        regulariser = self.regulariser(client)

        def rows_of_epoch() -> Tensor:
            if not early and self.alternate == "epoch":
                masks[:] = torch.stack([self.clean(client.predict(model=model), client.given) for model in models])
            return torch.arange(len(client))

        def objective(rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
            answers, places = [model.module(x) for model in models], rows.to(y.device)
            if not early and self.alternate == "batch":
                masks[:, places] = torch.stack([self.clean(answer.detach(), y) for answer in answers])
            total = torch.zeros((), device=y.device)
            # Each model learns from the samples that the other has picked; a single model picks for itself.
            for number, mask in enumerate(masks[:, places].flip(0)):
                learned[number] = mask.any()
                losses = self.regularised(client, answers[number], y, regulariser)
                total = total + (losses * mask).sum() / mask.sum().clamp(min=1)
                if number == len(models) - 1 or self.distance_on == "both":
                    total = total + self.lambda_d / 2 * distance_to(got["weights"], models[number])
            return total

        def where_learned(step: Step, model: FlatModel) -> Step:
            weights = model.weights[: model.trainable]
            return client.optimizer.start_gated(weights, model.gradient, learned[models.index(model)])

        client.fit(objective, rows=rows_of_epoch, model=tuple(models), wrap_step=where_learned)
        if self.dual:
            client.state |= models[-1].payload(PERSONAL)
            if not is_finite(models[-1].weights):
                raise RunError("its own model has NaN or infinite weights; lower lambda_d or the learning rate.")
        if not early:
            client.note(selected=masks[-1])
        return self.reply(client)

    def models_of(self, client: Client, got: Payload) -> list[FlatModel]:
        """The received global model, and theta_k as the last visit left it; at first it equals the global one."""
        client.model.load(got)
        if not self.dual:
            return [client.model]
        assert client.spare is not None
        personal = client.spare()
        personal.own_statistics = None  # its statistics are in its payload
        if f"{PERSONAL}weights" in client.state:
            personal.load(client.state, PERSONAL)
        else:
            personal.load(client.model.payload())
        return [client.model, personal]

    def regulariser(self, client: Client) -> tuple[Tensor, float]:
        """How frequent each label is at a client, and beta in this round."""
        frequency = client.class_counts / len(client)
        beta = self.beta * (client.round / client.rounds if self.rising_beta else 1.0)
        return frequency, min(beta, 0.5 / float(frequency.max()))  # above, it would push away from a frequent label

    def regularised(
        self, client: Client, logits: Tensor, y: Tensor, regulariser: tuple[Tensor, float] | None = None
    ) -> Tensor:
        """l + l_CR per sample, l_CR = -beta E[CE(f(x), y')], y' drawn like the client's labels."""
        frequency, beta = self.regulariser(client) if regulariser is None else regulariser
        expected = (every_loss(logits) * frequency).sum(1)
        return self.criterion(logits, y, client.class_counts) - beta * expected

    def clean(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Which of these samples a model considers clean."""
        if self.select == "cores":
            return ~(sieve(logits, labels) >= 0)  # NaN counts as clean, so that it is not left out unnoticed
        losses = sample_losses(logits, labels)
        if self.select == "gmm":
            return fit_two_gaussians(losses).p_low(losses) > 0.5
        chosen = torch.zeros_like(labels, dtype=torch.bool)
        chosen[smallest(losses, kept_count(len(losses), self.forget))] = True
        return chosen

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """The sieve of both models: their mean probability that a label is worse than the mean of all labels."""
        answers = [client.predict(model=model) for model in self.models_of(client, got)]
        p_wrong = torch.stack([exact(sieve(logits, client.given)).sigmoid() for logits in answers]).mean(0)
        return Verdict(p_wrong, torch.stack([logits.softmax(1) for logits in answers]).mean(0).argmax(1))


def every_loss(logits: Tensor) -> Tensor:
    """CE(f(x), c) for all labels c, bounded by the floor."""
    return -(logits.softmax(1) + FLOOR).log()


def sieve(logits: Tensor, labels: Tensor) -> Tensor:
    """CE(f(x), y) minus its mean over all labels; CR is the same on both sides of the comparison and cancels.

    The floor matters: where a model is sure, all other labels have the same large loss, which is above the mean.
    """
    return sample_losses(logits, labels) - every_loss(logits).mean(1)
