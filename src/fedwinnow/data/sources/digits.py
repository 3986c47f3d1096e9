"""Handwritten digits that come with fedwinnow: nothing to download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.data.published_files import content_hash
from fedwinnow.data.source import Source
from fedwinnow.data.source_files import read_npz


@dataclass(frozen=True)
class Digits(Source):
    """1,797 handwritten digits of 8 x 8 grey pixels, the data that come with fedwinnow.

    The 17 grey levels 0 to 16 are scaled to 0 to 255. There is no test part, so one is split off.
    """

    name: ClassVar[str] = "digits"
    citation: ClassVar[str] = (
        "E. Alpaydin and C. Kaynak: Optical Recognition of Handwritten Digits. UCI Machine Learning Repository, 1998."
    )
    licence: ClassVar[str] = "CC BY 4.0"
    classes: ClassVar[int] = 10
    train_samples: ClassVar[int] = 1797
    test_samples: ClassVar[int] = 0

    def load(self) -> Dataset:
        stored = read_npz(Path(__file__).with_suffix(".npz"))
        images = np.rint(stored["images"] * (255 / 16)).astype(np.uint8)[..., None]
        labels = stored["labels"].astype(np.int64)
        return Dataset(
            name=self.name,
            kind="images",
            class_names=tuple("0123456789"),
            train=Samples(Resident(images), labels, np.arange(len(labels)), true=labels),
            mean=(0.3053,),
            std=(0.3759,),
            source_hash=content_hash({"images": images, "labels": labels}),
        )
