"""The server's half of one round, which can go back: what one reply has spoiled is played again without that reply."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from fedwinnow.federation.host import Answer
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import Exchange, Method, Replies, RepliesInOrder
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.payload import Payload, Received, magnitude, size_in_bytes

ROOM = 2**30  # bytes of a round's replies that are held in memory; further ones are held on disk

Read = Callable[[], Received]  # gives a reply that is held


class HeldReplies:
    """The replies of a round, held until nothing can send the round back."""

    def __init__(self, room: int = ROOM) -> None:
        self.left = room
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self.memory: Memory | None = None

    def hold(self, answer: Answer, sender: str, round_number: int, exchange: int) -> Read:
        """Keep a reply; returns a function that gives it back."""
        reply, size = Received(answer.reply, sender), size_in_bytes(answer.reply)
        self.left -= size
        if self.left >= 0:
            return lambda: reply
        if self.memory is None:
            self.folder = tempfile.TemporaryDirectory(prefix="fedwinnow-")
            self.memory = Memory(Path(self.folder.name))
        memory, name = self.memory, self.memory.write(answer.client, round_number, exchange, answer.reply)
        return lambda: Received(memory.read(name), sender)

    def __enter__(self) -> HeldReplies:
        return self

    def __exit__(self, *_: object) -> None:
        if self.folder is not None:
            self.folder.cleanup()


class Conversation:
    """The server's half of a round, with what is needed to begin it again."""

    def __init__(self, method: Method, server: Server) -> None:
        self.method, self.server = method, server
        self.weights, self.state, self.vault = copied(server.weights), copied(server.state), dict(server.vault.versions)
        self.noted = dict(server.notes)
        self.heard: list[list[tuple[int, Read]]] = []  # what was told so far, per question
        self.talk: Generator[Exchange, Replies, None] = method.exchanges(server)

    def begin(self) -> Exchange | None:
        """The first question of the round."""
        first = next(self.talk, None)
        self.server.settle()
        self.server.exchange = 0
        return first

    def tell(self, replies: Sequence[tuple[int, Read]]) -> Exchange | None:
        """The next question after these replies; None when the round is over."""
        source = given(replies)
        self.server.answered = [client for client, _ in replies]
        try:
            following = self.talk.send(RepliesInOrder(source))
        except StopIteration:
            following = None
        for _ in source:  # those that the method left
            continue
        self.server.settle()
        self.heard.append(list(replies))
        self.server.exchange = len(self.heard)
        return following

    def back(self, questions: int) -> None:
        """Go back to where so many questions had been answered, whatever has happened since."""
        heard, self.heard = self.heard[:questions], []
        self.server.kept.clear()
        self.server.vault.versions = dict(self.vault)
        self.server.begin(self.server.round)
        self.server.notes = dict(self.noted)
        self.server.weights, self.server.state = copied(self.weights), copied(self.state)
        self.talk = self.method.exchanges(self.server)
        self.begin()
        for replies in heard:
            self.tell(replies)


def given(replies: Sequence[tuple[int, Read]]) -> Replies:
    """The replies one by one, each read when it is its turn."""
    for client, read in replies:
        yield client, read()


def copied(payload: Payload) -> Payload:
    """A copy with tensors of its own, except what is no tensor, which is refused elsewhere."""
    return {key: value.clone() if hasattr(value, "clone") else value for key, value in payload.items()}


def suspicion(reply: Payload) -> float:
    """How suspicious a reply is when something has gone wrong: by its largest number."""
    return max((magnitude(value) for value in reply.values() if value.is_floating_point()), default=0.0)


def culprits(scores: Sequence[float], works: Callable[[Sequence[int]], bool], fewest: int = 1) -> list[int] | None:
    """The replies, by number, without which the others work; None if that is so for no `fewest` of them.

    One is looked for first, beginning with the most suspicious. If there are several, the others come together one by
    one, the least suspicious first, and whoever does not get along with those before is one of them.
    """
    everybody = range(len(scores))
    ranked = sorted(everybody, key=lambda place: (-scores[place], place))
    for place in ranked if len(ranked) > fewest else []:
        if works([one for one in everybody if one != place]):
            return [place]
    kept: list[int] = []
    for place in reversed(ranked):
        if works(sorted([*kept, place])):
            kept.append(place)
    return [place for place in everybody if place not in kept] if 0 < len(kept) < len(ranked) else None
