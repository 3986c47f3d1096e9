"""Encoders of texts: word vectors of an installed package, and hashed counts."""

from __future__ import annotations

import numpy as np
import pytest

from fedwinnow.data.load import load
from fedwinnow.encoders import words
from fedwinnow.encoders.make_encoder import DataEncoder
from fedwinnow.encoders.tfidf import TfIdf, counts
from fedwinnow.encoders.words import Words
from fedwinnow.errors import MissingExtraError, UsageError
from fedwinnow.models.model import Shape

TEXTS = Shape("tokens", (8,), 2, 100)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "letters.csv"
    lines = ["text,label,site", "good day,a,x", "bad night,b,x", "good good day,a,y", "bad bad night,b,y", ",a,y"]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_words_are_means_of_vectors():
    pytest.importorskip(words.PACKAGE)
    pytest.importorskip("tokenizers")
    opened = Words().open(TEXTS)
    assert opened.width == 256
    one, same, other, empty = opened.encode(["a heart attack", "a heart attack", "the weather", ""])
    assert np.array_equal(one, same)
    assert not empty.any()

    def likeness(left: str, right: str) -> float:
        first, second = opened.encode([left, right])
        return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))

    assert likeness("the patient had a heart attack", "a cardiac infarction of the man") > likeness(
        "the patient had a heart attack", "the parliament votes on a new law"
    )
    assert np.linalg.norm(one - other) > 0
    # The mean of two texts' vectors is the vector of both, because they have the same number of pieces.
    left, right, both = opened.encode(["heart", "weather", "heart weather"])
    assert both == pytest.approx((left + right) / 2, abs=1e-3)


def test_words_cut_long_texts_and_say_what_is_missing(monkeypatch):
    pytest.importorskip(words.PACKAGE)
    short, long = Words(length=3).open(TEXTS).encode(["one two three", "one two three four five six"])
    assert np.array_equal(short, long)
    assert Words(length=3).open(TEXTS).hash != Words().open(TEXTS).hash
    monkeypatch.setattr(words, "PACKAGE", "no_such_package_of_words")
    with pytest.raises(MissingExtraError, match="the encoder `words` needs the extra 'encoders'"):
        Words().open(TEXTS)


def test_counts_are_hashed_and_logarithmic():
    found = counts("Good good DAY", 1 << 16, pairs=True)
    # good (twice), day, "good good", "good day"
    assert sorted(found[found > 0].tolist()) == pytest.approx([1, 1, 1, 1 + np.log(2)])
    assert (counts("Good good DAY", 1 << 16, pairs=False) > 0).sum() == 2
    assert not counts("", 16, pairs=True).any()


def test_a_table_gives_its_texts_and_keeps_its_tokens(table):
    data = load(f"csv:path={table},label=label,text=text,site=site")
    assert data.kind == "tokens"
    assert data.train.texts is not None
    assert data.train.texts.take(np.array([2, 0])) == ["good good day", "good day"]
    part = data.train.subset(np.array([4, 1])).subset(np.array([1]))
    assert part.texts is not None
    assert part.texts.take(np.array([0])) == ["bad night"]
    encoder = DataEncoder.for_data(TfIdf(width=64), data)
    encoded = encoder.encoded(data)
    assert (encoded.kind, encoded.sample_shape) == ("rows", (64,))
    assert np.array_equal(encoded.train.labels, data.train.labels)


def test_token_ids_without_texts_are_refused():
    from fedwinnow.data.arrays import from_arrays

    data = from_arrays(np.array([[1, 2], [3, 4]]), ["a", "b"], kind="tokens")
    with pytest.raises(UsageError, match=r"'tfidf' needs texts, but arrays has tokens.*text=COLUMN"):
        DataEncoder.for_data("tfidf", data)
    with pytest.raises(UsageError, match=r"'lite' needs images, but digits_rows has rows. Encoders that fit: "):
        DataEncoder.for_data("lite", from_arrays(np.zeros((2, 3)), ["a", "b"], name="digits_rows"))
