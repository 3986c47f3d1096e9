"""The backend that runs clients in several processes at once, with the same answers as `serial`, bit for bit."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedwinnow.backends.host_as_text import describe_host
from fedwinnow.backends.shared_memory import Arena, Arenas, SharedArrays, plan, read, write
from fedwinnow.backends.worker_pool import WorkerPool
from fedwinnow.federation.client import scoring_batch
from fedwinnow.federation.host import Answer, Host, Task
from fedwinnow.mathematics.payload import Payload, size_in_bytes

AHEAD = 2  # open questions per worker, so that the next one is ready when a worker ends the one before
STRETCHES = 4  # pieces of the test part per worker: the load is more even, with few more messages


@dataclass
class Question:
    """A question to a worker, ready to be sent."""

    do: str
    arguments: dict[str, Any]
    who: str  # for errors
    answer: Arena
    mine: list[Arena] = field(default_factory=list)  # further arenas that only this question uses
    task: Task | None = None


class Processes:
    """Runs clients in worker processes.

    A caller that plays several runs can pass its own crew of workers, and then closes it itself.
    """

    def __init__(self, host: Host, workers: int, crew: WorkerPool | None = None) -> None:
        self.host = host
        self.arrays = SharedArrays()
        self.arenas = Arenas()
        self.own_crew = None
        self.senders: ThreadPoolExecutor | None = None
        try:
            described = describe_host(host, self.arrays)
            if crew is None:
                crew = self.own_crew = WorkerPool(workers)
            self.crew = crew
            # One thread per worker waits for its answer, so that the next question is sent while this thread merges.
            self.senders = ThreadPoolExecutor(len(crew), "worker")
            places = [device_of(host.setup.device, worker) for worker in range(len(crew))]
            crew.ask_everybody("prepare", [{"host": described, "device": place} for place in places])
        except BaseException:
            self.close()
            raise
        self.end = weakref.finalize(self, end, self.own_crew, self.senders, self.arrays, self.arenas)

    def exchange(self, tasks: Iterable[Task]) -> Iterator[Answer]:
        """Answers in the order of the tasks; at most `AHEAD` tasks per worker are open."""
        shared = Shared(self.arenas)
        try:
            for question, reply in self.in_order(self.question(task, shared) for task in tasks):
                yield self.answer_of(question, reply)
        finally:
            shared.close()

    def score(self, part: str, weights: Payload, count: int) -> Tensor:
        """Logits of a part, of which each worker scores some pieces; the batches are the same as in one process."""
        batch = scoring_batch(self.host.model)
        batches = -(-count // batch)
        length = batch * max(1, -(-batches // (STRETCHES * len(self.crew))))
        shared = Shared(self.arenas)
        payload = shared.parcels(weights)
        questions = (
            self.stretch(part, payload, start, min(start + length, count)) for start in range(0, count, length)
        )
        try:
            found = [
                read(question.answer.buffer, reply["entries"])["logits"] for question, reply in self.in_order(questions)
            ]
        finally:
            shared.close()
        return torch.cat(found) if found else torch.zeros((0, self.host.sites.shape.classes))

    def close(self) -> None:
        """End the workers and remove all shared memory; can be called again."""
        end(self.own_crew, self.senders, self.arrays, self.arenas)

    # --- questions and answers -------------------------------------------------------------------------------------

    def in_order(self, questions: Iterator[Question]) -> Iterator[tuple[Question, dict[str, Any]]]:
        """Every question with its answer, in order; a question is made only when there is room for it."""
        assert self.senders is not None
        open_: deque[tuple[Question, Future[dict[str, Any]]]] = deque()
        try:
            for question in questions:
                open_.append((question, self.senders.submit(self.ask, question)))
                if len(open_) >= AHEAD * len(self.crew):
                    yield open_[0][0], result_of(open_[0][1])
                    self.done_with(open_.popleft()[0])
            while open_:
                yield open_[0][0], result_of(open_[0][1])
                self.done_with(open_.popleft()[0])
        finally:
            for question, future in open_:
                # Left by an error: its arenas are free again when its worker has ended with them.
                future.cancel()
                future.add_done_callback(partial(self.done_with, question))

    def ask(self, question: Question) -> dict[str, Any]:
        """Send a question and wait for the answer; runs in a sender thread."""

        def room(size: int) -> list[Any]:
            question.answer.grow(size)
            return question.answer.address

        return self.crew.ask(question.do, question.arguments, question.who, room)

    def question(self, task: Task, shared: Shared) -> Question:
        """A task for a client; its payload is written now, because the method may change it later."""
        parcels, mine = shared.split(task.payload)
        facts = {
            "client": int(task.client),
            "ask": task.ask,
            "round": task.round,
            "exchange": task.exchange,
            "memory": task.memory,
        }
        answer = self.arenas.take(size_in_bytes(task.payload) + 4096)
        arguments = {"task": facts, "payload": parcels, "arena": answer.address}
        who = f"client {task.client} ({task.ask}, round {task.round})"
        return Question("answer", arguments, who, answer, mine, task)

    def stretch(self, part: str, payload: list[Any], start: int, stop: int) -> Question:
        """The question to score some samples of a part."""
        answer = self.arenas.take(4 * self.host.sites.shape.classes * (stop - start))
        arguments = {"part": part, "start": start, "stop": stop, "payload": payload, "arena": answer.address}
        return Question("score", arguments, f"scoring the {part} part", answer)

    def answer_of(self, question: Question, reply: dict[str, Any]) -> Answer:
        """The answer to a task, with copies of the tensors in the arena."""
        assert question.task is not None
        tensors = read(question.answer.buffer, reply.pop("entries"))
        return Answer(
            client=question.task.client,
            reply={key.removeprefix("reply "): tensors[key] for key in tensors if key.startswith("reply ")},
            notes={key.removeprefix("note "): tensors[key] for key in tensors if key.startswith("note ")},
            **reply,
        )

    def done_with(self, question: Question, _: object = None) -> None:
        """Free the arenas of a question whose answer has been read."""
        self.arenas.give_back([question.answer, *question.mine])


class Shared:
    """The tensors of one exchange that go to several clients; each is written once."""

    def __init__(self, arenas: Arenas) -> None:
        self.arenas = arenas
        self.used: list[Arena] = []
        self.first = True
        self.filled = 0  # bytes of the last arena
        self.written: dict[tuple[int, int], tuple[Tensor, list[Any]]] = {}
        self.seen: weakref.WeakValueDictionary[tuple[int, int], Tensor] = weakref.WeakValueDictionary()

    def split(self, payload: Payload) -> tuple[list[Any], list[Arena]]:
        """The address of each tensor, and the arena of those that go to this client only.

        The tensors of the first client, and those that are sent a second time, count as going to everybody.
        """
        own = {key: value for key, value in payload.items() if not self.for_everybody(value)}
        self.first = False
        where: dict[str, list[Any]] = {}
        mine: list[Arena] = []
        if own:
            entries, size = plan(own)
            mine = [self.arenas.take(size)]
            write(mine[0].buffer, own, entries)
            where = {entry[0]: [mine[0].address, entry] for entry in entries}
        return [where.get(key) or self.parcel(key, value) for key, value in payload.items()], mine

    def for_everybody(self, value: Tensor) -> bool:
        """Whether this tensor, unchanged, goes to several clients; from now on it counts as sent once."""
        key = identity(value)
        known = self.first or key in self.written or self.seen.get(key) is value
        self.seen[key] = value
        return known

    def parcels(self, payload: Payload) -> list[Any]:
        """The address of each tensor of a payload that goes to everybody."""
        return [self.parcel(key, value) for key, value in payload.items()]

    def parcel(self, name: str, value: Tensor) -> list[Any]:
        """The address of a tensor that goes to everybody; the first call writes it."""
        key = identity(value)
        if key not in self.written:
            [entry], stop = plan({name: value}, self.filled)
            if not self.used or stop > self.used[-1].size:
                [entry], stop = plan({name: value})
                self.used.append(self.arenas.take(stop))
            self.filled = stop
            write(self.used[-1].buffer, {name: value}, [entry])
            self.written[key] = value, [self.used[-1].address, entry]
        address, entry = self.written[key][1]
        return [address, [name, *entry[1:]]]

    def close(self) -> None:
        """The exchange is over: free the arenas."""
        self.arenas.give_back(self.used)
        self.used, self.written = [], {}


def identity(value: Tensor) -> tuple[int, int]:
    """Which tensor it is, and how often it was changed in place."""
    return id(value), 0 if value.is_inference() else value._version


def result_of(future: Future[dict[str, Any]]) -> dict[str, Any]:
    """The result of a future; waits one second at a time, because Windows delivers Ctrl-C only in between."""
    while True:
        try:
            return future.result(timeout=1.0)
        except TimeoutError:
            if future.done():
                raise


def device_of(device: str, worker: int) -> str:
    """The device of a worker: the GPUs in turn, unless the run names one."""
    cards = torch.cuda.device_count() if device == "cuda" else 0
    return f"cuda:{worker % cards}" if cards else device


def end(crew: WorkerPool | None, senders: ThreadPoolExecutor | None, arrays: SharedArrays, arenas: Arenas) -> None:
    """End everything that a backend started: workers first, because they write to the arenas."""
    if senders is not None:
        senders.shutdown(wait=False, cancel_futures=True)
    if crew is not None:
        crew.stop()
    if senders is not None:
        senders.shutdown(wait=True)  # before the pipes close, so that no thread waits at a closed pipe
    if crew is not None:
        crew.close()
    arrays.close()
    arenas.close()
