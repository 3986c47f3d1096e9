"""The sum of the gradients of single samples, each shortened to a length and made whole first, so that it is exact.

For small heads the lengths are known without any gradient: that of a linear layer is an outer product. For all other
models torch.func gives the gradient of each sample. Either way a sample is alone with the loss, so that its gradient
cannot depend on others.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedwinnow.errors import RunError
from fedwinnow.mathematics.heads import Head, Layer
from fedwinnow.mathematics.losses import CrossEntropy, Loss, soft
from fedwinnow.mathematics.payload import FlatModel, frozen_layers
from fedwinnow.mathematics.private_noise import COARSE, FINE, MOST_SUMMED, exact, whole

ROOM = 1 - 1e-4  # rounding must not make anything longer than the clip
NEARLY = 1 - 2**-24  # the same for 64 bits
MEMORY = 2**24  # gradient numbers that are held at once
TILE = 64  # rows: the processor computes so many numbers in one way
PIECE = 2**12  # samples that are summed at once: their sum fits into the 53 bits of a float, so that it is exact


def clipped_sum(model: FlatModel, loss: Loss, x: Tensor, y: Tensor, classes: int, clip: float) -> Tensor:
    """The sum of the clipped gradients of these samples, in whole numbers of fine units of the clip."""
    total = torch.zeros(model.trainable, dtype=torch.int64)
    if len(x) > MOST_SUMMED:
        raise RunError(f"--privacy sample: a step has {len(x)} samples; allowed: {MOST_SUMMED}. Use smaller batches.")
    if not len(x):
        return total
    target = soft(y, x.new_zeros((1, classes), dtype=torch.float32))
    size = PIECE if model.head is not None else min(PIECE, max(1, MEMORY // max(1, model.trainable)))
    gradients = None if model.head is not None else gradients_of(model, loss, classes)
    for inputs, targets in zip(torch.split(x, size), torch.split(target, size), strict=True):
        if gradients is None:
            assert model.head is not None
            total += sum_by_hand(model.head, loss, inputs.flatten(1), targets, clip)
        else:
            add_shortened(model, total, gradients(inputs, targets), clip)
    return total


def sum_by_hand(head: Head, loss: Loss, x: Tensor, target: Tensor, clip: float) -> Tensor:
    """The sum for a small head.

    A sample's gradient of a layer is the outer product of the slope of its output and its input. Both are rounded to
    whole numbers, the one as a share of the clip and the other of its own length, so that the product is whole, too.
    """
    count = len(x)
    x, target = exact(filled_up(x)), filled_up(target)
    inputs = output_of(head.first, x).relu_() if head.hidden else x
    slope = exact(slopes(loss, output_of(head.last, inputs).to(target), target))
    pairs = [(slope, inputs, head.last)]
    if head.hidden:
        pairs.insert(0, (torch.where(inputs > 0, product(slope, exact(head.last.weight)), 0.0), x, head.first))
    lengths = [squared_inputs(entered, layer.bias).sqrt() for _, entered, layer in pairs]
    outer = [left * length[:, None] for (left, _, _), length in zip(pairs, lengths, strict=True)]
    factor = shortening(torch.stack([left.square().sum(1) for left in outer]).sum(0), clip)[:, None] / clip
    factor[count:] = 0
    found = []
    for left, length, (_, entered, layer) in zip(outer, lengths, pairs, strict=True):
        # A sample whose numbers are not finite counts as 0: 0 times infinity would be no number.
        left = whole(torch.where(factor > 0, left * factor, 0.0), COARSE)
        right = entered if layer.bias is None else with_ones(entered)
        right = whole(torch.where(factor > 0, right * (NEARLY / length.clamp(min=1e-30))[:, None], 0.0), COARSE)
        summed = (left.t() @ right).to(torch.int64).cpu()
        columns = entered.shape[1]
        found += [summed[:, :columns].flatten(), summed[:, columns:].flatten()]
    return torch.cat(found)


def output_of(layer: Layer, x: Tensor) -> Tensor:
    """What a layer makes of these rows."""
    found = product(x, exact(layer.turned))
    return found if layer.bias is None else found + exact(layer.bias)


def product(rows: Tensor, matrix: Tensor) -> Tensor:
    """The product of rows and a matrix, both rounded so far that it is exact.

    The last bits of an ordinary one depend on the place of a row and on how many others there are.
    """
    bits = (52 - math.ceil(math.log2(max(2, len(matrix))))) // 2
    left, right = power_above(rows.abs().amax(1, keepdim=True)), power_above(matrix.abs().amax())
    return (whole(rows / left, bits) @ whole(matrix / right, bits)) * (left * right * 2.0 ** (-2 * bits))


def power_above(largest: Tensor) -> Tensor:
    """The power of two above this; 1 for what is no number."""
    usable = largest.isfinite() & (largest > 0)
    return torch.where(usable, 2.0 ** torch.where(usable, largest, 1.0).log2().floor().add(1), 1.0)


def filled_up(rows: Tensor) -> Tensor:
    """The rows with zeros after them, up to a multiple of TILE: the last numbers of all are computed otherwise."""
    return torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % TILE))


def with_ones(inputs: Tensor) -> Tensor:
    """The inputs of a layer with one more, which is 1: that of the bias."""
    return torch.cat([inputs, inputs.new_ones((len(inputs), 1))], 1)


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


def add_shortened(model: FlatModel, total: Tensor, gradients: list[Tensor], clip: float) -> None:
    """Add the sum of these gradients, each sample's shortened and whole, to the total."""
    squared = torch.stack([exact(value).flatten(1).square().sum(1) for value in gradients]).sum(0)
    factor = (shortening(squared, clip) / clip)[:, None]
    for slot, value in zip(model.slots, gradients, strict=False):
        part = whole(torch.where(factor > 0, exact(value).flatten(1) * factor, 0.0), FINE).sum(0)
        slot.view(total).add_(part.to(torch.int64).cpu().view(value.shape[1:]))


def whole_update(update: Tensor, clip: float) -> Tensor:
    """A site's update, shortened if it is longer, in whole numbers of fine units of the clip."""
    value = exact(update)
    factor = shortening(value.square().sum(), clip)
    return whole(torch.where(factor > 0, value * (factor / clip), 0.0), FINE).to(torch.int64)


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
