"""What --privacy refuses: whatever leaves a site, or goes into the model, without being accounted.

The rules read what a method declares and which functions of the contract it replaces. They name no method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fedwinnow.all_settings import SiteSettings, Training
from fedwinnow.encoders.encoder import Encoder
from fedwinnow.encoders.head_input import needs_sums
from fedwinnow.errors import UsageError
from fedwinnow.federation.method import Method
from fedwinnow.mathematics.loss_of_logits import LossOfLogits
from fedwinnow.mathematics.losses import Loss
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.mathematics.privacy import ClientPrivacy, Privacy
from fedwinnow.mathematics.private_gradients import mixing_layers, slopes

COVERED = ("weights", "counters", "samples")  # the model has noise; the number of samples is public; no counter moves
# The functions of the contract by which a method would learn or send something that is not accounted.
AT_SERVER = ("exchanges", "question")
OF_SITES = ("choose", "send", "merge")  # the mean of clipped updates, over a number of sites that is known beforehand
AT_SITE = ("train", "reply", "mix")


def refuse_unaccounted(method: Method, privacy: Privacy | None, training: SiteSettings) -> None:
    """Refuse a method or a setting that the accounting of this kind of privacy does not cover."""
    if privacy is None:
        return
    kind = f"--privacy {privacy.name}"
    if training.secure_sums:
        raise UsageError(
            f"{kind} and --secure-sums were given; allowed: one of them. The noise of a private run and sums that "
            f"nobody can take apart do not work together yet."
        )
    if extra := [key for key in method.exposed() if key not in COVERED]:
        raise UsageError(
            f"{kind}: method '{method.name}' also sends {', '.join(map(repr, extra))}, which the accounting does not "
            f"cover; allowed: methods that send the model and the number of samples only, such as fedavg, fedprox, gce "
            f"and sce."
        )
    if method.own_models:
        raise UsageError(
            f"{kind}: with method '{method.name}' every site keeps its own model, and none is shared; "
            f"allowed: a method with one model for all, such as fedavg."
        )
    sites = isinstance(privacy, ClientPrivacy)
    if other := replaced(method, [*AT_SERVER, *(OF_SITES if sites else AT_SITE)]):
        raise UsageError(
            f"{kind}: method '{method.name}' has its own {' and '.join(other)}, which the accounting does not cover; "
            f"allowed: methods with the usual ones, such as fedavg, fedprox, gce and sce."
        )
    (refuse_for_sites if sites else refuse_for_samples)(method, training)


def replaced(method: Method, names: Sequence[str]) -> list[str]:
    """Which of these functions of the contract a method replaces."""
    return [name for name in names if getattr(type(method), name) is not getattr(Method, name)]


def refuse_for_sites(method: Method, training: Training) -> None:
    """The noise is that of a plain mean."""
    if method.aggregator.name != "mean":
        raise UsageError(
            f"--privacy client: aggregate={method.aggregate} was given, but the noise is accounted for the mean of "
            f"clipped updates; allowed: mean."
        )


def refuse_for_samples(method: Method, training: Training) -> None:
    """A step is a sum of gradients of single samples, each of which depends on its sample alone."""
    if method.mixes:
        raise UsageError(
            f"--privacy sample: {method.name} mixes samples ({method.mixes}), so that one is in the gradients of two; "
            f"allowed: mixup=0."
        )
    if training.mixed_precision:
        raise UsageError("--privacy sample: --mixed-precision was given; allowed: without it.")
    loss = loss_of_one(method)
    if loss is None or loss.shift is not None:
        raise UsageError(
            f"--privacy sample: method '{method.name}' has its own loss and does not say by `by_hand` what that of one "
            f"sample is (docs/own-method.md); allowed: methods that do, such as fedavg, fedprox, gce and sce."
        )
    if looks_at_others(loss.criterion):
        raise UsageError(
            f"--privacy sample: with loss={method.loss} the gradient of a sample depends on the labels of others; "
            f"allowed: cross_entropy, gce, sce."
        )


def loss_of_one(method: Method) -> LossOfLogits | None:
    """The loss as the method states it by `by_hand`; None if it does not, or if that looks at the site."""
    try:
        return type(method).by_hand(method, NOBODY, {"weights": torch.zeros(0)})
    except AttributeError:  # there is nobody whose samples could be looked at
        return None


def looks_at_others(loss: Loss) -> bool:
    """Whether a loss of one sample changes with the frequencies of labels, with the rest, or cannot be had alone."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, generator=generator)
    target = torch.eye(3)[torch.tensor([0, 1, 2, 1])]
    alike, unlike = torch.tensor([1, 1, 1]), torch.tensor([1, 5, 9])
    try:
        together, other = loss(logits, target, alike), loss(logits, target, unlike)
        single = [loss(logits[row : row + 1], target[row : row + 1], alike) for row in range(4)]
        slopes(loss, logits, target)
    except (RuntimeError, ValueError, IndexError):
        return True
    return not (torch.allclose(together, other) and torch.allclose(together, torch.cat(single), atol=1e-6))


class Nobody:
    """In the place of a client, to see whether a method says what one sample's loss is."""

    class_counts = torch.ones(2)


NOBODY: Any = Nobody()


def refuse_mixing_layers(models: Sequence[FlatModel], privacy: Privacy) -> None:
    """Refuse models in which the samples of a batch meet."""
    for model in models:
        if mixing := mixing_layers(model.module):
            raise UsageError(
                f"--privacy {privacy.name}: the model normalises over batches ({mixing[0]}), so that the samples of a "
                f"batch are in each other's gradients and in its statistics; allowed: models without batch "
                f"normalisation. Choose norm=group, for example resnet18:norm=group, or norm=none where it exists."
            )


def refuse_sums(privacy: Privacy | None, encoder: Encoder) -> None:
    """Refuse the exact sums over samples by which the features of an encoder are scaled."""
    if privacy is not None and needs_sums(encoder.scale):
        raise UsageError(
            f"--privacy {privacy.name}: the features of --encoder {encoder} are scaled by sums that every site tells "
            f"(scale={encoder.scale}), which is not accounted; allowed: scale=l2 or scale=none, for example "
            f"--encoder {replace(encoder, scale='l2')}."
        )
