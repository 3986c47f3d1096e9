"""The digits of scikit-learn, and MNIST and Fashion-MNIST from small files in the official format."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedwinnow.catalogue import entries, make
from fedwinnow.data import published_files
from fedwinnow.data.source import Source
from fedwinnow.errors import DataError


def source(spec: str) -> Source:
    part = make("data", spec)
    assert isinstance(part, Source)
    return part


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def write_set(folder: Path, packed: bool) -> np.ndarray:
    """20 training and 10 test images, two and one of each class; gives the training images."""
    folder.mkdir(parents=True)
    images = np.random.RandomState(0).randint(0, 256, (30, 28, 28))
    labels = np.tile(np.arange(10), 3)
    for part, rows in (("train", slice(20)), ("t10k", slice(20, 30))):
        for kind, array in (("images-idx3", images[rows]), ("labels-idx1", labels[rows])):
            raw = idx(array)
            name = f"{part}-{kind}-ubyte"
            (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(raw) if packed else raw)
    return images[:20]


def test_digits() -> None:
    dataset = source("digits").load()
    images = dataset.train.features.take(np.arange(1797))
    assert images.shape == (1797, 8, 8, 1)
    assert images.dtype == np.uint8
    # The first row of the first digit is 0 0 5 13 9 1 0 0 in sixteenths.
    assert images[0, 0, :, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]
    assert images.max() == 255
    assert dataset.train.labels[:10].tolist() == list(range(10))
    assert dataset.test is None
    assert dataset.labels_trusted
    assert source("digits").missing() == []


@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "mnist"), ("fashion-mnist", "fashion_mnist"), ("fashion-mnist", "fashion-mnist")]
)
def test_unpacked_files(data_folder: Path, name: str, folder: str) -> None:
    images = write_set(data_folder / folder, packed=False)
    assert source(name).missing() == []
    dataset = source(name).load()
    assert (dataset.train.features.take(np.arange(20))[..., 0] == images).all()
    assert dataset.train.labels.tolist() == [*range(10), *range(10)]
    assert dataset.test is not None
    assert len(dataset.test) == 10
    assert dataset.sample_shape == (28, 28, 1)
    assert (dataset.mean, dataset.std) == (((0.1307,), (0.3081,)) if name == "mnist" else ((0.2860,), (0.3530,)))


def test_packed_files_give_the_same(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(data_folder / "mnist", packed=True)
    with pytest.raises(DataError, match="the published file has 9912422"):
        source("mnist").load()
    monkeypatch.setattr(published_files, "verify", lambda file, path: None)
    packed = source("mnist").load()
    write_set(data_folder / "fashion_mnist", packed=False)
    assert packed.source_hash == source("fashion-mnist").load().source_hash


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (idx(np.zeros((2, 28, 28)))[:-1], "announces 1568 values and holds 1567"),
        (idx(np.zeros(4)), "not an IDX file of unsigned bytes with 3 dimensions"),
        (b"", "not an IDX file"),
        (gzip.compress(b"abc", mtime=0)[:-9], "cannot be read"),
    ],
)
def test_broken_file(data_folder: Path, content: bytes, reason: str) -> None:
    write_set(data_folder / "mnist", packed=False)
    (data_folder / "mnist" / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(DataError, match=reason) as caught:
        source("mnist").load()
    assert "train-images-idx3-ubyte" in str(caught.value)


def test_missing_lines(data_folder: Path) -> None:
    write_set(data_folder / "mnist", packed=False)
    (data_folder / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    (line,) = source("mnist").missing()
    assert line.startswith("t10k-labels-idx1-ubyte.gz or t10k-labels-idx1-ubyte: not in ")
    assert str(data_folder / "mnist") in line
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is missing"):
        source("mnist").load()


CATALOGUE = "agnews cifar10 cifar100 cifar10n cifar100n clothing1m digits fashion-mnist ich isic2019 mnist webvision"


@pytest.mark.parametrize("name", CATALOGUE.split())
def test_every_set_has_its_facts_and_says_what_is_missing(data_folder: Path, name: str) -> None:
    facts = entries("data")[name].facts
    assert facts["citation"]
    assert facts["licence"]
    lines = source(name).missing()
    assert all(str(data_folder) in line for line in lines)
    assert bool(lines) == (name != "digits")
    if lines:
        with pytest.raises(DataError, match="is missing"):
            source(name).load()
