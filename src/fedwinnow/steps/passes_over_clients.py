"""Stages that visit every client exactly once per pass, before ordinary rounds begin."""

from __future__ import annotations

from collections.abc import Iterator

from fedwinnow.federation.server import Server

USUAL_SHARE = 0.05  # of all client trainings; FedCorr and FedDiv on CIFAR-10: 5 passes are 50 of 1000 rounds


def rounds_of_passes(server: Server, passes: int | None, *, share: float = USUAL_SHARE, least: int = 2) -> int:
    """How many rounds so many passes take; none: a share of all rounds, but at least two passes."""
    if passes is None:
        passes = max(least, round(server.rounds * share / server.rounds_per_pass))
    return min(passes * server.rounds_per_pass, server.rounds)


def steps_of_turn(server: Server, index: int, group: int) -> Iterator[list[int]]:
    """The clients of the index-th round of such a stage, `group` at a time: each step starts from the one before."""
    members = server.turn(index)
    for place in range(0, len(members), group):
        yield members[place : place + group]
