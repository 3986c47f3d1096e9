"""How long a method waits before it trusts its model, by default."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

from fedwinnow.errors import FedwinnowWarning
from fedwinnow.steps.stages import first_rounds, rounds_of_passes, warm_up_rounds, warn_of_long_warm_up


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


def test_a_run_that_is_all_warm_up_is_warned_of():
    # ten rounds visit everybody once, and two passes are the least: twenty rounds of warm-up
    short = SimpleNamespace(rounds=20, rounds_per_pass=10)
    with pytest.warns(FedwinnowWarning, match=r"all 20 rounds .* clients takes 10\. Give --rounds 80"):
        warn_of_long_warm_up(short, "feddiv", rounds_of_passes(short, None))


@pytest.mark.parametrize(("rounds", "passes"), [(21, None), (20, 1), (20, 0)])
def test_a_run_that_is_longer_than_its_warm_up_is_not(rounds, passes):
    server = SimpleNamespace(rounds=rounds, rounds_per_pass=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_long_warm_up(server, "feddiv", rounds_of_passes(server, passes))
