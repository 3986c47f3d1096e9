"""DivideMix: two models; each divides the samples for the other, which learns the doubtful ones without their labels.

Li, Socher, Hoi: DivideMix: Learning with Noisy Labels as Semi-supervised Learning, ICLR 2020. Federated as in FedRN
and FedGR: both models travel, the mixtures are fitted on the site in every local epoch, warm-up and ramp count rounds.

| symbol | field | | symbol | field |
|---|---|---|---|---|
| τ (threshold) | clean_from | | λ_u | lambda_u |
| T | temperature | | α (MixMatch) | alpha |
| w | the clean probability under the other model | | M | two views |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedwinnow.federation.client import Client, Step, StepWrapper
from fedwinnow.federation.method import Verdict, beta_draw
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.losses import sharpened
from fedwinnow.mathematics.payload import FlatModel, Payload
from fedwinnow.mathematics.two_gaussians import fit_two_gaussians
from fedwinnow.methods.two_models import TwoModels
from fedwinnow.options import option
from fedwinnow.steps.regularisers import distance_to_prior, entropy, expected_classes
from fedwinnow.steps.site_labels import History, sample_losses
from fedwinnow.steps.stages import after_warm_up, warm_up_rounds


@dataclass(frozen=True)
class DivideMix(TwoModels):
    """Two models; each chooses which samples keep their label for the other, which learns the rest by MixMatch."""

    name: ClassVar[str] = "dividemix"
    citation: ClassVar[str] = "Li et al., DivideMix: Learning with Noisy Labels as Semi-supervised Learning, ICLR 2020"
    stages: ClassVar[tuple[str, ...]] = ("warm_up", "divide")

    preset: Literal["paper", "code"] = option("paper", "Follow the paper, or FedRN's code where they differ.")
    answer: Literal["probabilities", "logits", "first"] = option(
        "logits", "Who is tested: both models by their mean probabilities or mean logits, or the first alone."
    )
    warm_up: int | None = option(None, "Rounds on all samples first; none: a fifth of all, as 100 of 500.", at_least=0)
    confidence_penalty: bool = option(False, "Reward entropy in the warm-up; for asymmetric noise.")
    clean_from: float = option(0.5, "Above this probability a label is kept.", symbol="τ", at_least=0, at_most=1)
    temperature: float = option(0.5, "Temperature of sharpening.", symbol="T", above=0)
    lambda_u: float = option(25.0, "Weight of the loss without labels.", symbol="λ_u", at_least=0)
    ramp: int | None = option(
        None, "Rounds after the warm-up until that weight is reached; none: 16 of 500.", at_least=0
    )
    alpha: float = option(4.0, "Mix with a share from Beta(alpha, alpha).", symbol="α", above=0)
    prior: Literal["uniform", "local"] = option(
        "uniform", "Classes are expected equally often, or as often as the site's given labels have them."
    )
    loss_history: int = option(1, "Divide by the mean of so many last losses; 5 for very much noise.", at_least=1)
    em_steps: int = option(None, "Most EM steps.", at_least=1, presets={"paper": 10, "code": 100})
    scoring_views: bool = option(
        None, "Score samples on random views, as in training.", presets={"paper": False, "code": True}
    )

    @property
    def mixes(self) -> str:
        return "MixMatch"

    def question(self, server: Server) -> tuple[str, str]:
        return after_warm_up(server, self.warm_up, "divide")

    # --- the client's half -----------------------------------------------------------------------------------------

    def train_plainly(self, client: Client, got: Payload) -> Payload:
        """Warm-up: train each model on all samples."""
        models = self.load_both(client, got)
        for model in models:
            self.fit_plainly(client, model, client.training.epochs, None)
        return self.reply_both(client, models[1])

    def fit_plainly(self, client: Client, model: FlatModel, epochs: int, wrap_step: StepWrapper | None) -> None:
        """The usual training of one model, with the confidence penalty if the option is set."""

        def objective(rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
            logits = model.module(x)
            loss = self.criterion.mean(logits, y, client.class_counts)
            return loss - entropy(logits) if self.confidence_penalty else loss

        client.fit(objective, model=model, epochs=epochs, wrap_step=wrap_step)

    def train(self, client: Client, got: Payload) -> Payload:
        first, second = self.load_both(client, got)
        carried = one_step_each()
        for _ in range(client.training.epochs):
            by_first, by_second = self.p_clean(client, first, "first"), self.p_clean(client, second, "second")
            self.learn(client, first, second, by_second, carried)  # co-divide: each uses the division of the other
            self.learn(client, second, first, by_first, carried)
            client.note(selected=(by_first + by_second) / 2 > self.clean_from)
        return self.reply_both(client, second)

    def p_clean(self, client: Client, model: FlatModel, name: str) -> Tensor:
        """w: the posterior of the component of small losses; `name` is the model whose loss history is used."""
        losses = sample_losses(client.predict(model=model, views=self.scoring_views), client.given)
        if name and self.loss_history > 1:
            history = History(client, f"{name}_losses", self.loss_history)
            history.add(torch.arange(len(client)), losses)
            losses = history.mean()
        mixture = fit_two_gaussians(losses, steps=self.em_steps, tolerance=0.01, variance_floor=0.0005, normalise=True)
        return mixture.p_low(losses)

    def learn(self, client: Client, model: FlatModel, other: FlatModel, w: Tensor, carried: StepWrapper) -> None:
        """One epoch over the labelled samples; each batch gets as many unlabelled ones."""
        kept = w > self.clean_from
        if not kept.any():  # no labelled sample is left
            self.fit_plainly(client, model, 1, carried)
            return
        other.module.eval()
        unlabelled = endless((~kept).nonzero().flatten().cpu(), client.generator)
        prior, weight = expected_classes(client, self.prior), self.weight(client)

        def objective(rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
            views = [x, client.view(next(client.stored([rows])))]
            chosen = unlabelled(len(rows))
            free = [client.view(next(client.stored([chosen]))) for _ in views] if len(chosen) else []
            targets = self.targets(model, other, views, free, given=one_hot(y, client.classes), w=w[rows.to(w.device)])
            self.count(client, len(rows), len(chosen))
            inputs, target = mixed(torch.cat([*views, *free]), targets, self.alpha, client.generator)
            logits, labelled = model.module(inputs), 2 * len(rows)
            loss = self.criterion.mean(logits[:labelled], target[:labelled], client.class_counts)  # L_X
            if free:
                # L_U: the squared error of probabilities, averaged over classes, too
                loss = loss + weight * (logits[labelled:].softmax(1) - target[labelled:]).square().mean()
            return loss + distance_to_prior(logits, prior)  # L_reg

        client.fit(objective, rows=kept.nonzero().flatten().cpu(), model=model, epochs=1, wrap_step=carried)

    @torch.no_grad()
    def targets(
        self, model: FlatModel, other: FlatModel, views: list[Tensor], free: list[Tensor], *, given: Tensor, w: Tensor
    ) -> Tensor:
        """The targets of both views of the labelled and the unlabelled samples: sharpened mean predictions."""
        share = w.float().unsqueeze(1)
        # co-refinement: w y + (1 - w) times the model's own mean prediction
        known = sharpened(share * given + (1 - share) * mean_prediction([model], views), self.temperature)
        if not free:
            return torch.cat([known, known])
        guess = sharpened(mean_prediction([model, other], free), self.temperature)  # co-guessing: both models
        return torch.cat([known, known, guess, guess])

    def weight(self, client: Client) -> float:
        """lambda_u, which grows linearly after the warm-up."""
        ramp = max(1, round(client.rounds * 16 / 500)) if self.ramp is None else self.ramp
        since = client.round - warm_up_rounds(client.rounds, self.warm_up)
        return self.lambda_u * min(since / ramp, 1.0) if ramp else self.lambda_u

    def count(self, client: Client, known: int, free: int) -> None:
        """Count the passes: two views, refined by one model or guessed by two, then mixed; `fit` counts one pass."""
        client.forward_samples += 2 * known + 4 * free + 2 * (known + free) - known
        client.backward_samples += 2 * (known + free) - known

    def verdict(self, client: Client, got: Payload) -> Verdict:
        """The mean of both divisions."""
        models = self.load_both(client, got)
        w = torch.stack([self.p_clean(client, model, "") for model in models]).mean(0)
        return Verdict(1.0 - w, self.logits_of(client, *models).argmax(1))


def one_step_each() -> StepWrapper:
    """Keep one step function per model, so that momentum is carried on while the models take turns."""
    steps: dict[int, Step] = {}

    def wrap(step: Step, model: FlatModel) -> Step:
        return steps.setdefault(id(model), step)

    return wrap


# --- MixMatch (Berthelot et al., NeurIPS 2019): learning from samples without labels ---------------------------------


def mean_prediction(models: list[FlatModel], views: list[Tensor]) -> Tensor:
    """The mean probabilities of these models over these views."""
    return torch.stack([model.module(view).softmax(1) for model in models for view in views]).mean(0)


def mixed(inputs: Tensor, targets: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mix every sample with a random other one; the share, from Beta(alpha, alpha), is at least one half for itself."""
    share = beta_draw(alpha, generator)
    share = max(share, 1 - share)
    partner = torch.randperm(len(inputs), generator=generator).to(inputs.device)
    return share * inputs + (1 - share) * inputs[partner], share * targets + (1 - share) * targets[partner]


def endless(rows: Tensor, generator: torch.Generator) -> Callable[[int], Tensor]:
    """A function that returns the next `count` of these rows, in a new random order after the last row."""
    waiting = rows[:0]

    def following(count: int) -> Tensor:
        nonlocal waiting
        count = min(count, len(rows))
        if len(waiting) < count:
            waiting = rows[torch.randperm(len(rows), generator=generator)]
        taken, waiting = waiting[:count], waiting[count:]
        return taken

    return following
