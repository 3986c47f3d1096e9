"""The judges of an audit. A model that has memorised a label cannot judge it, so most judges use more than one model.

Scores are log-odds, not probabilities: probabilities near 0 or 1 are rounded, and their order would be lost.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.data.dataset import FieldRows
from fedwinnow.federation.client import Client, pieces
from fedwinnow.federation.judge import Judge
from fedwinnow.federation.method import Method, verdict_of
from fedwinnow.mathematics.neighbours import VOTES, nearest, votes
from fedwinnow.mathematics.payload import Payload
from fedwinnow.options import option

FOLLOWED = 2000  # how many samples of a site get samples to compare with, the most suspicious first
COMPARED = 3  # samples to compare with, of each class
ROWS_AT_ONCE = 500  # samples that are read at once to find neighbours
MOST_NEIGHBOURS = 20000  # samples of a site up to which all pairs are compared
CANDIDATES = ("mean", "knn", "both")  # what `auto` chooses among
TINY = 1e-12  # stands for a probability of 0 where two opinions are joined
LEAST = 1e-300  # stands for a probability that was rounded to 0
Opinion = tuple[
    Tensor, Tensor, Tensor
]  # probabilities: of every class; that the given label is right; that it is wrong


@dataclass(frozen=True)
class Scored(Judge):
    """Adds samples to compare with to a score: the nearest samples of both classes whose labels look right."""

    def opinions(self, method: Method, client: Client, got: Payload) -> Payload:
        reply = self.score(method, client, got)
        reply |= comparisons(client, {} if method.own_models else got, reply["score"], reply["other"])
        if isinstance(client.features, FieldRows):
            from fedwinnow.auditing.field_evidence import field_evidence

            prior = log_prior(counts_in_training(client)) if self.prior else None
            reply |= field_evidence(client, reply["score"], reply["worst"], prior)
        return reply

    @abstractmethod
    def score(self, method: Method, client: Client, got: Payload) -> Payload:
        """`score` and `other` of every sample."""


@dataclass(frozen=True)
class Final(Scored):
    """The last global model alone."""

    name: ClassVar[str] = "final"

    def score(self, method: Method, client: Client, got: Payload) -> Payload:
        return verdict(client, opinion(method, client, got, self.prior))


@dataclass(frozen=True)
class MeanOpinion(Scored):
    """The mean over the rounds in which the site took part, which varies less than a single round."""

    name: ClassVar[str] = "mean"
    remembers: ClassVar[bool] = True
    of: Literal["global", "local", "both"] = option(
        "global", "The models that the site was sent, those that it trained from them, or both."
    )
    skip: float = option(
        0.25, "The first rounds that do not count, as a share: their models know too little.", at_least=0, at_most=0.9
    )

    def observe(self, method: Method, client: Client, got: Payload, reply: Payload) -> None:
        if client.round <= math.floor(self.skip * client.rounds) or int(client.kept.get("round", -1)) == client.round:
            return
        client.kept["round"] = torch.tensor(client.round)
        for kind, model in (("global", got), ("local", reply)):
            if self.of in (kind, "both"):
                add(client.kept, opinion(method, client, model, self.prior, own_statistics=kind == "global"))

    def score(self, method: Method, client: Client, got: Payload) -> Payload:
        last = opinion(method, client, got, self.prior)
        kept = dict(client.kept)
        if self.of != "local" or "visits" not in kept:
            add(kept, last)  # the last model counts as a round; a site that never took part has only this one
        return verdict(client, (kept["classes"], kept["right"], kept["wrong"]))


@dataclass(frozen=True)
class Margin(MeanOpinion):
    """As `mean`, but only the likeliest other class counts against a label, not all others together."""

    name: ClassVar[str] = "margin"

    def score(self, method: Method, client: Client, got: Payload) -> Payload:
        reply = super().score(method, client, got)
        return reply | {"score": margin(reply["classes"], client.given.cpu(), reply["other"])}


@dataclass(frozen=True)
class NearestNeighbours(Scored):
    """The nearest samples of the same site vote, the nearer the more; no model is trained, and no label judges itself.

    Nearness is that of the encoder's features, else of pixels or of the columns of a table.
    """

    name: ClassVar[str] = "knn"
    trains: ClassVar[bool] = False
    prior: bool = option(False, "Has no effect: the votes of a site follow its own label frequencies already.")
    neighbours: int = option(10, "How many samples vote.", at_least=1)

    def score(self, method: Method, client: Client, got: Payload) -> Payload:
        return verdict(client, by_neighbours(client, self.neighbours))


@dataclass(frozen=True)
class Auto(MeanOpinion):
    """`mean`, `knn`, or both together: whichever predicts the given labels best that it has not seen.

    All sites take the same one; each adds its log losses, and the smallest sum wins. The truth has no say.
    """

    name: ClassVar[str] = "auto"

    def score(self, method: Method, client: Client, got: Payload) -> Payload:
        reply = super().score(method, client, got)
        believed = candidates(client, reply["classes"])
        scores = torch.stack([against(classes, client.given.cpu()) for classes in believed])
        scores[0] = reply["score"]  # kept in more digits than the probabilities are
        return reply | {"candidates": believed.exp().float(), "scores": scores}


@dataclass(frozen=True)
class Halves(Final):
    """Two halves of the federation train apart; the last model of each half judges the sites of the other half."""

    name: ClassVar[str] = "halves"
    federations: ClassVar[int] = 2


@dataclass(frozen=True)
class OwnModel(Scored):
    """The site's own model after its last local training."""

    name: ClassVar[str] = "own_model"
    remembers: ClassVar[bool] = True

    def observe(self, method: Method, client: Client, got: Payload, reply: Payload) -> None:
        client.kept.clear()
        add(client.kept, opinion(method, client, reply, self.prior, own_statistics=False))

    def score(self, method: Method, client: Client, got: Payload) -> Payload:
        if "visits" not in client.kept:
            return verdict(client, opinion(method, client, got, self.prior))
        return verdict(client, (client.kept["classes"], client.kept["right"], client.kept["wrong"]))


