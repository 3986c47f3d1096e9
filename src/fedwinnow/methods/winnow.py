"""Winnow: this project's own method. Every site keeps, of every class, the share that looks right; nobody pools scores.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| T_w (rounds) | warm_up | | κ | shrinkage |
| α (MixUp) | mixup | | ν | planted |
| τ | adjust | | ζ | confidence |
| β | steady | | | |

A sample's score says how far its given label is from the class that the global model would choose, given the site's
own mix of classes; it is averaged over the site's visits. One mixture of two Gaussians over the scores of all sites is
fitted by EM: sites send six sums per step, the server adds them up. Each site keeps its own mixing weights, one per
class; they say how many samples of the class it trains on. Clear cases among the others get a new label.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Exchange, Method, Replies, Verdict
from fedwinnow.federation.payload import Exposure, Payload
from fedwinnow.federation.server import Server
from fedwinnow.options import option
from fedwinnow.parts.replies import noted
from fedwinnow.parts.shared_mixture import SharedMixture, rates_by_class, sufficient_statistics
from fedwinnow.parts.warm_up import after_warm_up

START = (0.2, 0.8, 0.05)  # means of right and wrong labels, and their variance, before the first step
EVEN = 0.5  # a site's rate before it knows anything; also the samples that stand for a class it has not seen
RATE_STEPS = 3  # of a site's own weights after its scores have changed
OWN_STEPS = 30  # of EM where every site is by itself
STEADY = "steady."


@dataclass(frozen=True)
class Winnow(Method):
    """Per class, the share of samples that looks right by a mixture fitted over all sites from sums alone."""

    name: ClassVar[str] = "winnow"
    citation: ClassVar[str] = "this project"
    stages: ClassVar[tuple[str, ...]] = ("warm_up", "winnow")
    exposes: ClassVar[dict[str, Exposure]] = {**Method.exposes, "statistics": "client"}

    mixup: float = option(1.0, "Mix with a share from Beta(mixup, mixup); 0: no mixing.", symbol="α", at_least=0)
    warm_up: int | None = option(None, "Rounds on all labels first; none: a fifth of all.", symbol="T_w", at_least=0)
    score: Literal["relative", "probability"] = option(
        "relative", "1 - p(given) / p(likeliest), or 1 - p(given); both lie between 0 and 1."
    )
    visits: Literal["mean", "last"] = option("mean", "Probabilities: the mean over the site's visits, or of the last.")
    mixture: Literal["shared", "own"] = option("shared", "One mixture for all sites, or one for each (ablation).")
    em_steps: int = option(3, "Steps of the shared EM per round.", at_least=1)
    planted: float = option(
        0.2, "Weight of made-up wrong labels that hold the upper component in place.", symbol="ν", at_least=0
    )
    shrinkage: float = option(
        5.0, "Samples at the site's rate that are added to each class's own.", symbol="κ", above=0
    )
    select: Literal["quota", "threshold"] = option(
        "quota", "Per class the best-scored share that is right, or all that are more likely right than wrong."
    )
    prior: Literal["kept", "given", "none"] = option(
        "kept", "The site's class mix in judging and training: of what it trained on last, as given, or not used."
    )
    adjust: float = option(0.5, "Strength of the class mix in the logits of training.", symbol="τ", at_least=0)
    confidence: float = option(
        0.8, "Relabel what is left out above this probability; 1: never.", symbol="ζ", at_least=0, at_most=1
    )
    weigh: Literal["kept", "all"] = option("kept", "A model's weight: the samples it was trained on, or all.")
    steady: float = option(
        0.8,
        "What stays of the answering model in a round; 0: the last global model answers.",
        symbol="β",
        at_least=0,
        at_most=1,
    )

    # --- the server's half -----------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        server.state["mixture"] = torch.tensor(START, dtype=torch.float64)
        server.state["seen"] = torch.zeros(server.clients, dtype=torch.bool)
        server.state |= {STEADY + key: value.clone() for key, value in server.weights.items()}

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        stage, ask = after_warm_up(server, self.warm_up, "winnow")
        server.note(stage=stage)
        if stage == "winnow" and self.mixture == "shared":
            yield from self.fit_mixture(server)
        facts = {"mixture": server.state["mixture"]}
        replies = yield Exchange(ask, self.choose(server), lambda client: {**server.weights, **facts})
        passing, news = noted(replies, "samples")
        self.merge(server, passing)
        server.state["seen"][torch.tensor(list(news))] = True
        self.follow(server)

    def fit_mixture(self, server: Server) -> Generator[Exchange, Replies, None]:
        """EM over the scores of every site that has some: sums come in, nothing else is used."""
        seen = [client for client in server.available if server.state["seen"][client]]
        for _ in range(self.em_steps if seen else 0):
            replies = yield Exchange("expect", seen, lambda client: {"mixture": server.state["mixture"]})
            total = torch.stack([reply["statistics"] for _, reply in replies]).sum(0)
            server.state["mixture"] = SharedMixture.from_flat(server.state["mixture"]).maximised(total).flat
        server.note(mixture=[round(number, 4) for number in server.state["mixture"].tolist()])

    def follow(self, server: Server) -> None:
        """The answering model: at first the mean of the global models so far, then it follows them slowly."""
        kept = min(self.steady, 1 - 1 / server.round)
        for key, value in server.weights.items():
            steady = value if not value.is_floating_point() else torch.lerp(value, server.state[STEADY + key], kept)
            server.state[STEADY + key] = steady.clone()
        if server.round == server.rounds:
            server.weights = {
                key: value.clone() for key, value in self.models(server)[0].items()
            }  # what is kept of the run is what was tested

    def models(self, server: Server) -> Sequence[Payload]:
        return [{key: server.state[STEADY + key] for key in server.weights}]

    def send(self, server: Server, client: int) -> Payload:
        """What a site is sent to judge its labels."""
        return {**self.models(server)[0], "mixture": server.state["mixture"]}

    # --- the client's half: what it thinks of its labels -----------------------------------------------------------

    def look(self, client: Client, got: Payload) -> Tensor:
        """p(class | sample, site): the model's answer under the site's own mix of classes."""
        client.model.load(got)
        return (client.predict().double().cpu() + self.log_mix(client)).softmax(1)

    def log_mix(self, client: Client) -> Tensor:
        """The log of the site's class frequencies; half a sample is added to each."""
        if self.prior == "none":
            return torch.zeros(client.classes, dtype=torch.float64)
        given = client.class_counts.cpu()
        counts = client.state.get("trained_on", given) if self.prior == "kept" else given
        frequencies = counts.double() + EVEN
        return (frequencies / frequencies.sum()).log()

    def over_visits(self, client: Client, now: Tensor) -> Tensor:
        """The mean of these probabilities and those of earlier visits."""
        if self.visits == "last" or "mean" not in client.state:
            return now
        before = client.for_all(client.state["mean"].double(), now)
        return before + (now - before) / (float(client.state["visits"]) + 1)

    def scores(self, probabilities: Tensor) -> Tensor:
        """The score that each class would have as a given label."""
        if self.score == "probability":
            return 1 - probabilities
        return 1 - probabilities / probabilities.max(1, keepdim=True).values

    def own_rates(self, client: Client) -> Tensor:
        """The site's mixing weights, one per class."""
        return client.state.get("rates", torch.full((client.classes,), EVEN, dtype=torch.float64))

    def step(self, client: Client, scores: Tensor, rates: Tensor, mixture: SharedMixture) -> tuple[Tensor, Tensor]:
        """The E step at a site, and the M step of its own weights."""
        given = client.given.cpu()
        p_wrong = mixture.p_wrong(scores, rates[given])
        return p_wrong, rates_by_class(p_wrong, given, client.classes, self.shrinkage)

    def expect(self, client: Client, got: Payload) -> Payload:
        """One step of EM: the site's six sums, made-up wrong labels included."""
        every = self.scores(client.state["mean"].double())
        return {"statistics": self.statistics(client, every, SharedMixture.from_flat(got["mixture"]))}

    def statistics(self, client: Client, every: Tensor, mixture: SharedMixture) -> Tensor:
        """The site's share in the M step; its own mixing weights take their step here."""
        scores = of_given(every, client)
        p_wrong, client.state["rates"] = self.step(client, scores, self.own_rates(client), mixture)
        # Every other class, as if it had been given: this is where wrong labels lie, whether there are any or not.
        others = torch.full_like(every, self.planted / max(client.classes - 1, 1))
        others.scatter_(1, client.given.cpu()[:, None], 0.0)
        planted = torch.stack([others.sum(), (others * every).sum(), (others * every.square()).sum()])
        return sufficient_statistics(scores, p_wrong) + torch.stack([torch.zeros_like(planted), planted])

    def opinion(self, client: Client, probabilities: Tensor, got: Payload) -> tuple[Tensor, Tensor]:
        """The probability that each label is wrong, and the rate of every class, from the scores as they are now."""
        every = self.scores(probabilities)
        mixture = SharedMixture.from_flat(got["mixture"])
        for _ in range(OWN_STEPS if self.mixture == "own" else 0):
            mixture = mixture.maximised(self.statistics(client, every, mixture))
        scores, rates = of_given(every, client), self.own_rates(client)
        for _ in range(RATE_STEPS):
            _, rates = self.step(client, scores, rates, mixture)
        return mixture.p_wrong(scores, rates[client.given.cpu()]), rates

    # --- the client's half: what it trains on ----------------------------------------------------------------------

    def train_plainly(self, client: Client, got: Payload) -> Payload:
        """Warm-up: all labels as given; what the model thinks of them is remembered."""
        self.observe(client, got)
        return self.learn(client, got, torch.ones(len(client), dtype=torch.bool), client.given.cpu())

    def train(self, client: Client, got: Payload) -> Payload:
        now, mean = self.observe(client, got)
        p_wrong, client.state["rates"] = self.opinion(client, mean, got)
        kept = self.selected(client, p_wrong, client.state["rates"])
        probability, guess = now.max(1)
        sure = ~kept & (probability > self.confidence) & (mean.argmax(1) == guess)
        client.note(selected=kept, pseudo_labels=torch.where(sure, guess, -1))
        return self.learn(client, got, kept | sure, torch.where(sure, guess, client.given.cpu()))

    def observe(self, client: Client, got: Payload) -> tuple[Tensor, Tensor]:
        """What the global model says now, and the mean over all visits, which the site remembers."""
        now = self.look(client, got)
        mean = self.over_visits(client, now)
        client.state["mean"] = mean.float()
        client.state["visits"] = client.state.get("visits", torch.zeros(1, dtype=torch.int64)) + 1
        return now, mean

    def selected(self, client: Client, p_wrong: Tensor, rates: Tensor) -> Tensor:
        """Which labels are trusted; never nobody's."""
        if self.select == "threshold":
            return p_wrong <= p_wrong.min().clamp(min=0.5)
        kept = within_quota(p_wrong, client.given.cpu(), rates)
        return kept if kept.any() else p_wrong <= p_wrong.min()

    def learn(self, client: Client, got: Payload, used: Tensor, labels: Tensor) -> Payload:
        """Train on these samples; the class mix that is learned is taken out of the model by the adjustment."""
        rows = used.nonzero().flatten()
        client.state["trained_on"] = torch.bincount(labels[rows], minlength=client.classes)
        shift = (self.adjust * self.log_mix(client)).float().to(client.given.device)
        client.model.load(got)

        def objective(batch: Tensor, x: Tensor, y: Tensor) -> Tensor:
            x, target = self.mix(client, x, y)
            return self.criterion.mean(client.model.module(x) + shift, target, client.class_counts)

        client.fit(objective, rows=rows, labels=labels.to(client.given.device))
        reply = self.reply(client)
        return reply if self.weigh == "all" else reply | {"samples": torch.tensor(len(rows))}

    def judge(self, client: Client, got: Payload) -> Verdict:
        """The mixture's own opinion; the suggestion is what the visits and the answering model say together."""
        mean = self.over_visits(client, self.look(client, got))
        return Verdict(self.opinion(client, mean, got)[0], mean.argmax(1))


def of_given(every: Tensor, client: Client) -> Tensor:
    """The score of each sample's given label."""
    return every.gather(1, client.given.cpu()[:, None])[:, 0]


def within_quota(p_wrong: Tensor, labels: Tensor, rates: Tensor) -> Tensor:
    """Of each class with n samples, the (1 - rate) n that are least likely wrong, rounded; of equals the first."""
    counts = torch.bincount(labels, minlength=len(rates))
    quota = ((1 - rates) * counts + 0.5).floor().long()
    order = p_wrong.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]  # class by class, the best first
    place = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]
    kept = torch.zeros(len(labels), dtype=torch.bool)
    kept[order] = place < quota[labels[order]]
    return kept
