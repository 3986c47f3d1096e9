"""CIFAR-10, CIFAR-100 and the human labels, from small files in every published form."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedwinnow.catalogue import make
from fedwinnow.data import published_files
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.source import Source
from fedwinnow.errors import DataError

RANDOM = np.random.RandomState(0)
PIXELS = RANDOM.randint(0, 256, (120, 3072)).astype(np.uint8)
LABELS = {10: np.tile(np.arange(10), 12).astype(np.uint8), 100: (np.arange(120) % 100).astype(np.uint8)}
FOLDERS = {
    (10, "binary"): "cifar-10-batches-bin",
    (10, "python"): "cifar-10-batches-py",
    (100, "binary"): "cifar-100-binary",
    (100, "python"): "cifar-100-python",
}
MEMBERS = {10: [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"], 100: ["train", "test"]}
ROWS = {10: np.split(np.arange(120), [20, 40, 60, 80, 100]), 100: np.split(np.arange(120), [100])}


def source(spec: str) -> Source:
    part = make("data", spec)
    assert isinstance(part, Source)
    return part


def content(number: int, form: str, rows: np.ndarray) -> bytes:
    labels = LABELS[number][rows]
    if form == "python":
        key = "labels" if number == 10 else "fine_labels"
        batch = {b"data": PIXELS[rows], key.encode(): labels.tolist(), b"coarse_labels": [0] * len(rows)}
        return pickle.dumps(batch, protocol=2)
    before = [labels[:, None]] if number == 10 else [np.full((len(rows), 1), 7, np.uint8), labels[:, None]]
    return np.concatenate([*before, PIXELS[rows]], axis=1).tobytes()


def write_folder(root: Path, number: int, form: str) -> Path:
    folder = root / FOLDERS[number, form]
    folder.mkdir(parents=True)
    suffix = ".bin" if form == "binary" else ""
    for member, rows in zip(MEMBERS[number], ROWS[number], strict=True):
        (folder / f"{member}{suffix}").write_bytes(content(number, form, rows))
    return folder


def write_archive(root: Path, number: int, form: str) -> Path:
    folder = write_folder(root / "unpacked-elsewhere", number, form)
    path = root / f"cifar-{number}-{form}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    return path


def write_pack(path: Path) -> None:
    def mosaic(images: np.ndarray) -> bytes:
        filled = np.zeros((256, 32, 32, 3), np.uint8)
        filled[: len(images)] = images
        tiles = filled.reshape(16, 16, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(512, 512, 3)
        stream = io.BytesIO()
        Image.fromarray(tiles).save(stream, "WEBP", lossless=True, quality=0)
        return stream.getvalue()

    images = PIXELS.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    with zipfile.ZipFile(path, "w") as archive:
        for part, rows in (("train", slice(100)), ("test", slice(100, 120))):
            archive.writestr(f"{part}/000.webp", mosaic(images[rows]))
            stream = io.BytesIO()
            np.save(stream, LABELS[10][rows])
            archive.writestr(f"{part}_labels.npy", stream.getvalue())


def check(dataset: Dataset, number: int) -> None:
    assert (len(dataset.train), len(dataset.test or ())) == (100, 20)
    assert dataset.classes == number
    assert dataset.train.labels.tolist() == LABELS[number][:100].tolist()
    images = dataset.train.features.take(np.arange(100))
    # Red, green and blue of the pixel in row 2, column 5 lie 1024 bytes apart.
    assert images[:, 2, 5].tolist() == PIXELS[:100][:, [69, 1093, 2117]].tolist()


@pytest.mark.parametrize("number", [10, 100])
@pytest.mark.parametrize("form", ["binary", "python"])
@pytest.mark.parametrize("packed", [True, False])
def test_official_forms(
    data_folder: Path, number: int, form: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (write_archive if packed else write_folder)(data_folder, number, form)
    if packed:
        with pytest.raises(DataError, match=r"tar\.gz has \d+ bytes, the published file has 1"):
            source(f"cifar{number}").load()
    monkeypatch.setattr(published_files, "verify", lambda file, path: None)
    assert source(f"cifar{number}").missing() == []
    check(source(f"cifar{number}").load(), number)


def test_lossless_pack(data_folder: Path) -> None:
    write_pack(data_folder / "cifar10.zip")
    check(source("cifar10").load(), 10)


def test_every_form_has_the_same_hash_and_is_mapped_the_second_time(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pack(data_folder / "cifar10.zip")
    hashes = {source("cifar10").load().source_hash}
    write_folder(data_folder, 10, "python")
    hashes.add(source("cifar10").load().source_hash)
    write_folder(data_folder, 10, "binary")
    hashes.add(source("cifar10").load().source_hash)
    assert len(hashes) == 1
    monkeypatch.setattr("fedwinnow.data.cifar_arrays.read_form", None)
    dataset = source("cifar10").load()
    check(dataset, 10)
    assert isinstance(dataset.train.features.array, np.memmap)  # type: ignore[attr-defined]


def test_changed_file_is_converted_again(data_folder: Path) -> None:
    folder = write_folder(data_folder, 100, "binary")
    first = source("cifar100").load()
    (folder / "test.bin").write_bytes(content(100, "binary", ROWS[100][1][:5]))
    second = source("cifar100").load()
    assert first.test is not None
    assert second.test is not None
    assert (len(first.test), len(second.test)) == (20, 5)


def test_cache_that_cannot_be_written(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(data_folder, 10, "binary")
    monkeypatch.setenv("FEDWINNOW_CACHE", str(folder / "test_batch.bin" / "below-a-file"))
    check(source("cifar10").load(), 10)


def test_broken_cache_is_made_again(data_folder: Path, tmp_path: Path) -> None:
    write_folder(data_folder, 10, "binary")
    source("cifar10").load()
    (broken,) = (tmp_path / "cache" / "converted").rglob("train_images.npy")
    broken.write_bytes(b"")
    check(source("cifar10").load(), 10)


def test_incomplete_and_broken_files(data_folder: Path) -> None:
    folder = write_folder(data_folder, 10, "binary")
    (folder / "data_batch_3.bin").write_bytes(b"x" * 3074)
    with pytest.raises(DataError, match=r"data_batch_3\.bin.*3074 bytes, which is not a multiple of 3073"):
        source("cifar10").load()
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_3\.bin is missing; the folder .* is not complete"):
        source("cifar10").load()


def test_python_batch_without_labels(data_folder: Path) -> None:
    folder = write_folder(data_folder, 100, "python")
    for wrong in (
        {"data": PIXELS[:1]},
        {"data": PIXELS[:2], "fine_labels": [0]},
        {"data": PIXELS[:1], "fine_labels": 0},
        [1],
        1,
    ):
        (folder / "train").write_bytes(pickle.dumps(wrong, protocol=2))
        with pytest.raises(DataError, match=r"\(train\)"):
            source("cifar100").load()


@pytest.mark.parametrize("name", ["cifar-10-binary.tar.gz", "cifar10.zip"])
def test_broken_archive(data_folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_files, "verify", lambda file, path: None)
    (data_folder / name).write_bytes(b"no archive")
    with pytest.raises(DataError, match=name):
        source("cifar10").load()


# --- human labels --------------------------------------------------------------------------------------------------

HUMAN = {
    name: np.roll(LABELS[10][:100], shift).astype(np.int64)
    for shift, name in enumerate(["clean", "aggre", "random1", "random2", "random3", "worse"])
}
OFFICIAL = ["clean_label", "aggre_label", "random_label1", "random_label2", "random_label3", "worse_label"]


def check_human(dataset: Dataset, chosen: str) -> None:
    assert dataset.train.labels.tolist() == HUMAN[chosen].tolist()
    assert dataset.train.true is not None
    assert dataset.train.true.tolist() == HUMAN["clean"].tolist()
    assert list(dataset.train.human) == ["aggregate", "random1", "random2", "random3", "worse"]
    assert dataset.train.human["worse"].tolist() == HUMAN["worse"].tolist()
    assert not dataset.labels_trusted
    assert dataset.test is not None
    assert dataset.test.labels.tolist() == LABELS[10][100:].tolist()


@pytest.mark.parametrize("form", ["zip", "legacy", "npz"])
def test_human_labels_of_cifar10(data_folder: Path, form: str) -> None:
    write_folder(data_folder, 10, "binary")
    if form == "npz":
        np.savez_compressed(data_folder / "cifar10n.npz", **HUMAN, class_names=np.array(["a", "b"]))
    else:
        torch = pytest.importorskip("torch")
        columns = dict(zip(OFFICIAL, HUMAN.values(), strict=True))
        torch.save(columns, data_folder / "CIFAR-10_human.pt", _use_new_zipfile_serialization=form == "zip")
    check_human(source("cifar10n").load(), "aggre")
    check_human(source("cifar10n:labels=worse").load(), "worse")
    check_human(source("cifar10n:labels=random2").load(), "random2")


def test_human_labels_of_cifar100(data_folder: Path) -> None:
    write_folder(data_folder, 100, "python")
    clean = LABELS[100][:100]
    np.savez(data_folder / "cifar100n.npz", clean=clean, noisy=clean[::-1])
    dataset = source("cifar100n:labels=noisy").load()
    assert dataset.train.labels.tolist() == clean[::-1].tolist()
    assert list(dataset.train.human) == ["noisy"]


def test_labels_in_another_order_are_refused(data_folder: Path) -> None:
    write_folder(data_folder, 10, "binary")
    np.savez(data_folder / "cifar10n.npz", **(HUMAN | {"clean": HUMAN["aggre"]}))
    with pytest.raises(DataError, match=r"100 of 100 labels differ.*TensorFlow Datasets"):
        source("cifar10n").load()
    np.savez(data_folder / "cifar10n.npz", **{name: column[:7] for name, column in HUMAN.items()})
    with pytest.raises(DataError, match="7 labels for 100 training images"):
        source("cifar10n").load()


def test_human_labels_without_a_column(data_folder: Path) -> None:
    write_folder(data_folder, 10, "binary")
    np.savez(data_folder / "cifar10n.npz", clean=HUMAN["clean"])
    with pytest.raises(DataError, match=r"cifar10n\.npz has no 'aggre'; it has clean"):
        source("cifar10n").load()
    (data_folder / "cifar10n.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"cifar10n\.npz: not readable as an \.npz file"):
        source("cifar10n").load()
