"""Exchanges as secure sums: who is asked for what, and the method gets one reply that stands for all sites."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

from fedwinnow.errors import FedwinnowError
from fedwinnow.federation.backend import Backend
from fedwinnow.federation.host import Answer, Task
from fedwinnow.federation.method import Method
from fedwinnow.federation.summing.party import Identity, Numbers, Party, Peers, answered
from fedwinnow.federation.summing.sum_messages import Phase, Questions, digest, hash_of
from fedwinnow.federation.summing.sum_server import Ask, SecureSum
from fedwinnow.federation.summing.summed_form import Sums, flattened, from_sum
from fedwinnow.mathematics.masks import from_seed, signing_key
from fedwinnow.mathematics.payload import Payload, problem_with


class Carrier(Protocol):
    """Takes the phases of a sum to the sites."""

    def begin(self, session: Session) -> None:
        """A new sum."""

    def phase(self, phase: Phase, letters: dict[int, Payload]) -> Iterator[tuple[int, Payload | str]]:
        """The answers to a phase other than `masked`, or why there is none."""

    def masked(self, letters: dict[int, Payload], tasks: Iterable[Task]) -> Iterator[Answer]:
        """The masked answers to the method's question; in the place of its keys a reply has `form` and `masked`."""


@dataclass(frozen=True)
class Session:
    """One sum of a run."""

    run: str  # which run
    ask: str
    round: int
    exchange: int
    share: float

    @property
    def name(self) -> bytes:
        """What all sites and the server call it."""
        return digest("fedwinnow session", self.run, self.ask, self.round, self.exchange)


class SecureSums:
    """The secure sums of a run."""

    def __init__(self, carrier: Carrier, names: tuple[str, ...], peers: Peers, run: str, share: float) -> None:
        self.carrier, self.names, self.peers, self.run, self.share = carrier, names, peers, run, share

    def sum(self, clients: Iterable[int], session: Session, ask: Ask) -> SecureSum:
        """A sum over these clients, which has not begun."""
        self.carrier.begin(session)
        named = {client: self.names[client] for client in clients}
        return SecureSum(named, self.peers, session.name, session.share, ask)


# --- all sites in this process ---------------------------------------------------------------------------------------


def simulated_identity(seed: int, name: str) -> Identity:
    """A site of a simulation: all its secrets follow from the seed."""
    draw = from_seed(seed, name)
    return Identity(name, signing_key(draw), draw)


def simulated_peers(seed: int, names: Iterable[str]) -> Peers:
    """The public keys of the sites of a simulation."""
    return known_in_simulation(seed, tuple(names)).get


@lru_cache(maxsize=4)
def known_in_simulation(seed: int, names: tuple[str, ...]) -> dict[str, Any]:
    """The public keys by name; made once, because every site needs all of them."""
    return {name: simulated_identity(seed, name).key.public_key() for name in names}


class PartiesHere:
    """Sites in this process, which play the protocol with all its messages."""

    def __init__(self, backend: Backend, method: Method, identities: tuple[Identity, ...], peers: Peers) -> None:
        self.backend, self.method, self.identities, self.peers = backend, method, identities, peers

    def begin(self, session: Session) -> None:
        self.session = session
        self.parties: dict[int, Party] = {}

    def party(self, client: int) -> Party:
        """The party of a client in the sum that is under way."""
        if client not in self.parties:
            session = self.session
            self.parties[client] = Party(self.identities[client], client, self.peers, session.name, session.share)
        return self.parties[client]

    def phase(self, phase: Phase, letters: dict[int, Payload]) -> Iterator[tuple[int, Payload | str]]:
        for client, letter in letters.items():
            try:
                yield client, answered(self.party(client), phase, letter, no_values, opens_all)
            except FedwinnowError as problem:
                yield client, str(problem)

    def masked(self, letters: dict[int, Payload], tasks: Iterable[Task]) -> Iterator[Answer]:
        hashes, asked = Questions(), dict[int, bytes]()

        def noted() -> Iterator[Task]:
            for task in tasks:
                asked[task.client] = hashes.of(task.payload)
                yield task

        for answer in self.backend.exchange(noted()):
            if answer.error is None and not answer.absent:
                one = answer.client
                seal(answer, self.party(one), letters[one], self.method, asked[one])
            yield answer


def no_values() -> Numbers:
    """Only the phase `masked` has numbers."""
    raise AssertionError


def same(numbers: Numbers) -> Numbers:
    """Numbers that are known already."""
    return numbers


def opens_all(survivors: list[str]) -> None:
    """The sites of a simulation do not mind whose sums they open: whoever plays it has all data."""


def seal(answer: Answer, party: Party, letter: Payload, method: Method, question: bytes) -> int:
    """Put the masked numbers in the place of a reply, or an error; returns how many values were clipped."""
    cut = 0
    try:
        if (problem := problem_with(answer.reply, method.exposed())) is not None:
            answer.error = problem
            return 0
        cut = seal_with(answer, party, letter, method.summed(), question)
    except FedwinnowError as refused:
        answer.error, answer.reply = str(refused), {}
    return cut


def seal_with(answer: Answer, party: Party, letter: Payload, sums: Sums, question: bytes) -> int:
    """The same for numbers of which it is known how they are summed."""
    form, ring, cut = flattened(answer.reply, sums, len(party.places))
    answer.reply = answered(party, "masked", letter, partial(same, Numbers(ring, form, question)), opens_all)
    return cut


def sums_in_simulation(backend: Backend, method: Method, names: tuple[str, ...], seed: int, share: float) -> SecureSums:
    """The secure sums of a run whose sites are all in this process."""
    peers = simulated_peers(seed, names)
    identities = tuple(simulated_identity(seed, name) for name in names)
    return SecureSums(PartiesHere(backend, method, identities, peers), names, peers, "simulation", share)


def sum_here(replies: dict[int, Payload], sums: Sums, seed: int, session: Session) -> Payload:
    """The sum of values that sites in this process have, by the protocol."""
    names = {client: f"site {client}" for client in replies}
    peers = simulated_peers(seed, names.values())
    parties = {
        client: Party(simulated_identity(seed, name), client, peers, session.name, session.share)
        for client, name in names.items()
    }

    def ask(phase: Phase, letters: dict[int, Payload]) -> Iterator[tuple[int, Payload | str]]:
        for client, letter in letters.items():
            party = parties[client]
            if phase == "masked":
                form, ring, _ = flattened(replies[client], sums, len(party.places))
                numbers = Numbers(ring, form, hash_of({}))
                yield client, answered(party, phase, letter, partial(same, numbers), opens_all)
            else:
                yield client, answered(party, phase, letter, no_values, opens_all)

    total = SecureSum(names, peers, session.name, session.share, ask).result()
    return from_sum(total.form, total.ring, sums)[0]