@dataclass(frozen=True)
class Filter(Scored):
    """The method's verdict; the last global model decides the order of samples with the same p_wrong."""

    name: ClassVar[str] = "filter"
    prior: bool = option(False, "Add the log of the site's own label frequencies to the logits in training.")

    def score(self, method: Method, client: Client, got: Payload) -> Payload:
        found = verdict_of(method, client, got)
        p_wrong = found.p_wrong.cpu().double().clamp(1e-9, 1 - 1e-9)
        reply = verdict(client, opinion(method, client, got, self.prior))
        suggested = found.suggested.cpu()
        other = torch.where(suggested == client.given.cpu(), reply["other"], suggested)
        return reply | {"score": p_wrong.logit() + 1e-3 * reply["score"].tanh(), "other": other}


def opinion(method: Method, client: Client, model: Payload, prior: bool, *, own_statistics: bool = True) -> Opinion:
    """What a model thinks of every sample of the site; a method with several models joins their logits.

    `own_statistics=False`: the model was trained here and brings its batch-norm statistics along.
    """
    if not own_statistics:
        client.model.own_statistics = None
    if method.own_models and model:
        client.model.load(model)
    logits = method.logits(client, model).cpu().double()
    given = client.given.cpu()
    if prior:
        logits = logits + log_prior(counts_in_training(client))
    given_logit = logits.gather(1, given[:, None])[:, 0]
    others = logits.scatter(1, given[:, None], -math.inf).logsumexp(1)
    return logits.softmax(1).float(), (given_logit - others).sigmoid(), (others - given_logit).sigmoid()


def counts_in_training(client: Client) -> Tensor:
    """How many samples of each class the site trained on; a label that is judged must not count for itself."""
    if client.trained is None or not bool(client.trained.any()):
        return client.class_counts.cpu()
    return torch.bincount(client.given.cpu()[client.trained.cpu()], minlength=client.classes)


def log_prior(class_counts: Tensor) -> Tensor:
    """The log of the site's label frequencies; a class without samples counts as half a sample."""
    counts = class_counts.double().clamp(min=0.5)
    return (counts / counts.sum()).log()


