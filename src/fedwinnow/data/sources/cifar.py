"""CIFAR-10 and CIFAR-100, from any of their published forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedwinnow.data.cifar_arrays import load_arrays
from fedwinnow.data.cifar_forms import CIFAR10, CIFAR100, CifarLayout
from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.data.source import Source

CLASSES10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NAMES100 = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle "
    "caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant "
    "flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man "
    "maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree "
    "plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper "
    "snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor "
    "train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
CLASSES100 = tuple(NAMES100.split())
LOOKS = {  # mean and standard deviation per channel
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def load_layout(source: Source, layout: CifarLayout, class_names: tuple[str, ...]) -> Dataset:
    """The images with their original labels."""
    arrays, total = load_arrays(layout)
    parts = {}
    for part in ("train", "test"):
        truth = arrays[f"{part}_labels"].astype(np.int64)
        parts[part] = Samples(Resident(arrays[f"{part}_images"]), truth, np.arange(len(truth)), true=truth)
    mean, std = LOOKS[layout.name]
    return Dataset(
        name=source.name,
        kind="images",
        class_names=class_names,
        train=parts["train"],
        test=parts["test"],
        mean=mean,
        std=std,
        source_hash=total,
    )


@dataclass(frozen=True)
class Cifar10(Source):
    """Colour photographs of 32 x 32 pixels in 10 classes.

    Read from the official binary or Python version, packed or unpacked, or from a lossless WebP pack (cifar10.zip).
    """

    name: ClassVar[str] = "cifar10"
    citation: ClassVar[str] = (
        "A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images. Technical report, University of "
        "Toronto, 2009."
    )
    licence: ClassVar[str] = "not stated by the authors; cite them"
    classes: ClassVar[int] = 10
    train_samples: ClassVar[int] = 50000
    test_samples: ClassVar[int] = 10000

    def missing(self) -> list[str]:
        return CIFAR10.missing()

    def load(self) -> Dataset:
        return load_layout(self, CIFAR10, CLASSES10)


@dataclass(frozen=True)
class Cifar100(Source):
    """Colour photographs of 32 x 32 pixels in 100 classes (the fine labels).

    Read from the official binary or Python version, packed or unpacked.
    """

    name: ClassVar[str] = "cifar100"
    citation: ClassVar[str] = (
        "A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images. Technical report, University of "
        "Toronto, 2009."
    )
    licence: ClassVar[str] = "not stated by the authors; cite them"
    classes: ClassVar[int] = 100
    train_samples: ClassVar[int] = 50000
    test_samples: ClassVar[int] = 10000

    def missing(self) -> list[str]:
        return CIFAR100.missing()

    def load(self) -> Dataset:
        return load_layout(self, CIFAR100, CLASSES100)
