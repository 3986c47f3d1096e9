"""WebVision 1.0: photographs that a search engine found for the names of ImageNet's classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedwinnow.data.dataset import Dataset, Samples
from fedwinnow.data.photograph_lists import IMAGENET_MEAN, IMAGENET_STD, photographs, read_labelled, read_lines
from fedwinnow.data.published_files import PublishedFile, missing_line
from fedwinnow.data.source import Source
from fedwinnow.data.source_files import hash_of_files
from fedwinnow.errors import DataError
from fedwinnow.options import option

PUBLISHER = "ETH Zurich, https://data.vision.ee.ethz.ch/cvl/webvision/download.html"
FOLDERS = tuple(f"{root}/info" for root in ("webvision", "WebVision", "webvision1.0"))
LISTS = {
    name: PublishedFile(f"{name}.txt", None, PUBLISHER, folders=FOLDERS)
    for name in ("train_filelist_google", "val_filelist", "synsets")
}

# The folders of the archives of full and of resized photographs, below the root.
TRAIN_FOLDERS = ("", "google_resized_256", "train", "resized")
VAL_FOLDERS = ("val_images_256", "val_images_resized", "val_images", "val", "resized/val", "")


def photograph_folder(root: Path, candidates: tuple[str, ...], name: str) -> Path:
    """The folder that has the first photograph of a list."""
    for candidate in candidates:
        if (root / candidate / name).is_file():
            return root / candidate
    looked = ", ".join(str(root / candidate) for candidate in candidates)
    raise DataError(f"{name} is missing; looked below {looked}. Get the photographs from {PUBLISHER}.")


@dataclass(frozen=True)
class Webvision(Source):
    """Photographs from the web in the classes of ImageNet, by default the first 50 (mini-WebVision).

    The training part is what Google found, the test part the validation list, which people checked.
    """

    name: ClassVar[str] = "webvision"
    citation: ClassVar[str] = (
        "W. Li, L. Wang, W. Li, E. Agustsson and L. Van Gool: WebVision Database: Visual Learning and Understanding "
        "from Web Data. arXiv:1708.02862, 2017."
    )
    licence: ClassVar[str] = "research only; the photographs belong to their owners"
    train_samples: ClassVar[int] = 65944
    test_samples: ClassVar[int] = 2500

    classes: int = option(50, "How many classes, counted from the first.", at_least=2, at_most=1000)
    size: int = option(224, "Height and width to which every photograph is brought, in pixels.", at_least=8)

    def missing(self) -> list[str]:
        return [missing_line(file) for file in LISTS.values() if file.find() is None]

    def load(self) -> Dataset:
        lists = {name: file.fetch() for name, file in LISTS.items()}
        names = class_names(lists["synsets"])
        if len(names) < self.classes:
            raise DataError(f"{lists['synsets']} names {len(names)} classes; classes={self.classes} was given.")
        return Dataset(
            name=self.name,
            kind="images",
            class_names=names[: self.classes],
            train=self.part(lists["train_filelist_google"], len(names), TRAIN_FOLDERS),
            test=self.part(lists["val_filelist"], len(names), VAL_FOLDERS),
            labels_trusted=False,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            source_hash=hash_of_files(list(lists.values())),
        )

    def part(self, path: Path, all_classes: int, candidates: tuple[str, ...]) -> Samples:
        """The photographs of the chosen classes."""
        names, labels = read_labelled(path, all_classes)
        rows = np.flatnonzero(labels < self.classes)
        if not len(rows):
            raise DataError(f"{path} names no photograph of the first {self.classes} classes.")
        chosen = [names[row] for row in rows]
        folder = photograph_folder(path.parent.parent, candidates, chosen[0])
        return photographs(path, [folder / name for name in chosen], chosen, labels[rows], self.size)


def class_names(path: Path) -> tuple[str, ...]:
    """The name of every class; if two classes have the same name, the class's number in WordNet is added."""
    entries = [line.partition(" ") for _, line in read_lines(path)]
    words = [rest.strip() or synset for synset, _, rest in entries]
    return tuple(
        f"{word} ({synset})" if words.count(word) > 1 else word
        for word, (synset, _, _) in zip(words, entries, strict=True)
    )
