"""Learning from another model's answers."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def divergence(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """The mean over the rows of KL(softmax(teacher / T) || softmax(student / T)); no factor T squared."""
    target = (teacher.float() / temperature).softmax(1)
    return functional.kl_div((student.float() / temperature).log_softmax(1), target, reduction="batchmean")


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """The mean over the rows of the Jensen-Shannon divergence of two rows of probabilities."""
    middle = ((first + second) / 2).log()
    to_first = functional.kl_div(middle, first, reduction="batchmean")
    to_second = functional.kl_div(middle, second, reduction="batchmean")
    return (to_first + to_second) / 2
