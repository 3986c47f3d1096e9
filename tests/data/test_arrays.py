"""Data sets from arrays and from npz files."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.load import load
from fedwinnow.errors import DataError, UsageError

ROWS = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)


def test_rows_become_float32_and_labels_are_numbered():
    dataset = from_arrays(ROWS, [7, 3, 7])
    assert dataset.kind == "rows"
    assert dataset.class_names == ("3", "7")
    assert dataset.train.labels.tolist() == [1, 0, 1]
    assert dataset.train.ids.tolist() == [0, 1, 2]
    assert dataset.train.features.dtype == np.float32
    assert not dataset.labels_trusted


def test_lists_and_tensors_are_understood():
    torch = pytest.importorskip("torch")
    plain = from_arrays(ROWS.tolist(), ["b", "a", "b"])
    tensors = from_arrays(torch.tensor(ROWS, requires_grad=True), torch.tensor([1, 0, 1]), class_names=["a", "b"])
    assert plain.fingerprint() != ""
    assert plain.class_names == tensors.class_names
    assert plain.train.labels.tolist() == tensors.train.labels.tolist()
    every = np.arange(3)
    assert plain.train.features.take(every).tolist() == tensors.train.features.take(every).tolist()


def test_grey_images_get_an_axis_of_channels_and_their_statistics():
    dataset = from_arrays(IMAGES, [0, 1, 0])
    assert dataset.kind == "images"
    assert dataset.sample_shape == (4, 5, 1)
    assert dataset.mean == pytest.approx([IMAGES.mean() / 255])
    assert dataset.std == pytest.approx([IMAGES.std() / 255])


def test_tokens_are_asked_for():
    dataset = from_arrays([[1, 2], [9, 0]], [0, 1], x_test=[[11, 0]], y_test=[1], kind="tokens")
    assert dataset.vocabulary == 12
    assert dataset.train.features.dtype == np.int32


def test_whole_floats_and_columns_are_labels():
    assert from_arrays(ROWS, [[1.0], [0.0], [1.0]]).class_names == ("0", "1")
    assert from_arrays(ROWS, [True, False, True]).class_names == ("0", "1")


def test_everything_at_once(tmp_path):
    path = tmp_path / "all.npz"
    np.savez(
        path,
        x=ROWS,
        y=[0, 1, 1],
        x_test=ROWS[:1] + 1,
        y_test=[1],
        id=["a", "b", "c"],
        site=[1, 1, 2],
        true=[0, 0, 1],
        class_names=["no", "yes"],
        other=np.zeros(1),
    )
    dataset = load(path)
    assert dataset.name == "all"
    assert dataset.class_names == ("no", "yes")
    assert dataset.train.ids.tolist() == ["a", "b", "c"]
    assert dataset.train.sites.tolist() == ["1", "1", "2"]
    assert dataset.train.true.tolist() == [0, 0, 1]
    assert dataset.test.labels.tolist() == [1]
    assert dataset.test.features.take(np.arange(1)).tolist() == [[1.0, 2.0]]
    assert len(dataset.source_hash) == 64


def changed(**changes):
    values = {"x": ROWS, "y": [0, 1, 0], "name": "mine"} | changes
    return values.pop("x"), values.pop("y"), values


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": [[0.0, 1.0], [np.nan, 0.0], [0.0, 0.0]]}, r"row 2 \(index 1\), column 1: the value is nan"),
        ({"x": [[0.0, 1.0], [0.0, 0.0], [0.0, np.inf]]}, r"row 3 \(index 2\), column 2: the value is inf"),
        ({"x": [[0.0], [1e300], [0.0]]}, "float32 can hold"),
        ({"x": [[1], [2, 3], [4]]}, "x is not an array"),
        ({"x": [[None], [1], [2]]}, "type object"),
        ({"x": [["a"], ["b"], ["c"]]}, "texts"),
        ({"x": np.zeros((3, 2), complex)}, "type complex"),
        ({"x": np.zeros((0, 2))}, "no sample"),
        ({"x": np.zeros((3, 0))}, "no sample"),
        ({"x": np.zeros(3)}, "shape"),
        ({"x": np.float64(1)}, "single value"),
        ({"x": np.zeros((3, 4, 5, 6, 7))}, "uint8 from 0 to 255 or floats from 0 to 1"),
        ({"x": np.full((3, 4, 5), -0.5)}, "from -0.5 to -0.5; allowed for images: 0 to 1"),
        ({"x": np.full((3, 4, 5), 255.0)}, "Divide pixels from 0 to 255 by 255"),
        ({"x": np.full((3, 4, 5), np.nan)}, "from nan to nan"),
        ({"x": np.full((3, 4, 5), 256)}, "whole numbers from 256 to 256; allowed: 0 to 255"),
        ({"x": np.zeros((3, 3, 8, 4))}, "either the second axis or the last could be the channels"),
        ({"x": np.zeros((3, 8, 8, 5))}, "images have 1 to 4 channels"),
        ({"x": np.zeros((3, 3, 8, 8), np.uint8)}, "transpose"),
        ({"x": np.zeros((3, 2)), "kind": "images"}, "images are uint8"),
        ({"x": IMAGES, "kind": "rows"}, "two axes"),
        ({"x": [[-1], [0], [1]], "kind": "tokens"}, "token id -1"),
        ({"x": [[0.5], [0], [1]], "kind": "tokens"}, "whole numbers"),
        ({"x": [[5], [0], [1]], "kind": "tokens", "vocabulary": 5}, "largest token id is 5"),
        ({"y": [0, 1]}, "3 samples but 2 entries in y"),
        ({"y": [[0, 1], [0, 1], [0, 1]]}, "one value per sample"),
        ({"y": [0.5, 1, 0]}, r"y, row 1 \(index 0\): 0.5 is not a label"),
        ({"y": [0, np.nan, 1]}, r"row 2 \(index 1\): nan is not a label"),
        ({"y": [0, 0, 0]}, "at least two classes"),
        (
            {"y": [0, 1, 2], "class_names": ["a", "b"]},
            r"row 3 \(index 2\): the label 2 is not a class; allowed: 0 to 1",
        ),
        ({"y": [0, -1, 1], "class_names": ["a", "b"]}, "the label -1"),
        ({"y": ["a", "b", "c"], "class_names": ["a", "b"]}, "the label c is not a class; allowed: a, b"),
        ({"class_names": ["a", "a"]}, "same name"),
        ({"class_names": [["a", "b"]]}, "list of texts"),
        ({"class_names": ["a", "b", "c"]}, "no training sample has the class c"),
        ({"true": [0, 1, 5]}, r"true, row 3 \(index 2\): the label 5"),
        ({"true": [0, 1]}, "2 entries in true"),
        ({"ids": ["a", "b", "a"]}, r"row 3 \(index 2\): 'a' was given before, in row 1"),
        ({"ids": [1.0, 2.0, 3.0]}, "ids have the type float64"),
        ({"ids": ["a", "b", "\ud800"]}, "not Unicode"),
        ({"sites": ["a"]}, "1 entries in sites"),
        ({"x_test": ROWS}, "go together"),
        ({"x_test": np.zeros((1, 3)), "y_test": [0]}, "x_test has the shape"),
        ({"x_test": np.zeros((0, 2)), "y_test": []}, "no sample"),
        ({"x_test": ROWS[:1], "y_test": [4]}, "y_test, row 1"),
    ],
)
def test_what_is_wrong_is_said(changes, words):
    x, y, rest = changed(**changes)
    with pytest.raises(DataError, match=words) as caught:
        from_arrays(x, y, **rest)
    assert str(caught.value).startswith("mine")


def test_files_that_are_no_npz(tmp_path):
    path = tmp_path / "bad.npz"
    for content, words in ((b"", "bad.npz"), (b"hello", "bad.npz"), (b"PK\x03\x04rest", "bad.npz")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=words):
            load(path)
    single = io.BytesIO()
    np.save(single, ROWS)
    path.write_bytes(single.getvalue())
    with pytest.raises(DataError, match="single array"):
        load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"not an array")
    with pytest.raises(DataError, match="array 'x'"):
        load(path)


def test_objects_are_never_unpickled(tmp_path):
    path = tmp_path / "objects.npz"
    np.savez(path, x=np.array([[1, None]], dtype=object), y=[0])
    with pytest.raises(DataError, match=r"array 'x'.*Python objects"):
        load(path)


def test_missing_arrays_are_named(tmp_path):
    path = tmp_path / "half.npz"
    np.savez(path, x=ROWS)
    with pytest.raises(DataError, match="no array 'y'"):
        load(path)


@pytest.mark.parametrize(
    ("more", "words"), [({"kind": "image"}, "Did you mean 'images'"), ({"vocabulary": 9}, "x holds rows")]
)
def test_wrong_use_of_kinds(more, words):
    with pytest.raises(UsageError, match=words):
        from_arrays(ROWS, [0, 1, 0], **more)
