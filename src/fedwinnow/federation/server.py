"""The server as a method sees it: the global model, the method's memory, who is there; never a sample of a site."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwinnow.federation.memory import Memory
from fedwinnow.federation.server_samples import ServerSamples
from fedwinnow.mathematics.aggregators import Collector
from fedwinnow.mathematics.payload import FlatModel, Payload
from fedwinnow.randomness import Integers, stream_key, uniforms

STEADY = "steady."  # the average that answers, in the server's memory
SINCE = "steady_since"  # the round after which the average started again, if it did


@dataclass
class Server:
    """Everything the server knows."""

    clients: int  # how many sites there are
    available: tuple[int, ...]  # those that hold samples
    participation: float
    rounds: int
    seed: int
    classes: int
    weights: Payload  # the global model
    model: FlatModel  # scratch for methods that compute on the server
    round: int = 0  # 1, 2, ... while a round is played
    exchange: int = 0  # 0, 1, ... within the round
    state: Payload = field(default_factory=dict)  # the method's memory; it is in the checkpoint
    trusted: ServerSamples | None = None  # samples with right labels, where the user gave some
    public: ServerSamples | None = None  # samples without labels, which every client has too
    vault: Memory = field(default_factory=lambda: Memory(Path("vault")))  # what it keeps of each client, on disk
    answered: list[int] = field(default_factory=list)  # the current exchange; whole after the last reply
    kept: dict[int, str | None] = field(default_factory=dict)  # new versions in the vault, from the current exchange
    # Initial weights of a further model, by number; drawn anew for each number, unless the model has weights of a file
    fresh: Callable[[int], Payload] | None = None
    # Begins the merge of a round where the mean is noisy; None: the aggregator of the method does.
    release: Callable[[], Collector] | None = None
    notes: dict[str, Any] = field(default_factory=dict)  # goes into this round's line of rounds.jsonl
    drawn_from: tuple[tuple[int, ...], Integers] = ((), np.zeros(0, np.int64))  # `available` when it was last used

    def begin(self, round_number: int) -> None:
        """A new round."""
        self.round, self.notes = round_number, {}
        for bench in self.benches:
            bench.begin(round_number)

    def end(self) -> None:
        """The round is over: note how much the server computed, apart from what the clients computed."""
        forward = sum(bench.forward_samples for bench in self.benches)
        backward = sum(bench.backward_samples for bench in self.benches)
        if forward:
            self.note(server_forward_samples=forward, server_backward_samples=backward)

    @property
    def benches(self) -> list[ServerSamples]:
        """The samples that the server has."""
        return [bench for bench in (self.trusted, self.public) if bench is not None]

    @property
    def pool(self) -> Integers:
        """Who can take part, as an array: to make it anew in each round would take long with very many clients."""
        made_of, pool = self.drawn_from
        if made_of is not self.available:
            pool = np.asarray(self.available)
            self.drawn_from = (self.available, pool)
        return pool

    @property
    def per_round(self) -> int:
        """How many clients take part in an ordinary round: at least one, at most all."""
        return participants(self.participation, self.clients, len(self.available))

    def sample(self, count: int | None = None, among: Sequence[int] | None = None) -> list[int]:
        """Clients drawn without replacement, ascending; the same for the same seed and round."""
        pool = self.pool if among is None else np.asarray(among)
        return drawn(self.seed, self.round, pool, self.per_round if count is None else count)

    @property
    def rounds_per_pass(self) -> int:
        """How many ordinary rounds it takes to visit every client once."""
        return -(-len(self.available) // self.per_round)

    def turn(self, index: int) -> list[int]:
        """The clients of the index-th round (0, 1, ...) of a stage in which a pass visits everybody exactly once."""
        number, block = divmod(index, self.rounds_per_pass)
        pool = np.asarray(self.available)
        order = pool[np.argsort(uniforms(self.seed, "pass", number, pool), kind="stable")]
        return [int(client) for client in order[block * self.per_round : (block + 1) * self.per_round]]

    def remember(self, client: int, payload: Payload) -> None:
        """Keep something of one client, for example its last model; on disk, because there may be many.

        It can be recalled only when the exchange is over, so that what others are sent does not depend on who
        answers first.
        """
        self.kept[client] = self.vault.write(client, self.round, self.exchange, payload)

    def settle(self) -> None:
        """The exchange is over: what was remembered can be recalled."""
        for client, version in self.kept.items():
            self.vault.accept(client, version)
        self.kept.clear()

    def recall(self, client: int) -> Payload:
        """What was kept of a client; empty before its first visit."""
        return self.vault.read(self.vault.versions.get(client))

    def start_anew(self, weights: Payload) -> None:
        """Replace the global model by an unrelated one; with `steady`, the average starts again from it."""
        self.weights = weights
        if any(key.startswith(STEADY) for key in self.state):
            self.state[SINCE] = torch.tensor([self.round - 1])

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers for the server's own use in this round."""
        key = stream_key(self.seed, f"server {purpose}", self.round)
        return torch.Generator().manual_seed(key & (2**63 - 1))

    def note(self, **facts: Any) -> None:
        """Add facts about this round to its line of the log, for example the stage."""
        self.notes.update({name: plain(value) for name, value in facts.items()})


