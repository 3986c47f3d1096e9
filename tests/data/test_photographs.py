"""Clothing1M, WebVision, brain haemorrhages and skin lesions from small files in the official format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedwinnow.catalogue import make
from fedwinnow.data.source import Source
from fedwinnow.errors import DataError


def source(spec: str) -> Source:
    part = make("data", spec)
    assert isinstance(part, Source)
    return part


def photograph(path: Path, red: int) -> None:
    """A picture of one colour, saved without loss whatever its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (red, 0, 0)).save(path, "PNG")


def reds(samples: object) -> list[int]:
    """The colours of all pictures, which tell them apart."""
    pixels = samples.features.take(np.arange(len(samples)))  # type: ignore[attr-defined, arg-type]
    assert pixels.shape[1:] == (8, 8, 3)
    return [int(red) for red in pixels[:, 4, 4, 0]]


# --- Clothing1M ----------------------------------------------------------------------------------------------------


def write_clothing(root: Path, lists: Path, clean_train: str = "") -> None:
    lists.mkdir(parents=True, exist_ok=True)
    texts = {
        "category_names_eng": "T-Shirt\nShirt\n",
        "noisy_train_key_list": "images/0/1.jpg\nimages/1/2.jpg\nimages/1/3.jpg\n",
        "noisy_label_kv": "images/1/3.jpg 0\nimages/0/1.jpg 1\nimages/1/2.jpg 0\nimages/9/9.jpg 1\n",
        "clean_label_kv": "images/2/4.jpg 1\nimages/0/1.jpg 0\n" + clean_train,
        "clean_test_key_list": "images/2/4.jpg\n",
    }
    for name, text in texts.items():
        (lists / f"{name}.txt").write_text(text)
    for red, name in enumerate(["0/1", "1/2", "1/3", "2/4"], start=1):
        photograph(root / "images" / f"{name}.jpg", red)


@pytest.mark.parametrize("below", ["", "annotations"])
def test_clothing(data_folder: Path, below: str) -> None:
    root = data_folder / "clothing1m"
    write_clothing(root, root / below)
    assert source("clothing1m").missing() == []
    dataset = source("clothing1m:size=8").load()
    assert dataset.class_names == ("T-Shirt", "Shirt")
    assert dataset.train.ids.tolist() == ["images/0/1.jpg", "images/1/2.jpg", "images/1/3.jpg"]
    assert dataset.train.labels.tolist() == [1, 0, 0]
    assert dataset.train.true is None
    assert not dataset.labels_trusted
    assert dataset.test is not None
    assert dataset.test.labels.tolist() == [1]
    assert reds(dataset.train) == [1, 2, 3]
    assert reds(dataset.test) == [4]
    assert dataset.mean == (0.485, 0.456, 0.406)


def test_clothing_with_the_truth_for_all(data_folder: Path) -> None:
    root = data_folder / "clothing1m"
    write_clothing(root, root, "images/1/2.jpg 0\nimages/1/3.jpg 1\n")
    truth = source("clothing1m:size=8").load().train.true
    assert truth is not None
    assert truth.tolist() == [0, 0, 1]


def test_clothing_that_is_not_whole(data_folder: Path) -> None:
    root = data_folder / "clothing1m"
    write_clothing(root, root)
    (root / "noisy_label_kv.txt").write_text("images/1/3.jpg 0\nimages/0/1.jpg 1\n")
    with pytest.raises(DataError, match=r"noisy_train_key_list\.txt, line 2: images/1/2\.jpg has no label in"):
        source("clothing1m").load()
    (root / "noisy_label_kv.txt").write_text("images/1/3.jpg 0\n\nimages/0/1.jpg 2\n")
    with pytest.raises(DataError, match=r"noisy_label_kv\.txt, line 3: .* a label of 0 to 1"):
        source("clothing1m").load()
    write_clothing(root, root)
    (root / "images/0/1.jpg").unlink()
    with pytest.raises(DataError, match=r"1\.jpg is missing: the lists are there, but not the photographs"):
        source("clothing1m").load()
    (root / "noisy_train_key_list.txt").write_text("\n")
    with pytest.raises(DataError, match=r"noisy_train_key_list\.txt names no photograph"):
        source("clothing1m").load()
    (root / "clean_label_kv.txt").unlink()
    (line,) = source("clothing1m").missing()
    assert line.startswith("clean_label_kv.txt: not in ")
    assert "https://github.com/Cysu/noisy_label" in line


# --- WebVision -----------------------------------------------------------------------------------------------------


def write_webvision(root: Path, train: str, val: str) -> None:
    (root / "info").mkdir(parents=True)
    (root / "info/synsets.txt").write_text("n01 tench, Tinca tinca\nn02 crane\nn03 crane\n")
    (root / "info/train_filelist_google.txt").write_text("google/q1/a.jpg 0\ngoogle/q9/z.jpg 2\ngoogle/q2/b.jpg 1\n")
    (root / "info/val_filelist.txt").write_text("val1.jpg 1\nval2.jpg 2\nval3.jpg 0\n")
    for red, name in enumerate(["google/q1/a.jpg", "google/q2/b.jpg"], start=1):
        photograph(root / train / name, red)
    for red, name in enumerate(["val1.jpg", "val3.jpg"], start=5):
        photograph(root / val / name, red)


