"""FedDiv: one noise filter for all, made from the clients' own filters; then relabel, re-select and train with MixUp.

Li, Li, Cheng, Liao, Yu: FedDiv: Collaborative Noise Filtering for Federated Learning with Noisy Labels, AAAI 2024.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| T_wu (passes) | passes | | ξ | debias |
| ζ | confidence | | m | momentum |
| η | eta | | α (MixUp) | mixup |

The filter W = (μ, σ², π) is a mixture of two Gaussians over per-sample losses. The paper and its (withdrawn) code
differ in many ways that move numbers; each is an option, `preset=code` takes all of the code's.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Exchange, Method, Replies, Verdict
from fedwinnow.federation.payload import Exposure, Payload
from fedwinnow.federation.server import Server
from fedwinnow.options import option
from fedwinnow.parts.sample_losses import sample_losses
from fedwinnow.parts.two_gaussians import TwoGaussians, fit_two_gaussians

UNSEEN = torch.nan


@dataclass(frozen=True)
class FedDiv(Method):
    """A federated noise filter, relabelling, predictive-consistency re-selection and MixUp, in one stage."""

    name: ClassVar[str] = "feddiv"
    citation: ClassVar[str] = "Li et al., FedDiv: Collaborative Noise Filtering for Federated Learning, AAAI 2024"
    stages: ClassVar[tuple[str, ...]] = ("warm_up", "filter")
    exposes: ClassVar[dict[str, Exposure]] = {
        "weights": "model",
        "counters": "model",
        "samples": "client",
        "mixture": "client",
    }

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or its released code where they differ.")
    passes: int | None = option(
        None,
        "Warm-up passes over all clients; none: a twentieth of all client trainings, at least 2.",
        symbol="T_wu",
        at_least=0,
    )
    group: int = option(1, "Clients per step of the warm-up: 1 passes the model on from client to client.", at_least=1)
    filter: Literal["federated", "degraded", "local"] = option(
        "federated", "The filter of all clients seen so far, of this round's clients only, or each client's own."
    )
    confidence: float | None = option(
        None,
        "Probability from which a noisy sample is relabelled.",
        symbol="ζ",
        at_least=0,
        at_most=1,
        presets={"paper": 0.75, "code": 0.0},
    )
    eta: float = option(1.0, "Weight of L_reg: 1 for non-IID data, 0 for IID.", symbol="η", at_least=0)
    mixup: float = option(1.0, "Mix with a share from Beta(mixup, mixup); 0: no mixing.", symbol="α", at_least=0)
    debias: float | None = option(
        None,
        "Strength of de-biasing in re-selection; 0: none.",
        symbol="ξ",
        at_least=0,
        presets={"paper": 0.5, "code": 0.2},
    )
    momentum: float | None = option(
        None,
        "Share of the old class bias in its update.",
        symbol="m",
        at_least=0,
        at_most=1,
        presets={"paper": 0.2, "code": 0.5},
    )
    noisy_client: float = option(0.1, "A client is noisy from this share of noisy samples.", at_least=0, at_most=1)
    relabel: bool = option(True, "Add confidently relabelled samples (ablation).")
    relabel_from: float | None = option(
        None,
        "Relabelled samples join training from this share of noisy samples.",
        at_least=0,
        at_most=1,
        presets={"paper": 0.1, "code": 0.2},
    )
    reselect: bool = option(True, "Re-select by predictive consistency (ablation).")
    reselect_timing: Literal["epoch", "cached"] | None = option(
        None,
        "Re-select before each epoch, or once with what was predicted at the end of the last visit.",
        presets={"paper": "epoch", "code": "cached"},
    )
    reselect_from_visit: int | None = option(
        None,
        "Re-select (and add relabelled samples) from this visit on.",
        at_least=1,
        presets={"paper": 1, "code": 5},
    )
    sample_loss: Literal["cross_entropy", "double_softmax"] | None = option(
        None, "The loss that is filtered.", presets={"paper": "cross_entropy", "code": "double_softmax"}
    )
    normalise: bool | None = option(
        None, "Map each client's losses to 0..1 before filtering.", presets={"paper": False, "code": True}
    )
    em_steps: int | None = option(
        None, "Most EM steps of a local filter.", at_least=1, presets={"paper": 100, "code": 3}
    )
    variance_weighting: Literal["linear", "squared", "moment"] | None = option(
        None,
        "Variances averaged like means, with squared weights, or so that the moments are right.",
        presets={"paper": "linear", "code": "squared"},
    )
    persistent_relabelling: bool | None = option(
        None, "Relabelled samples keep their new label for good.", presets={"paper": False, "code": True}
    )
    bias_confidence: float | None = option(
        None,
        "Only predictions above this probability enter the class bias.",
        at_least=0,
        at_most=1,
        presets={"paper": 0.0, "code": 0.85},
    )

    scoring_views: bool | None = option(
        None, "Score samples on random views, as in training.", presets={"paper": False, "code": True}
    )
    full_batch: bool | None = option(
        None,
        "A client whose selected set does not exceed one batch does not train.",
        presets={"paper": False, "code": True},
    )

    # --- the server's half -----------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        server.state["mixtures"] = torch.full((server.clients, 6), UNSEEN, dtype=torch.float64)
        server.state["sizes"] = torch.zeros(server.clients, dtype=torch.float64)
        server.state["filter"] = torch.full((6,), UNSEEN, dtype=torch.float64)

    def warm_up_rounds(self, server: Server) -> int:
        """Rounds of the warm-up: whole passes over all clients."""
        wanted = round(server.rounds * 0.05 / server.rounds_per_pass)
        passes = max(2, wanted) if self.passes is None else self.passes
        return min(passes * server.rounds_per_pass, server.rounds)

    def exchanges(self, server: Server) -> Generator[Exchange, Replies, None]:
        if server.round <= self.warm_up_rounds(server):
            server.note(stage="warm_up")
            members = server.turn(server.round - 1)
            for place in range(0, len(members), self.group):
                clients = members[place : place + self.group]
                replies = yield Exchange("warm_up", clients, lambda client: dict(server.weights))
                super().merge(server, replies)
        else:
            server.note(stage="filter")
            replies = yield Exchange("train", self.choose(server), lambda client: self.send(server, client))
            self.merge(server, replies)

    def send(self, server: Server, client: int) -> Payload:
        return {**server.weights, "filter": server.state["filter"]}

    def merge(self, server: Server, replies: Replies) -> None:
        seen: list[int] = []

        def noting() -> Replies:
            for client, reply in replies:
                seen.append(client)
                server.state["mixtures"][client] = reply["mixture"].double()
                server.state["sizes"][client] = reply["samples"].double()
                yield client, reply

        super().merge(server, noting())
        # eq. (5): the global filter from all cached filters, or (degraded) from this round's only
        members = torch.tensor(seen) if self.filter == "degraded" else server.state["sizes"].nonzero().flatten()
        server.state["filter"] = self.average(server.state["mixtures"][members], server.state["sizes"][members])
        server.note(filter=[round(number, 4) for number in server.state["filter"].tolist()])

    def average(self, mixtures: Tensor, sizes: Tensor) -> Tensor:
        """eq. (5): parameters averaged by client size; how variances are weighted is an option."""
        share = (sizes / sizes.sum()).unsqueeze(1)
        means, variances, weights = mixtures[:, 0:2], mixtures[:, 2:4], mixtures[:, 4:6]
        mean, weight = (share * means).sum(0), (share * weights).sum(0)
        if self.variance_weighting == "squared":
            variance = (share**2 * variances).sum(0)
        elif self.variance_weighting == "moment":
            mass = share * weights / weight
            mean = (mass * means).sum(0)
            variance = (mass * (variances + means**2)).sum(0) - mean**2
        else:
            variance = (share * variances).sum(0)
        return torch.cat([mean, variance, weight])

    # --- the client's half -----------------------------------------------------------------------------------------

    def warm_up(self, client: Client, got: Payload) -> Payload:
        """MixUp training only."""
        client.model.load(got)
        client.fit(lambda rows, x, y: Method.objective(self, client, rows, x, y, got))
        return self.reply(client)

    def train(self, client: Client, got: Payload) -> Payload:
        client.model.load(got)
        labels = client.state.get("labels", client.given.cpu()).to(client.given.device)
        predicted = client.predict(views=self.scoring_views)  # of the global model, fixed for this round
        clean = self.is_clean(predicted, labels, got["filter"])
        client.note(selected=clean)
        visits = int(client.state.get("visits", torch.zeros(1))) + 1
        self.fit_selected(client, got, predicted, labels, clean, visits)
        mixture = self.update_state(client, labels, got["filter"])
        client.state["visits"] = torch.tensor([visits])
        return self.reply(client) | {"mixture": mixture}

    def is_clean(self, logits: Tensor, labels: Tensor, flat: Tensor) -> Tensor:
        """gamma >= 0.5 under the filter that was sent (eqs. 6-7); before there is one, everything is clean."""
        return self.p_clean(logits, labels, flat) >= 0.5

    def p_clean(self, logits: Tensor, labels: Tensor, flat: Tensor) -> Tensor:
        """The posterior of the clean component."""
        losses = sample_losses(logits, labels, self.loss_kind)
        if self.filter == "local":
            return self.fit_filter(losses, None).p_low(losses)
        if torch.isnan(flat).any():
            return torch.ones_like(losses, dtype=torch.float64)
        return TwoGaussians.from_flat(flat, normalise=bool(self.normalise)).p_low(losses)

    def fit_filter(self, losses: Tensor, start: TwoGaussians | None) -> TwoGaussians:
        """Algorithm 2: EM on the client's own losses, started at the global filter."""
        assert self.em_steps is not None
        return fit_two_gaussians(losses, start=start, steps=self.em_steps, normalise=bool(self.normalise))

    def fit_selected(
        self, client: Client, got: Payload, predicted: Tensor, labels: Tensor, clean: Tensor, visits: int
    ) -> None:
        """Eqs. (8)-(11): clean and relabelled samples, re-selected before each epoch; a clean client uses all."""
        share = float((~clean).double().mean())
        if share < self.noisy_client:
            client.fit(lambda rows, x, y: self.objective(client, rows, x, y, got), labels=labels)
            return
        late_enough = visits >= (self.reselect_from_visit or 1)
        probability, guess = predicted.softmax(1).max(1)
        relabelled = ~clean & (probability >= (self.confidence or 0.0))  # eq. (8)
        if not (self.relabel and late_enough and share >= (self.relabel_from or 0.0)):
            relabelled = torch.zeros_like(clean)
        target = torch.where(relabelled, guess, labels)
        if self.persistent_relabelling:
            client.state["labels"] = target
        chosen = clean | relabelled

        def rows_of_epoch() -> Tensor:
            kept = chosen & self.consistent(client, guess) if self.reselect and late_enough else chosen
            rows = kept.nonzero().flatten().cpu()
            return rows[:0] if self.full_batch and len(rows) <= client.training.batch_size else rows

        client.fit(lambda rows, x, y: self.objective(client, rows, x, y, got), rows=rows_of_epoch, labels=target)

    def consistent(self, client: Client, guess: Tensor) -> Tensor:
        """Eqs. (9)-(10): the global model and the de-biased local model agree on the class."""
        if self.reselect_timing == "cached":
            return torch.eq(client.state.get("debiased", guess.cpu()).to(guess.device), guess)
        return self.debiased(client).argmax(1) == guess

    def debiased(self, client: Client) -> Tensor:
        """F(x) = f(x; local) - xi log p-hat."""
        bias = self.bias(client).clamp(min=1e-6).log().to(client.given.device)
        return client.predict(views=self.scoring_views) - (self.debias or 0.0) * bias.float()

    def bias(self, client: Client) -> Tensor:
        """p-hat, the client's mean prediction; uniform before its first session."""
        return client.state.get("bias", torch.full((client.classes,), 1.0 / client.classes, dtype=torch.float64))

    def objective(self, client: Client, rows: Tensor, x: Tensor, y: Tensor, got: Payload) -> Tensor:
        """L_mix + eta L_reg (eqs. 13-14)."""
        x, target = self.mix(client, x, y)
        logits = client.model.module(x)
        loss: Tensor = self.criterion(logits, target, client.class_counts).mean()
        if self.eta == 0:
            return loss
        # KL(uniform || q), q the mean prediction of the mixed batch
        mean: Tensor = logits.softmax(1).mean(0).clamp(min=1e-12)
        return loss - self.eta * (mean * client.classes).log().mean()

    def update_state(self, client: Client, labels: Tensor, flat: Tensor) -> Tensor:
        """After the last epoch: eq. (12) for p-hat, and the local filter on the trained model's losses."""
        logits = client.predict(views=self.scoring_views)
        if self.reselect_timing == "cached":
            bias = self.bias(client).clamp(min=1e-6).log().to(logits.device)
            client.state["debiased"] = (logits - (self.debias or 0.0) * bias.float()).argmax(1)
        probability = logits.softmax(1).double()
        sure = probability.max(1).values > (self.bias_confidence or 0.0)
        if sure.any():
            share = self.momentum or 0.0
            client.state["bias"] = share * self.bias(client) + (1 - share) * probability[sure].mean(0).cpu()
        losses = sample_losses(logits, labels, self.loss_kind)
        start = None if torch.isnan(flat).any() else TwoGaussians.from_flat(flat, normalise=bool(self.normalise))
        return self.fit_filter(losses, start).flat.cpu()

    def judge(self, client: Client, got: Payload) -> Verdict:
        """The filter itself: the posterior of the noisy component, and what the global model would say instead."""
        client.model.load(got)
        logits = client.predict()
        return Verdict(1.0 - self.p_clean(logits, client.given, got["filter"]), logits.argmax(1))

    @property
    def loss_kind(self) -> Literal["cross_entropy", "double_softmax"]:
        assert self.sample_loss is not None  # the preset has filled it
        return self.sample_loss
