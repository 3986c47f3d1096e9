"""The loop of a run: in each round the server's half of the method asks clients and merges their replies."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Protocol

import torch
from torch import Tensor

from fedwinnow.all_settings import Faults
from fedwinnow.errors import FedwinnowError, RunError, UsageError, memory_shortage
from fedwinnow.federation.backend import Backend
from fedwinnow.federation.conversation import Conversation, HeldReplies, Read, culprits, suspicion
from fedwinnow.federation.host import SCORE, Answer, Task
from fedwinnow.federation.ledger import Ledger
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import Exchange, Method, Replies, RepliesInOrder
from fedwinnow.federation.privacy_budget import PrivacyBudget
from fedwinnow.federation.server import Server, answering_server, move_average, resume_from_global, start_average
from fedwinnow.federation.traces import frames_of_method
from fedwinnow.mathematics.payload import (
    WHOLE,
    Payload,
    Received,
    ReplyForm,
    check_state,
    far_away,
    is_finite,
    magnitude,
    problem_with,
    problem_with_forms,
    problem_with_model,
    size_in_bytes,
)
from fedwinnow.metrics.task import Figure, training_stability

MOST_SKIPPED = 3  # rounds in a row without a secure sum: what is wrong then will not pass by itself


@dataclass
class Tally:
    """What one round cost and who took part."""

    participants: list[int] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    out: set[str] = field(default_factory=set)  # sites that are asked nothing more in this round
    ended: list[str] = field(default_factory=list)  # sites whose part in the run ended in this round
    absent: list[str] = field(default_factory=list)  # had fewer samples than the least count; not a failure
    in_turn: list[int] = field(default_factory=lambda: [0, 0])  # asked and answered, of questions that go in turn
    bytes_up: int = 0
    bytes_down: int = 0
    forward_samples: int = 0
    backward_samples: int = 0
    seconds: float = 0.0
    distances: list[Figure] = field(default_factory=list)  # of each trained model from the global one, squared
    notes: dict[int, Payload] = field(default_factory=dict)  # the clients' values per sample, for evaluation only


MOST_VIOLATIONS = 3  # replies against the rules with which a site's part in a run is over
LONGEST = 300  # letters of what the server's half says of a reply
PROBED = 64  # samples on which a merged model must give numbers


class RoundLost(Exception):
    """The round ends without a further change, but the run goes on.

    All clients that were asked have too few samples to reply; or a method has chosen fewer clients than take part in an
    ordinary round, and too few of these answered: if only a bad site is chosen, it must not end the run of all others.
    """


class NoSum(RoundLost):
    """There is no secure sum, and the run goes on."""


class Summing(Protocol):
    """How the replies of an exchange reach the method as one sum."""

    def deliver(
        self, federation: Federation, exchange: Exchange, index: int, tally: Tally
    ) -> Iterator[tuple[int, Payload]]:
        """One reply that stands for all clients, or none where the exchange is optional."""


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
        sizes: Sequence[int],
        probe: tuple[str, int] | None = None,
    ) -> None:
        self.method = method
        self.server = server
        self.backend = backend
        self.memory = memory
        self.ledger = ledger
        self.site_names = site_names
        self.faults = faults
        self.budget: PrivacyBudget | None = None  # with --privacy: what the sites have spent
        self.sums: Summing | None = None  # with --secure-sums: replies reach the method as one sum
        self.skipped = 0  # rounds in a row without a secure sum
        self.sizes = sizes  # how many samples each client has, as was agreed
        self.probe = probe  # a part that belongs to no client, and its length: what a merged model is tried on
        self.violations: dict[str, int] = {}  # how many replies of a site were against the rules, over the whole run
        self.probed: tuple[Tensor, ...] = ()  # the tensors of the global model that was tried last
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
        except RoundLost:
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
        if self.faults.on_client_error == "drop" and self.sums is None:  # of a sum, no reply can be taken away
            with HeldReplies() as held:
                self.ask_and_try(held, tally)
        else:
            self.ask_and_stream(tally)
            if (problem := self.problem_with_global()) is not None:
                raise RunError(self.diverged(problem))
        asked, answered = tally.in_turn
        self.check_quorum(asked, answered, "the questions that go in turn", tally)

    def ask_and_stream(self, tally: Tally) -> None:
        """An error stops the run, so a method may read each reply as it comes, and none is held."""
        conversation = self.method.exchanges(self.server)
        replies: Replies | None = None
        for index in itertools.count():
            try:
                exchange = next(conversation) if replies is None else conversation.send(RepliesInOrder(replies))
            except StopIteration:
                break
            self.end_exchange(replies)
            self.server.exchange = index
            replies = self.accepted(exchange, index, tally)
        self.end_exchange(replies)

    def end_exchange(self, replies: Replies | None) -> None:
        """Read the replies that the method left, so that every one is in the ledger; then end the exchange."""
        for _ in replies or ():
            continue
        self.server.settle()

    def accepted(self, exchange: Exchange, index: int, tally: Tally) -> Replies:
        """The good replies to one question, recorded."""
        self.server.answered = []
        if self.sums is not None:
            self.check_clients(exchange)
            yield from self.sums.deliver(self, exchange, index, tally)
            return
        for answer in self.deliver(exchange, index, tally):
            self.accept(answer, answer.reply, self.server.weights, tally)
            self.server.answered.append(answer.client)
            yield answer.client, Received(answer.reply, self.sender(answer, exchange.ask))

    def ask_and_try(self, held: HeldReplies, tally: Tally) -> None:
        """A site that fails is left out, so replies are recorded only after the server's half went well with them."""
        talk = Conversation(self.method, self.server)
        exchange = talk.begin()
        while exchange is not None:
            exchange = self.question(talk, exchange, held, tally)

    def question(self, talk: Conversation, exchange: Exchange, held: HeldReplies, tally: Tally) -> Exchange | None:
        """Ask one question, leave out who spoils the server's half, record the others; returns the next question."""
        index, before = len(talk.heard), self.server.weights
        told: list[tuple[Answer, Read]] = []
        for answer in self.deliver(exchange, index, tally):
            read = held.hold(answer, self.sender(answer, exchange.ask), self.server.round, index)
            told.append((replace(answer, reply={}), read))
        told = self.near_ones(exchange, told, tally)
        following, problem = self.attempt(talk, told)
        if problem is not None:
            found = self.spoilers(talk, exchange, index, told, problem, tally)
            for place in found:
                self.fail(told[place][0], exchange, self.spoiled(problem), tally, broke=True)
            told = self.without(exchange, told, found, tally)
            talk.back(index)
            following, _ = self.attempt(talk, told)
        for answer, read in told:
            self.accept(answer, read(), before, tally)
        return following

    def without(
        self, exchange: Exchange, told: list[tuple[Answer, Read]], found: list[int], tally: Tally
    ) -> list[tuple[Answer, Read]]:
        """The other replies; ends the run if they are too few."""
        left = [one for place, one in enumerate(told) if place not in found]
        if exchange.turn:
            tally.in_turn[1] -= len(found)
        elif not exchange.optional:
            absent = sum(self.site_names[client] in tally.absent for client in exchange.clients)
            self.check_quorum(len(exchange.clients) - absent, len(left), exchange.ask, tally)
        return left

    def near_ones(self, exchange: Exchange, told: list[tuple[Answer, Read]], tally: Tally) -> list[tuple[Answer, Read]]:
        """The replies without models that are far away from what all others make of the same model."""
        if self.server.release is not None:  # every update is clipped, and who is left out would depend on others' data
            return told
        start = self.server.weights.get("weights", torch.zeros(0))[: self.server.model.trainable]
        updates = list[float]()
        for _, read in [] if exchange.turn else told:
            reply = read()
            if "weights" not in reply:
                return told
            updates.append(magnitude(reply["weights"][: len(start)] - start))
        found = far_away(updates, magnitude(start))
        for place in found:
            said = f"its model has moved by up to {updates[place]:g}, the usual one by {median(updates):g}"
            self.fail(told[place][0], exchange, f"{said}: the training has diverged", tally, broke=True)
        return self.without(exchange, told, found, tally) if found else told

    def spoilers(
        self,
        talk: Conversation,
        exchange: Exchange,
        index: int,
        told: list[tuple[Answer, Read]],
        problem: Exception,
        tally: Tally,
    ) -> list[int]:
        """The replies without which the server's half goes well, by number; raises the problem if there are none."""

        def works(places: Sequence[int]) -> bool:
            talk.back(index)
            return self.attempt(talk, [told[place] for place in places])[1] is None

        scores = [suspicion(read()) for _, read in told]
        found = culprits(scores, works, 0 if exchange.turn or exchange.optional else 1)
        if found is None and len(exchange.clients) < self.server.per_round:  # see RoundLost
            talk.back(index)
            for answer, _ in told:
                self.fail(answer, exchange, self.spoiled(problem), tally, broke=False)
            raise RoundLost
        if found is None:
            raise problem
        return found

    def attempt(
        self, talk: Conversation, told: Sequence[tuple[Answer, Read]]
    ) -> tuple[Exchange | None, Exception | None]:
        """Tell the server's half these replies; returns its next question, or what went wrong."""
        try:
            following = talk.tell([(answer.client, read) for answer, read in told])
        except Exception as problem:
            if (shortage := memory_shortage(problem)) is not None:
                raise shortage from None
            return None, problem
        said = self.problem_with_global()
        return following, None if said is None else RunError(self.diverged(said))

    def diverged(self, said: str) -> str:
        """The message for a global model that must not be kept."""
        return f"round {self.server.round}{self.stage}: {said}. It is not saved; try a lower learning rate."

    def spoiled(self, problem: Exception) -> str:
        """What a site is said to have done whose reply was too much for the server's half."""
        if isinstance(problem, FedwinnowError):
            return f"with its reply the round fails: {problem}"
        kind = type(problem).__name__
        return f"with its reply the server's half of {self.method.name} fails: {kind}: {str(problem)[:LONGEST]}"

    def problem_with_global(self) -> str | None:
        """Why the global model must not be kept; None if it is finite and so are its answers."""
        values = tuple(value for value in self.server.weights.values() if isinstance(value, Tensor))
        if len(values) == len(self.probed) and all(one is two for one, two in zip(values, self.probed, strict=True)):
            return None
        if not all(is_finite(value) for value in values):
            return "the merged model has values that are not finite"
        if self.probe is not None and not self.method.own_models:
            part, length = self.probe
            for model in self.method.models(self.server):
                if not is_finite(self.backend.score(part, model, min(length, PROBED))):
                    return "the merged model gives answers that are not finite"
        self.probed = values
        return None

    def deliver(self, exchange: Exchange, index: int, tally: Tally) -> Iterator[Answer]:
        """Ask the clients of one exchange; yields the good answers in the order of the clients."""
        self.check_clients(exchange)
        if self.budget is not None:
            self.budget.check(exchange.clients, self.server.round)
        answered = absent = 0
        forms: dict[int, dict[str, ReplyForm]] = {}
        for answer in self.backend.exchange(self.tasks(exchange, index, forms, tally)):
            if answer.absent:
                absent += 1
                if self.budget is not None:
                    self.budget.book(answer.client, -1)
                if self.site_names[answer.client] not in tally.absent:
                    tally.absent.append(self.site_names[answer.client])
                continue
            problem = answer.error or self.violation(answer, forms[answer.client])
            if problem is not None:
                self.fail(answer, exchange, problem, tally, broke=answer.error is None or answer.broken)
                continue
            answered += 1
            yield answer
        asked = len(exchange.clients) - absent
        if exchange.turn:
            tally.in_turn[0] += asked
            tally.in_turn[1] += answered
        elif not exchange.optional:
            if absent and not asked:
                raise RoundLost
            self.check_quorum(asked, answered, exchange.ask, tally)

    def violation(self, answer: Answer, forms: dict[str, ReplyForm]) -> str | None:
        """Why a reply is against the rules; None if it keeps to them."""
        reply, trainable = answer.reply, self.server.model.trainable
        return (
            problem_with(reply, self.method.exposes)
            or problem_with_model(reply, self.server.weights, trainable)
            or problem_with_forms(reply, forms, int(self.sizes[answer.client]))
        )

    def check_quorum(self, asked: int, answered: int, what: str, tally: Tally) -> None:
        """End the run if too few have answered."""
        needed = math.ceil(self.faults.quorum * asked - 1e-9)
        if answered < max(needed, min(1, asked)):
            if asked + len(tally.absent) < self.server.per_round:
                raise RoundLost
            ended = [name for name, count in self.violations.items() if count >= MOST_VIOLATIONS]
            over = f" The part of {', '.join(ended)} in this run is over." if ended else ""
            raise RunError(
                f"round {self.server.round}, {what}: only {answered} of {asked} clients answered; the quorum is "
                f"{max(needed, 1)}. Lower --quorum, or look at what failed: {tally.dropped}{over}"
            )

    def sum_failed(self, exchange: Exchange, problem: str) -> None:
        """There is no secure sum: the round is skipped, or the run ends."""
        where = f"round {self.server.round}, {exchange.ask}"
        if exchange.optional:
            self.server.note(no_sum=problem)
            return
        if self.faults.on_client_error == "stop":
            raise RunError(f"{where}: {problem} --on-client-error drop would skip the round and go on.")
        self.skipped += 1
        if self.skipped >= min(MOST_SKIPPED, self.server.rounds):
            raise RunError(f"{where}: {problem} This is round {self.skipped} in a row without a sum.")
        self.server.note(skipped=problem)
        raise NoSum

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

    def tasks(
        self, exchange: Exchange, index: int, forms: dict[int, dict[str, ReplyForm]], tally: Tally
    ) -> Iterator[Task]:
        """The tasks of an exchange, each made when the backend has room for it, and what the replies must look like."""
        for client in exchange.clients:
            if (
                self.site_names[client] in tally.out
                or self.violations.get(self.site_names[client], 0) >= MOST_VIOLATIONS
            ):
                continue
            payload = exchange.send(client)
            forms[client] = self.method.forms(self.server, exchange.ask, payload)
            tally.bytes_down += size_in_bytes(payload)
            memory = self.memory.versions.get(client)
            if self.budget is not None:
                self.budget.book(client)
            yield Task(client, exchange.ask, self.server.round, index, payload, memory)

    def accept(self, answer: Answer, reply: Payload, before: Payload, tally: Tally) -> None:
        """Record a good answer: memory, ledger, cost; `before` is the global model that it was made from."""
        self.memory.accept(answer.client, answer.memory)
        self.ledger.record(self.site_names[answer.client], reply)
        if answer.client not in tally.participants:
            tally.participants.append(answer.client)
        tally.bytes_up += size_in_bytes(reply)
        tally.forward_samples += answer.forward_samples
        tally.backward_samples += answer.backward_samples
        if "weights" in reply and self.server.release is None:  # the distances themselves are not private
            trained = self.server.model.trainable
            local, start = reply["weights"][:trained], before["weights"][:trained]
            tally.distances.append(training_stability([local.numpy()], start.numpy()))
        if answer.notes:
            tally.notes.setdefault(answer.client, {}).update(answer.notes)

    def fail(self, answer: Answer, exchange: Exchange, problem: str, tally: Tally, *, broke: bool) -> None:
        """A client gave no usable reply: leave it out of the round, or stop the run.

        `broke`: a reply came, and was against the rules. The third one ends the site's part in the run.
        """
        if self.faults.on_client_error == "stop":
            raise self.client_failure(answer, exchange.ask, problem)
        name = self.site_names[answer.client]
        tally.dropped[name] = problem
        if broke:
            tally.out.add(name)
            self.violations[name] = self.violations.get(name, 0) + 1
            if self.violations[name] == MOST_VIOLATIONS:
                tally.ended.append(name)

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

    def ask_all(
        self, ask: str, clients: tuple[int, ...], more: Callable[[int], Payload] | None = None
    ) -> Iterator[tuple[int, Payload]]:
        """Ask clients for the evaluation of a simulation; this is not part of the federation and not in the ledger.

        `more` says what each of them receives besides what it is always sent. A client that fails stops the run; with
        --on-client-error drop it is left out and named in `silent`.
        """
        tasks = (
            Task(client, ask, self.server.round, 0, self.to_judge(client) | extra, self.memory.versions.get(client))
            for client in clients
            for extra in [{} if more is None else more(client)]
        )
        for answer in self.backend.exchange(tasks):
            problem = answer.error or problem_with_forms(answer.reply, measured_forms(ask, self.server.classes), 0)
            if problem is None:
                yield answer.client, answer.reply
            elif self.faults.on_client_error == "drop":
                self.silent[self.site_names[answer.client]] = f"{ask}: {problem}"
            else:
                raise self.client_failure(answer, ask, problem)


def measured_forms(ask: str, classes: int) -> dict[str, ReplyForm]:
    """What replies to the questions of the evaluation must look like; a judge's opinions are checked where used."""
    chosen = ReplyForm((None,), WHOLE, least=0, most=classes - 1)
    if ask == "judge":
        return {"p_wrong": ReplyForm((None,), least=0, most=1), "suggested": chosen}
    if ask == "predict":
        return {"predicted": chosen, "loss": ReplyForm((None,), most=None)}
    return {"logits": ReplyForm((None, classes), most=None)} if ask.startswith(SCORE) else {}


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
