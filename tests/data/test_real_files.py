"""The real published files, where FEDWINNOW_DATA has them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedwinnow.catalogue import make
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.load import load

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the module, so that the files are unpacked once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWINNOW_CACHE", str(cache))
    monkeypatch.setenv("FEDWINNOW_OFFLINE", "1")


def real(spec: str) -> Dataset:
    """The data set, or a skip that says which file is not there."""
    if lines := make("data", spec).missing():  # type: ignore[attr-defined]
        pytest.skip(f"{spec}: {lines[0]}")
    return load(spec)


def digest(array: np.ndarray, dtype: type) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, dtype=dtype).tobytes()).hexdigest()


@pytest.mark.parametrize("name", ["fashion-mnist", "mnist"])
def test_mnist(name: str) -> None:
    dataset = real(name)
    assert dataset.test is not None
    counts = [np.bincount(part.labels, minlength=10) for part in (dataset.train, dataset.test)]
    assert [int(count.sum()) for count in counts] == [60000, 10000]
    if name == "fashion-mnist":
        assert (counts[0] == 6000).all()
        assert (counts[1] == 1000).all()
    pixels = dataset.train.features.take(np.arange(60000)) / np.float32(255)
    assert (round(float(pixels.mean()), 4), round(float(pixels.std()), 4)) == (dataset.mean[0], dataset.std[0])


def test_cifar10() -> None:
    dataset = real("cifar10")
    assert dataset.test is not None
    expected = {
        "train_images": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "test_images": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    }
    for part, samples in (("train", dataset.train), ("test", dataset.test)):
        assert digest(samples.features.take(np.arange(len(samples))), np.uint8) == expected[f"{part}_images"]
        assert digest(samples.labels, np.uint8) == expected[f"{part}_labels"]


@pytest.mark.parametrize(
    ("labels", "wrong"),
    [("aggregate", 4505), ("random1", 8617), ("random2", 9061), ("random3", 8820), ("worse", 20104)],
)
def test_human_labels(labels: str, wrong: int) -> None:
    train = real(f"cifar10n:labels={labels}").train
    assert train.true is not None
    assert int((train.labels != train.true).sum()) == wrong
    assert (train.human[labels] == train.labels).all()


def test_part_of_a_set_is_enough_for_a_quick_run() -> None:
    dataset = real("cifar10:train=1000,test=200")
    assert (len(dataset.train), len(dataset.test or ())) == (1000, 200)
    assert dataset.source == "cifar10:train=1000,test=200"
