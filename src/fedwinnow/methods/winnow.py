"""Winnow, this project's own method: every site trains on the share of each class that looks right; data stays apart.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| T_w (rounds) | warm_up | | κ | shrinkage |
| γ | sharpen | | ζ | confidence |
| τ | adjust | | ρ | clean_rate |
| β | steady | | α (MixUp) | mixup |
| λ | shrinkage_share | | η | teach |
| φ | floor | | ω | witness |

The global model's prediction for a sample, adjusted to the site's class frequencies, is averaged over the site's
visits. Which class is mistaken for which (F) is fitted over all sites by EM: sites send expected counts, the server
adds them up. The share of wrong labels in a class (r) sets how many of its samples a site trains on: those least likely
wrong. r itself is not sent, but the counts reveal it: their columns sum to the expected number of wrong labels of each
class. A site that seems clean uses all its samples. Clear cases among the samples left out can get a new label.

preset=second weighs samples by 1 - p_wrong in place of a quota, has a linear discriminant made from sums as the teacher
of the first rounds and as a second witness beside the model, and asks nobody but the sites that train.

The file follows its page, docs/methods/winnow.md: what a model says at a site, how a label becomes wrong, federated EM,
class quota, clean sites, training, data flow, second version. The formulas are below the class, in the same order.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.errors import UsageError
from fedwinnow.federation.client import Client, pieces
from fedwinnow.federation.method import Exchange, Method, Replies, Verdict, model_forms
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.discriminant import class_sums, fitted, log_likelihoods, products, width_of_rows
from fedwinnow.mathematics.loss_of_logits import LossOfLogits
from fedwinnow.mathematics.losses import WeightedLoss, sharpened, soft
from fedwinnow.mathematics.payload import SAMPLES, Exposure, Payload, ReplyForm, Summing
from fedwinnow.options import option
from fedwinnow.steps.site_labels import NOTHING
from fedwinnow.steps.stages import after_warm_up, watch_replies

TAUGHT_SHARE = 0.1  # of all rounds, where the discriminant teaches
FEWEST = 3  # sites in one sum, where so many take part: the sum over one site is that site's
EVEN = 0.5  # a site's rate at first; also the samples that are added to each class of its mix
RATE_STEPS = 5  # EM steps of a site's rates after its probabilities have changed
OWN_STEPS = 30  # EM steps with fit=own
TOLD = "told."  # prefix: the state for counts without classes that have fewer samples than the least count
CHUNK = 500  # samples that are read at once
LEAST = 1e-12  # stands for a probability that was rounded to 0
DOUBT = 1.0  # a prior count, added to the count of each confusion
SMALLEST_RATE = 1e-4  # rates stay this far from 0 and 1
HARDLY_ANY = 1e-9  # samples: the divisor for a class or a component without samples


@dataclass(frozen=True)
class Winnow(Method):
    """Trains on the share of each class that looks right, by a model of label errors fitted over all sites from counts.

    The server learns the site's expected number of wrong labels of each class: the columns of `statistics` sum to it.
    For a class with one sample the column is about that sample. --least-count leaves small classes out.
    With preset=second a site also sends sums of its samples once; the sum over one sample is that sample.
    """

    name: ClassVar[str] = "winnow"
    citation: ClassVar[str] = "this project"
    stages: ClassVar[tuple[str, ...]] = ("warm_up", "winnow")
    exposes: ClassVar[dict[str, Exposure]] = {
        **Method.exposes,
        "statistics": "client",
        "class_sums": "client",
        "products": "client",
    }
    sums: ClassVar[dict[str, Summing]] = {**Method.sums, "statistics": "sum", "class_sums": "sum", "products": "sum"}
    asks: ClassVar[str] = (
        "every site that was visited before, em_steps times a round after the warm-up; preset=second: nobody"
    )

    preset: Literal["first", "second"] = option("first", "The first version, or the second.")
    loss: Any = option(
        None,
        "The loss of local training, for example gce:q=0.7 (see `fedwinnow losses`).",
        presets={"first": "cross_entropy", "second": "sce"},
    )
    warm_up: float | None = option(
        None,
        "Rounds on all labels first, or, below 1, their share; none: a fifth of all, a tenth if the discriminant "
        "teaches.",
        symbol="T_w",
        at_least=0,
    )
    discriminant: Literal["none", "sums"] = option(
        None,
        "A linear discriminant from the sums of all sites, for models that begin with a linear layer.",
        presets={"first": "none", "second": "sums"},
    )
    ridge: float = option(1.0, "Share of the mean variance that is added to its variances.", above=0)
    teach: float = option(
        3.0, "Power of the discriminant's answers as labels in the warm-up; 0: given labels.", symbol="η", at_least=0
    )
    witness: float = option(
        1.0, "Power of the discriminant in judging, beside the model; 0: none.", symbol="ω", at_least=0
    )
    ask: Literal["visited", "participants"] = option(
        None,
        "Who takes part in EM: all sites that were visited, or those that train, with their replies.",
        presets={"first": "visited", "second": "participants"},
    )
    filter: Literal["flips", "relative", "probability"] = option(
        "flips",
        "What is shared: which class is mistaken for which, or two Gaussians over 1 - p(given) / p(likeliest) or over "
        "1 - p(given).",
    )
    fit: Literal["shared", "own"] = option("shared", "Fit the filter over all sites, or at each by itself (ablation).")
    em_steps: int = option(3, "Steps of the shared EM per round.", at_least=1)
    sharpen: float = option(
        None,
        "Power to which the mean probabilities are raised.",
        symbol="γ",
        above=0,
        presets={"first": 3.0, "second": 2.0},
    )
    visits: Literal["mean", "last"] = option("mean", "Probabilities: the mean over the site's visits, or of the last.")
    shrinkage: float = option(
        5.0, "Samples at the site's rate that are added to each class's own.", symbol="κ", at_least=0
    )
    shrinkage_share: float = option(
        0.5, "At least so many, as a share of the site's samples per class.", symbol="λ", at_least=0
    )
    select: Literal["quota", "threshold", "weights"] = option(
        None,
        "Per class the best share that is right by its rate, all that are more likely right than wrong, or all, each "
        "weighed by 1 - p_wrong.",
        presets={"first": "quota", "second": "weights"},
    )
    floor: float = option(
        None,
        "The smallest weight of a sample.",
        symbol="φ",
        at_least=0,
        at_most=1,
        presets={"first": 0.0, "second": 0.3},
    )
    clean_rate: float = option(
        0.2, "A site whose share of wrong labels seems lower uses all it has.", symbol="ρ", at_least=0, at_most=1
    )
    prior: Literal["kept", "given", "none"] = option(
        "kept", "The site's class mix in judging and training: of what it trained on last, as given, or not used."
    )
    adjust: float = option(0.25, "Strength of the class mix in the logits of training.", symbol="τ", at_least=0)
    confidence: float = option(
        1.0, "Relabel what is left out above this probability; 1: never.", symbol="ζ", at_least=0, at_most=1
    )
    weigh: Literal["kept", "all"] = option("kept", "A model's weight: the samples it was trained on, or all.")
    steady: float = option(
        0.8,
        "What stays of the answering model in a round; 0: the last global model answers.",
        symbol="β",
        at_least=0,
        at_most=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warm_up is not None and self.warm_up > 1 and self.warm_up % 1:
            raise UsageError(f"winnow: warm_up={self.warm_up:g} was given; allowed: whole rounds, or a share below 1.")

    def by_class(self) -> dict[str, int]:
        axes = {"statistics": 1} if self.filter == "flips" else {}
        return axes | ({"class_sums": 0} if self.discriminant == "sums" else {})

    def exposed(self) -> dict[str, Exposure]:
        summed = self.discriminant == "sums"
        return {key: kind for key, kind in self.exposes.items() if summed or key not in ("class_sums", "products")}

    # --- what a model says at a site ---------------------------------------------------------------------------------

    def look(self, client: Client, got: Payload) -> Tensor:
        """p(class | sample, site): the model's prediction adjusted to the site's class frequencies."""
        client.model.load(got)
        return (client.predict().cpu().double() + self.log_mix(client)).softmax(1)

    def log_mix(self, client: Client) -> Tensor:
        """The log of the site's class frequencies, with half a sample added to each class."""
        if self.prior == "none":
            return torch.zeros(client.classes, dtype=torch.float64)
        given = client.class_counts.cpu()
        return log_frequencies(client.state.get("trained_on", given) if self.prior == "kept" else given)

    def observe(self, client: Client, got: Payload) -> tuple[Tensor, Tensor]:
        """The global model's probabilities now, and their mean over all visits, which the site keeps."""
        now = self.look(client, got)
        mean = self.over_visits(client, now)
        client.state["mean"] = mean.float()
        client.state["visits"] = client.state.get("visits", torch.zeros(1, dtype=torch.int64)) + 1
        return now, mean

    def over_visits(self, client: Client, now: Tensor) -> Tensor:
        """The mean of these probabilities and those of earlier visits."""
        if self.visits == "last" or "mean" not in client.state:
            return now
        before = client.for_all(client.state["mean"].double(), now)
        return before + (now - before) / (float(client.state["visits"]) + 1)

    # --- how a label becomes wrong -----------------------------------------------------------------------------------

    def opinion(self, client: Client, probabilities: Tensor, got: Payload) -> tuple[Tensor, Tensor]:
        """From these probabilities: the probability that each label is wrong, and the rate of every class."""
        given, shared = client.given.cpu(), self.filter_of(got)
        evidence = self.evidence(client, probabilities, got)
        for _ in range(OWN_STEPS if self.fit == "own" else 0):
            shared = shared.maximised(self.e_step(client, evidence, shared))
        log_ratio, rates = shared.log_ratio(evidence, given), self.rates(client)
        for _ in range(RATE_STEPS):
            rates = rates_by_class(posterior(log_ratio, given, rates), given, client.classes, self.added(client))
        return posterior(log_ratio, given, rates), rates

    def evidence(self, client: Client, probabilities: Tensor, got: Payload) -> Tensor:
        """q(t): these probabilities, sharpened; with a second witness, times what it says in the light of the mix."""
        if self.witness == 0 or "discriminant" not in got:
            return sharpened(probabilities, 1 / self.sharpen)
        said = self.witness * self.likelihoods(client, got) + self.log_mix(client)
        return (self.sharpen * probabilities.clamp(min=LEAST).log() + said).softmax(1)

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """By the filter; the suggestion comes from the mean over the visits and the answering model."""
        mean = self.over_visits(client, self.look(client, got))
        return Verdict(self.opinion(client, mean, got)[0], mean.argmax(1))

    # --- federated EM: at the server, and at a site ------------------------------------------------------------------

    def fit_filter(self, server: Server) -> Generator[Exchange, Replies, None]:
        """Steps of EM over the sites visited so far; uses the sum of the counts of those that reply."""
        seen = [client for client in server.available if server.state["seen"][client]]
        for _ in range(self.em_steps if seen else 0):
            replies = yield Exchange("expect", seen, lambda client: self.shared(server), optional=True)
            told = [reply["statistics"] for _, reply in replies]
            if told:  # otherwise no site replied: the filter stays the same, and the round goes on
                server.state["filter"] = self.filter_of(server.state).maximised(torch.stack(told).sum(0)).flat

    def filter_of(self, holder: Payload) -> Confusions | SharedMixture:
        """The filter from the tensor that is sent and that the server keeps."""
        if self.filter == "flips":
            return Confusions(holder["filter"])
        return SharedMixture(holder["filter"], relative=self.filter == "relative")

    def expect(self, client: Client, got: Payload) -> Payload:
        """The counts of this site for one step of EM over all sites."""
        told = self.told(client)
        evidence = self.evidence(told, told.state["mean"].double(), got)
        statistics = self.e_step(told, evidence, self.filter_of(got))
        self.keep_told(client, told)
        return {"statistics": statistics}

    def e_step(self, client: Client, evidence: Tensor, shared: Confusions | SharedMixture) -> Tensor:
        """The site's counts; also updates the site's own rates (their M step)."""
        given = client.given.cpu()
        p_wrong = posterior(shared.log_ratio(evidence, given), given, self.rates(client))
        client.state["rates"] = rates_by_class(p_wrong, given, client.classes, self.added(client))
        return shared.statistics(evidence, given, p_wrong)

    def rates(self, client: Client) -> Tensor:
        """r_kc: the site's share of wrong labels in every class."""
        return client.state.get("rates", torch.full((client.classes,), EVEN, dtype=torch.float64))

    def added(self, client: Client) -> float:
        """How many samples at the site's rate are added to each class.

        They hold against a model that is biased against a class. That bias is as large at a site with many samples, so
        a fixed number would hold against it at small sites only.
        """
        return max(self.shrinkage, self.shrinkage_share * len(client) / client.classes)

    # --- counts that do not depend on small classes ------------------------------------------------------------------

    def told(self, client: Client) -> Client:
        """The site without samples of small classes, with the state that it keeps for this purpose."""
        told = client.told()
        if told is not client:
            told.state |= {key.removeprefix(TOLD): value for key, value in client.state.items() if key.startswith(TOLD)}
        return told

    def keep_told(self, client: Client, told: Client) -> None:
        """Keep the state of `told` for the next exchange."""
        if told is not client:
            client.state |= {TOLD + key: value for key, value in told.state.items()}
            client.forward_samples += told.forward_samples

    def observe_told(self, client: Client, got: Payload, *, rates: bool) -> None:
        """At a visit: if the site has small classes, observe it without them, so that counts do not depend on them."""
        told = self.told(client)
        if told is client or self.fit == "own":
            return
        _, mean = self.observe(told, got)
        if rates:
            _, told.state["rates"] = self.opinion(told, mean, got)
        self.keep_told(client, told)

    # --- the discriminant ---------------------------------------------------------------------------------------------

    def add_sums(self, server: Server, chosen: Sequence[int]) -> Generator[Exchange, Replies, None]:
        """Ask those that take part for the first time, if they are enough for a sum; then fit the discriminant anew."""
        width = width_of_rows(server.model.module) if self.discriminant == "sums" else None
        if width is None:
            return
        new = [client for client in chosen if not server.state["summed"][client]]
        if len(new) < min(FEWEST, server.per_round):
            return
        if "class_sums" not in server.state:
            server.state["class_sums"] = torch.zeros(server.classes, 1 + width, dtype=torch.float64)
            server.state["products"] = torch.zeros(width * (width + 1) // 2, dtype=torch.float64)
        replies = yield Exchange("add_up", new, lambda client: {"filter": server.state["filter"]}, optional=True)
        for _, reply in replies:
            for key in ("class_sums", "products"):
                server.state[key] = server.state[key] + reply[key].double()
        server.state["summed"][torch.tensor(server.answered, dtype=torch.int64)] = True
        if float(server.state["class_sums"][:, 0].sum()) > 0:
            server.state["discriminant"] = fitted(server.state["class_sums"], server.state["products"], self.ridge)

    def add_up(self, client: Client, got: Payload) -> Payload:
        """The sums of this site, without classes that have fewer samples than the least count."""
        told = client.told()
        told.enough(len(told))
        rows, labels, width = rows_of(told), told.given.cpu(), width_of_rows(client.model.module) or 0
        if rows.shape[1] != width:  # the model takes samples apart in another way: nothing to add
            rows, labels = rows.new_zeros(0, width), labels[:0]
        return {"class_sums": class_sums(rows, labels, client.classes), "products": products(rows)}

    def likelihoods(self, client: Client, got: Payload) -> Tensor:
        """log p(x | class) of all samples, by the discriminant."""
        if not len(client):
            return torch.zeros(0, client.classes, dtype=torch.float64)
        return log_likelihoods(got["discriminant"], rows_of(client))

    # --- class quota, and clean sites --------------------------------------------------------------------------------

    def selected(self, client: Client, p_wrong: Tensor) -> Tensor:
        """Which labels are trusted: all of a site that seems clean, and always at least one."""
        if float(p_wrong.mean()) < self.clean_rate:
            return torch.ones_like(p_wrong, dtype=torch.bool)
        if self.select == "threshold":
            return p_wrong <= p_wrong.min().clamp(min=0.5)
        kept = within_quota(p_wrong, client.given.cpu(), self.rates(client))
        return kept if kept.any() else p_wrong <= p_wrong.min()

    def weights(self, p_wrong: Tensor) -> Tensor:
        """With select=weights: how much each sample counts; everything, at a site that seems clean."""
        if float(p_wrong.mean()) < self.clean_rate:
            return torch.ones_like(p_wrong)
        return (1 - p_wrong).clamp(min=self.floor)

    # --- training ----------------------------------------------------------------------------------------------------

    def train_plainly(self, client: Client, got: Payload) -> Payload:
        """Warm-up: train on all given labels, or on what the discriminant says; keep the model's probabilities."""
        self.observe(client, got)
        self.observe_told(client, got, rates=False)
        labels = client.given.cpu()
        if self.teach and "discriminant" in got:
            said = self.teach * self.likelihoods(client, got) + log_frequencies(client.class_counts.cpu())
            labels = said.softmax(1).float()
        return self.learn(client, got, torch.ones(len(client), dtype=torch.bool), labels)

    def train(self, client: Client, got: Payload) -> Payload:
        now, mean = self.observe(client, got)
        p_wrong, client.state["rates"] = self.opinion(client, mean, got)
        self.observe_told(client, got, rates=True)
        own = self.fit == "own" or self.ask == "visited"
        counts = {} if own else self.expect(client, got)
        return self.learn_from(client, got, p_wrong, now, mean) | counts

    def learn_from(self, client: Client, got: Payload, p_wrong: Tensor, now: Tensor, mean: Tensor) -> Payload:
        """Train on what is trusted, by quota or threshold, or on everything by its weight."""
        if self.select == "weights":
            weights = self.weights(p_wrong)
            client.note(selected=weights > EVEN)
            return self.learn_by_weight(client, got, weights)
        kept = self.selected(client, p_wrong)
        probability, guess = now.max(1)
        sure = ~kept & (probability > self.confidence) & (mean.argmax(1) == guess)
        client.note(selected=kept, pseudo_labels=torch.where(sure, guess, NOTHING))
        return self.learn(client, got, kept | sure, torch.where(sure, guess, client.given.cpu()))

    def learn(self, client: Client, got: Payload, used: Tensor, labels: Tensor) -> Payload:
        """Train on these samples, with their class mix added to the logits, so that the model does not learn it."""
        rows = used.nonzero().flatten()
        client.enough(len(rows))
        self.fit_model(client, got, rows, labels)
        reply = self.reply(client)
        return reply if self.weigh == "all" else reply | {"samples": torch.tensor(len(rows))}

    def learn_by_weight(self, client: Client, got: Payload, weights: Tensor) -> Payload:
        """Train on all samples, each with its weight; the model weighs as much as they do together."""
        classes = soft(client.given.cpu(), weights.new_zeros(1, client.classes))
        self.fit_model(client, got, None, torch.cat([classes, weights[:, None]], 1).float())
        reply = self.reply(client)
        held = weights.sum().round().long().clamp(min=1)
        return reply if self.weigh == "all" else reply | {"samples": held}

    def fit_model(self, client: Client, got: Payload, rows: Tensor | None, labels: Tensor) -> None:
        """Local training on labels of one of three forms: classes, shares of classes, or classes with a weight."""
        weighted = labels.dim() == 2 and labels.shape[1] > client.classes
        criterion = WeightedLoss(self.criterion) if weighted else self.criterion
        client.state["trained_on"] = class_mix(labels if rows is None else labels[rows], client.classes)
        shift = (self.adjust * self.log_mix(client)).float().to(client.given.device)
        client.model.load(got)

        def objective(batch: Tensor, x: Tensor, y: Tensor) -> Tensor:
            x, target = self.mix(client, x, y)
            return criterion.mean(client.model.module(x) + shift, target, client.class_counts)

        by_hand = LossOfLogits(criterion, client.class_counts, lambda x, y: self.mix(client, x, y), shift)
        client.fit(objective, rows=rows, labels=labels.to(client.given.device), by_hand=by_hand)

    # --- data flow: a round ------------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        first = Confusions.start(server.classes) if self.filter == "flips" else SharedMixture.start()
        server.state["filter"] = first.flat
        server.state["seen"] = torch.zeros(server.clients, dtype=torch.bool)
        if self.discriminant == "sums":
            server.state["summed"] = torch.zeros(server.clients, dtype=torch.bool)

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        stage, ask = after_warm_up(server, self.first_part(server), "winnow")
        server.note(stage=stage)
        chosen = self.choose(server)
        yield from self.add_sums(server, chosen)
        if stage == "winnow" and self.fit == "shared" and self.ask == "visited":
            yield from self.fit_filter(server)
        replies = yield Exchange(ask, chosen, lambda client: self.send(server, client))
        passing, news = watch_replies(replies, maybe=("statistics",))
        self.merge(server, passing)
        self.remember_counts(server, [said["statistics"] for said in news.values() if "statistics" in said])
        server.state["seen"][torch.tensor(server.answered, dtype=torch.int64)] = True

    def first_part(self, server: Server) -> float | None:
        """The length of the warm-up: shorter where the discriminant teaches, because it knows more than a model."""
        taught = self.discriminant == "sums" and self.teach and width_of_rows(server.model.module) is not None
        return TAUGHT_SHARE if taught and self.warm_up is None else self.warm_up

    def remember_counts(self, server: Server, told: list[Tensor]) -> None:
        """With ask=participants: F from the counts of about one pass over the sites; older ones fade."""
        if not told:
            return
        faded = 1 - server.per_round / len(server.available)
        before = server.state.get("counts", torch.zeros_like(told[0]))
        server.state["counts"] = faded * before + torch.stack(told).sum(0)
        server.state["filter"] = self.filter_of(server.state).maximised(server.state["counts"]).flat

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        if ask == "add_up":
            width = width_of_rows(server.model.module) or 0
            halved = (width * (width + 1) // 2,)
            return {"class_sums": ReplyForm((server.classes, 1 + width)), "products": ReplyForm(halved)}
        shape = (server.classes, server.classes) if self.filter == "flips" else (2, 3)
        counts = {"statistics": ReplyForm(shape, least=0, most=SAMPLES)}
        if ask == "expect":
            return counts
        both = ask == "train" and self.ask == "participants" and self.fit == "shared"
        return model_forms(server) | (counts if both else {})

    def send(self, server: Server, client: int) -> Payload:
        return {**server.weights, **self.shared(server)}

    def shared(self, server: Server) -> Payload:
        """What all sites know beside the model: the filter, and the discriminant once there is one."""
        return {key: server.state[key] for key in ("filter", "discriminant") if key in server.state}


def rows_of(client: Client) -> Tensor:
    """What the model sees of all samples, one row each, without random views."""
    every = pieces(torch.arange(len(client)), CHUNK)
    return torch.cat([client.plain(batch).flatten(1).cpu() for batch in client.stored(every)])


def class_mix(labels: Tensor, classes: int) -> Tensor:
    """How much there is of each class: labels may be classes, shares of classes, or classes with a weight."""
    if labels.dim() == 1:
        return torch.bincount(labels, minlength=classes)
    shares = labels[:, :classes].double()
    return (shares * labels[:, classes:].double() if labels.shape[1] > classes else shares).sum(0)


def log_frequencies(counts: Tensor) -> Tensor:
    """The log of class frequencies, with half a sample added to each class."""
    frequencies = counts.double() + EVEN
    return (frequencies / frequencies.sum()).log()


# --- formulas: how a label becomes wrong -----------------------------------------------------------------------------


def posterior(log_ratio: Tensor, labels: Tensor, rates: Tensor) -> Tensor:
    """The E step: the probability that each label is wrong, from log p(evidence | wrong) / p(evidence | right)."""
    return (rates[labels].logit() + log_ratio).sigmoid()


@dataclass(frozen=True, eq=False)
class Confusions:
    """F: rows are true classes, columns given ones; a row sums to 1, its diagonal is 0.

    A wrong label of a sample of class t is c with probability F[t, c], the same at every site; how many labels are
    wrong differs from site to site. F is fitted by EM without pooling samples or predictions: the sites make the E step
    and send expected counts; the server adds them up and makes the M step. Every step equals that of EM on pooled
    predictions. The M step needs only the sum of all sites' counts, but the server gets those of every site; their
    columns sum to the site's expected number of wrong labels of each class.
    """

    flat: Tensor

    @classmethod
    def start(cls, classes: int) -> Confusions:
        """All other classes are equally likely."""
        return cls(torch.ones(classes, classes, dtype=torch.float64)).maximised(torch.zeros(classes, classes))

    def log_ratio(self, probabilities: Tensor, given: Tensor) -> Tensor:
        """log p(given | wrong) / p(given | right), from a model's probabilities of the sample's class."""
        right = probabilities.gather(1, given[:, None])[:, 0]
        return self.others(probabilities, given).sum(1).clamp(min=LEAST).log() - right.clamp(min=LEAST).log()

    def others(self, probabilities: Tensor, given: Tensor) -> Tensor:
        """p(t) F[t, given] of every sample and class: the ways in which the label can be wrong."""
        return probabilities * self.flat[:, given].T

    def statistics(self, probabilities: Tensor, given: Tensor, p_wrong: Tensor) -> Tensor:
        """Expected counts: how many samples of class t have the wrong label c."""
        ways = self.others(probabilities, given)
        ways = ways / ways.sum(1, keepdim=True).clamp(min=LEAST) * p_wrong[:, None]
        return torch.zeros_like(self.flat).index_add_(1, given, ways.T)

    def maximised(self, counts: Tensor) -> Confusions:
        """The M step from the sum of all sites' counts."""
        classes = len(counts)
        off = (counts.double() + DOUBT) * (1 - torch.eye(classes, dtype=torch.float64))
        return Confusions(off / off.sum(1, keepdim=True).clamp(min=LEAST))


# --- formulas: a site's share of wrong labels in each class, and which samples of each class it keeps ----------------


def rates_by_class(p_wrong: Tensor, labels: Tensor, classes: int, shrinkage: float) -> Tensor:
    """The M step: the share of wrong labels of every given class, shrunk towards that of the whole site.

    `shrinkage` is the number of samples at the site's overall rate that are added to each class.
    """
    held = torch.zeros(classes, dtype=torch.float64).index_add_(0, labels, p_wrong.double())
    counts = torch.bincount(labels, minlength=classes)
    overall = held.sum() / counts.sum().clamp(min=1)
    rates = (held + shrinkage * overall) / (counts + shrinkage).clamp(min=HARDLY_ANY)
    return rates.clamp(SMALLEST_RATE, 1 - SMALLEST_RATE)


def within_quota(p_wrong: Tensor, labels: Tensor, rates: Tensor) -> Tensor:
    """The (1 - rate) n samples of each class that are least likely wrong, rounded; of equal ones the first."""
    counts = torch.bincount(labels, minlength=len(rates))
    quota = ((1 - rates) * counts + 0.5).floor().long()
    order = p_wrong.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]  # class by class, the best first
    place = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]
    kept = torch.zeros(len(labels), dtype=torch.bool)
    kept[order] = place < quota[labels[order]]
    return kept


