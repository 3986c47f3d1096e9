"""The Hugging Face source with small stand-ins for the package, which tests cannot count on."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from PIL import Image as pillow

from fedwinnow.data.load import load
from fedwinnow.data.sources.huggingface import HuggingFace, Roles, find_roles
from fedwinnow.errors import DataError, UsageError


class ClassLabel:
    def __init__(self, *names: str) -> None:
        self.names = list(names)


class Image:
    pass


class Value:
    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


class Split(dict):
    def __init__(self, features: dict, **columns: list) -> None:
        super().__init__(columns)
        self.features = features


SOME = {"label": ClassLabel("a", "b"), "picture": Image(), "note": Value("string"), "age": Value("int64")}


@pytest.mark.parametrize(
    ("left", "asked", "expected"),
    [
        (SOME, {}, Roles("label", ("a", "b"), image="picture")),
        (SOME, {"text": "note"}, Roles("label", ("a", "b"), text="note")),
        (SOME, {"label": "age"}, Roles("age", None, image="picture")),
        ({k: SOME[k] for k in ("label", "note", "age")}, {}, Roles("label", ("a", "b"), text="note")),
        ({k: SOME[k] for k in ("label", "age")}, {}, Roles("label", ("a", "b"), numbers=("age",))),
    ],
)
def test_columns_tell_what_they_are(left, asked, expected):
    assert find_roles("x", left, **({"label": None, "image": None, "text": None} | asked)) == expected


@pytest.mark.parametrize(
    ("features", "label", "words"),
    [
        ({"age": Value("int64")}, None, "found: none"),
        ({"a": ClassLabel("x"), "b": ClassLabel("y")}, None, "found: a, b"),
        (SOME, "lable", "Did you mean 'label'"),
        ({"label": ClassLabel("a", "b")}, None, "no column of images"),
    ],
)
def test_columns_that_do_not_tell(features, label, words):
    with pytest.raises(DataError, match=words):
        find_roles("x", features, label, None, None)


def given_splits(monkeypatch, splits: dict) -> None:
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=lambda name, config: splits))


def test_images(monkeypatch):
    pictures = [pillow.new("RGB", (4, 3), (9, 8, 7)), pillow.new("L", (8, 6), 5)]
    features = {"image": Image(), "label": ClassLabel("cat", "dog")}
    split = Split(features, image=pictures, label=[1, 0])
    given_splits(monkeypatch, {"train": split, "test": split})
    dataset = load("huggingface:dataset=some/pets")
    assert dataset.name == "pets"
    assert dataset.class_names == ("cat", "dog")
    assert dataset.sample_shape == (3, 4, 3)
    assert dataset.train.features.take(np.array([0]))[0, 0, 0].tolist() == [9, 8, 7]
    assert len(dataset.test) == 2
    assert not dataset.labels_trusted


@pytest.mark.parametrize("place", [0, 1])
def test_an_image_that_is_not_there_is_named(monkeypatch, place):
    pictures = [pillow.new("L", (4, 3)), pillow.new("L", (4, 3))]
    pictures[place] = None
    split = Split({"image": Image(), "label": ClassLabel("cat", "dog")}, image=pictures, label=[1, 0])
    given_splits(monkeypatch, {"train": split})
    with pytest.raises(DataError, match=rf"row {place + 1} \(index {place}\) has no image"):
        load("huggingface:dataset=some/pets")


def test_a_split_without_images(monkeypatch):
    given_splits(
        monkeypatch, {"train": Split({"image": Image(), "label": ClassLabel("cat", "dog")}, image=[], label=[])}
    )
    with pytest.raises(DataError, match="has no sample"):
        load("huggingface:dataset=some/pets")


def test_images_and_texts_exclude_each_other():
    with pytest.raises(UsageError, match="image=a and text=b exclude each other"):
        load("huggingface:dataset=d,image=a,text=b")


def test_texts_and_numbers(monkeypatch):
    features = {"t": Value("string"), "n": Value("float32"), "label": Value("string")}
    given_splits(monkeypatch, {"train": Split(features, t=["x y", None], n=[0.5, 1.5], label=["p", "q"])})
    texts = load("huggingface:dataset=d,label=label,length=2")
    assert (texts.kind, texts.class_names, texts.test) == ("tokens", ("p", "q"), None)
    numeric = HuggingFace(dataset="d", label="label").features(
        Split(features, n=[0.5, 1.5]), Roles("label", None, numbers=("n",)), None
    )
    assert numeric.tolist() == [[0.5], [1.5]]


def test_unknown_splits_and_failing_downloads(monkeypatch):
    given_splits(monkeypatch, {"training": None})
    with pytest.raises(DataError, match="Did you mean 'training'"):
        load("huggingface:dataset=d")

    def fail(name, config):
        raise ConnectionError("no network")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=fail))
    with pytest.raises(DataError, match="cannot be loaded: no network"):
        load("huggingface:dataset=d")


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[huggingface\]"):
        load("huggingface:dataset=d")
