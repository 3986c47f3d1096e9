"""One mixture from many, by hand."""

from __future__ import annotations

import pytest
import torch

from fedwinnow.mathematics.average_mixtures import average_mixtures

# two sites of 10 and 30 samples: shares 1/4 and 3/4
MIXTURES = torch.tensor([[0.0, 4.0, 1.0, 2.0, 0.5, 0.5], [2.0, 8.0, 3.0, 6.0, 0.9, 0.1]], dtype=torch.float64)
SIZES = torch.tensor([10.0, 30.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("linear", [1.5, 7.0, 2.5, 5.0, 0.8, 0.2]),
        ("squared", [1.5, 7.0, 1 / 16 + 27 / 16, 2 / 16 + 54 / 16, 0.8, 0.2]),
        # mass of the first component: .125 and .675 of .8, of the second .125 and .075 of .2
        (
            "moment",
            [
                0.675 / 0.8 * 2,
                (0.125 * 4 + 0.075 * 8) / 0.2,
                (0.125 * 1 + 0.675 * (3 + 4)) / 0.8 - (0.675 / 0.8 * 2) ** 2,
                (0.125 * (2 + 16) + 0.075 * (6 + 64)) / 0.2 - 5.5**2,
                0.8,
                0.2,
            ],
        ),
    ],
)
def test_two_sites(weighting, expected):
    assert average_mixtures(MIXTURES, SIZES, weighting).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("weighting", ["linear", "moment"])
def test_one_site_is_itself(weighting):
    assert average_mixtures(MIXTURES[:1], SIZES[:1], weighting).tolist() == pytest.approx(MIXTURES[0].tolist())


def test_equal_sites_have_a_narrower_variance_with_squared_weights():
    four = average_mixtures(MIXTURES[:1].repeat(4, 1), torch.ones(4).double(), "squared")
    assert four[2:4].tolist() == pytest.approx([1 / 4, 2 / 4])


def test_a_component_that_nobody_has_gives_numbers():
    nobody = torch.tensor([[1.0, 1.0, 0.1, 0.1, 1.0, 0.0]], dtype=torch.float64)
    assert average_mixtures(nobody, SIZES[:1], "moment").isfinite().all()
