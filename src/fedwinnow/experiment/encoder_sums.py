"""The sums that the scaling of an encoder is fitted from, as one secure sum over sites."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedwinnow.encoders.head_input import Sums
from fedwinnow.errors import UsageError
from fedwinnow.mathematics.payload import Payload, Summing
from fedwinnow.randomness import Floats

LEAST = 3  # sites in a sum: with two, each could subtract its own part
OF_ENCODER: dict[str, Summing] = {"encoder_sums": "sum"}
RUN = "simulation"  # in place of the name of a run over a network


def refuse_few(sites: int) -> None:
    """Refuse sums over fewer than three sites."""
    if sites < LEAST:
        raise UsageError(
            f"--secure-sums was given, but {sites} sites take part in a round; allowed: at least {LEAST}, because with "
            f"two each could subtract its own part from the sum. Raise --participation, or the number of sites."
        )


def row_of(told: Sums, scale: Any) -> Floats:
    """The sums of a site in one row."""
    columns = [told.first] if scale == "idf_l2" else [told.first, told.second]
    return np.concatenate([np.array([float(told.count)]), *columns])


def from_row(row: Floats, scale: Any, width: int) -> Sums:
    """The sums from one row."""
    second = np.zeros(width) if scale == "idf_l2" else row[1 + width :]
    return Sums(round(float(row[0])), row[1 : 1 + width], second)


def rounding_of(sites: int) -> float:
    """How far a sum over so many sites may be off."""
    from fedwinnow.mathematics.fixed_point import largest_error

    return largest_error(sites)


def summed_in_simulation(told: dict[int, Sums], scale: Any, width: int, seed: int, share: float) -> Sums:
    """The sums over all sites, by the protocol."""
    from fedwinnow.federation.summing.secure_sums import Session, sum_here

    refuse_few(len(told))
    replies: dict[int, Payload] = {
        site: {"encoder_sums": torch.from_numpy(row_of(one, scale))} for site, one in told.items()
    }
    total = sum_here(replies, OF_ENCODER, seed, Session(RUN, "encoder_sums", 0, 0, share))
    return from_row(total["encoder_sums"].numpy(), scale, width)
