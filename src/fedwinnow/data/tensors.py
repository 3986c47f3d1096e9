"""From stored samples to what a model takes: the one place where pixels become numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedwinnow.data.dataset import Dataset


class InputStep:
    """Turns a batch of stored samples into a model's input on its device.

    Images arrive as uint8 (n, height, width, channels) and leave as float (n, channels, height, width) in the
    channels-last layout, which costs nothing because that is how they are stored.
    """

    def __init__(self, dataset: Dataset, device: torch.device | str = "cpu") -> None:
        self.kind = dataset.kind
        self.device = torch.device(device)
        channels = dataset.sample_shape[-1] if self.kind == "images" else 1
        mean = torch.tensor(dataset.mean or (0.0,) * channels, device=self.device)
        std = torch.tensor(dataset.std or (1.0,) * channels, device=self.device)
        # pixel / 255 - mean, over std, as one multiplication and one addition.
        self.scale = 1.0 / (255.0 * std)
        self.shift = -mean / std

    def __call__(self, stored: NDArray[Any] | torch.Tensor) -> torch.Tensor:
        """The model's input for these samples."""
        batch = torch.as_tensor(stored).to(self.device, non_blocking=True)
        if self.kind == "images":
            return torch.addcmul(self.shift, batch.float(), self.scale).permute(0, 3, 1, 2)
        return batch if self.kind == "tokens" else batch.float()
