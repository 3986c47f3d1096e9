"""A teacher that follows a model as a moving average of its weights and running statistics."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwinnow.federation.client import Around, Step
from fedwinnow.mathematics.flat_model import FlatModel
from fedwinnow.mathematics.payload import Payload


class MovingAverage:
    """A model whose weights are an average over time; `repeats` makes every update that many times."""

    def __init__(
        self, model: FlatModel, weights: Tensor, *, steps: int = 0, repeats: int = 1, rising: bool = False
    ) -> None:
        self.model = model
        self.steps = steps  # local steps so far, over all visits
        self.repeats = repeats
        self.rising = rising  # the first steps keep less
        self.move(weights, 0.0)

    @property
    def weights(self) -> Tensor:
        """The average as it is now."""
        return self.model.weights

    def move(self, weights: Tensor, kept: float) -> None:
        """average <- kept * average + (1 - kept) * weights"""
        with torch.no_grad():
            if kept == 0.0:
                self.weights.copy_(weights)
            else:
                self.weights.lerp_(weights.to(self.weights.device), 1.0 - kept)

    @property
    def state(self) -> Payload:
        """What a site keeps of it until its next visit."""
        return {"teacher": self.weights.clone(), "teacher_steps": torch.tensor([self.steps])}

    def following(self, kept: float) -> Around:
        """Steps of a model, each of which the average follows."""

        def around(step: Step, model: FlatModel) -> Step:
            def both() -> None:
                step()
                self.follow(model.weights, kept)

            return both

        return around

    def follow(self, weights: Tensor, kept: float) -> None:
        """One step of the model that is followed."""
        for _ in range(self.repeats):
            self.move(weights, min(kept, 1.0 - 1.0 / (1 + self.steps)) if self.rising else kept)
            self.steps += 1
