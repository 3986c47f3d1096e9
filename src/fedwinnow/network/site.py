"""A site: answers a coordinator's questions for the clients whose data is here, and writes down what left."""

from __future__ import annotations

import inspect
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from fedwinnow.errors import DataError, FedwinnowError, RunError, UsageError
from fedwinnow.federation.host import Answer, Host, Task
from fedwinnow.federation.least_count import whole_passes
from fedwinnow.federation.ledger import receivers
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import Method
from fedwinnow.federation.payload import Payload, problem_with
from fedwinnow.network.agreement import identity

REPLY, NOTES = "reply.", "notes."
MOST_TOLD = 500  # letters of what a coordinator says that a site repeats to its people
MEMORY_FILE = re.compile(r"(\d{6,})-(\d+)-(\d+)\.safetensors")
Letter = tuple[dict[str, Any], Payload]  # facts and tensors: what a message carries


class Holding(Protocol):
    """What a site holds: its own data, or some clients of a scene that is simulated on several machines."""

    simulated: bool  # whether questions of the evaluation may be answered: never where the data is real

    def introduction(self, task: dict[str, Any] | None, least_count: int = 0) -> dict[str, Any]:
        """What a site says of itself under this least count; a task that does not suit its data is an error."""

    def clients(self, run: dict[str, Any], number: int | None) -> tuple[int, ...]:
        """The numbers of the clients that live here."""

    def host(self, run: dict[str, Any], number: int | None, memory: Memory) -> Host:
        """What answers for them."""

    def finish(self, name: str, run: dict[str, Any], verdict: Answer, folder: Path) -> None:
        """Write what this site learns about its own labels."""


