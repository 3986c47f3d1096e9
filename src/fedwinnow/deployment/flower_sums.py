"""Secure sums over a network: the phases as messages to the sites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import RecordDict

from fedwinnow.deployment.flower_backend import Flower, Letter, Lost, Packed, answer_of
from fedwinnow.deployment.flower_records import to_records
from fedwinnow.deployment.site_sums import GOT, KIND
from fedwinnow.federation.host import Answer, Task
from fedwinnow.federation.summing.secure_sums import Session
from fedwinnow.federation.summing.sum_messages import Phase
from fedwinnow.mathematics.payload import Payload

Outcomes = Iterator[tuple[Letter, RecordDict | Lost]]

# What a coordinator is told before a run with secure sums.
WARNING = (
    "secure sums: this coordinator learns sums over sites only. So nobody can check single replies: one site that "
    "sends wrong numbers can spoil a sum unseen. Only who takes part, the form of the messages and whether the sum "
    "is possible are checked."
)


@dataclass
class SumsOverFlower:
    """Takes the phases of a sum to sites over a grid."""

    places: Callable[[], dict[int, int]]  # the node of every client, as it is now
    facts: Callable[[int], dict[str, Any]]  # what every message to a client says besides
    send: Callable[[Sequence[Letter], int], Outcomes]  # letters of a round
    session: Session | None = None
    nodes: dict[int, int] = field(default_factory=dict)

    def begin(self, session: Session) -> None:
        self.session, self.nodes = session, self.places()

    def letter(self, phase: Phase, client: int, payload: Payload, packed: Packed, **more: Any) -> Letter:
        """A message about the sum that is under way."""
        session = self.session
        assert session is not None
        about = {"kind": KIND, "phase": phase, "ask": session.ask, "round": session.round, "exchange": session.exchange}
        content = to_records(self.facts(client) | about | {"client": client} | more, payload, packed)
        return Letter(client, self.nodes.get(client), content)

    def phase(self, phase: Phase, letters: dict[int, Payload]) -> Iterator[tuple[int, Payload | str]]:
        packed: Packed = {}
        sent = [self.letter(phase, client, payload, packed) for client, payload in letters.items()]
        for answer in self.answers(sent):
            yield answer.client, answer.reply if answer.error is None else answer.error

    def masked(self, letters: dict[int, Payload], tasks: Iterable[Task]) -> Iterator[Answer]:
        packed: Packed = {}
        sent = [
            self.letter(
                "masked",
                task.client,
                letters[task.client] | {GOT + key: value for key, value in task.payload.items()},
                packed,
                memory=task.memory,
            )
            for task in tasks
        ]
        yield from self.answers(sent)

    def answers(self, letters: list[Letter]) -> Iterator[Answer]:
        """The answers as they come: of integers, the order of adding does not matter."""
        assert self.session is not None
        for letter, outcome in self.send(letters, self.session.round):
            yield answer_of(letter.number, outcome)


def over_flower(backend: Flower) -> SumsOverFlower:
    """How the secure sums of a run reach the sites."""

    def places() -> dict[int, int]:
        backend.roster.refresh()
        return backend.roster.places(backend.names)

    return SumsOverFlower(places, lambda client: backend.facts(KIND, client), backend.answers)
