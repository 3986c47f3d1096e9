"""The only loop: a round is a conversation between the method's server half and some clients."""

from __future__ import annotations

import itertools
import math
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fedwinnow.all_settings import Faults
from fedwinnow.errors import FedwinnowError, RunError, memory_shortage
from fedwinnow.federation import steady_model
from fedwinnow.federation.backend import Backend
from fedwinnow.federation.host import Answer, Task
from fedwinnow.federation.ledger import Ledger
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import Exchange, Method, Replies
from fedwinnow.federation.server import Server
from fedwinnow.federation.traces import frames_of_method
from fedwinnow.mathematics.payload import Payload, Received, check_state, problem_with, size_in_bytes
from fedwinnow.metrics.task import Figure, training_stability


@dataclass
class Tally:
    """What one round cost and who took part."""

    participants: list[int] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)  # had too few samples to say anything, which is no failure
    bytes_up: int = 0
    bytes_down: int = 0
    forward_samples: int = 0
    backward_samples: int = 0
    seconds: float = 0.0
    distances: list[Figure] = field(default_factory=list)  # squared, of each trained model from where it started
    notes: dict[int, Payload] = field(default_factory=dict)  # per-sample remarks of the clients, for evaluation only


class NobodySpoke(Exception):
    """All who were asked have too few samples to say anything: the round ends as it stands."""


class RepliesInOrder:
    """Replies as a method takes them, one by one; nothing else of the federation is in their reach."""

    __slots__ = ("_source",)

    def __init__(self, source: Replies) -> None:
        # Weak, because a generator holds the frame it runs in, and that one leads to the backend and to every site.
        self._source = weakref.ref(source)

    def __iter__(self) -> Replies:
        return self

    def __next__(self) -> tuple[int, Payload]:
        source = self._source()
        if source is None:  # the exchange is over
            raise StopIteration
        return next(source)


