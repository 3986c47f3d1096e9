"""Encoders that are torch modules: fedwinnow's models without their last layer, and a user's own."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from fedwinnow.data.content_hash import add_array, hash_of_file
from fedwinnow.encoders.encoder import Batch, ImageEncoder, Matrix, OpenEncoder, hash_of
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError, memory_shortage
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape
from fedwinnow.options import option

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Pixels = Literal["imagenet", "centred", "data", "unit"]
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and deviation of pixel / 255 that most weights expect
UNDERSTOOD = ("pooler_output", "last_hidden_state", "logits")


@dataclass(frozen=True)
class ModelEncoder(ImageEncoder):
    """One of fedwinnow's models without its last layer, with weights from a file."""

    name: ClassVar[str] = "model"
    kinds: ClassVar[tuple[str, ...]] = ("images", "rows", "tokens")

    kind: str = option(..., "The model, as --model takes it; options in quotes: kind='resnet50:stem=large'.")
    weights: Path = option(
        ..., "A .safetensors, .pth or .pt file with the model's weights; its last layer is not used."
    )
    size: int | None = option(
        None,
        "Images are scaled to this many pixels a side; without it they stay as they are.",
        at_least=1,
        at_most=1024,
    )
    pixels: Literal["imagenet", "centred", "data", "unit"] = option(
        "imagenet",
        "How pixels are normalised: as for ImageNet weights, to -1..1, by the data's mean and deviation, or to 0..1.",
    )

    def open(self, shape: Shape, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> OpenEncoder:
        import torch

        from fedwinnow.models.features import through_head, undisturbed
        from fedwinnow.models.weight_files import check_weights, read_weights

        step = InputOf(shape, self.size, self.pixels, mean, std)
        found, problem = read_weights(self.weights), None
        for channels in step.possible_channels:
            inside = step.shape_inside(channels)
            module = make_model(self.kind, inside)
            with undisturbed(module):
                _, head, features = through_head(module, inside.example())
            last = next(name for name, layer in module.named_modules() if layer is head) + "."
            wanted = {key: value for key, value in module.state_dict().items() if not key.startswith(last)}
            try:
                given = {key: value for key, value in found.items() if not key.startswith(last)}
                check_weights(self.weights, given, wanted)
            except DataError as refusal:
                problem = problem or refusal
                continue
            with torch.no_grad():
                for key, value in wanted.items():
                    if key in given:
                        value.copy_(given[key])
            module = module.eval()
            step = replace_channels(step, channels)

            def encode(batch: Batch, module: nn.Module = module, step: InputOf = step) -> Matrix:
                with torch.inference_mode():
                    rows: Matrix = through_head(module, step(batch))[2].float().numpy()
                return rows

            settings = self.settings() | step.settings()
            return OpenEncoder(
                int(features.shape[1]),
                hash_of(settings, [hash_of_file(self.weights)]),
                encode,
                f"torch {torch.__version__}",
                network=step.before(headless(module, head, inside)),
            )
        assert problem is not None
        raise problem


@dataclass(frozen=True)
class OwnEncoder(ImageEncoder):
    """Your own torch module: ./my_encoder.py:build names a file and a function in it that gives the module.

    Images come as floats (n, channels, height, width), texts as a list of strings. The module gives (n, width), or an
    object with pooler_output, last_hidden_state (its mean over places is used) or logits. The file is run.
    """

    name: ClassVar[str] = "own"
    kinds: ClassVar[tuple[str, ...]] = ("images", "texts", "rows", "tokens")

    path: Path = option(..., "The Python file.")
    function: str = option("build", "The function or class in it that gives the module.")
    size: int | None = option(
        None,
        "Images are scaled to this many pixels a side; without it they stay as they are.",
        at_least=1,
        at_most=1024,
    )
    pixels: Literal["imagenet", "centred", "data", "unit"] = option(
        "unit",
        "How pixels are normalised: to 0..1, as for ImageNet weights, to -1..1, or by the data's mean and deviation.",
    )

    def __str__(self) -> str:
        """The file and the function, if nothing else is set."""
        usual = OwnEncoder(path=self.path, function=self.function)
        return f"{self.path.as_posix()}:{self.function}" if self == usual else super().__str__()

    def open(self, shape: Shape, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> OpenEncoder:
        import torch

        from fedwinnow.models.own_model import builder_in, describe

        name = f"{self.path}:{self.function}"
        builder = builder_in(name)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)  # weights that the function draws are the same every time
                module = builder()
        except Exception as problem:
            if (shortage := memory_shortage(problem)) is not None:
                raise shortage from None
            raise UsageError(f"encoder {name} cannot be made: {describe(problem, self.path)}.") from problem
        if not isinstance(module, torch.nn.Module):
            raise UsageError(f"encoder {name} gave a {type(module).__name__}; allowed: a torch.nn.Module.")
        module.eval()
        step = InputOf(shape, self.size, self.pixels, mean, std)

        def encode(batch: Batch) -> Matrix:
            with torch.inference_mode():
                try:
                    said = module(batch if isinstance(batch, list) else step(batch))
                except Exception as problem:
                    if (shortage := memory_shortage(problem)) is not None:
                        raise shortage from None
                    raise UsageError(f"encoder {name} fails: {describe(problem, self.path)}.") from problem
                return features_in(said, name, len(batch)).float().numpy()

        example: Any = ["an example", "another"]
        if not self.reads_texts(shape):
            example = np.zeros(
                (2, *shape.sample_shape), {"images": np.uint8, "rows": np.float32}.get(shape.kind, np.int32)
            )
        width = encode(example).shape[1]
        weights = [hash_of_module(module), hash_of_file(self.path)]
        return OpenEncoder(
            width, hash_of(self.settings() | step.settings(), weights), encode, f"torch {torch.__version__}"
        )

    def reads_texts(self, shape: Shape) -> bool:
        """Texts come before token ids."""
        return shape.kind == "tokens"


@dataclass(frozen=True)
class InputOf:
    """From stored samples to what a module takes."""

    shape: Shape
    size: int | None
    pixels: Pixels
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int | None = None  # None: as the images have them

    def settings(self) -> dict[str, Any]:
        """What changes a feature besides the options: the data's own statistics, where they are used."""
        if self.shape.kind != "images":
            return {}
        return {"channels": self.channels} | ({"mean": self.mean, "std": self.std} if self.pixels == "data" else {})

    @property
    def possible_channels(self) -> list[int]:
        """A grey image may be given to a network of three colours."""
        own = self.shape.sample_shape[-1]
        return [own, 3] if self.shape.kind == "images" and own == 1 else [own]

    def shape_inside(self, channels: int) -> Shape:
        """The shape that the module sees; it has two classes, because its last layer is not used."""
        if self.shape.kind != "images":
            return replace(self.shape, classes=2)
        height, width = (self.size, self.size) if self.size is not None else self.shape.sample_shape[:2]
        return replace(self.shape, sample_shape=(height, width, channels), classes=2)

    def __call__(self, batch: Batch) -> Tensor:
        import torch

        from fedwinnow.encoders.pixels import scaled

        if self.shape.kind != "images":
            copied = torch.from_numpy(np.array(batch))
            return copied if self.shape.kind == "tokens" else copied.float()
        units = scaled(batch, self.size, self.channels) / 255.0
        if self.pixels == "unit":
            return units
        mean, std = self.normalisation(units.shape[1])
        return (units - torch.tensor(mean).view(1, -1, 1, 1)) / torch.tensor(std).view(1, -1, 1, 1)

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What is subtracted from pixel / 255, and by what the rest is divided."""
        of = {"imagenet": IMAGENET, "centred": ((0.5,), (0.5,)), "data": (self.mean, self.std), "unit": ((), ())}
        mean, std = of[self.pixels]
        if len(mean) not in (0, 1, channels):  # a grey image in a network for grey images
            mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
        return mean or (0.0,), std or (1.0,)

    def before(self, module: nn.Module | None) -> nn.Module | None:
        """The same step and the module behind it as one module, for images; None where that is not to be had."""
        from torch import nn

        from fedwinnow.encoders.pixels import COLOURS, FromPixels

        if module is None or self.shape.kind != "images":
            return None
        own = self.shape.sample_shape[-1]
        inside = COLOURS if self.channels == COLOURS else own
        mean, std = self.normalisation(inside)
        return nn.Sequential(FromPixels(self.shape.sample_shape, self.size, self.channels, 255.0, mean, std), module)


def headless(module: nn.Module, head: nn.Module, shape: Shape) -> nn.Module | None:
    """A copy of a module that ends before its last layer; None if something comes after that layer."""
    import copy

    import torch
    from torch import nn

    from fedwinnow.models.features import through_head

    name = next(name for name, layer in module.named_modules() if layer is head)
    short = copy.deepcopy(module)
    if not name:
        return nn.Identity()
    parent, _, last = name.rpartition(".")
    setattr(short.get_submodule(parent), last, nn.Identity())
    example = shape.example()
    with torch.no_grad():
        wanted, found = through_head(module, example)[2], short(example)
    return short if found.shape == wanted.shape and bool(torch.allclose(found, wanted, atol=1e-5)) else None


def replace_channels(step: InputOf, channels: int) -> InputOf:
    """The same input with so many channels."""
    return replace(step, channels=channels) if step.shape.kind == "images" else step


def features_in(said: Any, name: str, count: int) -> torch.Tensor:
    """The features in what a module says: a tensor, or one of the attributes that models of transformers have."""
    import torch

    for attribute in UNDERSTOOD:
        inner = getattr(said, attribute, None)
        if isinstance(inner, torch.Tensor):
            said = inner.mean(1) if attribute == "last_hidden_state" and inner.ndim == 3 else inner
            break
    if not isinstance(said, torch.Tensor) or said.ndim != 2 or len(said) != count:
        got = tuple(said.shape) if isinstance(said, torch.Tensor) else type(said).__name__
        raise UsageError(
            f"encoder {name} gives {got} for {count} samples; allowed: a tensor ({count}, width), or an object with "
            f"{', '.join(UNDERSTOOD[:-1])} or {UNDERSTOOD[-1]}."
        )
    return said


def hash_of_module(module: nn.Module) -> str:
    """The hash of all weights of a module, by name."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        if not hasattr(value, "detach"):
            warnings.warn(
                f"the weight {name} of an encoder is no tensor and is not hashed.", FedwinnowWarning, stacklevel=2
            )
            continue
        add_array(digest, value.detach().cpu().float().numpy())
    return digest.hexdigest()
