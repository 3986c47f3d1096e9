"""The sum of the gradients of single samples, each shortened to a length first.

For small heads the lengths are known without any gradient: that of a linear layer is an outer product. For all other
models torch.func gives the gradient of each sample. Either way a sample is alone with the loss, so that its gradient
cannot depend on others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedwinnow.mathematics.heads import Head
from fedwinnow.mathematics.losses import CrossEntropy, Loss, soft
from fedwinnow.mathematics.payload import FlatModel, frozen_layers

ROOM = 1 - 1e-4  # rounding to 32 bits must not make anything longer than the clip
MEMORY = 2**25  # gradient numbers that are held at once


def add_clipped(model: FlatModel, loss: Loss, x: Tensor, y: Tensor, classes: int, clip: float) -> None:
    """Write the sum of clipped gradients of these samples into the model's gradient."""
    model.gradient.zero_()
    if not len(x):
        return
    target = soft(y, x.new_zeros((1, classes), dtype=torch.float32))
    if model.head is not None:
        clipped_by_hand(model.head, loss, x.flatten(1), target, clip)
        return
    gradients = gradients_of(model, loss, classes)
    size = max(1, MEMORY // max(1, model.trainable))
    for inputs, targets in zip(torch.split(x, size), torch.split(target, size), strict=True):
        add_shortened(model, gradients(inputs, targets), clip)


def clipped_by_hand(head: Head, loss: Loss, x: Tensor, target: Tensor, clip: float) -> None:
    """The sum for a small head; scaling the slope of a sample's scores scales its whole gradient."""
    logits, inputs = head.forward(x)
    slope = slopes(loss, logits, target)
    squared = slope.square().sum(1) * squared_inputs(inputs, head.last.bias)
    if head.hidden:
        before = torch.where(inputs > 0, slope @ head.last.weight, 0.0)
        squared = squared + before.square().sum(1) * squared_inputs(x, head.first.bias)
    factor = shortening(squared, clip)
    # A sample whose numbers are not finite counts as 0: 0 times infinity would be no number.
    used = (factor > 0)[:, None]
    kept = [torch.where(used, value, 0.0) for value in (x, inputs, slope)]
    head.backward(kept[0], kept[1], kept[2] * factor[:, None])


def squared_inputs(inputs: Tensor, bias: Tensor | None) -> Tensor:
    """The squared length of each row of a layer's input; a bias counts as one more input, which is 1."""
    return inputs.square().sum(1) + (0.0 if bias is None else 1.0)


def slopes(loss: Loss, logits: Tensor, target: Tensor) -> Tensor:
    """The gradient of each sample's loss by its scores."""
    if type(loss) is CrossEntropy:
        return logits.softmax(1) - target
    nothing = logits.new_ones(logits.shape[1])

    def alone(row: Tensor, wanted: Tensor) -> Tensor:
        return loss(row[None], wanted[None], nothing)[0]

    each: Callable[..., Tensor] = vmap(grad(alone))
    return each(logits, target)


def shortening(squared: Tensor, clip: float) -> Tensor:
    """The factor by which each gradient is multiplied; 0 for one that is not finite."""
    length = squared.sqrt()
    factor = (clip * ROOM / length.clamp(min=1e-30)).clamp(max=1.0)
    return torch.where(length.isfinite(), factor, 0.0)


def gradients_of(model: FlatModel, loss: Loss, classes: int) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """A function that gives the gradient of each sample, one tensor for each of the model's."""
    module = model.module
    names = [slot.name for slot in model.slots[: len(model.parameters)]]
    trained = {name: value.detach() for name, value in zip(names, model.parameters, strict=True)}
    fixed = {name: value.detach() for name, value in [*module.named_parameters(), *module.named_buffers()]}
    nothing = torch.ones(classes, device=model.device)

    def alone(weights: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        logits = functional_call(module, {**fixed, **weights}, (x[None],))
        return loss(logits, target[None], nothing)[0]

    each = vmap(grad(alone), in_dims=(None, 0, 0), randomness="different")

    def gradients(x: Tensor, target: Tensor) -> list[Tensor]:
        with warnings.catch_warnings():  # some layers are slow sample by sample, which torch warns of
            warnings.simplefilter("ignore", UserWarning)
            found: dict[str, Tensor] = each(trained, x, target)
        return [found[name] for name in names]

    return gradients


def add_shortened(model: FlatModel, gradients: list[Tensor], clip: float) -> None:
    """Add the sum of these gradients, each sample's shortened, to the model's gradient."""
    squared = torch.stack([value.flatten(1).square().sum(1) for value in gradients]).sum(0)
    factor = shortening(squared, clip)
    for (_, place), value in zip(model.places(), gradients, strict=True):
        flat = torch.where((factor > 0)[:, None], value.flatten(1), 0.0)
        place.add_((factor @ flat).view(value.shape[1:]))


def clipped_update(update: Tensor, clip: float) -> Tensor:
    """A site's update, shortened if it is longer; zeros if it is not finite."""
    length = torch.linalg.vector_norm(update, dtype=torch.float64)
    if not bool(length.isfinite()):
        return torch.zeros_like(update)
    return update * float((clip * ROOM / length.clamp(min=1e-30)).clamp(max=1.0))


def mixing_layers(module: nn.Module) -> list[str]:
    """The names of trained layers that compute with several samples at once, or keep statistics of them."""
    still, found = frozen_layers(module), []
    for name, layer in module.named_modules():
        batch = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        instance = isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats
        if (batch or instance) and layer not in still:
            found.append(name or type(layer).__name__)
    return found
