"""FedELC: noisy clients are found as FedNoRo finds them; then each learns a soft label for every one of its samples.

Jiang, Sun, Li, Xue, Li, Wu, Xu, Wang, Liu: Tackling Noisy Clients in Federated Learning with End-to-end Label
Correction, CIKM 2024. With `preset=masked` its successor, MaskedOptim: Jiang, Wen, Yang, Wu, Chen, Sun, Wang, Liu:
Robust Federated Learning against Noisy Clients via Masked Optimization, 2025. Of both only the released code was seen.

| symbol | field or state | | symbol | field or state |
|---|---|---|---|---|
| T_w (rounds) | warm_up | | ỹ (n_k x C) | client.state["label_logits"] |
| α | alpha | | q = softmax(ỹ) | the soft label |
| β | beta | | λ | label_step |
| K_l | label_scale | | e_y | the given label, one-hot |

Stage 1 is FedAvg with logit adjustment; at its end a mixture over the clients' losses per class tells the noisy ones.
In stage 2 clean clients train as before. A noisy client trains the network p and its labels q by one loss; at the end
of its visit the new labels are the mean of what it learned and of what its model predicts.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedwinnow.federation.client import Client, pieces
from fedwinnow.federation.method import Exchange, Method, Replies, Verdict, model_forms
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.aggregators import Combine, HeldModels, length, weighted_mean
from fedwinnow.mathematics.loss_of_logits import LossOfLogits
from fedwinnow.mathematics.losses import Loss
from fedwinnow.mathematics.payload import TRUTH, Exposure, Payload, ReplyForm, Slot, Summing
from fedwinnow.mathematics.small_loss import ROUNDING, smallest
from fedwinnow.options import option
from fedwinnow.steps.noisy_sites import (
    NOISY,
    UNKNOWN,
    distance_of_parameters,
    distance_per_tensor,
    give_roles,
    losses_per_class,
    mean_by_nearness,
    noisy_by_indicator,
    to_nearest_clean,
    verdict_by_role,
)

MEDIAN_STEPS, MEDIAN_PRECISION = 10, 1e-5


@dataclass(frozen=True)
class FedElc(Method):
    """Noisy clients, found by their losses per class, learn soft labels by back-propagation; their models count less.

    `indicator` has the mean loss of each class; for a class with one sample it is that sample's loss. --least-count
    leaves small classes out.
    """

    name: ClassVar[str] = "fedelc"
    sums: ClassVar[dict[str, Summing]] = {}
    citation: ClassVar[str] = "Jiang et al., Tackling Noisy Clients with End-to-end Label Correction, CIKM 2024"
    stages: ClassVar[tuple[str, ...]] = ("warm_up", "correct")
    own_aggregation: ClassVar[bool] = True
    exposes: ClassVar[dict[str, Exposure]] = {**Method.exposes, "indicator": "client", "present": "client"}
    asks: ClassVar[str] = "all sites at once at the end of the warm-up"

    preset: Literal["fedelc", "masked"] = option("fedelc", "FedELC, or its successor MaskedOptim.")
    loss: str = option(
        "logit_adjustment", "The loss of the warm-up and of clean clients; cross_entropy: no logit adjustment."
    )
    warm_up: int | None = option(
        None, "Rounds of stage 1; none: a sixth of all (20 of 120), masked a quarter (30).", symbol="T_w", at_least=1
    )
    alpha: float = option(0.5, "Weight of L_o, which holds soft labels to the given ones.", symbol="α", at_least=0)
    beta: float = option(
        None, "Weight of L_e, the entropy.", symbol="β", at_least=0, presets={"fedelc": 0.2, "masked": 0.1}
    )
    label_step: float | None = option(
        None, "Learning rate of the labels; none: 15.625 times --batch-size, as 1000 at 64.", symbol="λ", at_least=0
    )
    label_scale: float = option(10.0, "Label logits start at this number for the given class.", symbol="K_l", above=0)
    label_gradient: Literal["batch_mean", "per_sample"] = option(
        "batch_mean", "Labels follow the gradient of a batch's mean loss (code), or of their own sample's loss."
    )
    class_scaled: bool = option(True, "Divide L_c and L_e by the number of classes, as the code does.")
    compat_mask: Literal["none", "small_loss"] = option(
        None,
        "Hold all labels to the given ones, or those of the batch's smallest losses only.",
        presets={"fedelc": "none", "masked": "small_loss"},
    )
    mask_keep: float = option(0.8, "The share of a batch that small_loss holds.", at_least=0, at_most=1)
    keep_received: float = option(
        None,
        "Share of the received model in what a noisy client returns.",
        at_least=0,
        at_most=1,
        presets={"fedelc": 0.0, "masked": 0.2},
    )
    label_merge: Literal["average", "none"] = option(
        "average", "End of a visit: labels become the mean of themselves and the predictions, or stay."
    )
    merge_mode: Literal["eval", "train"] = option(
        "eval", "These predictions with running statistics, or with those of batches (code, an accident)."
    )
    scoring_views: bool = option(
        False,
        "For the split of clients and for these predictions, score random views, as in training (code).",
    )
    detect: Literal["vote", "single", "careful"] = option(
        "vote", "The noisy clients: most frequent set of nine mixtures (code), one mixture, or the likeliest of 400."
    )
    covariance: Literal["full", "diagonal"] | None = option(
        None, "Form of the mixture's components; none: full (code), with detect=careful diagonal."
    )
    aggregation: Literal["distance", "geometric_median", "mean"] = option(
        None,
        "Merge models with less weight for distant noisy ones, by a geometric median (also in stage 1), or by FedAvg.",
        presets={"fedelc": "distance", "masked": "geometric_median"},
    )
    distance: Literal["per_tensor", "parameters"] = option(
        "per_tensor",
        "Distance of models: the sum over tensors, with running statistics (code), or over all trainable parameters.",
    )
    median_over: Literal["tensor", "model"] = option("tensor", "A geometric median per tensor (code), or of models.")

    def by_class(self) -> dict[str, int]:
        return {"indicator": 0, "present": 0}

    # --- both stages, as the server plays them ---------------------------------------------------------------------

    def start(self, server: Server) -> None:
        server.state["role"] = torch.full((server.clients,), UNKNOWN)

    def warm_up_rounds(self, rounds: int) -> int:
        """T_w, the rounds of stage 1."""
        share = 1 / 4 if self.preset == "masked" else 1 / 6
        return max(1, round(share * rounds)) if self.warm_up is None else self.warm_up

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        """A round; at the end of stage 1 all clients are measured and split into clean and noisy ones."""
        last = self.warm_up_rounds(server.rounds)
        server.note(stage="warm_up" if server.round <= last else "correct")
        replies = yield Exchange("train", self.choose(server), lambda client: self.send(server, client))
        self.merge(server, replies)
        if server.round == last:
            replies = yield Exchange("measure", server.available, lambda client: dict(server.weights))
            found = noisy_by_indicator(server, replies, self.detect, covariance=self.covariance, measure="sum")
            give_roles(server, *found)

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        if ask == "measure":
            return {"indicator": ReplyForm((server.classes,)), "present": ReplyForm((server.classes,), TRUTH)}
        return model_forms(server)

    def send(self, server: Server, client: int) -> Payload:
        """The global model, and whether the client is noisy."""
        return {**server.weights, "role": server.state["role"][client].reshape(1)}

    def merge(self, server: Server, replies: Replies) -> None:
        """FedAvg in stage 1, then by nearness to a clean model; with the successor a geometric median throughout."""
        if self.aggregation == "geometric_median":
            slots = server.model.slots if self.median_over == "tensor" else []
            collected = HeldModels(median_of(slots), server.weights)
            for _, reply in replies:
                collected.add(reply, 1.0)
            server.weights = collected.result()
        elif self.aggregation == "mean" or server.round <= self.warm_up_rounds(server.rounds):
            super().merge(server, replies)
        else:
            models = dict(replies)  # all together, because every noisy one is compared with every clean one
            distance = distance_per_tensor if self.distance == "per_tensor" else distance_of_parameters
            server.weights = mean_by_nearness(server, models, to_nearest_clean(server, models, distance))

    # --- at the site -----------------------------------------------------------------------------------------------

    def measure(self, client: Client, got: Payload) -> Payload:
        """The mean loss of each class under the global model, without logit adjustment."""
        client.model.load(got)
        return losses_per_class(client, client.predict(views=self.scoring_views))

    def train(self, client: Client, got: Payload) -> Payload:
        """As FedAvg in stage 1 and on a clean client; a noisy one trains its labels too."""
        return self.train_with_labels(client, got) if int(got["role"]) == NOISY else super().train(client, got)

    def train_with_labels(self, client: Client, got: Payload) -> Payload:
        """E epochs on L; the network makes a step after each batch, the labels one after each epoch."""
        client.model.load(got)
        labels = LearnedLabels(self, client.given, self.label_logits(client), self.step_of_labels(client))

        def rows_of_epoch() -> Tensor:
            labels.step()
            return torch.arange(len(client))

        client.fit(
            lambda rows, x, y: labels.mean(client.model.module(x), y, client.class_counts),
            rows=rows_of_epoch,
            labels=torch.arange(len(client), device=client.given.device),  # the loss looks up what it needs by number
            by_hand=LossOfLogits(labels, client.class_counts),
        )
        labels.step()
        client.state["label_logits"] = self.merged(client, labels.logits)
        client.note(pseudo_labels=client.state["label_logits"].argmax(1))
        self.mix_in_received(client, got)
        return self.reply(client)

    def label_logits(self, client: Client) -> Tensor:
        """ỹ as the last visit left it; at first the given label times a number."""
        fresh = self.label_scale * one_hot(client.given, client.classes).float()
        return client.state.get("label_logits", fresh).to(client.given.device).clone()

    def step_of_labels(self, client: Client) -> float:
        """λ; it meets the gradient of a batch's mean, so it grows with the batch to move each label as far."""
        return 1000 / 64 * client.training.batch_size if self.label_step is None else self.label_step

    def mix_in_received(self, client: Client, got: Payload) -> None:
        """The successor returns a mean of the received and the trained model, running statistics included."""
        if self.keep_received:
            with torch.no_grad():
                received = got["weights"].to(client.model.weights)
                client.model.weights.mul_(1 - self.keep_received).add_(received, alpha=self.keep_received)

    def merged(self, client: Client, logits: Tensor) -> Tensor:
        """The labels that the client keeps: K_l (q + p) / 2, p by the model that it has just trained."""
        if self.label_merge == "none":
            return logits
        trains = self.merge_mode == "train"
        predicted = self.training_mode_logits(client) if trains else client.predict(views=self.scoring_views)
        return self.label_scale * (logits.softmax(1) + predicted.softmax(1)) / 2

    def training_mode_logits(self, client: Client) -> Tensor:
        """The logits of all samples with the statistics of their batches; those of the model stay as they are."""
        before, view = client.model.payload(), client.chosen_view(self.scoring_views)
        client.model.train()
        found, batches = [], pieces(torch.arange(len(client)), client.training.batch_size)
        for batch, stored in zip(batches, client.stored(batches), strict=True):
            with torch.no_grad(), client.training_modes(batch, (client.model,)):
                found.append(client.model.module(view(stored)).float())
        client.forward_samples += len(client)
        with torch.no_grad():
            client.model.weights.copy_(before["weights"])
            if len(client.model.counters):
                client.model.counters.copy_(before["counters"])
        return torch.cat(found)

    # --- the verdict on labels -------------------------------------------------------------------------------------

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """By the losses of the global model; in the upper half where a noisy client's soft label has another class."""
        logits = client.state.get("label_logits")
        corrected = None if logits is None else logits.argmax(1)
        return verdict_by_role(super().verdict(client, got), client, got, corrected)