def add(kept: Payload, found: Opinion) -> None:
    """Add one more opinion to the mean."""
    visits = kept.get("visits", torch.zeros(1)) + 1
    for key, value in zip(("classes", "right", "wrong"), found, strict=True):
        before = kept.get(key, torch.zeros_like(value))
        kept[key] = before + (value - before) / float(visits)
    kept["visits"] = visits


def verdict(client: Client, found: Opinion) -> Payload:
    """The log-odds that each label is wrong, the likeliest class besides the given one, and all probabilities."""
    classes, right, wrong = found
    other = classes.scatter(1, client.given.cpu()[:, None], -1.0).argmax(1)
    return {"score": wrong.clamp(min=LEAST).log() - right.clamp(min=LEAST).log(), "other": other, "classes": classes}


def margin(classes: Tensor, given: Tensor, other: Tensor) -> Tensor:
    """ln of the likeliest other class - ln of the given one, both of the mean probabilities."""
    logs = classes.double().clamp(min=LEAST).log()
    return logs.gather(1, other[:, None])[:, 0] - logs.gather(1, given[:, None])[:, 0]


def candidates(client: Client, classes: Tensor) -> Tensor:
    """Log-probabilities by the models, by neighbours, and by both; three times the models' where there are no rows."""
    models = classes.double().clamp(min=TINY).log().log_softmax(1)
    if client.input_step.kind == "tokens" or not 1 < len(client) <= MOST_NEIGHBOURS:
        return models.expand(len(CANDIDATES), *models.shape)
    near = by_neighbours(client)[0].double().log()
    return torch.stack([models, near, ((models + near) / 2).log_softmax(1)])


def against(log_classes: Tensor, given: Tensor) -> Tensor:
    """The log-odds that each label is wrong."""
    others = log_classes.scatter(1, given[:, None], -math.inf).logsumexp(1)
    return others - log_classes.gather(1, given[:, None])[:, 0]


def by_neighbours(client: Client, count: int = VOTES) -> Opinion:
    """What the other samples of the site say about each label."""
    given = client.given.cpu()
    classes = votes(nearest(rows_of(client), count), given, client.classes)
    right = classes.gather(1, given[:, None])[:, 0]
    return classes.float(), right, classes.scatter(1, given[:, None], 0.0).sum(1)


def rows_of(client: Client) -> Tensor:
    """The samples as rows of numbers whose distances mean something: features, pixels or columns."""
    batches = pieces(torch.arange(len(client)), ROWS_AT_ONCE)
    return torch.cat([client.plain(batch).flatten(1).cpu().float() for batch in client.stored(batches)])


def comparisons(client: Client, got: Payload, score: Tensor, other: Tensor) -> Payload:
    """For the most suspicious samples, the nearest samples of the given and of the other class that look right."""
    if got:  # otherwise the client has its own model already
        client.model.own_statistics = None
        client.model.load(got)
    features = torch.nn.functional.normalize(client.predict_with_features()[1].cpu(), dim=1)
    given = client.given.cpu()
    worst = score.argsort(descending=True, stable=True)
    if client.trained is not None and not bool(client.trained.all()):
        worst = worst[~client.trained.cpu()[worst]]  # this federation judges only what it has not trained on
    worst = worst[:FOLLOWED]
    near = torch.full((len(worst), 2, COMPARED), -1, dtype=torch.int64)
    for label in range(client.classes):
        mine = (given == label).nonzero()[:, 0]
        calm = mine[score[mine].argsort()[: max(1, len(mine) // 2)]]
        for side, wanted in enumerate((given, other)):
            asked = (wanted[worst] == label).nonzero()[:, 0]
            if len(calm) and len(asked):
                alike = features[worst[asked]] @ features[calm].T
                alike[worst[asked][:, None] == calm[None]] = -2.0  # no sample is compared with itself
                best = alike.topk(min(COMPARED, len(calm)), dim=1)
                near[asked, side, : best.indices.shape[1]] = calm[best.indices].masked_fill(best.values < -1.5, -1)
    return {"worst": worst, "near": near}
