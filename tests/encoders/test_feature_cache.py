"""The cache: the same bits however they come about, nothing encoded twice, nothing lost by a kill."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from PIL import Image

from fedwinnow.data.dataset import Resident, Texts
from fedwinnow.data.images import ImageFrame, LazyImages
from fedwinnow.data.pace import watched
from fedwinnow.encoders import feature_cache
from fedwinnow.encoders.encoder import OpenEncoder
from fedwinnow.encoders.feature_cache import FeatureCache, cached_bytes, clear_cache
from fedwinnow.errors import DataError, FedwinnowWarning


class Counting:
    """An encoder that doubles every number and counts what it is given."""

    def __init__(self, stops_after: int | None = None) -> None:
        self.rows, self.stops_after = 0, stops_after

    def __call__(self, batch):
        self.rows += len(batch)
        if self.stops_after is not None and self.rows > self.stops_after:
            raise KeyboardInterrupt
        return 2 * np.asarray(batch, np.float32)


def cache_of(encode, name="hash", width=3, batch=8) -> FeatureCache:
    return FeatureCache(OpenEncoder(width, name, encode, "numpy", batch), "double", "rows", (width,))


@pytest.fixture
def rows() -> np.ndarray:
    return np.arange(3 * 600, dtype=np.float32).reshape(600, 3) / 8


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDWINNOW_CACHE", os.fspath(tmp_path / "cache"))


def test_a_sample_is_encoded_once_also_in_another_split(rows):
    first, again = Counting(), Counting()
    found = cache_of(first).encoded(Resident(rows))
    assert first.rows == 600
    assert np.array_equal(found.raw(np.arange(600)), 2 * rows)
    other = cache_of(again).encoded(Resident(rows[[599, 3, 3, 17]]))
    assert again.rows == 0
    assert np.array_equal(other.raw(np.arange(4)), 2 * rows[[599, 3, 3, 17]])
    assert isinstance(found.segments[0], np.memmap)


def test_a_changed_sample_and_other_weights_are_noticed(rows):
    cache_of(Counting()).encoded(Resident(rows))
    changed, again, other = rows.copy(), Counting(), Counting()
    changed[5, 0] += 1
    found = cache_of(again).encoded(Resident(changed))
    assert again.rows == 8  # one batch, filled up
    assert np.array_equal(found.raw(np.arange(600)), 2 * changed)
    assert len(found.segments) == 2
    cache_of(other, name="another hash").encoded(Resident(rows[:8]))
    assert other.rows == 8


def test_a_kill_loses_at_most_a_part(rows):
    stopped = Counting(stops_after=300)
    with pytest.raises(KeyboardInterrupt):
        cache_of(stopped).encoded(Resident(rows), workers=1)
    assert [path.name.partition("-")[0] for path in folder_of().glob("*.ids.npy")] == ["part"]
    again = Counting()
    found = cache_of(again).encoded(Resident(rows))
    assert again.rows == 600 - feature_cache.PART  # 344, a multiple of the batch
    assert np.array_equal(found.raw(np.arange(600)), 2 * rows)
    assert [path.name.partition("-")[0] for path in folder_of().glob("*.ids.npy")] == ["rows"]


def folder_of():
    (folder,) = feature_cache.features_folder().iterdir()
    return folder


def test_rows_without_keys_do_not_count(rows):
    cache_of(Counting()).encoded(Resident(rows[:8]))
    next(folder_of().glob("*.ids.npy")).unlink()
    again = Counting()
    cache_of(again).encoded(Resident(rows[:16]))
    assert again.rows == 16
    assert len(list(folder_of().glob("*.npy"))) == 2


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b""), lambda path: os.truncate(path, 200)])
@pytest.mark.parametrize("ending", [".ids.npy", ".npy"])
def test_a_damaged_file_is_encoded_again_with_a_warning(rows, damage, ending):
    cache_of(Counting()).encoded(Resident(rows))
    ids = next(folder_of().glob("*.ids.npy"))
    damage(ids if ending == ".ids.npy" else ids.with_name(ids.name.replace(".ids", "")))
    again = Counting()
    with pytest.warns(FedwinnowWarning, match="damaged .*; these samples are encoded again"):
        found = cache_of(again).encoded(Resident(rows))
    assert again.rows == 600
    assert np.array_equal(found.raw(np.arange(600)), 2 * rows)


def test_a_cache_that_cannot_be_written_only_warns(rows, tmp_path):
    (tmp_path / "cache").write_text("a file in the place of the folder")
    with pytest.warns(FedwinnowWarning, match="cannot be kept here"):
        found = cache_of(Counting()).encoded(Resident(rows))
    assert np.array_equal(found.raw(np.arange(600)), 2 * rows)


def test_a_full_disk_keeps_what_is_there(rows, monkeypatch):
    written = FeatureCache.write_part

    def full(self, part, keys):
        if list(self.folder.glob("part-*.ids.npy")):
            raise OSError(28, "No space left on device")
        return written(self, part, keys)

    monkeypatch.setattr(FeatureCache, "write_part", full)
    with pytest.warns(FedwinnowWarning, match="No space left on device"):
        found = cache_of(Counting()).encoded(Resident(rows))
    assert np.array_equal(found.raw(np.arange(600)), 2 * rows)
    monkeypatch.undo()


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_and_the_order_change_no_bit(workers, tmp_path, monkeypatch):
    import torch

    weight = torch.randn(50, 20, generator=torch.Generator().manual_seed(0))
    stored = np.random.default_rng(0).normal(size=(300, 50)).astype(np.float32)

    def encode(batch):
        return (torch.from_numpy(np.array(batch)) @ weight).numpy()

    found = []
    for number, order in enumerate((np.arange(300), np.random.default_rng(1).permutation(300))):
        monkeypatch.setenv("FEDWINNOW_CACHE", os.fspath(tmp_path / f"{workers}-{number}"))
        cache = FeatureCache(OpenEncoder(20, "h", encode, "torch", 32), "x", "rows", (50,))
        back = np.argsort(order)
        found.append(cache.encoded(Resident(stored[order]), workers=workers).raw(back))
    expected = np.concatenate([encode(stored[start : start + 32]) for start in range(0, 288, 32)])
    assert np.array_equal(found[0][:288], expected.astype(np.float16))
    assert np.array_equal(found[0], found[1])


def test_features_that_are_no_numbers_are_refused(rows):
    def nan_in_third(batch):
        found = np.asarray(batch, np.float32).copy()
        found[found[:, 0] == rows[2, 0]] = np.nan
        return found

    with pytest.raises(DataError, match=r"the features of sample 3 \(index 2\) are not finite"):
        cache_of(nan_in_third).encoded(Resident(rows))
    with pytest.raises(DataError, match="a feature has the value 1e\\+06; allowed: up to 65504"):
        cache_of(lambda batch: np.full((len(batch), 3), 1e6), name="large").encoded(Resident(rows))
    with pytest.raises(DataError, match=r"the shape \(8, 2\) for 8 samples; needed: \(8, 3\)"):
        cache_of(lambda batch: np.zeros((len(batch), 2)), name="narrow").encoded(Resident(rows))


def test_texts_and_image_files_have_keys_too(tmp_path):
    seen: list[str] = []

    def lengths(batch):
        seen.extend(batch)
        return np.array([[len(text)] for text in batch], np.float32)

    cache = FeatureCache(OpenEncoder(1, "h", lengths, "numpy", 2), "x", "texts", ())
    assert cache.encoded(Texts(["a", "bb", "ccc"])).raw(np.arange(3)).tolist() == [[1], [2], [3]]
    count = len(seen)
    assert cache.encoded(Texts(["ccc", "a"])).raw(np.arange(2)).tolist() == [[3], [1]]
    assert len(seen) == count
    paths = [tmp_path / f"{number}.png" for number in range(2)]
    for number, path in enumerate(paths):
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(path)
    images = LazyImages(tuple(map(str, paths)), ImageFrame(4, 4, 3))
    means = Means()
    pictures = FeatureCache(OpenEncoder(1, "h", means, "numpy", 2), "x", "images", (4, 4, 3))
    assert pictures.encoded(images).raw(np.arange(2)).tolist() == [[0], [1]]
    Image.fromarray(np.full((4, 4, 3), 9, np.uint8)).save(paths[1])
    assert pictures.encoded(images).raw(np.arange(2)).tolist() == [[0], [9]]


class Means:
    def __call__(self, batch):
        return np.asarray(batch, np.float32).mean(axis=(1, 2, 3))[:, None]


def test_progress_counts_up_and_the_cache_can_be_cleared(rows):
    told: list[tuple[int, int]] = []
    with watched(lambda now: told.append((now.done, now.total))):
        cache_of(Counting()).encoded(Resident(rows))
    assert told == [(256, 600), (512, 600), (600, 600)]
    assert cached_bytes() > 600 * 3 * 2
    assert clear_cache() > 600 * 3 * 2
    assert cached_bytes() == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert clear_cache() == 0
