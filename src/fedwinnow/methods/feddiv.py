"""FedDiv: one noise filter for all, made from the clients' own filters; then relabel, re-select and train with MixUp.

Li, Li, Cheng, Liao, Yu: FedDiv: Collaborative Noise Filtering for Federated Learning with Noisy Labels, AAAI 2024.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| T_wu (passes) | passes | | ξ | debias |
| ζ | confidence | | m | momentum |
| η | eta | | α (MixUp) | mixup |
| δ̂_k (threshold) | noisy_client | | ω | participation of the run |

The filter W = (μ, σ², π) is a mixture of two Gaussians over per-sample losses. The paper and its (withdrawn) code
differ in many ways that move numbers; each is an option, `preset=code` takes all of the code's. Where Eqs. 6-7 write
the local model, the losses are those of the global model that was just received, as in Algorithm 1 and in the code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Exchange, Method, Replies, Verdict
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.average_mixtures import average_mixtures
from fedwinnow.mathematics.payload import Exposure, Payload
from fedwinnow.mathematics.two_gaussians import TwoGaussians, exact, fit_two_gaussians
from fedwinnow.options import filled, option
from fedwinnow.steps.passes_over_clients import rounds_of_passes, steps_of_turn
from fedwinnow.steps.relabel import current_labels
from fedwinnow.steps.sample_losses import sample_losses
from fedwinnow.steps.watched_replies import noted

UNSEEN = torch.nan
# What the code starts from, for losses between 0 and 1: two components that are almost the same.
MIDDLE = (0.495, 0.505, 0.07, 0.07, 0.5, 0.5)


@dataclass(frozen=True)
class FedDiv(Method):
    """A federated noise filter, relabelling, predictive-consistency re-selection and MixUp, in one stage."""

    name: ClassVar[str] = "feddiv"
    citation: ClassVar[str] = "Li et al., FedDiv: Collaborative Noise Filtering for Federated Learning, AAAI 2024"
    stages: ClassVar[tuple[str, ...]] = ("warm_up", "filter")
    exposes: ClassVar[dict[str, Exposure]] = {**Method.exposes, "mixture": "client"}
    forwards: ClassVar[dict[str, str]] = {
        "weights": "warm-up with group=1: the next site in turn starts from its model as it is",
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
    confidence: float | None = option(
        None, "Relabel from this probability.", symbol="ζ", at_least=0, at_most=1, presets={"paper": 0.75, "code": 0.0}
    )
    eta: float = option(1.0, "Weight of L_reg: 1 for non-IID data, 0 for IID.", symbol="η", at_least=0)
    mixup: float = option(1.0, "Mix with a share from Beta(mixup, mixup); 0: no mixing.", symbol="α", at_least=0)
    debias: float | None = option(
        None, "Strength of de-biasing; 0: none.", symbol="ξ", at_least=0, presets={"paper": 0.5, "code": 0.2}
    )
    momentum: float | None = option(
        None, "What stays of an old bias.", symbol="m", at_least=0, at_most=1, presets={"paper": 0.2, "code": 0.5}
    )
    noisy_client: float = option(0.1, "A client is noisy from this share of noisy samples.", at_least=0, at_most=1)
    relabel: bool = option(True, "Add confidently relabelled samples (ablation).")
    relabel_from: float | None = option(
        None, "Train on them from this noisy share.", at_least=0, at_most=1, presets={"paper": 0.1, "code": 0.2}
    )
    reselect: bool = option(True, "Re-select by predictive consistency (ablation).")
    reselect_timing: Literal["epoch", "cached"] | None = option(
        None, "Re-select in each epoch, or as predicted last time.", presets={"paper": "epoch", "code": "cached"}
    )
    reselect_from_visit: int | None = option(
        None, "Re-select and relabel from this visit on (1: the first).", at_least=1, presets={"paper": 1, "code": 6}
    )
    sample_loss: Literal["cross_entropy", "double_softmax"] | None = option(
        None, "The loss that is filtered.", presets={"paper": "cross_entropy", "code": "double_softmax"}
    )
    normalise: bool | None = option(
        None, "Map each client's losses to 0..1 before filtering.", presets={"paper": False, "code": True}
    )
    first_filter: Literal["absent", "middle"] | None = option(
        None,
        "The filter of the first round: absent, everything is clean; or two almost equal components around 0.5.",
        presets={"paper": "absent", "code": "middle"},
    )
    em_steps: int | None = option(
        None, "Most EM steps of a local filter.", at_least=1, presets={"paper": 2000, "code": 3}
    )
    em_tolerance: float | None = option(
        None,
        "EM has converged when the mean log-likelihood moves by less.",
        at_least=0,
        presets={"paper": 1e-10, "code": 0.0},
    )
    variance_floor: float = option(0.000001, "Smallest variance of a component of a local filter.", above=0)
    variance_weighting: Literal["linear", "squared", "moment"] | None = option(
        None, "Weights of variances: plain, squared, or by moments.", presets={"paper": "linear", "code": "squared"}
    )
    persistent_relabelling: bool | None = option(
        None, "Relabelled samples keep their new label for good.", presets={"paper": False, "code": True}
    )
    bias_confidence: float | None = option(
        None, "Above this, predictions make the bias.", at_least=0, at_most=1, presets={"paper": 0.0, "code": 0.85}
    )
    scoring_views: bool | None = option(
        None, "Score samples on random views, as in training.", presets={"paper": False, "code": True}
    )
    full_batch: bool | None = option(
        None, "A client with no more than a batch selected does not train.", presets={"paper": False, "code": True}
    )
    regularise_warm_up: bool | None = option(
        None, "Have L_reg in the warm-up too.", presets={"paper": False, "code": True}
    )
    unmixed_pass: bool | None = option(
        None, "Show batch normalisation each batch unmixed, too.", presets={"paper": False, "code": True}
    )

    # --- the server's half -----------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        server.state["mixtures"] = torch.full((server.clients, 6), UNSEEN, dtype=torch.float64)
        server.state["sizes"] = torch.zeros(server.clients, dtype=torch.float64)
        first = MIDDLE if self.first_filter == "middle" else (UNSEEN,) * 6
        server.state["filter"] = torch.tensor(first, dtype=torch.float64)

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        if server.round <= rounds_of_passes(server, self.passes):
            server.note(stage="warm_up")
            for clients in steps_of_turn(server, server.round - 1, self.group):
                replies = yield Exchange("warm_up", clients, lambda client: dict(server.weights))
                super().merge(server, replies)
        else:
            server.note(stage="filter")
            replies = yield Exchange("train", self.choose(server), lambda client: self.send(server, client))
            self.merge(server, replies)

    def send(self, server: Server, client: int) -> Payload:
        return {**server.weights, "filter": server.state["filter"]}

    def merge(self, server: Server, replies: Replies) -> None:
        if self.filter == "local":
            super().merge(server, replies)  # eq. (1)
            return
        replies, news = noted(replies, "mixture", "samples")
        super().merge(server, replies)  # eq. (1)
        told = {client: reply for client, reply in news.items() if bool(reply["mixture"].any())}  # zeros: it has none
        collapsed = 0
        for client, reply in told.items():  # eq. (4)
            mixture = reply["mixture"].double()
            bad = bool(TwoGaussians.from_flat(mixture).collapsed)
            collapsed += bad
            server.state["mixtures"][client] = mixture
            # A filter whose two components are one tells nothing apart, and would pull the others' together.
            server.state["sizes"][client] = 0.0 if bad else reply["samples"].double()
        # eq. (5): the global filter from all cached filters, or (degraded) from this round's only
        sound = server.state["sizes"] > 0
        if self.filter == "degraded":
            sound &= torch.isin(torch.arange(server.clients), torch.tensor(list(told), dtype=torch.int64))
        if sound.any():  # else that of before stays
            server.state["filter"] = average_mixtures(
                server.state["mixtures"][sound], server.state["sizes"][sound], filled(self.variance_weighting)
            )
        server.note(
            filter=[round(number, 4) for number in server.state["filter"].tolist()],
            collapsed_filters=collapsed,
        )

    # --- the client's half -----------------------------------------------------------------------------------------

    def warm_up(self, client: Client, got: Payload) -> Payload:
        """MixUp training only."""
        eta = self.eta if self.regularise_warm_up else 0.0
        client.model.load(got)
        client.fit(lambda rows, x, y: self.regularised(client, x, y, eta))
        return self.reply(client)

    def train(self, client: Client, got: Payload) -> Payload:
        client.model.load(got)
        labels = current_labels(client)
        predicted = client.predict(views=self.scoring_views)  # of the global model, fixed for this round
        clean = self.p_clean(predicted, labels, got["filter"]) >= 0.5  # eq. (7)
        client.note(selected=clean)
        labels = self.fit_selected(client, got, predicted, labels, clean)
        reply = self.reply(client) | self.update_state(client, labels, got["filter"])
        client.state["visits"] = client.state.get("visits", torch.zeros(1, dtype=torch.int64)) + 1
        return reply

    def p_clean(self, logits: Tensor, labels: Tensor, flat: Tensor) -> Tensor:
        """Eqs. (3) and (6): the posterior of the clean component; before there is a filter, everything is clean."""
        losses = sample_losses(logits, labels, self.sample_loss)
        if self.filter == "local":
            return self.fit_filter(losses, None).p_low(losses)
        if torch.isnan(flat).any():
            return torch.ones_like(losses)
        return TwoGaussians.from_flat(flat, normalise=bool(self.normalise)).p_low(losses)

    def fit_filter(self, losses: Tensor, start: TwoGaussians | None) -> TwoGaussians:
        """Algorithm 2: EM on the client's own losses, started at the global filter."""
        return fit_two_gaussians(
            losses,
            start=start,
            steps=filled(self.em_steps),
            tolerance=filled(self.em_tolerance),
            variance_floor=self.variance_floor,
            normalise=bool(self.normalise),
        )

    def fit_selected(self, client: Client, got: Payload, predicted: Tensor, labels: Tensor, clean: Tensor) -> Tensor:
        """Train on what eqs. (8)-(11) leave; the labels that the client believes in afterwards are returned."""
        share = float(exact(~clean).mean())  # the estimated noise level
        rows: Callable[[], Tensor]
        if share < self.noisy_client:  # eq. (11): a clean client uses all it has
            target = believed = labels
            rows = torch.ones_like(clean).nonzero
        else:
            rows, target, believed = self.selection(client, predicted, labels, clean, share)

        def rows_of_epoch() -> Tensor:
            chosen = rows().flatten().cpu()
            return chosen[:0] if self.full_batch and len(chosen) <= client.training.batch_size else chosen

        client.fit(lambda batch, x, y: self.objective(client, batch, x, y, got), rows=rows_of_epoch, labels=target)
        return believed

    def selection(
        self, client: Client, predicted: Tensor, labels: Tensor, clean: Tensor, share: float
    ) -> tuple[Callable[[], Tensor], Tensor, Tensor]:
        """Which rows a noisy client uses in an epoch, the labels it trains on, and those it keeps for good."""
        visit = int(client.state.get("visits", torch.zeros(1))) + 1
        late_enough = visit >= filled(self.reselect_from_visit)
        probability, guess = predicted.softmax(1).max(1)
        confident = ~clean & (probability >= filled(self.confidence)) & self.relabel  # eq. (8)
        agreed = client.state.get("debiased", guess.cpu()).to(guess.device) == guess
        joining = confident & late_enough & (share >= filled(self.relabel_from))
        chosen = clean | joining

        def rows() -> Tensor:
            if not (self.reselect and late_enough):
                return chosen.nonzero()
            return self.consistent(client, guess, chosen, agreed).nonzero()  # eq. (10)

        believed = labels
        if self.persistent_relabelling:
            lasting = confident & agreed if self.reselect_timing == "cached" else confident
            believed = torch.where(lasting, guess, labels)
            client.state["labels"] = believed
        return rows, torch.where(joining, guess, labels), believed

    def consistent(self, client: Client, guess: Tensor, chosen: Tensor, agreed: Tensor) -> Tensor:
        """Eq. (10): those of the chosen on which the global and the de-biased local model agree."""
        if self.reselect_timing == "cached":
            return chosen & agreed
        now, places = torch.zeros_like(chosen), chosen.nonzero().flatten()
        logits = client.predict(rows=places, views=self.scoring_views)
        now[places] = self.debiased(client, logits).argmax(1) == guess[places]
        return now

    def debiased(self, client: Client, logits: Tensor) -> Tensor:
        """Eq. (9): F(x) = f(x; local) - xi log p-hat."""
        bias = self.bias(client).clamp(min=1e-6).log().to(logits)
        return logits - filled(self.debias) * bias

    def bias(self, client: Client) -> Tensor:
        """p-hat, the client's mean prediction; uniform before its first session."""
        return client.state.get("bias", torch.full((client.classes,), 1.0 / client.classes, dtype=torch.float64))

    def objective(self, client: Client, rows: Tensor, x: Tensor, y: Tensor, got: Payload) -> Tensor:
        return self.regularised(client, x, y, self.eta)

    def regularised(self, client: Client, x: Tensor, y: Tensor, eta: float) -> Tensor:
        """L_mix + eta L_reg (eqs. 13-15)."""
        if self.unmixed_pass:
            client.forward_samples += len(x)
            with torch.no_grad():
                client.model.module(x)
        x, target = self.mix(client, x, y)
        logits = client.model.module(x)
        loss: Tensor = self.criterion(logits, target, client.class_counts).mean()  # eq. (13), as a mean
        if eta == 0:
            return loss
        # eq. (14): KL(uniform || q), q the mean prediction of the mixed batch
        mean: Tensor = logits.softmax(1).mean(0).clamp(min=1e-12)
        return loss - eta * (mean * client.classes).log().mean()

    def update_state(self, client: Client, labels: Tensor, flat: Tensor) -> Payload:
        """After the last epoch: eq. (12) for p-hat, and the local filter on the trained model's losses."""
        logits = client.predict(views=self.scoring_views)
        debiased = self.debiased(client, logits)
        if self.reselect_timing == "cached":
            client.state["debiased"] = debiased.argmax(1)
        sure = debiased.softmax(1).max(1).values > filled(self.bias_confidence)
        if sure.any():
            share, mean = filled(self.momentum), exact(logits.softmax(1)[sure]).mean(0).cpu()
            client.state["bias"] = share * self.bias(client) + (1 - share) * mean  # eq. (12)
        if self.filter == "local":
            return {}
        losses = sample_losses(logits, labels, self.sample_loss)
        start = None if torch.isnan(flat).any() else TwoGaussians.from_flat(flat, normalise=bool(self.normalise))
        found = self.fit_filter(losses, start)
        held = float(found.weights.min()) * len(client)  # samples of which a component's mean and variance are
        told = held >= client.least_count or bool(found.collapsed)
        return {"mixture": found.flat.cpu() if told else torch.zeros_like(found.flat.cpu())}

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """The filter itself: the posterior of the noisy component, and what the global model would say instead."""
        client.model.load(got)
        logits = client.predict()
        return Verdict(1.0 - self.p_clean(logits, client.given, got["filter"]), logits.argmax(1))
