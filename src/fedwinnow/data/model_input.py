"""From stored samples to what a model takes: the one place where pixels become numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class InputStep:
    """Turns a batch of stored samples into a model's input on its device.

    Images arrive as uint8 (n, height, width, channels) and leave as float (n, channels, height, width) in the
    channels-last layout, which costs nothing because that is how they are stored.
    """

    def __init__(
        self, kind: str, mean: Sequence[float], std: Sequence[float], device: torch.device | str = "cpu"
    ) -> None:
        self.kind = kind
        self.device = torch.device(device)
        centre = torch.tensor(list(mean) or [0.0], device=self.device)
        spread = torch.tensor(list(std) or [1.0], device=self.device)
        # pixel / 255 - mean, over std, as one multiplication and one addition.
        self.scale = 1.0 / (255.0 * spread)
        self.shift = -centre / spread

    def __call__(self, stored: NDArray[Any] | torch.Tensor) -> torch.Tensor:
        """The model's input for these samples."""
        batch = torch.as_tensor(stored).to(self.device, non_blocking=True)
        if self.kind == "images":
            return torch.addcmul(self.shift, batch.float(), self.scale).permute(0, 3, 1, 2)
        return batch if self.kind == "tokens" else batch.float()