class Federation:
    """A server, a method, and a backend that reaches the clients."""

    def __init__(
        self,
        method: Method,
        server: Server,
        backend: Backend,
        memory: Memory,
        ledger: Ledger,
        site_names: tuple[str, ...],
        faults: Faults,
    ) -> None:
        self.method = method
        self.server = server
        self.backend = backend
        self.memory = memory
        self.ledger = ledger
        self.site_names = site_names
        self.faults = faults
        self.silent: dict[str, str] = {}  # sites that failed when they were asked after the last round

    def start(self) -> None:
        """Before the first round."""
        self.method.start(self.server)
        self.check_memory()
        if self.method.steady:
            steady_model.start(self.server)

    def play_round(self, number: int) -> Tally:
        """One round; the server's weights and state, and the clients' memories, are then those of its end."""
        began = time.perf_counter()
        self.server.begin(number)
        tally, steady = Tally(), self.method.steady
        if steady:
            steady_model.go_on(self.server)
        try:
            self.converse(tally)
        except NobodySpoke:
            self.server.settle()
        except FedwinnowError as problem:
            # Clients answer while the server's half takes their replies. Its frames would hide those of the client,
            # which the message has.
            raise problem.with_traceback(None) from None
        except Exception as problem:
            if (shortage := memory_shortage(problem)) is not None:
                raise shortage from None
            raise RunError(
                f"round {number}{self.stage}, the server's half of {self.method.name}: {type(problem).__name__}: "
                f"{problem}.\n{frames_of_method(problem)}"
            ) from None
        self.check_memory()
        if steady:
            steady_model.follow(self.server, steady)
        self.server.end()
        tally.participants.sort()
        tally.seconds = time.perf_counter() - began
        return tally

    def check_memory(self) -> None:
        """What the server's half wants to remember can be remembered."""
        check_state(self.server.state, "server.state", self.method.name)
        check_state(self.server.weights, "server.weights", self.method.name)

    def converse(self, tally: Tally) -> None:
        """Let the method ask until it is done; replies that it did not look at are booked all the same."""
        conversation = self.method.exchanges(self.server)
        replies: Replies | None = None
        for index in itertools.count():
            try:
                exchange = next(conversation) if replies is None else conversation.send(RepliesInOrder(replies))
            except StopIteration:
                break
            self.conclude(replies)
            self.server.exchange = index
            replies = self.deliver(exchange, index, tally)
        self.conclude(replies)

    def conclude(self, replies: Replies | None) -> None:
        """Take in what a method did not look at, so that every reply is booked; then the exchange is over."""
        for _ in replies or ():
            continue
        self.server.settle()

    def deliver(self, exchange: Exchange, index: int, tally: Tally) -> Iterator[tuple[int, Payload]]:
        """Ask the clients of one exchange; good replies stream back in the order of the clients."""
        self.check_clients(exchange)
        answered = absent = 0
        for answer in self.backend.exchange(self.tasks(exchange, index, tally)):
            if answer.absent:
                absent += 1
                self.miss(answer, tally)
                continue
            problem = answer.error or problem_with(answer.reply, self.method.exposes)
            problem = problem or unlike_model(answer.reply, self.server.weights)
            if problem is not None:
                self.fail(answer, exchange, problem, tally)
                continue
            answered += 1
            self.accept(answer, tally)
            yield answer.client, Received(answer.reply, self.sender(answer, exchange.ask))
        if exchange.optional:
            return
        asked = len(exchange.clients) - absent
        if absent and not asked:
            raise NobodySpoke
        needed = math.ceil(self.faults.quorum * asked - 1e-9)
        if answered < max(needed, min(1, asked)):
            raise RunError(
                f"round {self.server.round}, {exchange.ask}: only {answered} of {asked} clients "
                f"answered; the quorum is {max(needed, 1)}. Lower --quorum, or look at what failed: {tally.dropped}"
            )

    def check_clients(self, exchange: Exchange) -> None:
        """A method may ask any client that there is, once."""
        asked = list(exchange.clients)
        if strange := [client for client in asked if client not in range(self.server.clients)]:
            raise RunError(
                f"round {self.server.round}, {exchange.ask}: method '{self.method.name}' asks client {strange[0]}; "
                f"there are the clients 0 to {self.server.clients - 1}."
            )
        if len(set(asked)) < len(asked):
            raise RunError(
                f"round {self.server.round}, {exchange.ask}: method '{self.method.name}' asks a client twice in one "
                f"exchange: {sorted(asked)}."
            )

    def tasks(self, exchange: Exchange, index: int, tally: Tally) -> Iterator[Task]:
        """The questions, made one by one as the backend has room."""
        for client in exchange.clients:
            payload = exchange.send(client)
            tally.bytes_down += size_in_bytes(payload)
            memory = self.memory.versions.get(client)
            yield Task(client, exchange.ask, self.server.round, index, payload, memory)

    def accept(self, answer: Answer, tally: Tally) -> None:
        """Book a good answer: memory, ledger, cost."""
        self.memory.accept(answer.client, answer.memory)
        self.ledger.record(self.site_names[answer.client], answer.reply)
        if answer.client not in tally.participants:
            tally.participants.append(answer.client)
        tally.bytes_up += size_in_bytes(answer.reply)
        tally.forward_samples += answer.forward_samples
        tally.backward_samples += answer.backward_samples
        if "weights" in answer.reply:
            trained = self.server.model.trainable
            local, start = answer.reply["weights"][:trained], self.server.weights["weights"][:trained]
            tally.distances.append(training_stability([local.numpy()], start.numpy()))
        if answer.notes:
            tally.notes.setdefault(answer.client, {}).update(answer.notes)

    def miss(self, answer: Answer, tally: Tally) -> None:
        """A client has too few samples to say anything: it is left out, and that is all that is known."""
        name = self.site_names[answer.client]
        if name not in tally.absent:
            tally.absent.append(name)

    def fail(self, answer: Answer, exchange: Exchange, problem: str, tally: Tally) -> None:
        """A client gave no usable reply: leave it out, or stop with its name, the round and the stage."""
        if self.faults.on_client_error == "stop":
            raise self.stopped(answer, exchange.ask, problem)
        tally.dropped[self.site_names[answer.client]] = problem

    def stopped(self, answer: Answer, ask: str, problem: str) -> RunError:
        """Why a client's failure ends the run, and what to do."""
        trace = f"\n{answer.trace}" if answer.trace else ""
        said = f"{self.sender(answer, ask)}: {problem.rstrip('.')}."
        return RunError(f"{said} --on-client-error drop would leave it out and go on.{trace}")

    def sender(self, answer: Answer, ask: str) -> str:
        """Whose answer it is, to what and when."""
        return (
            f"client {answer.client} ({self.site_names[answer.client]}), round {self.server.round}{self.stage}, {ask}"
        )

    @property
    def stage(self) -> str:
        """The stage that the method is in, for messages; empty for a method with one stage only."""
        stage = self.server.notes.get("stage") if len(self.method.stages) > 1 else None
        return "" if stage is None else f", stage '{stage}'"

    @property
    def answering(self) -> Server:
        """The server with the weights that are tested and that judge."""
        return steady_model.answering(self.server, self.method.steady)

    def models(self) -> Sequence[Payload]:
        """The models that answer when the federation is tested."""
        return steady_model.answering_models(self.method, self.server)

    def to_judge(self, client: int) -> Payload:
        """What a client is sent when it is asked about its samples."""
        return self.method.send(self.answering, client)

    def ask_all(self, ask: str, clients: tuple[int, ...]) -> Iterator[tuple[int, Payload]]:
        """A question to clients for the evaluation of a simulation: nothing of it is part of the federation.

        A client that fails stops the run, or is left out and named in `silent` where failing clients are dropped.
        """
        tasks = (
            Task(client, ask, self.server.round, 0, self.to_judge(client), self.memory.versions.get(client))
            for client in clients
        )
        for answer in self.backend.exchange(tasks):
            if answer.error is None:
                yield answer.client, answer.reply
            elif self.faults.on_client_error == "drop":
                self.silent[self.site_names[answer.client]] = f"{ask}: {answer.error}"
            else:
                raise self.stopped(answer, ask, answer.error)


def unlike_model(reply: Payload, weights: Payload) -> str | None:
    """A model must come back in the shape in which it was sent, and in the same kind of numbers."""
    for key, value in weights.items():
        if key in reply and reply[key].shape != value.shape:
            return f"'{key}' in its reply has the shape {tuple(reply[key].shape)}, not {tuple(value.shape)}"
        if key in reply and reply[key].dtype != value.dtype:
            return f"'{key}' in its reply is {reply[key].dtype}, not {value.dtype}"
    return None
