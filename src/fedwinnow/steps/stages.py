"""What the server's half of several methods shares: warm-up, passes over all clients, watched replies."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator

from fedwinnow.errors import FedwinnowWarning
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import Payload

WARM_UP_SHARE = 0.2  # of all rounds; FedRN and FedGR: 100 of 500
PASSES_SHARE = 0.05  # of all client trainings; FedCorr and FedDiv on CIFAR-10: 5 passes are 50 of 1000 rounds


def warm_up_rounds(rounds: int, given: float | None) -> int:
    """The length of a warm-up: the given number of rounds or, below 1, share of all rounds; None: the papers' share."""
    share = WARM_UP_SHARE if given is None else given
    return round(rounds * share) if share < 1 else round(share)


def first_rounds(rounds: int, given: int | None) -> int:
    """The given number; None: a tenth of all rounds, but at least ten (half of a run that is shorter than twenty)."""
    return max(round(rounds / 10), min(10, rounds // 2)) if given is None else given


def after_warm_up(server: Server, given: float | None, stage: str) -> tuple[str, str]:
    """The stage of a round and the function that answers in it: `train_plainly` first, then `train`."""
    early = server.round <= warm_up_rounds(server.rounds, given)
    return ("warm_up", "train_plainly") if early else (stage, "train")


def rounds_of_passes(server: Server, passes: int | None, *, share: float = PASSES_SHARE, least: int = 2) -> int:
    """How many rounds these passes take; None: a share of all rounds, but at least `least` passes."""
    if passes is None:
        passes = max(least, round(server.rounds * share / server.rounds_per_pass))
    return min(passes * server.rounds_per_pass, server.rounds)


def warn_of_long_warm_up(server: Server, method: str, warm_up: int) -> None:
    """Warn of a run that ends with its warm-up: the method would never do what it is chosen for."""
    if warm_up and warm_up >= server.rounds:
        warnings.warn(
            f"{method}: all {server.rounds} rounds of this run are warm-up, in which no label is judged; one pass over "
            f"all clients takes {server.rounds_per_pass}. Give --rounds {8 * server.rounds_per_pass} or more, a larger "
            f"--participation, or {method}:passes=0.",
            FedwinnowWarning,
            stacklevel=2,
        )


def steps_of_turn(server: Server, index: int, group: int) -> Iterator[list[int]]:
    """The clients of the index-th round of such a stage, `group` at a time; each group starts from the one before."""
    members = server.turn(index)
    for place in range(0, len(members), group):
        yield members[place : place + group]


def if_any(replies: Iterator[tuple[int, Payload]]) -> Iterator[tuple[int, Payload]] | None:
    """The replies to a question that goes to the sites in turn; None if none came, so that nothing is merged."""
    first = next(replies, None)
    return None if first is None else itertools.chain([first], replies)


def watch_replies(
    replies: Iterator[tuple[int, Payload]], *keys: str, maybe: tuple[str, ...] = ()
) -> tuple[Iterator[tuple[int, Payload]], dict[int, Payload]]:
    """The replies, and a dictionary that collects what each client sends under `keys`, and `maybe` where it is there.

    Use the dictionary only after the last reply: before, its content depends on who answers first.
    """
    news: dict[int, Payload] = {}

    def passing() -> Iterator[tuple[int, Payload]]:
        for client, reply in replies:
            there = (key for key in maybe if key in reply)
            news[client] = {key: reply[key] for key in (*keys, *there)}
            yield client, reply

    return passing(), news
