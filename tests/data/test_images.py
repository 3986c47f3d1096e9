"""Images from files: one size, a cache, and the same pixels whether resident or lazy."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedwinnow.data import images
from fedwinnow.data.dataset import Resident
from fedwinnow.data.images import LazyImages, channel_statistics, load_images
from fedwinnow.data.load import load
from fedwinnow.errors import DataError


def picture(path: Path, size: tuple[int, int] = (8, 6), number: int = 0, mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    values = np.arange(size[0] * size[1] * int(np.prod(channels)), dtype=np.int64) * 7 + number * 31
    Image.fromarray((values % 256).astype(np.uint8).reshape(size[1], size[0], *channels)).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        for number in range(5):
            picture(tmp_path / "set" / name / f"{number}.png", (8, 6) if number else (13, 9), number)
    picture(tmp_path / "set" / "dog" / "deep" / "x.JPG", number=9)
    (tmp_path / "set" / "dog" / "notes.txt").write_text("no image")
    (tmp_path / "set" / ".hidden").mkdir()
    picture(tmp_path / "set" / "dog" / ".ipynb_checkpoints" / "1-checkpoint.png")
    return tmp_path / "set"


def pixels(samples) -> np.ndarray:
    return samples.features.take(np.arange(len(samples)))


def test_a_folder_per_class(folder):
    dataset = load(folder)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.labels.tolist() == [0] * 5 + [1] * 6
    assert dataset.train.ids.tolist() == [
        *(f"cat/{number}.png" for number in range(5)),
        *(f"dog/{number}.png" for number in range(5)),
        "dog/deep/x.JPG",
    ]
    assert dataset.sample_shape == (6, 8, 3)  # the most common size
    assert (pixels(dataset.train)[1] == np.asarray(Image.open(folder / "cat" / "1.png"))).all()
    assert not dataset.labels_trusted


def test_train_and_test_folders(tmp_path):
    for part in ("train", "test"):
        for name in ("a", "b"):
            picture(tmp_path / part / name / "0.png", mode="L" if part == "train" else "RGB")
    dataset = load(tmp_path)
    assert dataset.class_names == ("a", "b")
    assert dataset.test.ids.tolist() == ["test/a/0.png", "test/b/0.png"]
    assert dataset.sample_shape == dataset.test.features.shape == (6, 8, 3)  # colour, because one part has it
    (tmp_path / "test").rename(tmp_path / "val")
    with pytest.raises(DataError, match="no such test/"):
        load(tmp_path)


def test_grey_stays_grey_and_a_size_may_be_asked_for(tmp_path):
    for name in ("a", "b"):
        picture(tmp_path / name / "0.png", mode="L")
    assert load(f"folder:path={tmp_path}").sample_shape == (6, 8, 1)
    assert load(f"folder:path={tmp_path},size=4").sample_shape == (4, 4, 1)


@pytest.mark.parametrize("size", ["none", "5", "20"])
def test_lazy_and_resident_pixels_are_the_same(folder, size):
    resident = load(f"folder:path={folder},size={size},lazy=false")
    lazy = load(f"folder:path={folder},size={size},lazy=true")
    assert isinstance(resident.train.features, Resident)
    assert isinstance(lazy.train.features, LazyImages)
    assert (pixels(resident.train) == pixels(lazy.train)).all()
    assert (resident.mean, resident.std) == (lazy.mean, lazy.std)
    assert resident.fingerprint() == lazy.fingerprint()
    rows = np.array([7, 2, 2])
    assert (lazy.train.subset(rows).features.take(np.array([2, 0])) == pixels(resident.train)[[2, 7]]).all()


def test_auto_is_lazy_only_when_the_set_is_large(folder, monkeypatch):
    assert isinstance(load(folder).train.features, Resident)
    monkeypatch.setattr(images, "LARGEST_RESIDENT", 11 * 6 * 8 * 3 - 1)
    assert isinstance(load(folder).train.features, LazyImages)


def test_a_stream_decodes_one_batch_ahead_and_no_more(folder):
    features = load(f"folder:path={folder},lazy=true").train.features
    asked = []

    def batches():
        for start in range(0, 10, 2):
            asked.append(start)
            yield np.array([start, start + 1])

    stream = features.stream(batches())
    got = [next(stream)]
    assert asked == [0, 2]
    got.append(next(stream))
    assert asked == [0, 2, 4]
    got += stream
    assert (np.concatenate(got) == features.take(np.arange(10))).all()
    assert list(features.stream([])) == []


def test_decoding_happens_once(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDWINNOW_CACHE", str(tmp_path / "cache"))
    first = pixels(load(folder).train)
    (cached,) = (tmp_path / "cache" / "images").iterdir()
    monkeypatch.setattr(images, "read", None)  # decoding again would fail
    mapped = load(folder).train.features
    assert isinstance(mapped.array, np.memmap)
    assert (mapped.take(np.arange(len(mapped))) == first).all()
    monkeypatch.undo()
    monkeypatch.setenv("FEDWINNOW_CACHE", str(tmp_path / "cache"))
    cached.write_bytes(b"damaged")
    assert (pixels(load(folder).train) == first).all()


def test_a_changed_file_is_decoded_again(folder):
    before = pixels(load(folder).train)
    path = folder / "cat" / "1.png"
    status = path.stat()
    picture(path, number=77)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    after = pixels(load(folder).train)
    assert (before[1] != after[1]).any()
    assert (before[2:] == after[2:]).all()


def test_without_a_place_for_the_cache_pixels_stay_in_memory(folder, monkeypatch, tmp_path):
    (tmp_path / "occupied").write_text("a file where a folder is wanted")
    monkeypatch.setenv("FEDWINNOW_CACHE", str(tmp_path / "occupied"))
    assert len(pixels(load(folder).train)) == 11


def test_a_broken_image_leaves_nothing_half_written(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDWINNOW_CACHE", str(tmp_path / "cache"))
    whole = (folder / "cat" / "2.png").read_bytes()
    (folder / "cat" / "2.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cat/2\.png: not a readable image"):
        load(f"folder:path={folder},lazy=false")
    assert list((tmp_path / "cache" / "images").iterdir()) == []
    (folder / "cat" / "2.png").write_bytes(b"text")
    with pytest.raises(DataError, match=r"cat/2\.png: not a readable image"):
        load(f"folder:path={folder},lazy=true")


def test_sixteen_bits_keep_their_upper_byte(tmp_path):
    values = np.array([[0, 256, 4096], [32768, 65535, 255]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    features = load_images([tmp_path / "deep.png"], None, "false", ["deep.png"])
    assert features.take(np.array([0]))[0, :, :, 0].tolist() == [[0, 1, 16], [128, 255, 0]]


def test_floating_point_images_are_refused(tmp_path):
    Image.new("F", (2, 2), 0.5).save(tmp_path / "float.tif")
    with pytest.raises(DataError, match=r"float\.tif: images of floating point"):
        load_images([tmp_path / "float.tif"], None, "false", ["float.tif"])


def test_with_size_and_channels_known_no_file_is_opened():
    features = load_images([Path("nowhere.jpg")], (4, 6), "true", ["nowhere.jpg"], channels=3)
    assert features.shape == (4, 6, 3)
    with pytest.raises(DataError, match=r"nowhere\.jpg: there is no such file"):
        features.take(np.array([0]))


def test_statistics_by_hand():
    array = np.array([[[[0, 255]]], [[[255, 255]]]], dtype=np.uint8)
    mean, std = channel_statistics(Resident(array))
    assert mean == (0.5, 1.0)
    assert std == (0.5, 1.0)  # a constant channel is not divided by zero


def test_folders_that_do_not_fit(tmp_path, folder):
    with pytest.raises(DataError, match="there is no folder"):
        load(f"folder:path={tmp_path / 'none'}")
    with pytest.raises(DataError, match="is a file"):
        load(f"folder:path={folder / 'dog' / 'notes.txt'}")
    with pytest.raises(DataError, match="one folder per class"):
        load(folder / "cat")
    (folder / "bird").mkdir()
    with pytest.raises(DataError, match="bird has no image in it"):
        load(folder)


def test_a_test_class_nobody_trains_on(tmp_path):
    for name in ("train/a", "train/b", "test/c"):
        picture(tmp_path / name / "0.png")
    with pytest.raises(DataError, match="no training folder has the name 'c'"):
        load(tmp_path)


def test_the_hash_tells_names_and_sizes(folder):
    before = load(folder).source_hash
    assert load(folder).source_hash == before
    (folder / "cat" / "4.png").rename(folder / "cat" / "5.png")
    assert load(folder).source_hash != before
