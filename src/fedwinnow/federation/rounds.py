"""The loop of a run: in each round the server's half of the method asks clients and merges their replies."""

from __future__ import annotations

import itertools
import math
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from fedwinnow.all_settings import Faults
from fedwinnow.errors import FedwinnowError, RunError, UsageError, memory_shortage
from fedwinnow.federation.backend import Backend
from fedwinnow.federation.host import Answer, Task
from fedwinnow.federation.ledger import Ledger
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import Exchange, Method, Replies
from fedwinnow.federation.server import SINCE, STEADY, Server
from fedwinnow.federation.traces import frames_of_method
from fedwinnow.mathematics.payload import Payload, Received, check_state, problem_with, size_in_bytes
from fedwinnow.metrics.task import Figure, training_stability


@dataclass
class Tally:
    """What one round cost and who took part."""

    participants: list[int] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)  # had fewer samples than the least count; not a failure
    bytes_up: int = 0
    bytes_down: int = 0
    forward_samples: int = 0
    backward_samples: int = 0
    seconds: float = 0.0
    distances: list[Figure] = field(default_factory=list)  # of each trained model from the global one, squared
    notes: dict[int, Payload] = field(default_factory=dict)  # the clients' values per sample, for evaluation only


class AllAbsent(Exception):
    """All clients that were asked have too few samples to reply: the round ends without a change."""


