"""FedNoRo: find the noisy clients by their losses per class; then train them by distillation, with less weight.

Wu, Yu, Jiang, Cheng, Yan: FedNoRo: Towards Noise-Robust Federated Learning by Addressing Class Imbalance and Label
Noise Heterogeneity, IJCAI 2023.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| T1 (rounds) | warm_up | | λ_max | largest_share |
| T | temperature | | ramp-up length | ramp |

Stage 1 is FedAvg with logit adjustment. At its end every client sends its mean loss per class (C numbers and which
classes it holds); a mixture of two Gaussians over these rows splits the clients. In stage 2 clean clients train as
before, noisy ones also learn from the global model's predictions, and distant models of noisy clients weigh less.

`PaperFedNoRo` is the paper, in the order of its Sections 4.1 and 4.2. `FedNoRo`, the class that runs, adds the
ablations of the paper's Tables 3 and 4 and the differences of the released code.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Exchange, Method, Replies, Verdict, model_forms
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.intrinsic_dimension import local_intrinsic_dimensionality
from fedwinnow.mathematics.losses import LogitAdjustment
from fedwinnow.mathematics.payload import TRUTH, Exposure, FlatModel, Payload, ReplyForm, Summing
from fedwinnow.options import option
from fedwinnow.steps.noisy_sites import (
    CLEAN,
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
from fedwinnow.steps.second_model import second_model
from fedwinnow.steps.site_labels import sample_losses


@dataclass(frozen=True)
class PaperFedNoRo(Method):
    """Stage 1 (Section 4.1) and stage 2 (Section 4.2) of the paper.

    The option `indicator` has an effect only in `FedNoRo`; it is declared here to keep its place in the order of
    options.
    """

    sums: ClassVar[dict[str, Summing]] = {}
    citation: ClassVar[str] = "Wu et al., FedNoRo: Towards Noise-Robust Federated Learning, IJCAI 2023"
    stages: ClassVar[tuple[str, ...]] = ("warm_up", "robust")
    own_aggregation: ClassVar[bool] = True
    exposes: ClassVar[dict[str, Exposure]] = {
        **Method.exposes,
        "indicator": "client",
        "present": "client",
    }
    asks: ClassVar[str] = "all sites at once at the end of the warm-up"

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or its released code where they differ.")
    loss: str = option("logit_adjustment", "The loss of local training; cross_entropy: no logit adjustment (ablation).")
    warm_up: int | None = option(
        None, "Rounds of stage 1; none: a tenth of all, as 10 of 100.", symbol="T1", source="ICH", at_least=1
    )
    largest_share: float = option(
        0.8, "Weight of distillation after the ramp-up.", symbol="λ_max", at_least=0, at_most=1
    )
    ramp: int | None = option(
        None, "Rounds of the ramp-up; none: 40 % of all, as 40 of 100 in the code.", source="code", at_least=1
    )
    temperature: float = option(0.8, "Divides the teacher's logits.", symbol="T", above=0)
    indicator: Literal["class_loss", "loss", "confidence", "lid"] = option(
        "class_loss", "What a client sends: its mean loss per class, or (ablation) one mean over all its samples."
    )
    normalise: bool = option(True, "Map every class to 0..1 over the clients (ablation).")
    covariance: Literal["full", "diagonal"] | None = option(
        None, "Form of the mixture's components; none: full, with detect=careful diagonal."
    )
    detect: Literal["single", "vote", "careful"] = option(
        None,
        "One mixture (paper), the most frequent set of nine (code), or the likeliest of 400 mixtures, of diagonal form "
        "and with variances of at least 0.001 (careful: in neither of them).",
        presets={"paper": "single", "code": "vote"},
    )
    noisy_mean: Literal["norm", "sum"] = option(
        None,
        "The noisy component is the one with the larger norm, or sum, of its mean.",
        presets={"paper": "norm", "code": "sum"},
    )

    def by_class(self) -> dict[str, int]:
        return {"indicator": 0, "present": 0}

    # --- both stages, as the server plays them ---------------------------------------------------------------------

    def start(self, server: Server) -> None:
        server.state["role"] = torch.full((server.clients,), UNKNOWN)

    def warm_up_rounds(self, server: Server) -> int:
        """T1, the rounds of stage 1."""
        return max(1, round(server.rounds / 10)) if self.warm_up is None else self.warm_up

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        """A round of FedAvg; at the end of stage 1 all clients are measured and split into clean and noisy ones."""
        last = self.warm_up_rounds(server)
        server.note(stage="warm_up" if server.round <= last else "robust")
        replies = yield Exchange("train", self.choose(server), lambda client: self.send(server, client))
        self.merge(server, replies)
        if server.round == last:
            replies = yield Exchange("measure", server.available, lambda client: dict(server.weights))
            self.split_clients(server, replies)

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        if ask == "measure":
            return {"indicator": ReplyForm((server.classes,)), "present": ReplyForm((server.classes,), TRUTH)}
        return model_forms(server)

    def send(self, server: Server, client: int) -> Payload:
        """The global model, whether the client is noisy, and λ."""
        role, share = server.state["role"][client], self.share(server)
        return {**server.weights, "role": role.reshape(1), "share": torch.tensor([share])}

    def merge(self, server: Server, replies: Replies) -> None:
        if server.round <= self.warm_up_rounds(server):
            self.average_by_size(server, replies)
        else:
            self.average_by_distance(server, replies)

    def train(self, client: Client, got: Payload) -> Payload:
        """In stage 1, and on clean clients, cross-entropy with logit adjustment; on noisy ones eq. (5)."""
        client.model.load(got)
        share = float(got["share"]) if int(got["role"]) == NOISY else 0.0
        if share == 0:
            client.fit(
                lambda rows, x, y: self.objective(client, rows, x, y, got),
                by_hand=self.by_hand(client, got),
            )
            return self.reply(client)
        teacher = second_model(client, client.model.weights)
        teacher.module.eval()
        client.fit(lambda rows, x, y: self.distilled(client, teacher, share, x, y))
        return self.reply(client)

    # --- Section 4.1: noisy client detection -----------------------------------------------------------------------

    def average_by_size(self, server: Server, replies: Replies) -> None:
        """Eq. (2): FedAvg."""
        super().merge(server, replies)

    def measure(self, client: Client, got: Payload) -> Payload:
        """l_i: the client's mean loss per class under the global model, without logit adjustment."""
        return losses_per_class(client, self.predicted(client, got))

    def predicted(self, client: Client, got: Payload) -> Tensor:
        """The logits of the global model for the client's samples."""
        client.model.load(got)
        return client.predict()

    def noisy_clients(self, server: Server, replies: Replies) -> tuple[list[int], Tensor]:
        """The clients that replied, and which of them are in the component whose mean has the larger norm, eq. (3)."""
        return noisy_by_indicator(
            server,
            replies,
            self.detect,
            normalise=self.normalise,
            covariance=self.covariance,
            measure=self.noisy_mean,
        )

    def split_clients(self, server: Server, replies: Replies) -> None:
        """S_c and S_n; a client that did not reply counts as noisy."""
        give_roles(server, *self.noisy_clients(server, replies))

    # --- Section 4.2: noise-robust training ------------------------------------------------------------------------

    def wanted(self, client: Client, teacher: FlatModel, x: Tensor) -> Tensor:
        """Eq. (4): log y_G, y_G = softmax(f_G(x) / T)."""
        with torch.no_grad():
            client.forward_samples += len(x)
            wanted: Tensor = (teacher.module(x) / self.temperature).log_softmax(1)
        return wanted

    def distilled(self, client: Client, teacher: FlatModel, share: float, x: Tensor, y: Tensor) -> Tensor:
        """Eq. (5): λ KL(y_G || y_p) + (1 - λ) CE(y_p, y), the mean over a batch of a noisy client."""
        x, target = self.mix(client, x, y)
        logits = client.model.module(x)
        wanted = self.wanted(client, teacher, x)
        hard: Tensor = self.criterion(logits, target, client.class_counts).mean()
        return share * self.divergence(wanted, logits, client.class_counts) + (1 - share) * hard

    def divergence(self, wanted: Tensor, logits: Tensor, class_counts: Tensor) -> Tensor:
        """KL(y_G || y_p), the mean over the batch."""
        return (wanted.exp() * (wanted - self.student(logits, class_counts))).sum(1).mean()

    def student(self, logits: Tensor, class_counts: Tensor) -> Tensor:
        """log y_p, y_p = softmax(f(x) + log π_k), adjusted as in the loss.

        The adjusted probability of an absent class is (nearly) 0, and the divergence would be infinite; so absent
        classes are left out of it, as in the released code.
        """
        return torch.where(class_counts > 0, self.adjusted(logits, class_counts).log_softmax(1), 0.0)

    def adjusted(self, logits: Tensor, class_counts: Tensor) -> Tensor:
        """f(x) + log π_k, π_k the client's own label frequencies; plain f(x) if the loss has no adjustment."""
        if not isinstance(self.criterion, LogitAdjustment):
            return logits
        return logits + self.criterion.tau * self.criterion.log_prior(class_counts)

    def share(self, server: Server) -> float:
        """λ of eq. (5): a Gaussian ramp-up to λ_max over the first rounds of stage 2."""
        length = max(1, round(0.4 * server.rounds)) if self.ramp is None else self.ramp
        done = server.round - 1 - self.warm_up_rounds(server)
        progress = min(max(done, 0) / (length - 1), 1.0) if length > 1 else 1.0
        return self.largest_share * math.exp(-5 * (1 - progress) ** 2)

    def distances(self, server: Server, models: dict[int, Payload]) -> Tensor:
        """Eq. (6): d(i), to the nearest model of a clean client of this round; 0 if there is none."""
        return to_nearest_clean(server, models, self.model_distance)

    def model_distance(self, first: Tensor, second: Tensor, model: FlatModel) -> Tensor:
        """The distance of two models, as vectors of their trainable parameters."""
        return distance_of_parameters(first, second, model)

    def average_by_distance(self, server: Server, replies: Replies) -> None:
        """Eq. (7): the mean by N_i e^(-D(i))."""
        models = dict(replies)  # all together, because every noisy one is compared with every clean one
        server.weights = mean_by_nearness(server, models, self.distances(server, models))

    # --- the verdict on labels -------------------------------------------------------------------------------------

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """By the losses of the global model; on a clean client no label is called wrong."""
        return verdict_by_role(super().verdict(client, got), client, got)


