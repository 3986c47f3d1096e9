"""The judges: no sample should be judged only by a model that knows its label by heart.

All of them end in log-odds instead of probabilities, so that samples of which a model is sure still have an order.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.judge import Judge
from fedwinnow.federation.method import Method, verdict_of
from fedwinnow.mathematics.payload import Payload
from fedwinnow.options import option

FOLLOWED = 2000  # samples of a site that are compared with others, the worst first
COMPARED = 3  # of each class
LEAST = 1e-300  # a probability that was rounded to 0
Opinion = tuple[Tensor, Tensor, Tensor]  # of every class; that the given label is right; that it is wrong


@dataclass(frozen=True)
class Scored(Judge):
    """Adds to a score what a person wants to compare: the nearest trustworthy samples of both classes."""

    def opinions(self, method: Method, client: Client, got: Payload) -> Payload:
        reply = self.score(method, client, got)
        return reply | comparisons(client, {} if method.own_models else got, reply["score"], reply["other"])

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
    """The mean over the rounds in which the site took part; steadier than any single round."""

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
            add(kept, last)  # the model of the last round belongs to the rounds; a site never visited has no other
        return verdict(client, (kept["classes"], kept["right"], kept["wrong"]))


@dataclass(frozen=True)
class Halves(Final):
    """Two halves of the federation train apart, and each one's last model judges the sites of the other."""

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
    """The method's own filter; the last global model orders the samples of which the filter is equally sure."""

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
    """What a model says of every sample of the site; where a method has several, what they say together.

    A trained model comes with statistics of its own.
    """
    if not own_statistics:
        client.model.own_statistics = None
    if method.own_models and model:
        client.model.load(model)
    logits = method.logits(client, model).cpu().double()
    given = client.given.cpu()
    if prior:
        logits = logits + log_prior(client.class_counts.cpu())
    given_logit = logits.gather(1, given[:, None])[:, 0]
    others = logits.scatter(1, given[:, None], -math.inf).logsumexp(1)
    return logits.softmax(1).float(), (given_logit - others).sigmoid(), (others - given_logit).sigmoid()


def log_prior(class_counts: Tensor) -> Tensor:
    """The log of the site's label frequencies; half a sample stands for a class that it has not seen."""
    counts = class_counts.double().clamp(min=0.5)
    return (counts / counts.sum()).log()


def add(kept: Payload, found: Opinion) -> None:
    """Take one more opinion into the mean."""
    visits = kept.get("visits", torch.zeros(1)) + 1
    for key, value in zip(("classes", "right", "wrong"), found, strict=True):
        before = kept.get(key, torch.zeros_like(value))
        kept[key] = before + (value - before) / float(visits)
    kept["visits"] = visits


def verdict(client: Client, found: Opinion) -> Payload:
    """The log-odds that each label is wrong, and the likeliest class besides the given one."""
    classes, right, wrong = found
    other = classes.scatter(1, client.given.cpu()[:, None], -1.0).argmax(1)
    return {"score": wrong.clamp(min=LEAST).log() - right.clamp(min=LEAST).log(), "other": other}


def comparisons(client: Client, got: Payload, score: Tensor, other: Tensor) -> Payload:
    """For the worst samples, the nearest of the given and of the other class among those whose labels look right."""
    if got:  # else it is the site's own model, which is there already
        client.model.own_statistics = None
        client.model.load(got)
    features = torch.nn.functional.normalize(client.predict_with_features()[1].cpu(), dim=1)
    given = client.given.cpu()
    worst = score.argsort(descending=True, stable=True)[:FOLLOWED]
    near = torch.full((len(worst), 2, COMPARED), -1, dtype=torch.int64)
    for label in range(client.classes):
        mine = (given == label).nonzero()[:, 0]
        calm = mine[score[mine].argsort()[: max(1, len(mine) // 2)]]
        for side, wanted in enumerate((given, other)):
            asked = (wanted[worst] == label).nonzero()[:, 0]
            if len(calm) and len(asked):
                alike = features[worst[asked]] @ features[calm].T
                alike[worst[asked][:, None] == calm[None]] = -2.0  # nobody is compared with itself
                best = alike.topk(min(COMPARED, len(calm)), dim=1)
                near[asked, side, : best.indices.shape[1]] = calm[best.indices].masked_fill(best.values < -1.5, -1)
    return {"worst": worst, "near": near}
