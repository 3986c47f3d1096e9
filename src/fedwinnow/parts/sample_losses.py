"""The loss of each sample, by which clean and wrong labels are told apart."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional

LossKind = Literal["cross_entropy", "double_softmax"]


def sample_losses(logits: Tensor, labels: Tensor, kind: LossKind | None = None) -> Tensor:
    """Cross-entropy per sample; `double_softmax` repeats released codes that took the softmax twice.

    The double softmax is -p_y + log sum exp p_c: bounded, in a band of width 1.
    """
    scores = logits.softmax(1) if kind == "double_softmax" else logits
    return functional.cross_entropy(scores, labels, reduction="none")
