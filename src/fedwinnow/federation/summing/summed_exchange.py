"""One exchange of a method as a secure sum, with what a run books of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedwinnow.errors import RunError, UsageError
from fedwinnow.federation.host import Answer, Task
from fedwinnow.federation.method import Exchange
from fedwinnow.federation.rounds import Federation, Tally
from fedwinnow.federation.summing.secure_sums import SecureSums, Session
from fedwinnow.federation.summing.sum_messages import Malformed, Phase, Questions, SumFailed, text_in
from fedwinnow.federation.summing.sum_server import SecureSum
from fedwinnow.federation.summing.summed_form import checked_form, from_sum
from fedwinnow.mathematics.payload import Payload, Received, size_in_bytes


@dataclass(frozen=True)
class SummedExchanges:
    """All exchanges of a run."""

    sums: SecureSums

    def deliver(
        self, federation: Federation, exchange: Exchange, index: int, tally: Tally
    ) -> Iterator[tuple[int, Payload]]:
        """One reply that stands for all clients."""
        yield from SummedExchange(federation, self.sums, exchange, index, tally).deliver()


class SummedExchange:
    """An exchange that is under way."""

    def __init__(self, federation: Federation, sums: SecureSums, exchange: Exchange, index: int, tally: Tally) -> None:
        self.federation, self.sums, self.exchange, self.index, self.tally = federation, sums, exchange, index, tally
        self.absent: list[int] = []
        self.hashes, self.questions = Questions(), set[bytes]()

    def deliver(self) -> Iterator[tuple[int, Payload]]:
        """The one reply that stands for all sites; none if the exchange is optional and failed."""
        federation, server = self.federation, self.federation.server
        session = Session(self.sums.run, self.exchange.ask, server.round, self.index, self.sums.share)
        before = list(self.tally.participants)
        self.one = one = self.sums.sum(self.exchange.clients, session, self.ask)
        try:
            total = one.result()
            self.book_dropped(one)
            reply, clipped = from_sum(total.form, total.ring, federation.method.summed())
        except SumFailed as problem:
            self.tally.participants = before
            self.book_dropped(one)
            federation.sum_failed(self.exchange, str(problem))
            return
        if clipped:
            server.note(clipped=server.notes.get("clipped", 0) + clipped)
        server.answered += total.members
        self.tally.participants = before + [member for member in total.members if member not in before]
        asked = len(self.exchange.clients) - len(self.absent)
        if not self.exchange.optional and len(total.members) < math.ceil(federation.faults.quorum * asked - 1e-9):
            raise RunError(
                f"round {server.round}, {self.exchange.ask}: only {len(total.members)} of {asked} clients are in the "
                f"sum; lower --quorum, or look at what failed: {self.tally.dropped}"
            )
        federation.skipped = 0
        yield total.members[0], Received(reply, f"the sum of {len(total.members)} clients, round {server.round}")

    def ask(self, phase: Phase, letters: dict[int, Payload]) -> Iterator[tuple[int, Payload | str]]:
        """The answers to a phase, booked; a client that fails is left out, or ends the run."""
        self.tally.bytes_down += sum(size_in_bytes(letter) for letter in letters.values())
        if phase == "masked":
            yield from self.ask_masked(letters)
            return
        for client, reply in self.sums.carrier.phase(phase, letters):
            if isinstance(reply, str):
                self.fail(client, reply)
            else:
                self.book(client, reply)
            yield client, reply

    def ask_masked(self, letters: dict[int, Payload]) -> Iterator[tuple[int, Payload | str]]:
        """The method's question itself."""
        exchange = replace(self.exchange, clients=list(letters))
        tasks = self.same_for_all(self.federation.tasks(exchange, self.index, {}, self.tally))
        for answer in self.sums.carrier.masked(letters, tasks):
            if answer.absent:
                self.absent.append(answer.client)
                if (name := self.federation.site_names[answer.client]) not in self.tally.absent:
                    self.tally.absent.append(name)
                yield answer.client, "it has too few samples"
            elif (problem := answer.error or self.problem_with_form(answer.reply)) is not None:
                self.fail(answer.client, problem, answer.trace)
                yield answer.client, problem
            else:
                self.federation.accept(replace(answer, reply={}), {}, {}, self.tally)
                self.book(answer.client, answer.reply)
                yield answer.client, answer.reply

    def same_for_all(self, tasks: Iterator[Task]) -> Iterator[Task]:
        """The tasks; an error if a method asks one site something else than another, because masks would not cancel."""
        for task in tasks:
            self.one.question = self.hashes.of(task.payload)
            self.questions.add(self.one.question)
            if len(self.questions) > 1:
                raise UsageError(
                    f"method '{self.federation.method.name}' sends different sites different things with '{task.ask}', "
                    f"so that their masks do not cancel: with --secure-sums all sites must be asked the same."
                )
            yield task

    def problem_with_form(self, reply: Payload) -> str | None:
        """Why a masked answer cannot be of this method and model; None if it can. More cannot be seen of it."""
        try:
            form, size = checked_form(text_in(reply, "form"), self.federation.method.summed())
            if "masked" not in reply or len(reply["masked"]) != size:
                raise Malformed("its masked answer has another length than its form")
        except Malformed as problem:
            return str(problem)
        for key, dtype, shape in form:
            model = self.federation.server.weights.get(key)
            if model is not None and (model.dtype, tuple(model.shape)) != (dtype, shape):
                return f"'{key}' in its answer is {dtype} of the shape {shape}, not {model.dtype} of {(*model.shape,)}"
        return None

    def book(self, client: int, reply: Payload) -> None:
        """What has left a site."""
        self.federation.ledger.record(self.federation.site_names[client], reply)
        self.tally.bytes_up += size_in_bytes(reply)

    def fail(self, client: int, problem: str, trace: str = "") -> None:
        """Leave a client out, or end the run."""
        answer = Answer(client, error=problem, trace=trace)
        self.federation.fail(answer, self.exchange, problem, self.tally, broke=False)

    def book_dropped(self, one: SecureSum) -> None:
        """The clients whose messages the server could not use."""
        for client, problem in one.dropped.items():
            if client not in self.absent and self.federation.site_names[client] not in self.tally.dropped:
                self.fail(client, problem)
