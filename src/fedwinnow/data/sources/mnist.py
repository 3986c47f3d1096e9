"""MNIST and Fashion-MNIST, from the four official IDX files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.data.idx import read_idx
from fedwinnow.data.published_files import PublishedFile, content_hash, find_first, missing_line
from fedwinnow.data.source import Source

MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist"
MNIST_PUBLISHER = "Yann LeCun, Corinna Cortes and Christopher Burges, http://yann.lecun.com/exdb/mnist/"
MNIST_FOLDERS = ("mnist", "MNIST/raw", "MNIST")
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FASHION_PUBLISHER = "Zalando Research, https://github.com/zalandoresearch/fashion-mnist"
FASHION_FOLDERS = ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw")

MNIST_FILES = tuple(
    PublishedFile(f"{stem}.gz", f"{MNIST_URL}/{stem}.gz", MNIST_PUBLISHER, f"md5:{md5}", size, MNIST_FOLDERS)
    for stem, md5, size in (
        ("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9912422),
        ("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432", 28881),
        ("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3", 1648877),
        ("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c", 4542),
    )
)
FASHION_FILES = tuple(
    PublishedFile(f"{stem}.gz", f"{FASHION_URL}/{stem}.gz", FASHION_PUBLISHER, f"md5:{md5}", size, FASHION_FOLDERS)
    for stem, md5, size in (
        ("train-images-idx3-ubyte", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26421880),
        ("train-labels-idx1-ubyte", "25c81989df183df01b3e8a0aad5dffbe", 29515),
        ("t10k-images-idx3-ubyte", "bef4ecab320f06d8554ea6380940ec79", 4422102),
        ("t10k-labels-idx1-ubyte", "bb300cfdad3c16e7a12a480ee83cd310", 5148),
    )
)


def unpacked(file: PublishedFile) -> PublishedFile:
    """The same file after gunzip; it has no published checksum."""
    return replace(file, name=file.name.removesuffix(".gz"), checksum=None, size=None)


def place(file: PublishedFile) -> Path:
    """The path of the file, unpacked or packed; a missing file is downloaded."""
    found = find_first([unpacked(file), file])
    return file.fetch() if found is None else found[1]


def missing_files(files: tuple[PublishedFile, ...]) -> list[str]:
    """A line for every file that is missing in both forms."""
    return [
        missing_line(file, [unpacked(file).name])
        for file in files
        if file.find() is None and unpacked(file).find() is None
    ]


def read_part(images: PublishedFile, labels: PublishedFile) -> Samples:
    """The training or the test part."""
    pixels = read_idx(place(images), 3)[..., None]
    truth = read_idx(place(labels), 1).astype(np.int64)
    return Samples(Resident(pixels), truth, np.arange(len(truth)), true=truth)


def load_files(
    source: Source, files: tuple[PublishedFile, ...], class_names: tuple[str, ...], mean: float, std: float
) -> Dataset:
    """The data set in four IDX files."""
    train, test = read_part(*files[:2]), read_part(*files[2:])
    pixels = {name: part.features.take(np.arange(len(part))) for name, part in (("train", train), ("test", test))}
    return Dataset(
        name=source.name,
        kind="images",
        class_names=class_names,
        train=train,
        test=test,
        mean=(mean,),
        std=(std,),
        source_hash=content_hash(pixels | {"train_labels": train.labels, "test_labels": test.labels}),
    )


@dataclass(frozen=True)
class Mnist(Source):
    """Handwritten digits of 28 x 28 grey pixels."""

    name: ClassVar[str] = "mnist"
    citation: ClassVar[str] = (
        "Y. LeCun, L. Bottou, Y. Bengio and P. Haffner: Gradient-Based Learning Applied to Document Recognition. "
        "Proceedings of the IEEE 86(11), 1998."
    )
    licence: ClassVar[str] = "not stated by the authors; cite them"
    classes: ClassVar[int] = 10
    train_samples: ClassVar[int] = 60000
    test_samples: ClassVar[int] = 10000

    def missing(self) -> list[str]:
        return missing_files(MNIST_FILES)

    def load(self) -> Dataset:
        return load_files(self, MNIST_FILES, tuple("0123456789"), 0.1307, 0.3081)


@dataclass(frozen=True)
class FashionMnist(Source):
    """Photographs of clothes, 28 x 28 grey pixels: as small as MNIST, but harder."""

    name: ClassVar[str] = "fashion-mnist"
    citation: ClassVar[str] = (
        "H. Xiao, K. Rasul and R. Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning "
        "Algorithms. arXiv:1708.07747, 2017."
    )
    licence: ClassVar[str] = "MIT"
    classes: ClassVar[int] = 10
    train_samples: ClassVar[int] = 60000
    test_samples: ClassVar[int] = 10000
    class_names: ClassVar[tuple[str, ...]] = (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )

    def missing(self) -> list[str]:
        return missing_files(FASHION_FILES)

    def load(self) -> Dataset:
        return load_files(self, FASHION_FILES, self.class_names, 0.2860, 0.3530)