class Site:
    """The site's half of a run, whatever carries the messages."""

    def __init__(self, name: str, holding: Holding, folder: Path, say: Callable[[str], None]) -> None:
        self.name, self.holding, self.folder, self.say = name, holding, folder, say
        self.ready: tuple[str, Host] | None = None  # the host of the last run that was asked about
        self.finished = False
        self.failure: FedwinnowError | None = None  # why it cannot take part, or not come to an end

    def answer(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """Answer one message; whatever goes wrong is an answer too, without a word about samples."""
        try:
            kind = facts.get("kind")
            if kind == "hello":
                self.failure = None
                said = {"site": self.name, **self.holding.introduction(facts.get("task"), asked_least(facts))}
                if "few" in said:
                    self.say("this site has fewer samples than the least count: it takes no part, and says no more")
                return self.booked(facts, said, {})
            if kind == "ask":
                return self.ask(facts, payload)
            if kind == "finish":
                return self.finish(facts, payload)
            if kind == "refused":
                self.say(f"the coordinator cannot use this site: {str(facts.get('reason'))[:MOST_TOLD]}")
                return self.booked(facts, {"site": self.name}, {})
            raise DataError(f"the coordinator sent a message of the kind {kind!r}, which is not known here.")
        except FedwinnowError as problem:
            self.take_note(facts, problem)
            return {"error": str(problem)}, {}
        except Exception as problem:
            self.take_note(facts, RunError(f"{type(problem).__name__}: {problem}"))
            return {"error": f"{type(problem).__name__} (the site's own log says more)"}, {}

    def take_note(self, facts: dict[str, Any], problem: FedwinnowError) -> None:
        """Nothing follows a bad beginning, nor the end: then whoever brings the messages says it, and ends."""
        if facts.get("kind") in ("hello", "finish"):
            self.failure = problem
        else:
            self.say(f"error: {problem}")

    def ask(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """One question of the method, or of the evaluation of a simulation."""
        run, host = self.prepared(facts)
        task = self.task(facts, payload, host.method)
        answer = host.answer(task)
        if answer.error is not None:
            self.say(f"round {task.round}, {task.ask}: {answer.error}\n{answer.trace}".rstrip())
            told = answer.error if self.holding.simulated else answer.error.partition(":")[0]
            return {"error": told}, {}
        if answer.absent:
            return self.booked(facts, {"client": task.client, "absent": True}, {}, run, host.method)
        if not task.measures:
            prune(host.memory.folder, task)
            if (problem := problem_with(answer.reply, host.method.exposes)) is not None:
                raise DataError(f"{problem}; nothing was sent")
        counts = {"forward_samples": answer.forward_samples, "backward_samples": answer.backward_samples}
        if not self.holding.simulated and host.setup.least_count:
            mine = host.sites.holdings.of(task.client)
            counts = {name: whole_passes(count, mine.stop - mine.start) for name, count in counts.items()}
        said = {"client": task.client, "memory": answer.memory, **counts}
        sent = {REPLY + key: value for key, value in answer.reply.items()}
        if self.holding.simulated:
            sent |= {NOTES + key: value for key, value in answer.notes.items()}
        return self.booked(facts, said, sent, run, host.method)

    def finish(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """The run is over: judge the labels that are here, and keep the verdict."""
        run, host = self.prepared(facts)
        if not self.holding.simulated:
            task = self.task(facts | {"ask": "train"}, payload, host.method)
            task.ask = "judge"
            verdict = host.answer(task)
            if verdict.error is not None:
                self.say(f"the labels could not be judged: {verdict.error}\n{verdict.trace}".rstrip())
            else:
                self.holding.finish(self.name, run, verdict, self.folder)
        self.finished = True
        return self.booked(facts, {"site": self.name}, {}, run)

    def prepared(self, facts: dict[str, Any]) -> tuple[dict[str, Any], Host]:
        """The run that a message belongs to, and the host that answers for it."""
        run, number = facts.get("run"), facts.get("number")
        if not isinstance(run, dict):
            raise DataError("the coordinator's message does not say which run it belongs to.")
        text = json.dumps([run, None if self.holding.simulated else number], sort_keys=True)
        if self.ready is None or self.ready[0] != text:
            memory = Memory(self.place(run) / "clients")
            self.ready = text, self.holding.host(run, number, memory)
        return run, self.ready[1]

    def place(self, run: dict[str, Any]) -> Path:
        """Where everything about a run is kept."""
        return self.folder / identity(run)

    def task(self, facts: dict[str, Any], payload: Payload, method: Method) -> Task:
        """The question, after a look at everything in it that names a client, a function or a file."""
        client, memory, ask = facts.get("client"), facts.get("memory"), str(facts.get("ask"))
        here = self.holding.clients(facts["run"], facts.get("number"))
        if not isinstance(client, int) or client not in here:
            raise UsageError(f"client {client!r} was asked; site {self.name} has {spoken(here)}.")
        found = MEMORY_FILE.fullmatch(memory) if isinstance(memory, str) else None
        if memory is not None and (found is None or int(found[1]) != client):
            raise DataError(f"the coordinator names the memory {memory!r}, which is none of client {client}.")
        task = Task(client, ask, int(facts["round"]), int(facts["exchange"]), payload, memory)
        if task.measures and not self.holding.simulated:
            raise UsageError(f"the coordinator asked for '{ask}', which says something about single samples: refused.")
        if not task.measures and not answerable(method, ask):
            raise UsageError(f"the coordinator asked for '{ask}', which method '{method.name}' does not answer.")
        return task

    def booked(
        self,
        facts: dict[str, Any],
        said: dict[str, Any],
        sent: Payload,
        run: dict[str, Any] | None = None,
        method: Method | None = None,
    ) -> Letter:
        """Write into the site's own ledger what is about to leave; what cannot be written down does not leave."""
        folder = self.folder if run is None else self.place(run)
        exposes, forwarded = ({}, {}) if method is None else (method.exposes, method.forwarded())
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **{key: facts[key] for key in ("kind", "ask", "round", "exchange") if key in facts},
            "said": said,
            "sent": {
                key.removeprefix(REPLY): {
                    "exposes": exposes.get(key.removeprefix(REPLY), "sample"),
                    "receivers": receivers(key.removeprefix(REPLY), forwarded),
                    "shape": list(value.shape),
                    "bytes": value.numel() * value.element_size(),
                }
                for key, value in sent.items()
            },
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "ledger.jsonl").open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
        except OSError as problem:
            raise DataError(
                f"{folder / 'ledger.jsonl'}: cannot be written ({problem.strerror}); nothing was sent."
            ) from None
        return said, sent


def asked_least(facts: dict[str, Any]) -> int:
    """The least count that a coordinator asks for; what is none asks for nothing, and the site's own holds."""
    value = facts.get("least_count")
    return value if isinstance(value, int) and value > 0 else 0


def answerable(method: Method, ask: str) -> bool:
    """Whether a name is that of a function that answers a question: it takes a client and what was sent."""
    function = getattr(type(method), ask, None) if ask.isidentifier() and not ask.startswith("_") else None
    return inspect.isfunction(function) and list(inspect.signature(function).parameters)[1:2] == ["client"]


def prune(folder: Path, task: Task) -> None:
    """Keep what a client wrote in this round, and the last it wrote before: a coordinator may go back one round."""
    found = [MEMORY_FILE.fullmatch(path.name) for path in folder.glob(f"{task.client:06d}-*")]
    mine = sorted((int(name[2]), int(name[3]), name[0]) for name in found if name is not None)
    earlier = [name for number, _, name in mine if number < task.round]
    for name in earlier[:-1]:
        (folder / name).unlink(missing_ok=True)


def spoken(clients: tuple[int, ...]) -> str:
    """Client numbers in words."""
    if not clients:
        return "no client"
    whole = clients == tuple(range(clients[0], clients[-1] + 1))
    return f"the clients {clients[0]} to {clients[-1]}" if whole and len(clients) > 1 else f"{list(clients)}"
