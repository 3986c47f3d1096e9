"""Residual networks (He et al., 2016) with the parameter names that published weights use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import nn

from fedwinnow.errors import UsageError
from fedwinnow.models.model import Model, Norm, Shape, normalisation
from fedwinnow.models.weight_files import load_weights
from fedwinnow.options import option

LARGEST_SMALL_STEM = 64  # pixels
# Batch normalisation needs two values per channel even for a batch of one sample. The large stem halves an image five
# times (rounding up), so its last map is 2 x 2 from this size on; the small stem halves three times: 9 pixels.
SMALLEST_FOR_LARGE_STEM = 33


@dataclass(frozen=True)
class ResNet(Model):
    """Base of the residual networks."""

    blocks: ClassVar[tuple[int, int, int, int]]
    bottleneck: ClassVar[bool] = False

    norm: Literal["batch", "batch_statistics", "group"] = option(
        "batch", "Normalisation after each convolution; batch_statistics keeps no running averages."
    )
    stem: Literal["auto", "small", "large"] = option(
        "auto", "First layers: small is a 3x3 convolution, large is ImageNet's; auto takes small up to 64 pixels."
    )
    weights: Path | None = option(
        None, "A .safetensors, .pth or .pt file of weights to start from, in torchvision's naming."
    )

    def build(self, shape: Shape) -> nn.Module:
        self.check_fits(shape)
        large = self.stem == "large" or (self.stem == "auto" and shape.smaller_side > LARGEST_SMALL_STEM)
        if large and shape.smaller_side < SMALLEST_FOR_LARGE_STEM:
            raise UsageError(
                f"model '{self.name}' was given stem=large and images of {shape.smaller_side} pixels; "
                f"allowed: at least {SMALLEST_FOR_LARGE_STEM} pixels. Give stem=small or larger images."
            )
        module = ResidualNetwork(
            channels=shape.channels,
            classes=shape.classes,
            blocks=self.blocks,
            bottleneck=self.bottleneck,
            norm=self.norm,
            large_stem=large,
        )
        if self.weights is not None:
            load_weights(module, self.weights, head="fc")
        return module


@dataclass(frozen=True)
class ResNet18(ResNet):
    """Residual network of 18 layers."""

    name: ClassVar[str] = "resnet18"
    kinds: ClassVar[tuple[str, ...]] = ("images",)
    smallest_image: ClassVar[int] = 9
    blocks: ClassVar[tuple[int, int, int, int]] = (2, 2, 2, 2)


@dataclass(frozen=True)
class ResNet34(ResNet):
    """Residual network of 34 layers."""

    name: ClassVar[str] = "resnet34"
    kinds: ClassVar[tuple[str, ...]] = ("images",)
    smallest_image: ClassVar[int] = 9
    blocks: ClassVar[tuple[int, int, int, int]] = (3, 4, 6, 3)


@dataclass(frozen=True)
class ResNet50(ResNet):
    """Residual network of 50 layers, with bottlenecks; the stride is in their 3x3 convolution."""

    name: ClassVar[str] = "resnet50"
    kinds: ClassVar[tuple[str, ...]] = ("images",)
    smallest_image: ClassVar[int] = 9
    blocks: ClassVar[tuple[int, int, int, int]] = (3, 4, 6, 3)
    bottleneck: ClassVar[bool] = True


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size of the image up to its stride; normalisation follows, so it has no bias."""
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    """Base of both residual blocks: the shortcut, which is a projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(convolution(inputs, outputs, 1, stride), normalisation(norm, outputs))

    def shortcut(self, x: torch.Tensor) -> torch.Tensor:
        """The input in the shape of the output."""
        return x if self.downsample is None else self.downsample(x)


class BasicBlock(Block):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__(inputs, width, stride, norm)
        self.conv1 = convolution(inputs, width, 3, stride)
        self.bn1 = normalisation(norm, width)
        self.conv2 = convolution(width, width, 3)
        self.bn2 = normalisation(norm, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        result: torch.Tensor = self.relu(y + self.shortcut(x))
        return result


class Bottleneck(Block):
    """A 3x3 convolution between two of 1x1 that narrow and widen."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        outputs = width * self.expansion
        super().__init__(inputs, outputs, stride, norm)
        self.conv1 = convolution(inputs, width, 1)
        self.bn1 = normalisation(norm, width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn2 = normalisation(norm, width)
        self.conv3 = convolution(width, outputs, 1)
        self.bn3 = normalisation(norm, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        result: torch.Tensor = self.relu(y + self.shortcut(x))
        return result


class ResidualNetwork(nn.Module):
    """The module of the residual networks."""

    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential

    def __init__(
        self,
        *,
        channels: int,
        classes: int,
        blocks: tuple[int, int, int, int],
        bottleneck: bool,
        norm: Norm,
        large_stem: bool,
    ) -> None:
        super().__init__()
        block = Bottleneck if bottleneck else BasicBlock
        self.conv1 = convolution(channels, 64, 7, 2) if large_stem else convolution(channels, 64, 3)
        self.bn1 = normalisation(norm, 64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large_stem else nn.Identity()
        inputs = 64
        for number, count in enumerate(blocks):
            width, stride = 64 * 2**number, 1 if number == 0 else 2
            stage = [block(inputs, width, stride, norm)]
            inputs = width * block.expansion
            stage += [block(inputs, width, 1, norm) for _ in range(count - 1)]
            self.add_module(f"layer{number + 1}", nn.Sequential(*stage))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: torch.Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return scores
