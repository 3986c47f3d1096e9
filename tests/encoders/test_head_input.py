"""The input of a head, by hand: standardised by sums over sites, rows of length 8."""

from __future__ import annotations

import numpy as np
import pytest

from fedwinnow.encoders.encoded import Encoded
from fedwinnow.encoders.head_input import Scaling, Sums
from fedwinnow.errors import DataError

FIRST = np.array([[1, 5, 0], [3, 5, 0]], np.float32)
SECOND = np.array([[5, 5, 2], [7, 5, 2]], np.float32)


def sums(rows, scale="std"):
    return Sums.of([rows], 3, scale)


def test_columns_are_standardised_by_the_sums_of_the_sites():
    scaling = Scaling.fitted("std", [sums(FIRST), sums(SECOND)], 3)
    # Column 0: 1, 3, 5, 7: mean 4, variance (9 + 1 + 1 + 9) / 4 = 5. Column 1 is constant.
    assert scaling.mean.tolist() == [4, 5, 1]
    assert scaling.factor == pytest.approx([5**-0.5, 0, 1])
    assert scaling.applied(FIRST) == pytest.approx(np.array([[-3 / 5**0.5, 0, -1], [-1 / 5**0.5, 0, -1]]))


def test_rows_have_length_8_and_a_row_of_zeros_stays():
    scaling = Scaling.fitted("std_l2", [sums(FIRST), sums(SECOND)], 3)
    found = scaling.applied(np.array([[4, 9, 3], [4, 5, 1]], np.float32))
    assert found.tolist() == [[0, 0, 8], [0, 0, 0]]
    assert found.dtype == np.float32
    plain = Scaling.fitted("l2", [], 3).applied(np.array([[3, 4, 0]], np.float32))
    assert plain == pytest.approx(np.array([[4.8, 6.4, 0]]))
    assert Scaling.fitted("none", [], 3).applied(FIRST).tolist() == FIRST.tolist()


def test_rare_words_weigh_more():
    scaling = Scaling.fitted("idf_l2", [sums(FIRST, "idf_l2"), sums(SECOND, "idf_l2")], 3)
    # Of 4 texts, 4, 4 and 2 have the column: log(5 / 5) + 1 and log(5 / 3) + 1.
    assert scaling.factor == pytest.approx([1, 1, np.log(5 / 3) + 1])


def test_a_site_below_the_least_count_tells_nothing():
    assert sums(FIRST).told("std", 3) is None
    assert sums(FIRST).told("std", 2) is not None
    assert Sums.of([], 3, "std").told("std", 0) is None
    words = Sums.of([np.array([[1, 0, 1], [1, 1, 1], [1, 1, 0]], np.float32)], 3, "idf_l2")
    told = words.told("idf_l2", 3)
    assert told is not None
    assert told.first.tolist() == [3, 0, 0]  # two texts are fewer than three


def test_no_sums_at_all_are_refused():
    with pytest.raises(DataError, match="no site has enough training samples"):
        Scaling.fitted("std_l2", [], 3)


def test_rows_come_from_several_segments_in_single_precision():
    halves = (FIRST.astype(np.float16), SECOND.astype(np.float16))
    features = Encoded(halves, np.array([3, 0, 2, 1]), Scaling.plain(3))
    assert features.take(np.array([0, 1, 2])).tolist() == [[7, 5, 2], [1, 5, 0], [5, 5, 2]]
    visit = features.subset(np.array([3]))
    assert visit.array.dtype == np.float32
    assert visit.array.tolist() == [[3, 5, 0]]
    assert [batch.tolist() for batch in features.stream([np.array([1])])] == [[[1, 5, 0]]]
    assert (features.shape, features.dtype, len(features)) == ((3,), np.float32, 4)
