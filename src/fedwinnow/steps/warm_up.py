"""How long a method trains as usual before it trusts what its model says."""

from __future__ import annotations

from fedwinnow.federation.server import Server

USUAL_SHARE = 0.2  # of all rounds; FedRN and FedGR: 100 of 500


def warm_up_rounds(rounds: int, given: float | None) -> int:
    """The given number of rounds; below 1 it is a share of all, and without it the papers' share is taken."""
    share = USUAL_SHARE if given is None else given
    return round(rounds * share) if share < 1 else round(share)


def first_rounds(rounds: int, given: int | None) -> int:
    """The given number, or a tenth of all; a short run needs ten rounds, too (or half of all), to learn something."""
    return max(round(rounds / 10), min(10, rounds // 2)) if given is None else given


def after_warm_up(server: Server, given: float | None, stage: str) -> tuple[str, str]:
    """The stage of a round and the function that answers in it: `train_plainly` first, then `train`."""
    early = server.round <= warm_up_rounds(server.rounds, given)
    return ("warm_up", "train_plainly") if early else (stage, "train")
