"""Robust FL: clients share class centroids of features; a label that the nearest centroid contradicts is replaced.

Yang, Park, Byun, Kim: Robust Federated Learning with Noisy Labels, IEEE Intelligent Systems 2022.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| τ, R(t) | forget | | λ_cen | lambda_cen |
| T_k | forget_rounds | | λ_e | lambda_e |
| T_pl | given_rounds | | f_G, f_k | server.state["centroids"], centroids |

Only the samples of small loss in each batch count. If the nearest centroid is that of its label, a sample keeps the
label; if not, it gets the global model's prediction, after the first rounds. Centroids are updated with each batch; the
server averages them, weighted by their similarity to the global ones. Equations have no numbers here because they were
taken from the code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method, Replies, Verdict, model_forms
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import Exposure, Payload, ReplyForm, Summing
from fedwinnow.mathematics.small_loss import forgotten_share, kept_count, smallest
from fedwinnow.models.features import length_of_features, logits_and_features
from fedwinnow.options import option
from fedwinnow.steps.regularisers import entropy
from fedwinnow.steps.site_labels import NOTHING, upper_half_where_wrong
from fedwinnow.steps.stages import first_rounds, watch_replies


@dataclass
class CentroidGuide:
    """The state of local training in one visit: the centroids, and the label that each sample is trained on."""

    centroids: Tensor  # f_k, updated with each batch
    guess: Tensor  # the pseudo-label for a label that its centroid contradicts
    kept: Tensor  # per sample: whether it had a small loss and kept its label when last seen
    replaced: Tensor  # per sample: the pseudo-label that it was last trained on, or NOTHING

    def tell(self, rows: Tensor, small: Tensor, agrees: Tensor, target: Tensor) -> None:
        """Record which samples of a batch kept their label and which got another."""
        self.kept[rows], self.replaced[rows] = False, NOTHING
        self.kept[small] = agrees
        self.replaced[small] = torch.where(agrees, NOTHING, target)

    def follow(self, means: Tensor) -> None:
        """f_k = (1 - s^2) f_k + s^2 f, where s is their cosine per class; a class that is not in the batch stays."""
        share = likeness(self.centroids, means).square().unsqueeze(1)
        self.centroids = torch.lerp(self.centroids, means, share)


@dataclass(frozen=True)
class RobustFl(Method):
    """Small-loss samples, class centroids shared by all, and pseudo-labels where a centroid contradicts the label.

    The centroid of a class with one sample comes from that sample's features. --least-count leaves small classes out.
    """

    name: ClassVar[str] = "rofl"
    sums: ClassVar[dict[str, Summing]] = {}
    citation: ClassVar[str] = "Yang et al., Robust Federated Learning with Noisy Labels, IEEE Intelligent Systems 2022"
    stages: ClassVar[tuple[str, ...]] = ("given_labels", "pseudo_labels")
    exposes: ClassVar[dict[str, Exposure]] = {**Method.exposes, "centroids": "client"}
    forwards: ClassVar[dict[str, str]] = {
        "centroids": "if only one site of the round has a class: its centroid becomes the global one",
    }

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or the code that others used for it.")
    forget: float = option(
        0.2, "Share of a batch left out for its loss: the noise rate.", symbol="τ", at_least=0, at_most=1
    )
    forget_rounds: int | None = option(
        None, "Rounds until the whole share is left out; none: 10, at most a fifth of all.", symbol="T_k", at_least=1
    )
    given_rounds: int | None = option(
        None, "Rounds without pseudo-labels; none: a tenth of all, but 10 or half of them.", symbol="T_pl", at_least=0
    )
    lambda_cen: float = option(1.0, "Weight of the distance to the label's centroid.", symbol="λ_cen", at_least=0)
    lambda_e: float = option(0.8, "Weight of the entropy of predictions.", symbol="λ_e", at_least=0)
    centroid_loss: Literal["mean", "distance", "sum", "constant"] = option(
        None,
        "The mean over samples and features, the mean or the sum of squared distances; constant: no gradient.",
        presets={"paper": "mean", "code": "constant"},
    )
    first_centroids: Literal["mean", "random"] = option(
        None,
        "The first global centroids: a plain mean, or weighted by likeness to random vectors.",
        presets={"paper": "mean", "code": "random"},
    )
    equal_weights: bool = option(
        None, "Average models equally, not by their samples.", presets={"paper": False, "code": True}
    )
    scoring_views: bool = option(
        None, "Pseudo-labels from random views, as in training.", presets={"paper": False, "code": True}
    )

    def by_class(self) -> dict[str, int]:
        return {"centroids": 0}  # a row of zeros: see `class_means`

    # --- the server's half -----------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        server.state["centroids"] = torch.zeros(server.classes, 0)  # the first replies set the length of features

    def question(self, server: Server) -> tuple[str, str]:
        early = server.round <= first_rounds(server.rounds, self.given_rounds)
        return "given_labels" if early else "pseudo_labels", "train"

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        length = server.state["centroids"].shape[1] or length_of_features(server.model.module, server.classes)
        return model_forms(server) | {"centroids": ReplyForm((server.classes, length))}

    def send(self, server: Server, client: int) -> Payload:
        return {**server.weights, "centroids": server.state["centroids"]}

    def merge(self, server: Server, replies: Replies) -> None:
        def weighed() -> Replies:
            for client, reply in replies:
                yield client, reply | {"samples": torch.ones(1)} if self.equal_weights else reply

        passing, news = watch_replies(weighed(), "centroids")
        super().merge(server, passing)
        server.state["centroids"] = self.averaged(server, torch.stack([said["centroids"] for said in news.values()]))

    def averaged(self, server: Server, local: Tensor) -> Tensor:
        """f_G = sum_k cos(f_G, f_k) f_k / sum_k cos(f_G, f_k), per class; likeness below 0 counts as 0."""
        before = server.state["centroids"]
        if not before.numel():
            shape = local.shape[1:]
            random = self.first_centroids == "random"
            before = torch.randn(shape, generator=server.generator("centroids")) if random else torch.zeros(shape)
        share = torch.stack([likeness(before, one) for one in local]).clamp(min=0).unsqueeze(-1)
        total = share.sum(0)
        return torch.where(total > 1e-6, (share * local).sum(0) / total.clamp(min=1e-6), before)

    # --- the client's half -----------------------------------------------------------------------------------------

    def train(self, client: Client, got: Payload) -> Payload:
        client.model.load(got)
        guide = self.guide(client, got)
        client.fit(lambda rows, x, y: self.loss_of(client, guide, rows.to(y.device), x, y))
        client.note(selected=guide.kept, pseudo_labels=guide.replaced)
        return self.reply(client) | {"centroids": guide.centroids.cpu()}

    def guide(self, client: Client, got: Payload) -> CentroidGuide:
        """One pass of the global model: its predictions, and centroids of classes without a shared one."""
        logits, features = client.predict_with_features(views=self.scoring_views)
        centroids = class_means(features, client.given, client.classes)
        if got["centroids"].numel():
            shared = got["centroids"].to(centroids)
            centroids = torch.where(shared.any(1, keepdim=True), shared, centroids)
        early = client.round <= first_rounds(client.rounds, self.given_rounds)
        guess = client.given if early else logits.argmax(1)
        kept = torch.zeros(len(client), dtype=torch.bool, device=client.given.device)
        return CentroidGuide(centroids, guess, kept, torch.full_like(client.given, NOTHING))

    def loss_of(self, client: Client, guide: CentroidGuide, rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """L_c + lambda_cen L_cen + lambda_e L_e on the samples of small loss; then the centroids are updated."""
        logits, features = logits_and_features(client.model.module, x)
        features = features.float()  # the type of the centroids, also if the model computes in half precision
        losses = functional.cross_entropy(logits.detach(), y, reduction="none")
        small = smallest(losses, kept_count(len(y), self.forgotten(client)))
        logits, features, given, rows_small = logits[small], features[small], y[small], rows[small]
        agrees = nearest(guide.centroids, features.detach()) == given
        target = torch.where(agrees, given, guide.guess[rows_small])
        guide.tell(rows, rows_small, agrees, target)
        loss = self.criterion.mean(logits, target, client.class_counts)
        if self.centroid_loss != "constant" and self.lambda_cen:
            away = (features - guide.centroids[given]).square() * agrees.unsqueeze(1)
            over = {"mean": away.numel(), "distance": len(away), "sum": 1}[self.centroid_loss]
            ramp = min(client.round / max(1, first_rounds(client.rounds, self.given_rounds)), 1.0)
            loss = loss + self.lambda_cen * ramp * away.sum() / over
        guide.follow(class_means(features.detach(), given, client.classes))
        return loss + self.lambda_e * entropy(logits)

    def forgotten(self, client: Client) -> float:
        """R(t): from 0 in the first round to tau after T_k rounds."""
        ramp = min(10, max(1, round(client.rounds / 5))) if self.forget_rounds is None else self.forget_rounds
        return forgotten_share(client.round, self.forget, ramp, of_rate=True)

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """By the losses of the global model; in the upper half where the nearest centroid contradicts a label."""
        verdict = super().verdict(client, got)
        if not got["centroids"].numel():  # before the first replies
            return verdict
        _, features = client.predict_with_features()
        denied = nearest(got["centroids"].to(features), features) != client.given
        return Verdict(upper_half_where_wrong(verdict.p_wrong, denied), verdict.suggested)


# --- centroids: one mean feature vector per class; a row of zeros is a class without samples -------------------------


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The mean features of each class (classes x length); zeros for a class without samples."""
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    counts = labels.new_zeros(classes).scatter_add_(0, labels, torch.ones_like(labels))  # bincount waits for a card
    return sums / counts.clamp(min=1).unsqueeze(1)


def nearest(centroids: Tensor, features: Tensor) -> Tensor:
    """The class whose centroid has the largest cosine with each sample's features, among classes with a centroid."""
    cosines = functional.normalize(features, dim=1) @ functional.normalize(centroids, dim=1).T
    return torch.where(centroids.any(1), cosines, -torch.inf).argmax(1)


def likeness(before: Tensor, now: Tensor) -> Tensor:
    """The cosine of two centroids per class: 0 for a class that is not in `now`, 1 for one that was not in `before`."""
    cosine = functional.cosine_similarity(before, now, dim=1)
    return torch.where(before.any(1), cosine, now.any(1).to(cosine))
