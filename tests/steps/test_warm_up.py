"""How long a method waits before it trusts its model, by default."""

from __future__ import annotations

import pytest

from fedwinnow.steps.stages import first_rounds, warm_up_rounds


@pytest.mark.parametrize(
    ("rounds", "given", "expected"),
    [(1000, None, 100), (100, None, 10), (40, None, 10), (8, None, 4), (1, None, 0), (40, 7, 7), (40, 0, 0)],
)
def test_a_tenth_of_all_and_of_a_short_run_more(rounds, given, expected):
    assert first_rounds(rounds, given) == expected


@pytest.mark.parametrize(
    ("rounds", "given", "expected"),
    [(500, None, 100), (20, 0.5, 10), (3, 0.5, 2), (1, 0.5, 0), (20, 0, 0), (20, 1, 1), (20, 7, 7)],
)
def test_a_warm_up_is_a_number_of_rounds_or_a_share(rounds, given, expected):
    assert warm_up_rounds(rounds, given) == expected
