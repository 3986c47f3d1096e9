"""What an encoder is: a frozen model that turns each sample into one row of numbers; only a head is trained."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedwinnow.catalogue import entries
from fedwinnow.data.dataset import Dataset
from fedwinnow.errors import UsageError
from fedwinnow.models.model import Shape
from fedwinnow.options import Part, option

Batch = Any  # uint8 images (n, height, width, channels), a list of texts, float32 rows or int32 token ids
Matrix = NDArray[np.float32]
Scale = Literal["std_l2", "std", "l2", "idf_l2", "none"]

LARGEST_SMALL_IMAGE = 64  # pixels; images up to this size are scaled to SMALL, others to LARGE
SMALL, LARGE = 96, 224
UNCHANGING = ("scale", "views")  # options that change no feature of a sample
MOST_VIEWS = 64


@dataclass(frozen=True, eq=False)
class OpenEncoder:
    """An encoder with its weights in memory."""

    width: int  # numbers per sample
    hash: str  # of the weights and of the settings that change a feature: the same on every machine
    encode: Callable[[Batch], Matrix]
    engine: str  # what computes; another one may differ in the last bits
    batch: int = 32  # samples per call; fixed, because another number may change the last bits
    network: Any = None  # the same as a torch module, for an export: from stored samples; None: there is none


@dataclass(frozen=True)
class Encoder(Part):
    """Base of every encoder."""

    kinds: ClassVar[tuple[str, ...]] = ()  # of images, texts, rows and tokens
    package: ClassVar[str] = ""  # the installed package that has the weights; empty: none is needed

    scale: Literal["std_l2", "std", "l2", "none"] = option(
        "std_l2",
        "What a head gets: columns standardised by sums over the sites, then rows of length 8; or one of the two.",
    )

    @abstractmethod
    def open(self, shape: Shape, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> OpenEncoder:
        """Load the weights for samples of this shape; mean and std are those of the data's pixels."""

    def open_for_texts(self) -> OpenEncoder:
        """Load the weights to read texts that are columns of a table."""
        return self.open(Shape("tokens", (1,), classes=2, vocabulary=2))

    def settings(self) -> dict[str, Any]:
        """The options that change a feature, without those that name files, whose contents are hashed instead."""
        given = self.values().items()
        return {key: value for key, value in given if key not in UNCHANGING and not isinstance(value, Path)}

    def kind_of(self, dataset: Dataset) -> str:
        """What of the data this encoder reads, or an error that names the encoders that fit."""
        found = kinds_of(dataset)
        for kind in self.kinds:
            if kind in found:
                return kind
        fitting = [name for name, entry in entries("encoders").items() if set(found) & set(entry.facts["kinds"])]
        hint = ""
        if "texts" in self.kinds and dataset.kind == "tokens":
            hint = " The texts themselves are not in this data; give a table with text=COLUMN."
        raise UsageError(
            f"encoder '{self.name}' needs {' or '.join(self.kinds)}, but {dataset.name} has {' and '.join(found)}."
            f"{hint} Encoders that fit: {', '.join(fitting) or 'none'}; or leave --encoder out."
        )


@dataclass(frozen=True)
class ImageEncoder(Encoder):
    """Base of encoders that take images, perhaps besides other samples."""

    views: int = option(
        0,
        "Encode so many random views of each image too, of every kind that --views or the method asks for.",
        at_least=0,
        at_most=MOST_VIEWS,
    )


def views_in(encoder: Encoder) -> int:
    """How many views of an image an encoder gives, of each kind."""
    return encoder.views if isinstance(encoder, ImageEncoder) else 0


def kinds_of(dataset: Dataset) -> tuple[str, ...]:
    """What a data set has for encoders: its kind, and the texts behind its token ids."""
    return (dataset.kind,) if dataset.train.texts is None else ("texts", dataset.kind)


def hash_of(settings: dict[str, Any], weights: Sequence[str]) -> str:
    """The hash of an open encoder: its settings and the hashes of its weights."""
    content = json.dumps([{key: str(value) for key, value in settings.items()}, *weights], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def side_for(size: int | None, shape: Shape) -> int:
    """The pixels of the side that images are scaled to: as asked, or by the size that they have."""
    if size is not None:
        return size
    return SMALL if max(shape.sample_shape[:2]) <= LARGEST_SMALL_IMAGE else LARGE
