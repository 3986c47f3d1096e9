"""CIFAR-10N and CIFAR-100N: the CIFAR images with the labels that people gave them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedwinnow.data.cifar_forms import CIFAR10, CIFAR100
from fedwinnow.data.dataset import Dataset, Labels
from fedwinnow.data.pickles import read_torch
from fedwinnow.data.published_files import PublishedFile, content_hash, find_first, missing_line
from fedwinnow.data.source import Source
from fedwinnow.data.source_files import read_npz
from fedwinnow.data.sources.cifar import CLASSES10, CLASSES100, load_layout
from fedwinnow.errors import DataError
from fedwinnow.options import option

URL = "https://raw.githubusercontent.com/UCSC-REAL/cifar-10-100n/main/data"
PUBLISHER = "the authors of CIFAR-N, https://github.com/UCSC-REAL/cifar-10-100n"

# Official file first: it is the one that can be downloaded.
FILES10 = (
    PublishedFile("CIFAR-10_human.pt", f"{URL}/CIFAR-10_human.pt", PUBLISHER, folders=("", "cifar10n", "cifar-10n")),
    PublishedFile("cifar10n.npz", None, PUBLISHER, folders=("", "cifar10n", "cifar-10n")),
)
FILES100 = (
    PublishedFile(
        "CIFAR-100_human.pt", f"{URL}/CIFAR-100_human.pt", PUBLISHER, folders=("", "cifar100n", "cifar-100n")
    ),
    PublishedFile("cifar100n.npz", None, PUBLISHER, folders=("", "cifar100n", "cifar-100n")),
)

# our name -> the name in the official file, the name in the converted file
COLUMNS10 = {
    "clean": ("clean_label", "clean"),
    "aggregate": ("aggre_label", "aggre"),
    "random1": ("random_label1", "random1"),
    "random2": ("random_label2", "random2"),
    "random3": ("random_label3", "random3"),
    "worse": ("worse_label", "worse"),
}
COLUMNS100 = {"clean": ("clean_label", "clean"), "noisy": ("noisy_label", "noisy")}


def missing_labels(files: tuple[PublishedFile, ...]) -> list[str]:
    """A line if the human labels are missing in both forms."""
    official, converted = files
    return [] if any(file.find() for file in files) else [missing_line(official, [converted.name])]


def read_columns(
    files: tuple[PublishedFile, ...], columns: dict[str, tuple[str, str]]
) -> tuple[Path, dict[str, Labels]]:
    """Every column of labels by our name, and the file they came from."""
    found = find_first(files)
    path = found[1] if found is not None else files[0].fetch()
    official = path.suffix == ".pt"
    content: dict[Any, Any] = read_official(path) if official else dict(read_npz(path))
    labels = {}
    for name, keys in columns.items():
        key = keys[0 if official else 1]
        if key not in content:
            raise DataError(f"{path} has no '{key}'; it has {', '.join(map(str, content)) or 'nothing'}.")
        column = np.asarray(content[key])
        if column.ndim != 1 or column.dtype.kind not in "iu":
            raise DataError(f"{path}: '{key}' is not a list of whole numbers.")
        labels[name] = column.astype(np.int64)
    return path, labels


def read_official(path: Path) -> dict[Any, Any]:
    """The dictionary in the authors' file."""
    content = read_torch(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}; a dictionary of labels was expected.")
    return content


def with_human_labels(dataset: Dataset, path: Path, columns: dict[str, Labels], chosen: str) -> Dataset:
    """The data set with the labels that people gave; the original labels become the true ones."""
    truth = dataset.train.labels
    clean = columns["clean"]
    if len(clean) != len(truth):
        raise DataError(f"{path} has {len(clean)} labels for {len(truth)} training images; every image needs one.")
    if differing := int((clean != truth).sum()):
        raise DataError(
            f"{path}: the clean labels in it are not those of the training images: {differing} of {len(truth)} labels "
            "differ. CIFAR-N has the order of the official CIFAR files; TensorFlow Datasets has another order. Use the "
            "official CIFAR files for the images."
        )
    human = {name: column for name, column in columns.items() if name != "clean"}
    train = replace(dataset.train, labels=human[chosen], true=truth, human=human)
    images = np.frombuffer(dataset.source_hash.encode(), np.uint8)
    total = content_hash({"images": images} | columns)
    return replace(dataset, train=train, labels_trusted=False, source_hash=total)


@dataclass(frozen=True)
class Cifar10n(Source):
    """CIFAR-10 with labels that three people gave every training image; between 9 % and 40 % are wrong."""

    name: ClassVar[str] = "cifar10n"
    citation: ClassVar[str] = (
        "J. Wei, Z. Zhu, H. Cheng, T. Liu, G. Niu and Y. Liu: Learning with Noisy Labels Revisited: A Study Using "
        "Real-World Human Annotations. ICLR 2022."
    )
    licence: ClassVar[str] = "CC BY-NC 4.0"
    classes: ClassVar[int] = 10
    train_samples: ClassVar[int] = 50000
    test_samples: ClassVar[int] = 10000

    labels: Literal["aggregate", "random1", "random2", "random3", "worse"] = option(
        "aggregate", "Whose labels: the majority, one of three people, or a wrong one where any of them is wrong."
    )

    def missing(self) -> list[str]:
        return [*CIFAR10.missing(), *missing_labels(FILES10)]

    def load(self) -> Dataset:
        path, columns = read_columns(FILES10, COLUMNS10)
        return with_human_labels(load_layout(self, CIFAR10, CLASSES10), path, columns, self.labels)


@dataclass(frozen=True)
class Cifar100n(Source):
    """CIFAR-100 with a label that one person gave every training image; about 40 % are wrong."""

    name: ClassVar[str] = "cifar100n"
    citation: ClassVar[str] = (
        "J. Wei, Z. Zhu, H. Cheng, T. Liu, G. Niu and Y. Liu: Learning with Noisy Labels Revisited: A Study Using "
        "Real-World Human Annotations. ICLR 2022."
    )
    licence: ClassVar[str] = "CC BY-NC 4.0"
    classes: ClassVar[int] = 100
    train_samples: ClassVar[int] = 50000
    test_samples: ClassVar[int] = 10000

    labels: Literal["noisy"] = option("noisy", "Whose labels; there is one set.")

    def missing(self) -> list[str]:
        return [*CIFAR100.missing(), *missing_labels(FILES100)]

    def load(self) -> Dataset:
        path, columns = read_columns(FILES100, COLUMNS100)
        return with_human_labels(load_layout(self, CIFAR100, CLASSES100), path, columns, self.labels)
