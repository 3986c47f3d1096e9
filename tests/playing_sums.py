"""A secure sum among sites of a test, any of which may fail or lie, and a server that may lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from fedwinnow.errors import FedwinnowError
from fedwinnow.federation.summing.party import Numbers, Party, answered
from fedwinnow.federation.summing.secure_sums import simulated_identity, simulated_peers
from fedwinnow.federation.summing.sum_messages import Phase, hash_of
from fedwinnow.federation.summing.sum_server import SecureSum
from fedwinnow.mathematics.fixed_point import Ring
from fedwinnow.mathematics.payload import Payload

Meddle = Callable[[Phase, int, Payload], Payload | str]
SESSION = b"a sum"


def as_it_is(phase: Phase, site: int, payload: Payload) -> Payload | str:
    return payload


@dataclass
class Play:
    """Sites 0, 1, 2, ... with one row of numbers each."""

    values: dict[int, list[int]]
    share: float = 0.5
    told: Meddle = (
        as_it_is  # what the server makes of a letter; a text: the site is not asked, and lost for that reason
    )
    sent: Meddle = as_it_is  # what a site makes of its answer
    seed: int = 0
    questions: dict[int, bytes] = field(default_factory=dict)  # what sites were asked, if not the same as all
    once: Callable[[int, list[str]], None] = lambda site, members: None
    parties: dict[int, Party] = field(default_factory=dict)
    asked: list[tuple[Phase, int]] = field(default_factory=list)
    replies: dict[tuple[Phase, int], Payload] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = {site: f"site {site}" for site in self.values}
        self.peers = simulated_peers(self.seed, self.names.values())
        for site in self.values:
            self.parties[site] = self.party(site)
        self.server = SecureSum(self.names, self.peers, SESSION, self.share, self.ask)

    def party(self, site: int, name: str | None = None) -> Party:
        identity = simulated_identity(self.seed, self.names[site] if name is None else name)
        return Party(identity, site, self.peers, SESSION, self.share)

    def ring(self, site: int) -> Ring:
        return np.array(self.values[site], np.int64).view(np.uint64)

    def answer(self, phase: Phase, site: int, letter: Payload) -> Payload:
        """The answer of an honest site."""
        self.asked.append((phase, site))
        question = self.questions.get(site, hash_of({}))
        made = lambda: Numbers(self.ring(site), "numbers", question)  # noqa: E731
        reply = answered(self.parties[site], phase, letter, made, partial(self.once, site))
        self.replies[phase, site] = reply
        return reply

    def ask(self, phase: Phase, letters: dict[int, Payload]) -> Iterator[tuple[int, Payload | str]]:
        for site, letter in letters.items():
            changed = self.told(phase, site, letter)
            try:
                reply = changed if isinstance(changed, str) else self.answer(phase, site, changed)
                yield site, reply if isinstance(reply, str) else self.sent(phase, site, reply)
            except FedwinnowError as problem:
                yield site, str(problem)

    def result(self) -> tuple[tuple[int, ...], list[int]]:
        """Who is in the sum, and the sum."""
        total = self.server.result()
        return total.members, total.ring.view(np.int64).tolist()


def numbers(*sites: int) -> torch.Tensor:
    return torch.tensor(list(sites))
