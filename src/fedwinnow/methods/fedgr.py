"""FedGR: the global model memorises wrong labels late, so it sieves, relabels, corrects each teacher and anchors.

Tian, Yang, Zhou, Wang, Ye, Liu, Niu, Lv: Learning Locally, Revising Globally: Global Reviser for Federated Learning
with Noisy Labels, ICML 2026.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| α (rounds) | warm_up | | γ_l | local_decay |
| ε | confidence | | γ_g | global_decay |
| β | noisy_client | | τ | temperature |
| λ_B | lambda_b | | μ | refined_share |
| λ_R | lambda_r | | | |

Every visit starts with the global model: it scores the site's samples (running mean loss), relabels what it is sure
of, corrects the site's EMA teacher and gives the representation that the local model is held to. The server fits one
mixture to the losses of a round's clients; each client gets its own clean probabilities q back at its next visit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.federation.client import Client
from fedwinnow.federation.method import Method, Replies, Verdict
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.distillation import divergence
from fedwinnow.mathematics.flat_model import FlatModel
from fedwinnow.mathematics.payload import Exposure, Payload
from fedwinnow.mathematics.two_gaussians import TwoGaussians, exact, fit_two_gaussians
from fedwinnow.models.features import logits_and_features
from fedwinnow.options import filled, option
from fedwinnow.steps.moving_average import MovingAverage
from fedwinnow.steps.passes_over_clients import rounds_of_passes
from fedwinnow.steps.relabel import NOTHING, sure_guesses
from fedwinnow.steps.sample_losses import mean_over_visits, sample_losses
from fedwinnow.steps.second_model import answers, second_model
from fedwinnow.steps.watched_replies import noted


@dataclass(frozen=True)
class Sieved:
    """What the sieve says about a site."""

    q: Tensor  # the clean probability of each sample
    clean: Tensor
    rate: float  # r_k, the share of samples that are not clean
    known: bool  # false before the site was sieved


@dataclass
class Lesson:
    """What local training goes by in one visit."""

    pseudo: Tensor  # label per sample, or NOTHING
    share: Tensor  # how much of the given label stays in the refined one
    rows: Tensor | None = None  # train on these only
    teacher: Tensor | FlatModel | None = None  # its logits per sample, or itself
    anchor: Tensor | FlatModel | None = None  # the global model's features per sample, or the model


def reliable_samples(client: Client) -> Tensor:
    """D_r of eq. (16): samples that label refining ever found clean or gave a pseudo-label; empty at first."""
    return client.state.get("reliable", torch.zeros(len(client), dtype=torch.bool))


def reliable_share(client: Client) -> float:
    """|D_r| / |D|."""
    return float(reliable_samples(client).double().mean())


@dataclass(frozen=True)
class FedGr(Method):
    """The global model revises: it sieves samples, refines labels, corrects the EMA teacher and anchors features."""

    name: ClassVar[str] = "fedgr"
    citation: ClassVar[str] = "Tian et al., Global Reviser for Federated Learning with Noisy Labels, ICML 2026"
    stages: ClassVar[tuple[str, ...]] = ("warm_up", "revise")
    exposes: ClassVar[dict[str, Exposure]] = {**Method.exposes, "sample_loss": "sample"}

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or its development code where they differ.")
    warm_up: int | None = option(
        None, "Rounds on given labels first; none: a fifth of all, in whole passes.", symbol="α", at_least=0
    )
    warm_up_sampling: Literal["turns", "ordinary"] = option("turns", "Warm-up: all equally often, or drawn as usual.")
    confidence: float = option(0.9, "Probability above which a sample is relabelled.", symbol="ε", at_least=0)
    noisy_client: float = option(0.8, "Noisy share from which no given label counts.", symbol="β", at_least=0)
    lambda_b: float = option(1.0, "Weight of distillation from the EMA teacher.", symbol="λ_B", at_least=0)
    lambda_r: float = option(0.1, "Weight of the anchor on representations.", symbol="λ_R", at_least=0)
    local_decay: float = option(0.99, "What the teacher keeps at a local step.", symbol="γ_l", at_least=0, at_most=1)
    global_decay: float = option(0.9, "What it keeps at the global revision.", symbol="γ_g", at_least=0, at_most=1)
    temperature: float = option(0.5, "Temperature of both divergences.", symbol="τ", above=0)
    refined_share: float = option(0.5, "With fewer reliable labels the global model teaches.", symbol="μ", at_least=0)
    weak: Literal["none", "flip", "crop_flip", "strong"] = option("crop_flip", "The weak view; not the run's --views.")
    strong: Literal["none", "flip", "crop_flip", "strong"] = option("strong", "The view that local training sees.")
    sieve: Literal["global", "local"] = option("global", "Whose losses are sieved: those of which model (ablation).")
    gmm_scope: Literal["server", "client"] = option(
        "server", "Who fits the mixture; client: no loss of a sample is sent."
    )
    freeze_sieve: bool = option(False, "Keep the sieve's result as it is at the end of the warm-up.")
    clean_from: float = option(0.5, "Clean probability from which a sample is clean.", symbol="q", at_most=1)
    refine: bool = option(True, "Refine labels; else train on the samples found clean only (ablation).")
    teacher: Literal["cached", "online"] = option("cached", "The teacher as before training, or as at each step.")
    pseudo_missing: Literal["zero", "drop"] = option(
        "zero", "A sample that needs a pseudo-label and has none counts as loss 0 in the mean, or not at all."
    )
    weighting: Literal["sample", "batch"] | None = option(
        None, "Labels are weighted per sample, or by a batch's mean q.", presets={"paper": "sample", "code": "batch"}
    )
    keep_clean: bool | None = option(
        None, "On a noisy client samples found clean keep their given label.", presets={"paper": False, "code": True}
    )
    persistent_pseudo: bool | None = option(
        None, "A label once found stays until another one is.", presets={"paper": False, "code": True}
    )
    strict_reset: bool | None = option(
        None, "The teacher is replaced above the noisy share only, not at it.", presets={"paper": False, "code": True}
    )
    reset_by: Literal["this_visit", "last_visit"] | None = option(
        None,
        "Reliable labels are counted with those of this visit, or as the visit before left them.",
        presets={"paper": "this_visit", "code": "last_visit"},
    )
    ema_updates: int | None = option(
        None, "How often each update of the teacher is made.", at_least=1, presets={"paper": 1, "code": 2}
    )
    decay_warm_up: bool | None = option(
        None, "The teacher's first steps keep less: 1 - 1/(1 + steps).", presets={"paper": False, "code": True}
    )
    anchor: Literal["once", "online"] | None = option(
        None, "Compute the anchor once per visit, or for each batch anew.", presets={"paper": "once", "code": "online"}
    )
    em_steps: int | None = option(None, "Most EM steps of the sieve.", at_least=1, presets={"paper": 100, "code": 50})
    em_tolerance: float | None = option(None, "EM ends at this gain.", above=0, presets={"paper": 0.001, "code": 0.01})
    variance_floor: float | None = option(None, "Least variance.", above=0, presets={"paper": 0.000001, "code": 0.0005})
    full_batches: bool | None = option(
        None, "Leave out the last batch of an epoch when it is not full.", presets={"paper": False, "code": True}
    )

    def exposed(self) -> dict[str, Exposure]:
        kept_back = () if self.gmm_scope == "server" else ("sample_loss",)
        return {key: kind for key, kind in self.exposes.items() if key not in kept_back}

    # --- the server's half -----------------------------------------------------------------------------------------

    def warm_up_rounds(self, server: Server) -> int:
        """Rounds before labels are refined."""
        passes = rounds_of_passes(server, None, share=0.2, least=1)
        return passes if self.warm_up is None else min(self.warm_up, server.rounds)

    def early(self, server: Server) -> bool:
        """Whether the warm-up goes on."""
        return server.round <= self.warm_up_rounds(server)

    def question(self, server: Server) -> tuple[str, str]:
        return ("warm_up", "train_early") if self.early(server) else ("revise", "train")

    def choose(self, server: Server) -> Sequence[int]:
        in_turn = self.early(server) and self.warm_up_sampling == "turns"
        return server.turn(server.round - 1) if in_turn else server.sample()

    def send(self, server: Server, client: int) -> Payload:
        """The model, and what the sieve found out about this client's own samples."""
        return {**server.weights, **server.recall(client)}

    def merge(self, server: Server, replies: Replies) -> None:
        replies, news = noted(replies, maybe=("sample_loss",))
        super().merge(server, replies)
        losses = {client: said["sample_loss"] for client, said in news.items() if said}
        if losses:
            everything = torch.cat(list(losses.values()))
            mixture = self.mixture(everything)
            server.note(noisy_share=round(float((mixture.p_low(everything) < self.clean_from).double().mean()), 4))
            for client, mine in losses.items():
                server.remember(client, {"clean_probability": mixture.p_low(mine).float()})

    def mixture(self, losses: Tensor) -> TwoGaussians:
        """Federated sieving: two Gaussians; losses that are all equal are all clean."""
        steps, tolerance, floor = filled(self.em_steps), filled(self.em_tolerance), filled(self.variance_floor)
        return fit_two_gaussians(losses, steps=steps, tolerance=tolerance, variance_floor=floor)

    # --- the client's half: before training ------------------------------------------------------------------------

    def train_early(self, client: Client, got: Payload) -> Payload:
        """Warm-up: given labels, no distillation."""
        return self.visit(client, got, early=True)

    def train(self, client: Client, got: Payload) -> Payload:
        return self.visit(client, got, early=False)

    def visit(self, client: Client, got: Payload, *, early: bool) -> Payload:
        """Algorithm 2."""
        if self.full_batches:
            client.training = replace(client.training, drop_last=True)
        sieving = early or not self.freeze_sieve
        client.model.load(got)
        if sieving and self.sieve == "global":
            self.observe(client)
        sieved = self.sieved(client, got)
        logits, features = client.predict_with_features(views=self.weak)
        before = reliable_share(client)
        lesson = self.given_labels(client) if early else self.refined_labels(client, logits, sieved)
        if self.lambda_r:
            lesson.anchor = features if self.anchor == "once" else second_model(client, client.model.weights)
        reliable = before if self.reset_by == "last_visit" else reliable_share(client)
        kept = 0.0 if early else self.kept_by_revision(sieved.rate, reliable)
        teacher = self.revised_teacher(client, kept, lesson, early=early) if self.lambda_b else None
        self.fit(client, lesson, teacher)
        if sieving and self.sieve == "local":
            self.observe(client)
        leaves = sieving and self.gmm_scope == "server"
        return self.reply(client) | ({"sample_loss": client.state["mean_loss"]} if leaves else {})

    def observe(self, client: Client) -> None:
        """Eqs. (9)-(10): the running mean, over the visits, of each sample's loss on the image as it is."""
        mean = mean_over_visits(client, sample_losses(client.predict(), client.given).cpu())
        if self.gmm_scope == "client":
            client.state["clean_probability"] = self.mixture(mean).p_low(mean).float()

    def sieved(self, client: Client, got: Payload) -> Sieved:
        """What the sieve found; before it found anything every label counts and none is known to be clean."""
        q = client.state.get("clean_probability") if self.gmm_scope == "client" else got.get("clean_probability")
        known = q is not None
        q = (torch.ones(len(client)) if q is None else q).to(client.given.device)
        clean = q >= self.clean_from
        return Sieved(q, clean, 1.0 - float(exact(clean).mean()), known)

    def given_labels(self, client: Client) -> Lesson:
        """Eq. (8) in the warm-up: nothing is refined yet, so D_r stays empty."""
        return Lesson(torch.full_like(client.given, NOTHING), torch.ones(len(client), device=client.given.device))

    def refined_labels(self, client: Client, logits: Tensor, sieved: Sieved) -> Lesson:
        """Label refining after the warm-up; what it finds joins D_r (eq. 16)."""
        pseudo = self.pseudo_labels(client, logits, sieved)
        reliable = (pseudo != NOTHING) | (sieved.clean & sieved.known)
        client.state["reliable"] = reliable_samples(client) | reliable.cpu()
        return self.lesson(client, pseudo, sieved)

    def pseudo_labels(self, client: Client, logits: Tensor, sieved: Sieved) -> Tensor:
        """y^pse: what the global model is sure of on a weak view."""
        pseudo = sure_guesses(logits, self.confidence)
        if self.keep_clean:
            pseudo = torch.where(sieved.clean, client.given, pseudo)
        if self.persistent_pseudo:
            old = client.state.get("pseudo", torch.full_like(pseudo, NOTHING)).to(pseudo.device)
            pseudo = torch.where(pseudo == NOTHING, old, pseudo)
            client.state["pseudo"] = pseudo.cpu()
        return pseudo

    def lesson(self, client: Client, pseudo: Tensor, sieved: Sieved) -> Lesson:
        """Eq. (11): each refined label as a share of the given label and a pseudo-label for the rest."""
        client.note(selected=sieved.clean, pseudo_labels=torch.where(sieved.clean, NOTHING, pseudo))
        if not self.refine:
            return Lesson(pseudo, torch.ones_like(sieved.q), rows=sieved.clean.nonzero().flatten().cpu())
        if sieved.rate >= self.noisy_client:
            return Lesson(pseudo, torch.zeros_like(sieved.q))
        # A clean sample's rest is its given label too, so that the two make it whole.
        return Lesson(torch.where(sieved.clean, client.given, pseudo), sieved.q)

    def revised_teacher(self, client: Client, kept: float, lesson: Lesson, *, early: bool) -> MovingAverage:
        """The EMA model with the global one mixed in (eq. 12, m = 0), and what it says about a weak view (eq. 14)."""
        current = client.model.weights
        teacher = MovingAverage(
            second_model(client, current),
            client.state.get("teacher", current),
            steps=int(client.state.get("teacher_steps", torch.zeros(1))),
            repeats=filled(self.ema_updates),
            rising=bool(self.decay_warm_up),
        )
        teacher.move(current, kept)
        if not early:
            online = self.teacher == "online"
            lesson.teacher = teacher.model if online else client.predict(model=teacher.model, views=self.weak)
        for _ in range(teacher.repeats - 1):
            teacher.move(current, kept)
        return teacher

    def kept_by_revision(self, rate: float, reliable: float) -> float:
        """Eq. (15) after the warm-up: gamma_g, or 0 on a noisy client with too few reliable labels."""
        noisy = rate > self.noisy_client if self.strict_reset else rate >= self.noisy_client
        return 0.0 if noisy and reliable < self.refined_share else self.global_decay

    # --- the client's half: training -------------------------------------------------------------------------------

    def fit(self, client: Client, lesson: Lesson, teacher: MovingAverage | None) -> None:
        """Local training on strong views; after each step the teacher follows (eq. 12, m >= 1)."""

        def objective(rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self.loss_of(client, lesson, rows.to(y.device), x, y)

        around = None if teacher is None else teacher.following(self.local_decay)
        client.fit(objective, rows=lesson.rows, views=self.strong, around=around)
        client.state |= {} if teacher is None else teacher.state

    def loss_of(self, client: Client, lesson: Lesson, rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Eq. (4): L_SR + lambda_B B + lambda_R R."""
        logits, features = logits_and_features(client.model.module, x)
        loss = self.refined_loss(client, lesson.pseudo[rows], lesson.share[rows], logits, y)
        if lesson.teacher is not None:
            told = answers(client, lesson.teacher, rows, self.weak)[0]
            loss = loss + self.lambda_b * divergence(told, logits, self.temperature)  # eq. (13)
        if lesson.anchor is not None:
            held = answers(client, lesson.anchor, rows, self.weak)[-1]
            loss = loss + self.lambda_r * divergence(held, features, self.temperature)  # eq. (17)
        return loss

    def refined_loss(self, client: Client, pseudo: Tensor, share: Tensor, logits: Tensor, given: Tensor) -> Tensor:
        """Eq. (8): the loss of refined labels."""
        found = pseudo != NOTHING
        of_given = self.criterion(logits, given, client.class_counts)
        of_pseudo = self.criterion(logits, pseudo.clamp(min=0), client.class_counts) * found
        share, whole = share.mean() if self.weighting == "batch" else share, found | (share >= 1)
        losses = share * of_given + (1 - share) * of_pseudo
        return losses.mean() if self.pseudo_missing == "zero" else (losses * whole).sum() / whole.sum().clamp(min=1)

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """The sieve's own opinion; samples that it never saw are judged by their losses alone."""
        verdict = super().verdict(client, got)
        sieved = self.sieved(client, got)
        if not sieved.known:
            return verdict
        return Verdict(client.for_all(1.0 - exact(sieved.q), exact(verdict.p_wrong)), verdict.suggested)