@pytest.mark.parametrize(
    ("train", "val"), [("", "val_images_256"), ("google_resized_256", "val_images"), ("train", "val")]
)
def test_webvision(data_folder: Path, train: str, val: str) -> None:
    write_webvision(data_folder / "webvision", train, val)
    dataset = source("webvision:classes=2,size=8").load()
    assert dataset.class_names == ("tench, Tinca tinca", "crane (n02)")
    assert dataset.train.labels.tolist() == [0, 1]
    assert reds(dataset.train) == [1, 2]
    assert dataset.test is not None
    assert dataset.test.labels.tolist() == [1, 0]
    assert reds(dataset.test) == [5, 6]
    assert not dataset.labels_trusted


def test_webvision_without_photographs_or_classes(data_folder: Path) -> None:
    write_webvision(data_folder / "webvision", "somewhere", "val")
    with pytest.raises(DataError, match=r"google/q1/a\.jpg is missing; looked below .*google_resized_256"):
        source("webvision:classes=2").load()
    with pytest.raises(DataError, match=r"synsets\.txt names 3 classes; classes=50 was given"):
        source("webvision").load()


# --- brain haemorrhages --------------------------------------------------------------------------------------------

TYPES = ["epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural"]


def write_haemorrhages(root: Path) -> None:
    """One slice per type, ID_a to ID_e; ID_f has two types, ID_g has none, ID_a stands in the table twice."""
    positive = {f"ID_{letter}": {kind} for letter, kind in zip("abcde", TYPES, strict=True)}
    positive |= {"ID_f": {"epidural", "subdural"}, "ID_g": set()}
    rows = ["ID,Label"]
    for name in [*positive, "ID_a"]:
        rows += [f"{name}_{kind},{int(kind in positive[name])}" for kind in TYPES]
        rows.append(f"{name}_any,{int(bool(positive[name]))}")
    root.mkdir(parents=True)
    (root / "stage_2_train.csv").write_text("\n".join(rows) + "\n")


def test_haemorrhages(data_folder: Path) -> None:
    root = data_folder / "ich"
    write_haemorrhages(root)
    assert "Unpack the published slices" in source("ich").missing()[0]
    with pytest.raises(DataError, match=r"5 of 5 slices .* the first is ID_a\. .*images/ID_000012eaf\.png"):
        source("ich:partial=true").load()
    for red, letter in enumerate("abcdefg", start=1):
        photograph(root / "images" / f"ID_{letter}.{'png' if red % 2 else 'jpg'}", red)
    assert source("ich").missing() == []
    dataset = source("ich:size=8").load()
    assert dataset.train.ids.tolist() == ["ID_a", "ID_b", "ID_c", "ID_d", "ID_e"]
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 4]
    assert dataset.class_names == tuple(TYPES)
    assert reds(dataset.train) == [1, 2, 3, 4, 5]
    assert dataset.test is None


def test_haemorrhages_that_were_exported_in_part(data_folder: Path) -> None:
    root = data_folder / "ich"
    write_haemorrhages(root)
    text = (root / "stage_2_train.csv").read_text()
    (root / "stage_2_train.csv").write_text(text + "ID_h_epidural,1\n")
    for letter in "abcde":
        photograph(root / "images" / f"ID_{letter}.png", 1)
    with pytest.raises(DataError, match=r"1 of 6 slices .* the first is ID_h.*ich:partial=true"):
        source("ich").load()
    assert len(source("ich:partial=true,size=8").load().train) == 5
    (root / "stage_2_train.csv").write_text(text + "ID_h_unheard,1\n")
    with pytest.raises(DataError, match=r"stage_2_train\.csv, line 50: 'ID_h_unheard,1' was found"):
        source("ich").load()


# --- skin lesions --------------------------------------------------------------------------------------------------


def write_lesions(root: Path, extra: str = "") -> None:
    names = ["MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK"]
    rows = ["image," + ",".join(names)]
    for place in range(9):
        marks = ",".join("1.0" if column == place else "0.0" for column in range(9))
        rows.append(f"ISIC_{place},{marks}")
        photograph(root / "ISIC_2019_Training_Input" / f"ISIC_{place}.jpg", place + 1)
    (root / "ISIC_2019_Training_GroundTruth.csv").write_text("\n".join(rows) + "\n" + extra)


def test_lesions(data_folder: Path) -> None:
    write_lesions(data_folder / "isic2019")
    assert source("isic2019").missing() == []
    dataset = source("isic2019:size=8").load()
    assert dataset.class_names == ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    assert dataset.train.ids.tolist() == [f"ISIC_{place}" for place in range(8)]
    assert dataset.train.labels.tolist() == list(range(8))
    assert reds(dataset.train) == list(range(1, 9))


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ("ISIC_x,1.0,0,0,0,0,0,0,0,0\n", "1 photographs that .* names, the first is ISIC_x"),
        ("ISIC_1,1.0,1.0,0,0,0,0,0,0,0\n", "line 11: ISIC_1 has 2 diagnoses"),
        ("ISIC_1,yes,0,0,0,0,0,0,0,0\n", r"line 11: 'yes,0,.* needed: 0\.0 or 1\.0"),
        ("ISIC_1,1.0\n", "line 11: 2 values; the header has 10"),
    ],
)
def test_lesions_that_do_not_fit(data_folder: Path, extra: str, reason: str) -> None:
    write_lesions(data_folder / "isic2019", extra)
    with pytest.raises(DataError, match=reason):
        source("isic2019").load()


def test_lesions_without_a_column(data_folder: Path) -> None:
    write_lesions(data_folder / "isic2019")
    (data_folder / "isic2019/ISIC_2019_Training_GroundTruth.csv").write_text("image,MEL\n")
    with pytest.raises(DataError, match="has no column NV, BCC"):
        source("isic2019").load()
