"""FedGR: the global model memorises wrong labels late, so it sieves samples, relabels and corrects the teachers.

Tian, Yang, Zhou, Wang, Ye, Liu, Niu, Lv: Learning Locally, Revising Globally: Global Reviser for Federated Learning
with Noisy Labels, ICML 2026.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| α (rounds) | warm_up | | γ_l | local_decay |
| ε | confidence | | γ_g | global_decay |
| β | noisy_client | | τ | temperature |
| λ_B | lambda_b | | μ | refined_share |
| λ_R | lambda_r | | | |

Every visit starts with the global model: it scores the site's samples (running mean loss), relabels those it is sure
of, corrects the site's EMA teacher and gives the representation to which the local model is held. The server fits one
mixture to the losses of a round's clients; each client gets its own clean probabilities q back at its next visit.

GlobalReviser is the algorithm of the paper, in the paper's order: Algorithms 1 and 2, then the equations of Sections
3.2 to 3.5. FedGr, at the end, adds ablations, other readings, and the differences of the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedwinnow.encoders.encoded_views import ViewKind
from fedwinnow.federation.client import Client, Step, StepWrapper
from fedwinnow.federation.method import Method, Replies, Verdict, model_forms
from fedwinnow.federation.server import Server
from fedwinnow.federation.view_kinds import view_kind
from fedwinnow.mathematics.distillation import divergence
from fedwinnow.mathematics.payload import SAMPLES, Exposure, FlatModel, Payload, ReplyForm, Summing, maybe
from fedwinnow.mathematics.two_gaussians import TwoGaussians, exact, fit_two_gaussians
from fedwinnow.models.features import logits_and_features
from fedwinnow.options import option
from fedwinnow.steps.second_model import answers, second_model
from fedwinnow.steps.site_labels import NOTHING, mean_over_visits, sample_losses, sure_guesses
from fedwinnow.steps.stages import rounds_of_passes, watch_replies


@dataclass(frozen=True)
class Sieved:
    """The result of the sieve for a site."""

    q: Tensor  # q_i,k: the clean probability of each sample
    clean: Tensor  # which samples are in D_c
    rate: float  # r_k, the share of samples that are not clean
    known: bool  # False before the first sieving


@dataclass
class RevisedTargets:
    """The targets of local training in one visit, set by the global model."""

    pseudo: Tensor  # y_pse: a label per sample, or NOTHING
    share: Tensor  # the given label's share in the refined label; the rest is the pseudo-label
    rows: Tensor | None = None  # train only on these
    reliable: float = 0.0  # |D_r| / |D|
    teacher: Tensor | FlatModel | None = None  # the teacher's logits per sample, or the teacher
    anchor: Tensor | FlatModel | None = None  # the global model's features per sample, or the model


# --- the paper ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GlobalReviser(Method):
    """FedGR as the paper describes it, with the options of every variant."""

    sums: ClassVar[dict[str, Summing]] = {}
    stages: ClassVar[tuple[str, ...]] = ("warm_up", "revise")
    exposes: ClassVar[dict[str, Exposure]] = {**Method.exposes, "sample_loss": "sample"}

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or its development code where they differ.")

    # What the paper sets (Table 17); warm_up_sampling=ordinary is a row of its Table 5, see FedGr.
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

    # Ablations, readings, and differences of the code: they have an effect in FedGr, at the end of this file. Only
    # clean_from is used here: the paper has such a threshold, but does not state it.
    sieve: Literal["global", "local"] = option("global", "Sieve the losses of this model (ablation).")
    gmm_scope: Literal["server", "client"] = option(
        "server", "Who fits the mixture; with client, no loss of a sample is sent."
    )
    freeze_sieve: bool = option(False, "Keep the sieve's result as it is at the end of the warm-up.")
    clean_from: float = option(0.5, "Clean probability from which a sample is clean.", symbol="q", at_most=1)
    refine: bool = option(True, "Refine labels; else train on the samples found clean only (ablation).")
    teacher: Literal["cached", "online"] = option("cached", "The teacher as before training, or as at each step.")
    pseudo_missing: Literal["zero", "drop"] = option(
        "zero", "A sample that needs a pseudo-label and has none counts as loss 0 in the mean, or not at all."
    )
    weighting: Literal["sample", "batch"] = option(
        None, "Labels are weighted per sample, or by a batch's mean q.", presets={"paper": "sample", "code": "batch"}
    )
    keep_clean: bool = option(
        None, "On a noisy client samples found clean keep their given label.", presets={"paper": False, "code": True}
    )
    persistent_pseudo: bool = option(
        None, "A label once found stays until another one is.", presets={"paper": False, "code": True}
    )
    strict_reset: bool = option(
        None, "The teacher is replaced above the noisy share only, not at it.", presets={"paper": False, "code": True}
    )
    reset_by: Literal["this_visit", "last_visit"] = option(
        None,
        "Reliable labels are counted with those of this visit, or as the visit before left them.",
        presets={"paper": "this_visit", "code": "last_visit"},
    )
    ema_updates: int = option(
        None, "How often each update of the teacher is made.", at_least=1, presets={"paper": 1, "code": 2}
    )
    decay_warm_up: bool = option(
        None, "The teacher's first steps keep less: 1 - 1/(1 + steps).", presets={"paper": False, "code": True}
    )
    anchor: Literal["once", "online"] = option(
        None, "Compute the anchor once per visit, or for each batch anew.", presets={"paper": "once", "code": "online"}
    )
    em_steps: int = option(None, "Most EM steps of the sieve.", at_least=1, presets={"paper": 100, "code": 50})
    em_tolerance: float = option(None, "EM ends at this gain.", above=0, presets={"paper": 0.001, "code": 0.01})
    variance_floor: float = option(None, "Least variance.", above=0, presets={"paper": 0.000001, "code": 0.0005})
    full_batches: bool = option(
        None, "Leave out the last batch of an epoch when it is not full.", presets={"paper": False, "code": True}
    )

    # --- Algorithm 1: the server -----------------------------------------------------------------------------------

    @property
    def needs_views(self) -> bool:
        return bool(self.view_kinds)

    @property
    def view_kinds(self) -> tuple[ViewKind, ...]:
        return tuple(view_kind(name) for name in dict.fromkeys((self.weak, self.strong)) if name != "none")

    def warm_up_rounds(self, server: Server) -> int:
        """Rounds before labels are refined."""
        passes = rounds_of_passes(server, None, share=0.2, least=1)
        return passes if self.warm_up is None else min(self.warm_up, server.rounds)

    def early(self, server: Server) -> bool:
        """Whether this is a round of the warm-up: t < alpha."""
        return server.round <= self.warm_up_rounds(server)

    def question(self, server: Server) -> tuple[str, str]:
        return ("warm_up", "train_early") if self.early(server) else ("revise", "train")

    def choose(self, server: Server) -> Sequence[int]:
        """Line 2: in turns in the warm-up, so that every client is sieved equally often; then drawn as usual."""
        return server.turn(server.round - 1) if self.early(server) else server.sample()

    def send(self, server: Server, client: int) -> Payload:
        """Line 4: the model, and the clean probabilities of this client's samples."""
        return {**server.weights, **server.recall(client)}

    def forms(self, server: Server, ask: str, sent: Payload) -> dict[str, ReplyForm]:
        return model_forms(server) | maybe({"sample_loss": ReplyForm((SAMPLES,))})

    def merge(self, server: Server, replies: Replies) -> None:
        """Lines 6 and 7: average the models (eq. 2) and sieve the samples of all clients that sent their losses."""
        replies, news = watch_replies(replies, maybe=("sample_loss",))
        super().merge(server, replies)
        losses = {client: said["sample_loss"] for client, said in news.items() if said}
        if losses:
            self.sieve_round(server, losses)

    # --- Algorithm 2: local training -------------------------------------------------------------------------------

    def train_early(self, client: Client, got: Payload) -> Payload:
        """Warm-up: given labels, no distillation."""
        return self.visit(client, got, early=True)

    def train(self, client: Client, got: Payload) -> Payload:
        return self.visit(client, got, early=False)

    def visit(self, client: Client, got: Payload, *, early: bool) -> Payload:
        """Algorithm 2."""
        client.model.load(got)  # line 3
        self.observe(client)  # line 4: eqs. (9) and (10)
        reply = self.revise(client, got, early=early)
        return reply | {"sample_loss": client.state["mean_loss"]}  # line 20

    def revise(self, client: Client, got: Payload, *, early: bool) -> Payload:
        """Lines 4 to 19: revise labels, teacher and anchor by the global model, then train."""
        sieved = self.sieved(client, got)
        logits, features = client.predict_with_features(views=self.weak)
        targets = self.given_labels(client) if early else self.refined_labels(client, logits, sieved)
        if self.lambda_r:
            targets.anchor = self.anchored(client, features)
        teacher = None
        if self.lambda_b:
            kept = 0.0 if early else self.kept_by_revision(sieved.rate, targets.reliable)  # eq. (15)
            teacher = self.revised_teacher(client, kept, targets, early=early)  # line 5
        self.fit(client, targets, teacher)  # lines 6 to 19
        return self.reply(client)

    def fit(self, client: Client, targets: RevisedTargets, teacher: MovingAverage | None) -> None:
        """Local training on strong views (eq. 6); after each step the teacher follows (eq. 12, m_k >= 1)."""

        def objective(rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self.loss_of(client, targets, rows.to(y.device), x, y)

        wrap_step = None if teacher is None else teacher.following(self.local_decay)
        client.fit(objective, rows=targets.rows, views=self.strong, wrap_step=wrap_step)
        client.state |= {} if teacher is None else teacher.state

    # --- Section 3.2: the local objective --------------------------------------------------------------------------

    def loss_of(self, client: Client, targets: RevisedTargets, rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Eq. (4): L_SR + lambda_B B + lambda_R R."""
        logits, features = logits_and_features(client.model.module, x)
        loss = self.refined_loss(client, targets.pseudo[rows], targets.share[rows], logits, y)
        if targets.teacher is not None:
            loss = loss + self.lambda_b * self.distillation(client, targets.teacher, rows, logits)
        if targets.anchor is not None:
            loss = loss + self.lambda_r * self.regularisation(client, targets.anchor, rows, features)
        return loss

    # --- Section 3.3: sieving and refining -------------------------------------------------------------------------

    def refined_loss(self, client: Client, pseudo: Tensor, share: Tensor, logits: Tensor, given: Tensor) -> Tensor:
        """L_SR, eq. (8): the mean cross-entropy of the labels as given (eq. 5) or as refined (eq. 7)."""
        return self.refined_losses(client, pseudo, share, logits, given).mean()

    def refined_losses(self, client: Client, pseudo: Tensor, share: Tensor, logits: Tensor, given: Tensor) -> Tensor:
        """H(p, share * given + (1 - share) * pseudo) of each sample; a missing pseudo-label is the zero vector."""
        of_given = self.criterion(logits, given, client.class_counts)
        of_pseudo = self.criterion(logits, pseudo.clamp(min=0), client.class_counts) * (pseudo != NOTHING)
        return share * of_given + (1 - share) * of_pseudo

    def observe(self, client: Client) -> None:
        """Eqs. (9) and (10): each sample's loss without random views, and its mean over the visits so far."""
        losses = sample_losses(client.predict(), client.given)  # eq. (9)
        mean_over_visits(client, losses.cpu())  # eq. (10), kept as client.state["mean_loss"]

    def sieve_round(self, server: Server, losses: dict[int, Tensor]) -> None:
        """Federated sieving, at the server: one mixture for the mean losses of all clients of the round."""
        everything = torch.cat(list(losses.values()))
        mixture = self.mixture(everything)
        server.note(noisy_share=round(float((mixture.p_low(everything) < self.clean_from).double().mean()), 4))
        for client, mine in losses.items():
            server.remember(client, {"clean_probability": mixture.p_low(mine).float()})

    def mixture(self, losses: Tensor) -> TwoGaussians:
        """Two Gaussians; if all losses are equal, all are clean."""
        return fit_two_gaussians(losses)

    def sieved(self, client: Client, got: Payload) -> Sieved:
        """Federated sieving, at the client: q, D_c and r_k from the server's mixture after the last visit.

        Before the first sieving every label counts, and none is known to be clean.
        """
        q = got.get("clean_probability")
        known = q is not None
        q = (torch.ones(len(client)) if q is None else q).to(client.given.device)
        clean = q >= self.clean_from
        return Sieved(q, clean, 1.0 - float(exact(clean).mean()), known)

    def given_labels(self, client: Client) -> RevisedTargets:
        """Eq. (5), t < alpha: the given labels. Nothing is refined yet, so D_r stays empty."""
        nothing = torch.full_like(client.given, NOTHING)
        return RevisedTargets(nothing, torch.ones(len(client), device=client.given.device))

    def refined_labels(self, client: Client, logits: Tensor, sieved: Sieved) -> RevisedTargets:
        """Eq. (7), t >= alpha: refine labels, and add the reliable ones to D_r."""
        pseudo = self.pseudo_labels(client, logits, sieved)
        targets = self.refined_targets(client, pseudo, sieved)
        targets.reliable = self.reliable_share(client, pseudo, sieved)
        return targets

    def pseudo_labels(self, client: Client, logits: Tensor, sieved: Sieved) -> Tensor:
        """y_pse, as in FixMatch: the global model's predictions on a weak view where it is sure."""
        return sure_guesses(logits, self.confidence)

    def refined_targets(self, client: Client, pseudo: Tensor, sieved: Sieved) -> RevisedTargets:
        """Eq. (11): each refined label is a share of the given label and, for the rest, a pseudo-label."""
        client.note(selected=sieved.clean, pseudo_labels=torch.where(sieved.clean, NOTHING, pseudo))
        if sieved.rate >= self.noisy_client:
            return RevisedTargets(pseudo, torch.zeros_like(sieved.q))
        # For a clean sample the rest is its given label, too: together they are the given label.
        return RevisedTargets(torch.where(sieved.clean, client.given, pseudo), sieved.q)

    # --- Section 3.4: globally revised EMA distillation ------------------------------------------------------------

    def revised_teacher(self, client: Client, kept: float, targets: RevisedTargets, *, early: bool) -> MovingAverage:
        """Eq. (12), m_k = 0: mix the global model into the EMA model, which is the teacher for the whole visit."""
        teacher = self.last_teacher(client)
        teacher.move(client.model.weights, kept)
        if not early:  # lambda_B = 0 if t < alpha
            targets.teacher = self.teacher_answers(client, teacher)
        return teacher

    def last_teacher(self, client: Client) -> MovingAverage:
        """The EMA model of the last visit; at the first visit, the global model."""
        current, steps = client.model.weights, client.state.get("teacher_steps", torch.zeros(1))
        return MovingAverage(second_model(client, current), client.state.get("teacher", current), steps=int(steps))

    def distillation(self, client: Client, teacher: Tensor | FlatModel, rows: Tensor, logits: Tensor) -> Tensor:
        """B, eq. (13)."""
        return divergence(answers(client, teacher, rows, self.weak)[0], logits, self.temperature)

    def teacher_answers(self, client: Client, teacher: MovingAverage) -> Tensor | FlatModel:
        """Eq. (14): the logits of the revised EMA model on a weak view, once for the visit."""
        return client.predict(model=teacher.model, views=self.weak)

    def kept_by_revision(self, rate: float, reliable: float) -> float:
        """Eq. (15), t >= alpha: gamma_g, or 0 on a noisy client with too few reliable labels."""
        return 0.0 if rate >= self.noisy_client and reliable < self.refined_share else self.global_decay

    def reliable_share(self, client: Client, pseudo: Tensor, sieved: Sieved) -> float:
        """|D_r| / |D|; D_r, eq. (16), has all samples that were ever found clean or got a pseudo-label."""
        now = (pseudo != NOTHING) | (sieved.clean & sieved.known)
        client.state["reliable"] = reliable_before(client) | now.cpu()
        return share_of(client.state["reliable"])

    # --- Section 3.5: global representation regularisation ---------------------------------------------------------

    def anchored(self, client: Client, features: Tensor) -> Tensor | FlatModel:
        """f(x_w; w_g): the global model's features on a weak view, once for the visit."""
        return features

    def regularisation(self, client: Client, anchor: Tensor | FlatModel, rows: Tensor, features: Tensor) -> Tensor:
        """R, eq. (17)."""
        return divergence(answers(client, anchor, rows, self.weak)[-1], features, self.temperature)

    # --- the verdict on a site's labels ----------------------------------------------------------------------------

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """By the sieve; samples that it never saw are judged by their losses."""
        verdict = super().verdict(client, got)
        sieved = self.sieved(client, got)
        if not sieved.known:
            return verdict
        return Verdict(client.for_all(1.0 - exact(sieved.q), exact(verdict.p_wrong)), verdict.suggested)


class MovingAverage:
    """w_ema of eq. (12): a model whose weights and running statistics are an average over time."""

    def __init__(self, model: FlatModel, weights: Tensor, *, steps: int = 0) -> None:
        self.model = model
        self.steps = steps  # local steps so far, over all visits
        self.move(weights, 0.0)

    @property
    def weights(self) -> Tensor:
        """The current average."""
        return self.model.weights

    def move(self, weights: Tensor, kept: float) -> None:
        """average <- kept * average + (1 - kept) * weights"""
        with torch.no_grad():
            if kept == 0.0:
                self.weights.copy_(weights)
            else:
                self.weights.lerp_(weights.to(self.weights.device), 1.0 - kept)

    def following(self, kept: float) -> StepWrapper:
        """Update the average after each step of a model."""

        def wrap(step: Step, model: FlatModel) -> Step:
            def both() -> None:
                step()
                self.follow(model.weights, kept)

            return both

        return wrap

    def follow(self, weights: Tensor, kept: float) -> None:
        """m_k >= 1: update the average after one step of the model."""
        self.move(weights, kept)
        self.steps += 1

    @property
    def state(self) -> Payload:
        """What the site keeps until its next visit."""
        return {"teacher": self.weights.clone(), "teacher_steps": torch.tensor([self.steps])}


def reliable_before(client: Client) -> Tensor:
    """D_r after the last visit; at first empty."""
    return client.state.get("reliable", torch.zeros(len(client), dtype=torch.bool))


def share_of(samples: Tensor) -> float:
    """The share of all samples that are in a set."""
    return float(samples.double().mean())


# --- differences of the development code, ablations and other readings ----------------------------------------------


@dataclass(frozen=True)
class FedGr(GlobalReviser):
    """The global model revises: it sieves samples, refines labels, corrects the EMA teacher and anchors features."""

    name: ClassVar[str] = "fedgr"
    citation: ClassVar[str] = "Tian et al., Global Reviser for Federated Learning with Noisy Labels, ICML 2026"

    # --- who takes part, and where which losses are sieved ---------------------------------------------------------

    def exposed(self) -> dict[str, Exposure]:
        kept_back = () if self.gmm_scope == "server" else ("sample_loss",)
        return {key: kind for key, kind in self.exposes.items() if key not in kept_back}

    def choose(self, server: Server) -> Sequence[int]:
        """warm_up_sampling=ordinary draws clients as usual from the start."""
        return server.sample() if self.warm_up_sampling == "ordinary" else super().choose(server)

    def visit(self, client: Client, got: Payload, *, early: bool) -> Payload:
        """The options sieve, gmm_scope and freeze_sieve, and the code's full batches."""
        if self.full_batches:
            client.training = replace(client.training, drop_last=True)
        sieving = early or not self.freeze_sieve
        if sieving and self.sieve == "global" and self.gmm_scope == "server":
            return super().visit(client, got, early=early)
        client.model.load(got)
        if sieving and self.sieve == "global":
            self.sieve_on_site(client)
        reply = self.revise(client, got, early=early)
        if sieving and self.sieve == "local":  # the losses of the model after training, for the next visit
            self.sieve_on_site(client)
        leaves = sieving and self.gmm_scope == "server"
        return reply | ({"sample_loss": client.state["mean_loss"]} if leaves else {})

    def sieve_on_site(self, client: Client) -> None:
        """Record the losses of the current model; gmm_scope=client also fits the mixture here."""
        self.observe(client)
        if self.gmm_scope == "client":
            mean = client.state["mean_loss"]
            client.state["clean_probability"] = self.mixture(mean).p_low(mean).float()

    def mixture(self, losses: Tensor) -> TwoGaussians:
        """The mixture with the settings of EM."""
        steps, tolerance, floor = self.em_steps, self.em_tolerance, self.variance_floor
        return fit_two_gaussians(losses, steps=steps, tolerance=tolerance, variance_floor=floor)

    def sieved(self, client: Client, got: Payload) -> Sieved:
        """gmm_scope=client: from the client's own mixture."""
        return super().sieved(client, client.state if self.gmm_scope == "client" else got)

    # --- label refining --------------------------------------------------------------------------------------------

    def pseudo_labels(self, client: Client, logits: Tensor, sieved: Sieved) -> Tensor:
        """The code also keeps given labels of clean samples and old pseudo-labels."""
        pseudo = super().pseudo_labels(client, logits, sieved)
        if self.keep_clean:
            pseudo = torch.where(sieved.clean, client.given, pseudo)
        if self.persistent_pseudo:
            old = client.state.get("pseudo", torch.full_like(pseudo, NOTHING)).to(pseudo.device)
            pseudo = torch.where(pseudo == NOTHING, old, pseudo)
            client.state["pseudo"] = pseudo.cpu()
        return pseudo

    def refined_targets(self, client: Client, pseudo: Tensor, sieved: Sieved) -> RevisedTargets:
        """refine=false: the given labels of the samples found clean, no others."""
        targets = super().refined_targets(client, pseudo, sieved)
        if self.refine:
            return targets
        return RevisedTargets(pseudo, torch.ones_like(sieved.q), rows=sieved.clean.nonzero().flatten().cpu())

    def reliable_share(self, client: Client, pseudo: Tensor, sieved: Sieved) -> float:
        """reset_by=last_visit: in the code the teacher is revised before labels are refined."""
        before = share_of(reliable_before(client))
        now = super().reliable_share(client, pseudo, sieved)
        return before if self.reset_by == "last_visit" else now

    def refined_loss(self, client: Client, pseudo: Tensor, share: Tensor, logits: Tensor, given: Tensor) -> Tensor:
        """weighting=batch is an error of the code (shapes B and B x 1); pseudo_missing=drop needs complete labels."""
        weight = share.mean() if self.weighting == "batch" else share
        if self.pseudo_missing == "zero":
            return super().refined_loss(client, pseudo, weight, logits, given)
        whole = (pseudo != NOTHING) | (share >= 1)
        losses = self.refined_losses(client, pseudo, weight, logits, given)
        return (losses * whole).sum() / whole.sum().clamp(min=1)

    # --- teacher and anchor ----------------------------------------------------------------------------------------

    def kept_by_revision(self, rate: float, reliable: float) -> float:
        """strict_reset: the code tests r_k > beta here, but r_k < beta in label refining."""
        if self.strict_reset and rate == self.noisy_client:
            return self.global_decay
        return super().kept_by_revision(rate, reliable)

    def last_teacher(self, client: Client) -> MovingAverage:
        """ema_updates and decay_warm_up: the average as in the code."""
        last = super().last_teacher(client)
        repeats, rising = self.ema_updates, self.decay_warm_up
        return CodeMovingAverage(last.model, last.weights, steps=last.steps, repeats=repeats, rising=rising)

    def revised_teacher(self, client: Client, kept: float, targets: RevisedTargets, *, early: bool) -> MovingAverage:
        """ema_updates=2: the code registers its hook twice; the second update is after the teacher's predictions."""
        teacher = super().revised_teacher(client, kept, targets, early=early)
        for _ in range(self.ema_updates - 1):
            teacher.move(client.model.weights, kept)
        return teacher

    def teacher_answers(self, client: Client, teacher: MovingAverage) -> Tensor | FlatModel:
        """teacher=online: the teacher itself, which changes with every step."""
        return teacher.model if self.teacher == "online" else super().teacher_answers(client, teacher)

    def anchored(self, client: Client, features: Tensor) -> Tensor | FlatModel:
        """anchor=online: the global model itself, which sees a new weak view of every batch."""
        if self.anchor == "online":
            return second_model(client, client.model.weights)
        return super().anchored(client, features)


class CodeMovingAverage(MovingAverage):
    """The average of the code: it makes every update `repeats` times; with `rising` the first updates keep less."""

    def __init__(
        self, model: FlatModel, weights: Tensor, *, steps: int = 0, repeats: int = 1, rising: bool = False
    ) -> None:
        super().__init__(model, weights, steps=steps)
        self.repeats = repeats
        self.rising = rising

    def follow(self, weights: Tensor, kept: float) -> None:
        """With `rising`, at most 1 - 1/(1 + steps) is kept, so that the first update is a copy."""
        for _ in range(self.repeats):
            super().follow(weights, min(kept, 1.0 - 1.0 / (1 + self.steps)) if self.rising else kept)
