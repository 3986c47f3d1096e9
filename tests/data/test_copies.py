"""Samples with the same content are found, whatever they are; what everybody has is no copy."""

from __future__ import annotations

import numpy as np
import pytest

from fedwinnow.data.content_hash import SAMPLES_AT_ONCE, contents_in
from fedwinnow.data.dataset import Resident
from fedwinnow.data.load import load
from fedwinnow.scene.folds import copies_here, copies_of, held_together


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int32])
@pytest.mark.parametrize("shape", [(3,), (5, 5, 3), (8,), (1,)])
def test_equal_samples_have_the_place_of_the_first(dtype, shape) -> None:
    samples = np.arange(40 * int(np.prod(shape))).reshape(40, *shape).astype(np.int64) % 251
    samples = samples.astype(dtype)
    samples[[7, 30]] = samples[2]
    found = contents_in(Resident(samples))
    wanted = [next(other for other in range(40) if (samples[other] == samples[one]).all()) for one in range(40)]
    assert found[7] == found[30] == found[2]
    assert found.tolist() == wanted


def test_one_bit_makes_another_sample() -> None:
    samples = np.zeros((65, 8), np.uint8)
    for place in range(64):
        samples[place, place // 8] = 1 << (place % 8)
    assert len(set(contents_in(Resident(samples)).tolist())) == 65


def test_signs_of_two_columns_do_not_cancel() -> None:
    signs = np.array([[a, b, c, d] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1) for d in (-1, 1)], np.float32)
    assert len(set(contents_in(Resident(signs)).tolist())) == 16


def test_zero_has_no_sign() -> None:
    assert contents_in(Resident(np.array([[0.0, 1.0], [-0.0, 1.0]], np.float32))).tolist() == [0, 0]


def test_samples_larger_than_a_block(monkeypatch) -> None:
    monkeypatch.setattr("fedwinnow.data.content_hash.SAMPLES_AT_ONCE", 10)
    assert SAMPLES_AT_ONCE > 10
    assert contents_in(Resident(np.array([[1.0] * 9, [2.0] * 9, [1.0] * 9], np.float32))).tolist() == [0, 1, 0]


def test_pictures_that_are_decoded_later_are_compared_as_files(tmp_path) -> None:
    from PIL import Image

    luck = np.random.RandomState(0)
    for place in range(8):
        (tmp_path / "ab"[place % 2]).mkdir(exist_ok=True)
        Image.fromarray(luck.randint(0, 256, (9, 9, 3), dtype=np.uint8)).save(
            tmp_path / "ab"[place % 2] / f"{place}.png"
        )
    (tmp_path / "b" / "again.png").write_bytes((tmp_path / "a" / "0.png").read_bytes())
    for lazy in ("true", "false"):
        train = load(f"folder:path={tmp_path},size=9,lazy={lazy}").train
        found = dict(zip(map(str, train.ids.tolist()), contents_in(train.features).tolist(), strict=True))
        names = {number: [name for name in found if found[name] == number] for number in set(found.values())}
        assert sorted(map(len, names.values())) == [1] * 7 + [2]
        assert next(sorted(one) for one in names.values() if len(one) == 2) == ["a/0.png", "b/again.png"]


def test_what_everybody_has_is_no_copy() -> None:
    content = np.arange(200)
    content[:50] = 0  # a quarter of the site
    content[100:130] = 100  # thirty samples, less than a fifth
    found = copies_here(content, np.zeros(200, np.int64))
    assert len(set(found[:50].tolist())) == 50
    assert len(set(found[100:130].tolist())) == 1
    assert len(set(found.tolist())) == 200 - 29


def test_copies_join_groups() -> None:
    """Sample 0 of group 0 and sample 5 of group 2 are one picture, so both groups stay together."""
    groups = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    content = np.array([0, 1, 2, 3, 4, 0, 6, 7, 8, 9, 10, 11])
    found = held_together(content, groups, np.zeros(12, np.int64))
    assert len(set(found[[0, 1, 4, 5]].tolist())) == 1
    assert len(set(found.tolist())) == 5


def test_copies_do_not_join_everything() -> None:
    """A picture that all patients have joins none of them: nothing could be held out."""
    groups = np.repeat(np.arange(10), 3)
    content = np.arange(30)
    content[::3] = 0
    found = held_together(content, groups, np.zeros(30, np.int64))
    assert len(set(found.tolist())) == 10
    assert (found.reshape(10, 3) == found[::3, None]).all()


def test_copies_with_two_labels_are_counted() -> None:
    content = np.array([0, 1, 0, 3, 4, 3, 3, 7])
    found = copies_of(content, np.array([0, 0, 0, 1, 0, 1, 2, 0]))
    assert found == {"samples": 5, "sets": 2, "two_labels": 1, "everywhere": 0}