# --- Ablations, and what the released code does differently --------------------------------------------------------

LID_NEIGHBOURS = 20  # as in FedCorr


@dataclass(frozen=True)
class FedNoRo(PaperFedNoRo):
    """Noisy clients are found by their losses per class; they get distillation and distance-aware aggregation.

    `indicator` has the mean loss of each class; for a class with one sample it is that sample's loss. --least-count
    leaves small classes out.
    """

    name: ClassVar[str] = "fednoro"

    noisy: Literal["both", "drop", "aggregate", "distil", "none"] = option(
        "both", "Stage 2: both, leave noisy clients out, distance-aware aggregation only, distillation only, neither."
    )
    distance: Literal["parameters", "per_tensor"] = option(
        None,
        "Distance of models: over all trainable parameters, or the sum over tensors, with running statistics.",
        presets={"paper": "parameters", "code": "per_tensor"},
    )
    absent: Literal["mask", "floor"] = option(
        "mask", "Distil classes that a client does not hold: not at all, or against their floored frequency."
    )
    adjust_student: bool = option(
        True,
        "Distil into the student's adjusted logits, though the teacher's are not (paper and code); false (ours): into "
        "its plain ones.",
    )
    scoring_views: bool = option(
        None, "Score samples on random views, as in training.", presets={"paper": False, "code": True}
    )
    measure_every: int = option(
        0, "Also measure every so many rounds of stage 1, to study its length; 0: only at its end.", at_least=0
    )

    # --- detection: indicator, scoring_views, measure_every --------------------------------------------------------

    def by_class(self) -> dict[str, int]:
        return super().by_class() if self.indicator == "class_loss" else {}

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        if ask == "measure" and self.indicator != "class_loss":
            return {"indicator": ReplyForm((1,)), "present": ReplyForm((1,), TRUTH)}
        return super().forms(server, ask, sent)

    def measure(self, client: Client, got: Payload) -> Payload:
        """With another `indicator`, one mean over all samples of the client; larger means noisier."""
        if self.indicator == "class_loss":
            return super().measure(client, got)
        logits = self.predicted(client, got)
        value = {
            "loss": lambda: sample_losses(logits, client.given),
            "confidence": lambda: 1.0 - logits.softmax(1).max(1).values,
            "lid": lambda: local_intrinsic_dimensionality(logits.softmax(1), LID_NEIGHBOURS),
        }[self.indicator]()
        return {"indicator": value.mean().float().cpu().reshape(1), "present": torch.tensor([True])}

    def predicted(self, client: Client, got: Payload) -> Tensor:
        """The code scores random views."""
        client.model.load(got)
        return client.predict(views=self.scoring_views)

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        """With `measure_every`, earlier rounds of stage 1 measure, too, but do not split the clients."""
        yield from super().exchanges(server)
        studied = self.measure_every > 0 and server.round % self.measure_every == 0
        if studied and server.round < self.warm_up_rounds(server):
            replies = yield Exchange("measure", server.available, lambda client: dict(server.weights))
            self.noisy_clients(server, replies)

    # --- stage 2: noisy, absent, adjust_student, distance ------------------------------------------------------------

    def choose(self, server: Server) -> Sequence[int]:
        """With `noisy=drop`, clean clients only, once they are known."""
        clean = [client for client in server.available if server.state["role"][client] == CLEAN]
        if self.noisy != "drop" or not clean:
            return super().choose(server)
        return server.sample(among=clean)

    def share(self, server: Server) -> float:
        return super().share(server) if self.noisy in ("both", "distil") else 0.0

    def student(self, logits: Tensor, class_counts: Tensor) -> Tensor:
        """Without the mask if `absent=floor`, or if nothing is adjusted."""
        if not self.adjust_student:
            return logits.log_softmax(1)
        if self.absent == "floor" or not isinstance(self.criterion, LogitAdjustment):
            return self.adjusted(logits, class_counts).log_softmax(1)
        return super().student(logits, class_counts)

    def model_distance(self, first: Tensor, second: Tensor, model: FlatModel) -> Tensor:
        """The code adds up the distances of the models' tensors, running statistics included."""
        if self.distance == "parameters":
            return super().model_distance(first, second, model)
        return distance_per_tensor(first, second, model)

    def average_by_distance(self, server: Server, replies: Replies) -> None:
        if self.noisy in ("both", "aggregate"):
            super().average_by_distance(server, replies)
        else:
            self.average_by_size(server, replies)