# --- another filter (filter=relative, filter=probability): one mixture of two Gaussians over the scores of all sites -

START = (0.2, 0.8, 0.05)  # means of right and wrong labels, and their variance, before the first step
SMALLEST_VARIANCE = 1e-4  # of scores between 0 and 1


@dataclass(frozen=True, eq=False)
class SharedMixture:
    """Three numbers: the mean score of right labels, that of wrong ones, and one variance for both.

    A score is between 0, if the given label is the model's prediction, and 1. Sites send the sufficient statistics of
    their E step, six numbers; the server adds them up and makes the M step. Every step equals that of EM on the pooled
    scores. One of the six is the site's expected number of wrong labels. Both components have the same variance, so
    the log-odds of "wrong" rise with the score.
    """

    flat: Tensor
    relative: bool = True  # 1 - p(given) / p(likeliest); false: 1 - p(given)

    @classmethod
    def start(cls, *, relative: bool = True) -> SharedMixture:
        """The start of EM: right labels have low scores, wrong ones high scores."""
        return cls(torch.tensor(START, dtype=torch.float64), relative)

    def scores(self, probabilities: Tensor, given: Tensor) -> Tensor:
        """How far the given label is from the model's prediction."""
        best = probabilities.max(1).values if self.relative else 1.0
        return 1 - probabilities.gather(1, given[:, None])[:, 0] / best

    def log_ratio(self, probabilities: Tensor, given: Tensor) -> Tensor:
        """log N(s; high) - log N(s; low), a straight line in s."""
        low, high, variance = self.flat.unbind()
        return (high - low) / variance * (self.scores(probabilities, given) - (low + high) / 2)

    def statistics(self, probabilities: Tensor, given: Tensor, p_wrong: Tensor) -> Tensor:
        """The sums of samples, scores and squared scores in the low and the high component."""
        scores = self.scores(probabilities, given)
        return torch.stack([1 - p_wrong, p_wrong]) @ torch.stack([torch.ones_like(scores), scores, scores.square()], 1)

    def maximised(self, statistics: Tensor) -> SharedMixture:
        """The M step from the sum of all sites' statistics."""
        held, sums, squares = statistics.unbind(1)
        before = self.flat[:2]
        means = torch.where(held > HARDLY_ANY, sums / held.clamp(min=HARDLY_ANY), before)
        means = means if bool(means[0] < means[1]) else before  # wrong labels must have the higher scores
        spread = (squares - 2 * means * sums + means.square() * held).sum() / held.sum().clamp(min=HARDLY_ANY)
        return replace(self, flat=torch.cat([means, spread.clamp(min=SMALLEST_VARIANCE).reshape(1)]))