@dataclass(frozen=True, eq=False)
class LearnedLabels(Loss):
    """L = L_c / C + α L_o + β L_e / C of a noisy client, for the network; the gradient for its labels is kept.

    L_c = mean KL(p || q), L_o = -mean log q_y, L_e = mean entropy of p. What the training loop calls labels are the
    numbers of the samples here.
    """

    method: FedElc
    given: Tensor
    logits: Tensor  # ỹ of all samples
    length: float  # λ
    gradient: Tensor = field(init=False)  # dL/dỹ; 0 for a sample that was in no batch of this epoch

    def __post_init__(self) -> None:
        object.__setattr__(self, "gradient", torch.zeros_like(self.logits))

    @property
    def scale(self) -> float:
        """What L_c and L_e are divided by."""
        return float(self.logits.shape[1]) if self.method.class_scaled else 1.0

    def step(self) -> None:
        """ỹ - λ dL/dỹ; then a new epoch begins."""
        self.logits.sub_(self.gradient, alpha=self.length)
        self.gradient.zero_()

    def __call__(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        """The loss of every sample, without α L_o: it has no gradient for the network."""
        log_p, log_q = logits.log_softmax(1), self.logits[target].log_softmax(1)
        self.note(logits.detach(), target)
        # KL(p || q) + β H(p) = Σ p ((1 - β) log p - log q)
        return (log_p.exp() * ((1 - self.method.beta) * log_p - log_q)).sum(1) / self.scale

    def slope(self, logits: Tensor, target: Tensor, class_counts: Tensor) -> Tensor:
        """The gradient of the mean loss: p_c (a_c - Σ p a) / (B C), a = (1 - β) log p - log q."""
        log_p, log_q = logits.log_softmax(1), self.logits[target].log_softmax(1)
        self.note(logits, target)
        p, a = log_p.exp(), (1 - self.method.beta) * log_p - log_q
        return p * (a - (p * a).sum(1, keepdim=True)) / (self.scale * len(p))

    def note(self, logits: Tensor, rows: Tensor) -> None:
        """(1/B) [(q - p) / C + α mask (q - e_y)], the gradient for the labels of this batch."""
        method, given = self.method, self.given[rows]
        p, q = logits.float().softmax(1), self.logits[rows].softmax(1)
        towards_given = (q - one_hot(given, q.shape[1])) * self.mask(logits, given).unsqueeze(1)
        found = (q - p) / self.scale + method.alpha * towards_given
        self.gradient[rows] = found / len(rows) if method.label_gradient == "batch_mean" else found

    def mask(self, logits: Tensor, given: Tensor) -> Tensor:
        """Which labels of a batch are held to the given ones: all, or those of the smallest losses."""
        if self.method.compat_mask == "none":
            return torch.ones(len(given), device=given.device)
        held = torch.zeros(len(given), device=given.device)
        losses = cross_entropy(logits.float(), given, reduction="none")
        held[smallest(losses, int(self.method.mask_keep * len(given) + ROUNDING))] = 1.0
        return held


def median_of(slots: list[Slot]) -> Combine:
    """A rule that merges models by the geometric median of each of these tensors; without any, of whole models."""

    def combine(models: Sequence[Tensor], weights: Sequence[float], before: Tensor) -> Tensor:
        if not slots:
            return geometric_median(models)
        return torch.cat([geometric_median([model[slot.start : slot.stop] for model in models]) for slot in slots])

    return combine


def geometric_median(vectors: Sequence[Tensor]) -> Tensor:
    """Weiszfeld's algorithm from the mean, all vectors alike, as in the code: a last small step is not taken."""
    point = weighted_mean(vectors, [1.0] * len(vectors))
    for _ in range(MEDIAN_STEPS):
        pull = [1 / max(length(vector - point), MEDIAN_PRECISION) for vector in vectors]
        moved = weighted_mean(vectors, pull)
        if length(moved - point) < MEDIAN_PRECISION:
            break
        point = moved
    return point
