"""FedDiv: one noise filter, averaged from the clients' own filters; then relabel, re-select and train with MixUp.

Li, Li, Cheng, Liao, Yu: FedDiv: Collaborative Noise Filtering for Federated Learning with Noisy Labels, AAAI 2024.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| T_wu (passes) | passes | | ξ | debias |
| ζ | confidence | | m | momentum |
| η | eta | | α (MixUp) | mixup |
| δ̂_k (threshold) | noisy_client | | ω | participation of the run |

`PaperFedDiv` is the paper, in the order of its Algorithm 1. `FedDiv`, the class that runs, adds the variants of the
paper's Table 6 and the differences of the released code; each difference is an option, and `preset=code` sets all of
them. The filter W = (μ, σ², π) is a mixture of two Gaussians over per-sample losses; it is sent as six numbers. Where
Eqs. 6 and 7 write the local model, the losses are those of the received global model, as in Algorithm 1 and in the
code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Exchange, Method, Replies, Verdict, model_forms
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import Exposure, Payload, ReplyForm, Summing
from fedwinnow.mathematics.two_gaussians import MixtureOptions, TwoGaussians, exact, fit_two_gaussians
from fedwinnow.options import option
from fedwinnow.steps.site_labels import current_labels, sample_losses
from fedwinnow.steps.stages import if_any, rounds_of_passes, steps_of_turn, warn_of_long_warm_up, watch_replies

SLACK = 0.01  # how far the weights of a mixture may be from adding up to 1
UNSEEN = torch.nan


@dataclass(frozen=True)
class PaperFedDiv(Method):
    """Algorithms 1 and 2 of the paper; line numbers in comments are those of Algorithm 1.

    The option `filter` has an effect only in `FedDiv`; it is declared here to keep its place in the order of options.
    """

    sums: ClassVar[dict[str, Summing]] = {}
    citation: ClassVar[str] = "Li et al., FedDiv: Collaborative Noise Filtering for Federated Learning, AAAI 2024"
    stages: ClassVar[tuple[str, ...]] = ("warm_up", "filter")
    exposes: ClassVar[dict[str, Exposure]] = {**Method.exposes, "mixture": "client"}
    forwards: ClassVar[dict[str, str]] = {
        "weights": "warm-up with group=1: the next site in turn starts from its model",
        "counters": "with it",
    }
    asks: ClassVar[str] = "all sites in turn in the warm-up"

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or its released code where they differ.")
    passes: int | None = option(
        None, "Warm-up passes; none: a twentieth of all client trainings, at least 2.", symbol="T_wu", at_least=0
    )
    group: int = option(1, "Clients per step of the warm-up: 1 passes the model on from client to client.", at_least=1)
    filter: Literal["federated", "degraded", "local"] = option(
        "federated", "The filter of all clients seen so far, of this round's clients only, or each client's own."
    )
    confidence: float = option(
        None, "Relabel from this probability.", symbol="ζ", at_least=0, at_most=1, presets={"paper": 0.75, "code": 0.0}
    )
    eta: float = option(1.0, "Weight of L_reg: 1 for non-IID data, 0 for IID.", symbol="η", at_least=0)
    mixup: float = option(1.0, "Mix with a share from Beta(mixup, mixup); 0: no mixing.", symbol="α", at_least=0)
    debias: float = option(
        None, "Strength of de-biasing; 0: none.", symbol="ξ", at_least=0, presets={"paper": 0.5, "code": 0.2}
    )
    momentum: float = option(
        None, "What stays of an old bias.", symbol="m", at_least=0, at_most=1, presets={"paper": 0.2, "code": 0.5}
    )
    noisy_client: float = option(0.1, "A client is noisy from this share of noisy samples.", at_least=0, at_most=1)

    # --- the rounds, as the server plays them ----------------------------------------------------------------------

    def start(self, server: Server) -> None:
        """W and W_k: there are none before the first replies."""
        warn_of_long_warm_up(server, "feddiv", rounds_of_passes(server, self.passes))
        server.state["mixtures"] = torch.full((server.clients, 6), UNSEEN, dtype=torch.float64)
        server.state["sizes"] = torch.zeros(server.clients, dtype=torch.float64)
        server.state["filter"] = torch.full((6,), UNSEEN, dtype=torch.float64)

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        """Algorithm 1: every pass of the warm-up visits all clients; then each round has a random part of them."""
        if server.round <= rounds_of_passes(server, self.passes):  # lines 4 to 6
            server.note(stage="warm_up")
            for clients in steps_of_turn(server, server.round - 1, self.group):
                replies = yield Exchange("warm_up", clients, lambda client: dict(server.weights), turn=True)
                if (answered := if_any(replies)) is not None:
                    self.average_models(server, answered)
        else:  # lines 7 to 30
            server.note(stage="filter")
            replies = yield Exchange("train", self.choose(server), lambda client: self.send(server, client))
            self.merge(server, replies)

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        return model_forms(server) | (
            {} if ask == "warm_up" else {"mixture": ReplyForm((6,), check=problem_with_mixture)}
        )

    def send(self, server: Server, client: int) -> Payload:
        """The global model and the federated filter."""
        return {**server.weights, "filter": server.state["filter"]}

    def warm_up(self, client: Client, got: Payload) -> Payload:
        """Line 5: training with MixUp only."""
        client.model.load(got)
        client.fit(lambda rows, x, y: self.warm_up_objective(client, rows, x, y, got))
        return self.reply(client)

    def train(self, client: Client, got: Payload) -> Payload:
        """Lines 10 to 23: a client's part of a round."""
        client.model.load(got)  # line 14
        predicted = self.predicted(client)  # by the global model, fixed for this round
        clean = self.p_clean(predicted, self.labels(client), got["filter"]) >= 0.5  # line 11, eq. (7)
        client.note(selected=clean)
        self.fit_selected(client, got, predicted, clean)  # lines 12 to 18
        predicted = self.predicted(client)  # by the trained local model
        self.update_bias(client, predicted)  # line 20
        return self.reply(client) | self.local_filter(client, predicted, got["filter"])  # lines 22 and 23

    # --- label noise filtering -------------------------------------------------------------------------------------

    def predicted(self, client: Client, rows: Tensor | None = None) -> Tensor:
        """f(x), the logits of all samples or of these rows."""
        return client.predict(rows=rows)

    def labels(self, client: Client) -> Tensor:
        """The labels of D_k."""
        return client.given

    def losses(self, predicted: Tensor, labels: Tensor) -> Tensor:
        """Eq. (2): the cross-entropy of each sample."""
        return sample_losses(predicted, labels)

    def p_clean(self, predicted: Tensor, labels: Tensor, flat: Tensor) -> Tensor:
        """Eqs. (3) and (6): the posterior of the component with the smaller mean; 1 before there is a filter."""
        losses = self.losses(predicted, labels)
        if torch.isnan(flat).any():
            return torch.ones_like(losses)
        return self.filter_from(flat).p_low(losses)

    def filter_from(self, flat: Tensor) -> TwoGaussians:
        """The filter from its six numbers."""
        return TwoGaussians.from_flat(flat)

    # --- relabelling and re-selection: the training set ------------------------------------------------------------

    def fit_selected(self, client: Client, got: Payload, predicted: Tensor, clean: Tensor) -> None:
        """Lines 12 to 18: the local epochs; the rows are chosen before each epoch."""
        rows, labels = self.training_set(client, predicted, clean)
        client.fit(lambda batch, x, y: self.objective(client, batch, x, y, got), rows=rows, labels=labels)

    def relabelled(self, client: Client, predicted: Tensor, clean: Tensor) -> Tensor:
        """Eq. (8): the noisy samples for which the global model is confident; its prediction is their new label."""
        return ~clean & (best(predicted).values >= self.confidence)

    def debiased(self, client: Client, predicted: Tensor) -> Tensor:
        """Eq. (9): F(x) = f(x; local) - ξ log p̂."""
        bias = self.bias(client).clamp(min=1e-6).log().to(predicted)
        return predicted - self.debias * bias

    def consistent(self, client: Client, guess: Tensor, chosen: Tensor) -> Tensor:
        """Eq. (10): the chosen samples on which the global and the current de-biased local model agree."""
        agreed, places = torch.zeros_like(chosen), chosen.nonzero().flatten()
        predicted = self.predicted(client, places)
        agreed[places] = self.debiased(client, predicted).argmax(1) == guess[places]
        return agreed

    def training_set(self, client: Client, predicted: Tensor, clean: Tensor) -> tuple[Callable[[], Tensor], Tensor]:
        """Eq. (11): the rows of an epoch, as a function, and the labels; a clean client uses all samples."""
        labels = self.labels(client)
        if noise_level(clean) < self.noisy_client:
            return lambda: torch.arange(len(clean)), labels
        guess, relabelled = best(predicted).indices, self.relabelled(client, predicted, clean)
        chosen = clean | relabelled
        return (
            lambda: self.consistent(client, guess, chosen).nonzero().flatten().cpu(),
            torch.where(relabelled, guess, labels),
        )

    # --- the bias of the local model -------------------------------------------------------------------------------

    def bias(self, client: Client) -> Tensor:
        """p̂, kept at the client; uniform before its first visit."""
        return client.state.get("bias", torch.full((client.classes,), 1.0 / client.classes, dtype=torch.float64))

    def update_bias(self, client: Client, predicted: Tensor) -> None:
        """Eq. (12): p̂ moves towards the mean prediction of the trained local model."""
        m, mean = self.momentum, exact(predicted.softmax(1)).mean(0).cpu()
        client.state["bias"] = m * self.bias(client) + (1 - m) * mean

    # --- the objective of local training ---------------------------------------------------------------------------

    def mixed(self, client: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """MixUp: the logits of mixed samples, and their mixed labels."""
        x, target = self.mix(client, x, y)
        return client.model.module(x), target

    def l_mix(self, client: Client, logits: Tensor, target: Tensor) -> Tensor:
        """Eq. (13), as a mean over the batch."""
        return self.criterion(logits, target, client.class_counts).mean()

    def l_reg(self, client: Client, logits: Tensor) -> Tensor:
        """Eq. (14): KL(uniform || q), q the mean prediction of the mixed batch."""
        q: Tensor = logits.softmax(1).mean(0).clamp(min=1e-12)
        return -(q * client.classes).log().mean()

    def objective(self, client: Client, rows: Tensor, x: Tensor, y: Tensor, got: Payload) -> Tensor:
        """Eq. (15): L_mix + η L_reg."""
        logits, target = self.mixed(client, x, y)
        loss = self.l_mix(client, logits, target)
        return loss + self.eta * self.l_reg(client, logits) if self.eta else loss

    def warm_up_objective(self, client: Client, rows: Tensor, x: Tensor, y: Tensor, got: Payload) -> Tensor:
        """In the warm-up, L_mix alone."""
        return self.l_mix(client, *self.mixed(client, x, y))

    # --- Algorithm 2: the local filter -----------------------------------------------------------------------------

    def local_filter(self, client: Client, predicted: Tensor, flat: Tensor) -> Payload:
        """W_k as six numbers; zeros if a component holds fewer samples than the least count."""
        losses = self.losses(predicted, self.labels(client))
        start = None if torch.isnan(flat).any() else self.filter_from(flat)
        found = self.fit_filter(losses, start)
        held = float(found.weights.min()) * len(client)
        told = held >= client.least_count or bool(found.collapsed)
        return {"mixture": found.flat.cpu() if told else torch.zeros_like(found.flat.cpu())}

    def fit_filter(self, losses: Tensor, start: TwoGaussians | None) -> TwoGaussians:
        """Algorithm 2: EM on the client's own losses, from the federated filter until it converges.

        An E step (line 3) has γ_g = π_g N(ℓ; μ_g, σ²_g) / Σ_g' π_g' N(ℓ; μ_g', σ²_g'); an M step (lines 4 to 6) has
        μ_g = Σ γ_g ℓ / Σ γ_g, σ²_g = Σ γ_g (ℓ - μ_g)² / Σ γ_g and π_g = Σ γ_g / n_k.
        """
        return fit_two_gaussians(losses, **self.em(start))

    def em(self, start: TwoGaussians | None) -> MixtureOptions:
        """The settings of EM: the paper states only where it starts."""
        return {"start": start}

    # --- the server merges the replies -----------------------------------------------------------------------------

    def merge(self, server: Server, replies: Replies) -> None:
        """Lines 25 to 29: the global model, the cached filters and the federated filter."""
        replies, news = watch_replies(replies, "mixture", "samples")
        self.average_models(server, replies)
        told = {client: said for client, said in news.items() if bool(said["mixture"].any())}  # zeros: no filter
        collapsed = self.cache_filters(server, told)
        counted = self.counted(server, list(told))
        if counted.any():  # otherwise the filter stays the same
            server.state["filter"] = self.federated_filter(
                server.state["mixtures"][counted], server.state["sizes"][counted]
            )
        server.note(
            filter=[round(number, 4) for number in server.state["filter"].tolist()],
            collapsed_filters=collapsed,
        )

    def average_models(self, server: Server, replies: Replies) -> None:
        """Eq. (1): the mean of the models by the clients' sizes."""
        super().merge(server, replies)

    def cache_filters(self, server: Server, told: dict[int, Payload]) -> int:
        """Eq. (4): store W_k of the clients of this round; returns how many have collapsed.

        A filter with two equal components separates nothing and would pull the average together, so its size is 0.
        """
        count = 0
        for client, said in told.items():
            mixture = said["mixture"].double()
            collapsed = bool(TwoGaussians.from_flat(mixture).collapsed)
            count += collapsed
            server.state["mixtures"][client] = mixture
            server.state["sizes"][client] = 0.0 if collapsed else said["samples"].double()
        return count

    def counted(self, server: Server, told: list[int]) -> Tensor:
        """The clients whose filters are averaged: all that have sent one so far."""
        return server.state["sizes"] > 0

    def federated_filter(self, mixtures: Tensor, sizes: Tensor) -> Tensor:
        """Eq. (5): means, variances and weights of both components, averaged by the clients' sizes."""
        share = (sizes / sizes.sum()).unsqueeze(1)
        means, variances, weights = mixtures[:, 0:2], mixtures[:, 2:4], mixtures[:, 4:6]
        return torch.cat([(share * means).sum(0), (share * variances).sum(0), (share * weights).sum(0)])

    # --- the verdict on labels -------------------------------------------------------------------------------------

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """By the filter: the posterior of the noisy component; the suggestion is the global model's prediction."""
        client.model.load(got)
        logits = client.predict()
        return Verdict(1.0 - self.p_clean(logits, client.given, got["filter"]), logits.argmax(1))


def problem_with_mixture(flat: Tensor) -> str | None:
    """Why six numbers are neither a mixture nor the zeros of a site that tells none; None if they are."""
    variances, weights = flat[2:4], flat[4:6]
    whole = abs(float(weights.sum()) - 1) < SLACK and bool((weights >= 0).all())
    if not bool(flat.any()) or (whole and bool((variances > 0).all())):
        return None
    return "is no mixture: its variances must be above 0, and its two weights add up to 1"


def best(predicted: Tensor) -> torch.return_types.max:
    """The largest probability of each sample (`values`) and ŷ(x), the class that has it (`indices`)."""
    return predicted.softmax(1).max(1)


def noise_level(clean: Tensor) -> float:
    """Line 12: δ̂_k, the share of the client's samples that the filter calls noisy."""
    return float(exact(~clean).mean())


# --- Variants, and what the released code does differently ---------------------------------------------------------

# The filter from which the code starts, for losses between 0 and 1: two almost equal components.
MIDDLE = (0.495, 0.505, 0.07, 0.07, 0.5, 0.5)


@dataclass(frozen=True)
class FedDiv(PaperFedDiv):
    """A federated noise filter, relabelling, predictive-consistency re-selection and MixUp, in one stage."""

    name: ClassVar[str] = "feddiv"

    relabel: bool = option(True, "Add confidently relabelled samples (ablation).")
    relabel_from: float = option(
        None, "Train on them from this noisy share.", at_least=0, at_most=1, presets={"paper": 0.1, "code": 0.2}
    )
    reselect: bool = option(True, "Re-select by predictive consistency (ablation).")
    reselect_timing: Literal["epoch", "cached"] = option(
        None, "Re-select in each epoch, or as predicted last time.", presets={"paper": "epoch", "code": "cached"}
    )
    reselect_from_visit: int = option(
        None, "Re-select and relabel from this visit on (1: the first).", at_least=1, presets={"paper": 1, "code": 6}
    )
    sample_loss: Literal["cross_entropy", "double_softmax"] = option(
        None, "The loss that is filtered.", presets={"paper": "cross_entropy", "code": "double_softmax"}
    )
    normalise: bool = option(
        None, "Map each client's losses to 0..1 before filtering.", presets={"paper": False, "code": True}
    )
    first_filter: Literal["absent", "middle"] = option(
        None,
        "The filter of the first round: absent (everything is clean), or two almost equal components at about 0.5.",
        presets={"paper": "absent", "code": "middle"},
    )
    em_steps: int = option(None, "Most EM steps of a local filter.", at_least=1, presets={"paper": 2000, "code": 3})
    em_tolerance: float = option(
        None,
        "EM has converged when the mean log-likelihood moves by less.",
        at_least=0,
        presets={"paper": 1e-10, "code": 0.0},
    )
    variance_floor: float = option(0.000001, "Smallest variance of a component of a local filter.", above=0)
    variance_weighting: Literal["linear", "squared", "moment"] = option(
        None, "Weights of variances: plain, squared, or by moments.", presets={"paper": "linear", "code": "squared"}
    )
    persistent_relabelling: bool = option(
        None, "Relabelled samples keep their new label.", presets={"paper": False, "code": True}
    )
    bias_confidence: float = option(
        None, "Above this, predictions make the bias.", at_least=0, at_most=1, presets={"paper": 0.0, "code": 0.85}
    )
    scoring_views: bool = option(
        None, "Score samples on random views, as in training.", presets={"paper": False, "code": True}
    )
    full_batch: bool = option(
        None, "A client with no more than a batch selected does not train.", presets={"paper": False, "code": True}
    )
    regularise_warm_up: bool = option(None, "Have L_reg in the warm-up too.", presets={"paper": False, "code": True})
    unmixed_pass: bool = option(
        None, "Show batch normalisation each batch unmixed, too.", presets={"paper": False, "code": True}
    )

    # --- the filter: filter, first_filter, variance_weighting, sample_loss, normalise, em_steps, em_tolerance -------

    def start(self, server: Server) -> None:
        super().start(server)
        if self.first_filter == "middle":
            server.state["filter"] = torch.tensor(MIDDLE, dtype=torch.float64)

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        forms = super().forms(server, ask, sent)
        return {key: form for key, form in forms.items() if key != "mixture" or self.filter != "local"}

    def merge(self, server: Server, replies: Replies) -> None:
        """With `filter=local` no filter is sent."""
        if self.filter == "local":
            self.average_models(server, replies)
        else:
            super().merge(server, replies)

    def counted(self, server: Server, told: list[int]) -> Tensor:
        """With `filter=degraded` only the filters of this round are averaged."""
        counted = super().counted(server, told)
        if self.filter == "degraded":
            counted &= torch.isin(torch.arange(server.clients), torch.tensor(told, dtype=torch.int64))
        return counted

    def federated_filter(self, mixtures: Tensor, sizes: Tensor) -> Tensor:
        if self.variance_weighting == "squared":
            return with_squared_shares(super().federated_filter(mixtures, sizes), mixtures, sizes)
        if self.variance_weighting == "moment":
            return by_moments(mixtures, sizes)
        return super().federated_filter(mixtures, sizes)

    def losses(self, predicted: Tensor, labels: Tensor) -> Tensor:
        """The code takes the cross-entropy of outputs that are already probabilities."""
        return sample_losses(predicted, labels, self.sample_loss)

    def p_clean(self, predicted: Tensor, labels: Tensor, flat: Tensor) -> Tensor:
        """With `filter=local` each client fits a new filter to the losses of the global model."""
        if self.filter == "local":
            losses = self.losses(predicted, labels)
            return self.fit_filter(losses, None).p_low(losses)
        return super().p_clean(predicted, labels, flat)

    def filter_from(self, flat: Tensor) -> TwoGaussians:
        return replace(super().filter_from(flat), normalise=self.normalise)

    def local_filter(self, client: Client, predicted: Tensor, flat: Tensor) -> Payload:
        return {} if self.filter == "local" else super().local_filter(client, predicted, flat)

    def em(self, start: TwoGaussians | None) -> MixtureOptions:
        """Also when EM has converged, which the paper leaves open; the code makes three steps."""
        return {
            **super().em(start),
            "steps": self.em_steps,
            "tolerance": self.em_tolerance,
            "variance_floor": self.variance_floor,
            "normalise": self.normalise,
        }

    # --- relabelling and re-selection: relabel, reselect, and when, how long and for whom ---------------------------

    def train(self, client: Client, got: Payload) -> Payload:
        reply = super().train(client, got)
        client.state["visits"] = self.visits(client) + 1
        return reply

    def visits(self, client: Client) -> Tensor:
        """How often the client has trained with the filter."""
        return client.state.get("visits", torch.zeros(1, dtype=torch.int64))

    def late_enough(self, client: Client) -> bool:
        """Whether the client re-selects and trains on relabelled samples at this visit."""
        return int(self.visits(client)) + 1 >= self.reselect_from_visit

    def training_set(self, client: Client, predicted: Tensor, clean: Tensor) -> tuple[Callable[[], Tensor], Tensor]:
        rows, labels = super().training_set(client, predicted, clean)
        if self.persistent_relabelling and noise_level(clean) >= self.noisy_client:
            self.relabel_for_good(client, predicted, clean)
        return (lambda: more_than_a_batch(rows(), client)) if self.full_batch else rows, labels

    def confident(self, client: Client, predicted: Tensor, clean: Tensor) -> Tensor:
        """Eq. (8), or no sample if relabelling is off."""
        return super().relabelled(client, predicted, clean) & self.relabel

    def relabelled(self, client: Client, predicted: Tensor, clean: Tensor) -> Tensor:
        """The confident samples that are trained on: none on early visits or at a client with little noise."""
        much = noise_level(clean) >= self.relabel_from
        return self.confident(client, predicted, clean) & (much and self.late_enough(client))

    def relabel_for_good(self, client: Client, predicted: Tensor, clean: Tensor) -> None:
        """In the code new labels replace the old ones, also on early visits, before the local filter is fitted."""
        guess, lasting = best(predicted).indices, self.confident(client, predicted, clean)
        if self.reselect_timing == "cached":
            lasting = lasting & self.agreed_last_time(client, guess)
        client.state["labels"] = torch.where(lasting, guess, self.labels(client))

    def labels(self, client: Client) -> Tensor:
        return current_labels(client) if self.persistent_relabelling else super().labels(client)

    def consistent(self, client: Client, guess: Tensor, chosen: Tensor) -> Tensor:
        """The code uses the local model's prediction from the end of the client's last visit."""
        if not (self.reselect and self.late_enough(client)):
            return chosen
        if self.reselect_timing == "cached":
            return chosen & self.agreed_last_time(client, guess)
        return super().consistent(client, guess, chosen)

    def agreed_last_time(self, client: Client, guess: Tensor) -> Tensor:
        """Where the de-biased local model's cached prediction equals the global one's; everywhere on a first visit."""
        return client.state.get("debiased", guess.cpu()).to(guess.device) == guess

    def update_bias(self, client: Client, predicted: Tensor) -> None:
        """The code computes the bias only from samples for which the de-biased model is sure."""
        debiased = self.debiased(client, predicted)
        if self.reselect_timing == "cached":
            client.state["debiased"] = debiased.argmax(1)
        sure = debiased.softmax(1).max(1).values > self.bias_confidence
        if sure.any():
            super().update_bias(client, predicted[sure])

    # --- scoring and training: scoring_views, regularise_warm_up, unmixed_pass --------------------------------------

    def predicted(self, client: Client, rows: Tensor | None = None) -> Tensor:
        return client.predict(rows=rows, views=self.scoring_views)

    def warm_up_objective(self, client: Client, rows: Tensor, x: Tensor, y: Tensor, got: Payload) -> Tensor:
        usual = self.objective if self.regularise_warm_up else super().warm_up_objective
        return usual(client, rows, x, y, got)

    def mixed(self, client: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The code also passes the unmixed batch, which only changes running statistics."""
        if self.unmixed_pass:
            client.forward_samples += len(x)
            with torch.no_grad():
                client.model.module(x)
        return super().mixed(client, x, y)


def more_than_a_batch(rows: Tensor, client: Client) -> Tensor:
    """The rows, or none if they fit into one batch: in the code such a client does not train."""
    return rows if len(rows) > client.training.batch_size else rows[:0]


def with_squared_shares(federated: Tensor, mixtures: Tensor, sizes: Tensor) -> Tensor:
    """The federated filter with the variances as in the code: weighted by squared shares."""
    share, variances = (sizes / sizes.sum()).unsqueeze(1), mixtures[:, 2:4]
    return torch.cat([federated[0:2], (share**2 * variances).sum(0), federated[4:6]])


def by_moments(mixtures: Tensor, sizes: Tensor) -> Tensor:
    """A filter whose components have the mean and variance of all their samples together; not in the paper or code."""
    share = (sizes / sizes.sum()).unsqueeze(1)
    means, variances, weights = mixtures[:, 0:2], mixtures[:, 2:4], mixtures[:, 4:6]
    weight = (share * weights).sum(0)
    mass = share * weights / weight.clamp(min=1e-12)
    mean = (mass * means).sum(0)
    variance = (mass * (variances + (means - mean) ** 2)).sum(0)
    return torch.cat([mean, variance, weight])
