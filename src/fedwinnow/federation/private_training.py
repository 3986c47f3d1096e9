"""Training under --privacy sample: every step is a noisy sum of clipped gradients, and a visit has a fixed number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwinnow.all_settings import Training
from fedwinnow.errors import RunError
from fedwinnow.mathematics.accountant import Mechanism, mechanism
from fedwinnow.mathematics.loss_of_logits import LossOfLogits
from fedwinnow.mathematics.losses import Loss
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.mathematics.privacy import ClientPrivacy, Privacy, SamplePrivacy
from fedwinnow.mathematics.private_gradients import clipped_sum
from fedwinnow.mathematics.private_noise import Randomness, with_noise


def mechanism_of(privacy: Privacy, training: Training, samples: int) -> Mechanism:
    """What a visit of a site with so many samples is, with the least noise that keeps its budget.

    The number of samples is public; neighbours differ in whether one of them counts. For `client` it does not matter.
    """
    promise, visits = (privacy.epsilon, privacy.delta), privacy.most_visits
    if isinstance(privacy, ClientPrivacy):
        return mechanism(1.0, 1, visits, *promise)
    assert isinstance(privacy, SamplePrivacy)
    if privacy.sampling == "shuffled":  # in an epoch each sample is in exactly one step
        return mechanism(1.0, training.epochs, visits, *promise)
    return mechanism(rate_of(training, samples), steps_of(training, samples), visits, *promise)


def rate_of(training: Training, samples: int) -> float:
    """The chance with which a step draws a sample: that of an ordinary batch."""
    return min(1.0, training.batch_size / max(1, samples))


def steps_of(training: Training, samples: int) -> int:
    """The steps of a visit: as many as ordinary training has."""
    return training.epochs * math.ceil(samples / training.batch_size)


@dataclass
class PrivateTraining:
    """What a client needs to train privately in one visit."""

    privacy: SamplePrivacy
    noise: float  # the noise multiplier
    randomness: Randomness
    done: bool = False  # a visit is accounted once

    def batches(self, training: Training, samples: int) -> Iterator[Tensor]:
        """The samples of every step."""
        if self.privacy.sampling == "poisson":
            for _ in range(steps_of(training, samples)):
                yield self.randomness.chosen(samples, rate_of(training, samples))
            return
        for _ in range(training.epochs):
            yield from torch.split(self.randomness.order(samples), training.batch_size)

    def fit(
        self, model: FlatModel, step: Callable[[], None], loss: LossOfLogits | None, training: Training, data: Drawing
    ) -> None:
        """Train the model by this step; the noise is that of the plan."""
        if loss is None or loss.shift is not None:
            raise RunError(
                "--privacy sample: this method trains with a loss that is not the mean of one loss for each sample, so "
                "what one sample contributes is not limited."
            )
        if self.done:
            raise RunError("--privacy sample: the method trains twice in one visit, which the budget does not cover.")
        self.done = True
        received = model.statistics.clone()
        expected = min(training.batch_size, data.samples)
        model.train()
        for rows in self.batches(training, data.samples):
            self.one_step(model, loss.criterion, data, rows)
            model.gradient.div_(expected)
            if loss.pull is not None:
                loss.pull(model)
            step()
        model.statistics.copy_(received)

    def one_step(self, model: FlatModel, loss: Loss, data: Drawing, rows: Tensor) -> None:
        """Write the noisy sum of the clipped gradients of these samples into the model's gradient."""
        x, y = data.draw(rows) if len(rows) else (torch.zeros((0, 1)), rows)
        total = clipped_sum(model, loss, x, y, data.classes, self.privacy.clip)
        model.gradient.copy_(with_noise(total, self.noise, self.privacy.clip, self.randomness))


@dataclass(frozen=True)
class Drawing:
    """Where the samples of a step come from."""

    samples: int
    classes: int
    draw: Callable[[Tensor], tuple[Tensor, Tensor]]  # rows -> a model's input and the labels