def drawn(seed: int, round_number: int, pool: Sequence[int] | Integers, count: int) -> list[int]:
    """So many clients of a round, drawn without replacement, ascending."""
    found = np.asarray(pool)
    luck = uniforms(seed, "participants", round_number, found)
    if count >= len(found):
        return sorted(found.tolist())
    last = np.partition(luck, count)[count]  # the smallest number that is not drawn, if no two are equal
    first = luck < last
    first[np.flatnonzero(luck == last)[: count - int(first.sum())]] = True
    return sorted(found[first].tolist())


def participants(participation: float, clients: int, available: int) -> int:
    """A share of the clients as a number: rounded down, at least one, at most those that hold samples."""
    return min(max(int(np.floor(participation * clients + 1e-9)), 1), available)


def plain(value: Any) -> Any:
    """A fact as JSON can hold it; NaN and infinity become null."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


# --- `steady`: an average of the global models answers ---------------------------------------------------------------
#
# Training goes on from the global model. The average is tested, judges labels and is what the run keeps as its model
# after the last round; the global model is then kept beside it, in case the run goes on.

LAST = "last."  # the global model of a run that has ended, in the server's memory


def start_average(server: Server) -> None:
    """Before the first round: the average is the initial model."""
    server.state |= {STEADY + key: value.clone() for key, value in server.weights.items()}


def resume_from_global(server: Server) -> None:
    """Before a round: a run that had ended continues from its global model."""
    server.weights |= {key: server.state.pop(LAST + key) for key in server.weights if LAST + key in server.state}


def move_average(server: Server, steady: float) -> None:
    """After a round: update the average, which is at first the plain mean of the global models so far."""
    since = int(server.state[SINCE]) if SINCE in server.state else 0
    kept = min(steady, 1 - 1 / (server.round - since))
    for key, value in server.weights.items():
        before = server.state.get(STEADY + key, value)  # a method may add a model in a later round
        averaged = torch.lerp(value, before, kept) if value.is_floating_point() else value
        server.state[STEADY + key] = averaged.clone()
    if server.round == server.rounds:
        keep_average(server)


def keep_average(server: Server) -> None:
    """At the end of a run: save what was tested."""
    if STEADY + "weights" in server.state:
        server.state |= {LAST + key: value for key, value in server.weights.items()}
        server.weights = {key: server.state[STEADY + key].clone() for key in server.weights}


def answering_server(server: Server, steady: float) -> Server:
    """The server for testing and judging: with the average in place of the global model."""
    if steady == 0:
        return server
    return replace(server, weights={key: server.state[STEADY + key] for key in server.weights})