class RepliesInOrder:
    """The replies that a method receives, one by one; a method cannot reach the federation through them."""

    __slots__ = ("_source",)

    def __init__(self, source: Replies) -> None:
        # A weak reference, because the generator's frame refers to the backend and so to the data of every site.
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
        self.silent: dict[str, str] = {}  # sites that failed after the last round, and why

    def start(self) -> None:
        """Before the first round."""
        self.method.start(self.server)
        self.check_memory()
        if self.method.steady:
            start_average(self.server)

    def play_round(self, number: int) -> Tally:
        """Play one round: updates the server's weights and state and the clients' memories."""
        began = time.perf_counter()
        self.server.begin(number)
        tally, steady = Tally(), self.method.steady
        if steady:
            resume_from_global(self.server)
        try:
            self.ask_and_merge(tally)
        except AllAbsent:
            self.server.settle()
        except FedwinnowError as problem:
            # Clients answer while the server's half reads their replies, so the traceback would show the server's half.
            # The message has the client's own traceback.
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
            move_average(self.server, steady)
        self.server.end()
        tally.participants.sort()
        tally.seconds = time.perf_counter() - began
        return tally

    def check_memory(self) -> None:
        """Refuse values in the server's memory that cannot be saved."""
        check_state(self.server.state, "server.state", self.method.name)
        check_state(self.server.weights, "server.weights", self.method.name)

    def ask_and_merge(self, tally: Tally) -> None:
        """Let the method ask until its round is over."""
        conversation = self.method.exchanges(self.server)
        replies: Replies | None = None
        for index in itertools.count():
            try:
                exchange = next(conversation) if replies is None else conversation.send(RepliesInOrder(replies))
            except StopIteration:
                break
            self.end_exchange(replies)
            self.server.exchange = index
            replies = self.deliver(exchange, index, tally)
        self.end_exchange(replies)

    def end_exchange(self, replies: Replies | None) -> None:
        """Read the replies that the method left, so that every one is in the ledger; then end the exchange."""
        for _ in replies or ():
            continue
        self.server.settle()

    def deliver(self, exchange: Exchange, index: int, tally: Tally) -> Iterator[tuple[int, Payload]]:
        """Ask the clients of one exchange; yields the good replies in the order of the clients."""
        self.check_clients(exchange)
        answered = absent = 0
        for answer in self.backend.exchange(self.tasks(exchange, index, tally)):
            if answer.absent:
                absent += 1
                if self.site_names[answer.client] not in tally.absent:
                    tally.absent.append(self.site_names[answer.client])
                continue
            problem = answer.error or problem_with(answer.reply, self.method.exposes)
            problem = problem or problem_with_model(answer.reply, self.server.weights)
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
            raise AllAbsent
        needed = math.ceil(self.faults.quorum * asked - 1e-9)
        if answered < max(needed, min(1, asked)):
            raise RunError(
                f"round {self.server.round}, {exchange.ask}: only {answered} of {asked} clients "
                f"answered; the quorum is {max(needed, 1)}. Lower --quorum, or look at what failed: {tally.dropped}"
            )

    def check_clients(self, exchange: Exchange) -> None:
        """Refuse clients that do not exist or that a method asks twice."""
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
        """The tasks of an exchange, each made when the backend has room for it."""
        for client in exchange.clients:
            payload = exchange.send(client)
            tally.bytes_down += size_in_bytes(payload)
            memory = self.memory.versions.get(client)
            yield Task(client, exchange.ask, self.server.round, index, payload, memory)

    def accept(self, answer: Answer, tally: Tally) -> None:
        """Record a good answer: memory, ledger, cost."""
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

    def fail(self, answer: Answer, exchange: Exchange, problem: str, tally: Tally) -> None:
        """A client gave no usable reply: leave it out of the round, or stop the run."""
        if self.faults.on_client_error == "stop":
            raise self.client_failure(answer, exchange.ask, problem)
        tally.dropped[self.site_names[answer.client]] = problem

    def client_failure(self, answer: Answer, ask: str, problem: str) -> RunError:
        """The error that ends the run: which client failed where, why, and what to do."""
        trace = f"\n{answer.trace}" if answer.trace else ""
        said = f"{self.sender(answer, ask)}: {problem.rstrip('.')}."
        return RunError(f"{said} --on-client-error drop would leave it out and go on.{trace}")

    def sender(self, answer: Answer, ask: str) -> str:
        """The client, round, stage and question of an answer, for messages."""
        return (
            f"client {answer.client} ({self.site_names[answer.client]}), round {self.server.round}{self.stage}, {ask}"
        )

    @property
    def stage(self) -> str:
        """The stage of the method, for messages; empty for a method with one stage."""
        stage = self.server.notes.get("stage") if len(self.method.stages) > 1 else None
        return "" if stage is None else f", stage '{stage}'"

    @property
    def answering(self) -> Server:
        """The server with the weights that are tested and that judge: with `steady`, the average."""
        return answering_server(self.server, self.method.steady)

    def models(self) -> Sequence[Payload]:
        """The models that are tested."""
        return answering_models(self.method, self.server)

    def to_judge(self, client: int) -> Payload:
        """What a client receives when it judges or scores its samples."""
        return self.method.send(self.answering, client)

    def ask_all(self, ask: str, clients: tuple[int, ...]) -> Iterator[tuple[int, Payload]]:
        """Ask clients for the evaluation of a simulation; this is not part of the federation and not in the ledger.

        A client that fails stops the run; with --on-client-error drop it is left out and named in `silent`.
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
                raise self.client_failure(answer, ask, answer.error)


def problem_with_model(reply: Payload, weights: Payload) -> str | None:
    """Why a reply does not fit the model that was sent: another shape, or another type of numbers; None if it fits."""
    for key, value in weights.items():
        if key in reply and reply[key].shape != value.shape:
            return f"'{key}' in its reply has the shape {tuple(reply[key].shape)}, not {tuple(value.shape)}"
        if key in reply and reply[key].dtype != value.dtype:
            return f"'{key}' in its reply is {reply[key].dtype}, not {value.dtype}"
    return None


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
    if server.round == server.rounds:  # save what was tested
        server.state |= {LAST + key: value for key, value in server.weights.items()}
        server.weights = {key: server.state[STEADY + key].clone() for key in server.weights}


def answering_server(server: Server, steady: float) -> Server:
    """The server for testing and judging: with the average in place of the global model."""
    if steady == 0:
        return server
    return replace(server, weights={key: server.state[STEADY + key] for key in server.weights})


def answering_models(method: Method, server: Server) -> Sequence[Payload]:
    """The models that are tested; an error if a method with `steady` keeps one outside `server.weights`."""
    found = method.models(answering_server(server, method.steady))
    if method.steady and type(method).models is not Method.models:
        nothing = {key: torch.full_like(value, torch.nan) for key, value in floating_tensors(server.weights).items()}
        without = method.models(replace(server, weights=server.weights | nothing))
        if any(not value.isnan().all() for model in without for value in floating_tensors(model).values()):
            raise UsageError(
                f"{method.name}: steady={method.steady:g} was given, but this method answers with a model that is not "
                f"in server.weights, and only these are averaged; allowed: 0. Keep every model that answers in "
                f"server.weights, under its own prefix."
            )
    return found


def floating_tensors(payload: Payload) -> Payload:
    """The floating-point tensors, that is all but counters."""
    return {key: value for key, value in payload.items() if value.is_floating_point()}
