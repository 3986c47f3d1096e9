"""Models with layers that need care: running statistics, and random numbers of their own."""

from __future__ import annotations

from torch import nn


def normalised(sample_shape: tuple[int, ...], classes: int) -> nn.Module:
    height, width, channels = sample_shape
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * height * width, classes),
    )


def dropping(sample_shape: tuple[int, ...], classes: int) -> nn.Module:
    height, width, channels = sample_shape
    return nn.Sequential(
        nn.Flatten(), nn.Linear(height * width * channels, 24), nn.ReLU(), nn.Dropout(0.5), nn.Linear(24, classes)
    )


def half_frozen(sample_shape: tuple[int, ...], classes: int) -> nn.Module:
    module = normalised(sample_shape, classes)
    assert isinstance(module, nn.Sequential)
    module[0].requires_grad_(False)
    module[1].requires_grad_(False)
    return module
