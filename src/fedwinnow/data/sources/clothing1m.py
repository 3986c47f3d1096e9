"""Clothing1M: photographs from web shops, labelled by the words around them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedwinnow.data.dataset import Dataset, Labels, Samples
from fedwinnow.data.photograph_lists import IMAGENET_MEAN, IMAGENET_STD, photographs, read_labelled, read_lines
from fedwinnow.data.published_files import PublishedFile, missing_line
from fedwinnow.data.source import Source
from fedwinnow.data.source_files import hash_of_files
from fedwinnow.errors import DataError
from fedwinnow.options import option

PUBLISHER = "Tong Xiao and others, on request: https://github.com/Cysu/noisy_label"
ROOTS = ("clothing1m", "clothing1M", "Clothing1M")
FOLDERS = (*ROOTS, *(f"{root}/annotations" for root in ROOTS))
LISTS = {
    name: PublishedFile(f"{name}.txt", None, PUBLISHER, folders=FOLDERS)
    for name in (
        "noisy_train_key_list",
        "noisy_label_kv",
        "clean_label_kv",
        "clean_test_key_list",
        "category_names_eng",
    )
}


@dataclass(frozen=True)
class Clothing1m(Source):
    """A million photographs of clothes in 14 classes; about 38 % of the labels are wrong.

    The training part is the noisy list, the test part the clean one. The photographs are in `images` beside the
    lists, or beside the folder `annotations` that holds the lists.
    """

    name: ClassVar[str] = "clothing1m"
    citation: ClassVar[str] = (
        "T. Xiao, T. Xia, Y. Yang, C. Huang and X. Wang: Learning from Massive Noisy Labeled Data for Image "
        "Classification. CVPR 2015."
    )
    licence: ClassVar[str] = "research and education only, no redistribution"
    classes: ClassVar[int] = 14
    train_samples: ClassVar[int] = 1000000
    test_samples: ClassVar[int] = 10526

    size: int = option(224, "Height and width to which every photograph is brought, in pixels.", at_least=8)

    def missing(self) -> list[str]:
        return [missing_line(file) for file in LISTS.values() if file.find() is None]

    def load(self) -> Dataset:
        lists = {name: file.fetch() for name, file in LISTS.items()}
        names = tuple(line for _, line in read_lines(lists["category_names_eng"]))
        noisy, clean = read_map(lists["noisy_label_kv"], len(names)), read_map(lists["clean_label_kv"], len(names))
        return Dataset(
            name=self.name,
            kind="images",
            class_names=names,
            train=self.part(lists["noisy_train_key_list"], lists["noisy_label_kv"], noisy, clean),
            test=self.part(lists["clean_test_key_list"], lists["clean_label_kv"], clean, clean),
            labels_trusted=False,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            source_hash=hash_of_files(list(lists.values())),
        )

    def part(self, keys: Path, where: Path, labels: dict[str, int], truth: dict[str, int]) -> Samples:
        """The photographs that a list names, with the truth where it is known for all of them."""
        lines = read_lines(keys)
        for number, name in lines:
            if name not in labels:
                raise DataError(f"{keys}, line {number}: {name} has no label in {where}.")
        names = [name for _, name in lines]
        root = keys.parent.parent if keys.parent.name == "annotations" else keys.parent
        known = column(names, truth) if all(name in truth for name in names) else None
        return photographs(keys, [root / name for name in names], names, column(names, labels), self.size, known)


def read_map(path: Path, classes: int) -> dict[str, int]:
    """Label by photograph."""
    names, labels = read_labelled(path, classes)
    return dict(zip(names, labels.tolist(), strict=True))


def column(names: list[str], labels: dict[str, int]) -> Labels:
    """The labels in the order of the names."""
    return np.array([labels[name] for name in names], dtype=np.int64)
