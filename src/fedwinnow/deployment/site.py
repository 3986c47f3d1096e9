"""A site: answers the coordinator's questions for the clients whose data is here, and records what leaves."""

from __future__ import annotations

import inspect
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from fedwinnow.data.content_hash import Contents
from fedwinnow.deployment.agreement import experiment_of, identity
from fedwinnow.deployment.exposure_limit import USUAL, Declined, refuse_beyond
from fedwinnow.deployment.foreign_text import for_others, harmless, one_line
from fedwinnow.errors import DataError, FedwinnowError, RunError, StaleError, UsageError
from fedwinnow.experiment.encoding import SUMS
from fedwinnow.federation.host import Answer, Host, Task
from fedwinnow.federation.ledger import receivers, whole_passes
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import Method, find_method
from fedwinnow.files import FORMAT, check_format, json_of, sweep, write_text
from fedwinnow.mathematics.payload import Exposure, Payload, problem_with

REPLY, NOTES = "reply.", "notes."
SUMS_EXPOSE: dict[str, Exposure] = {SUMS: "client"}
JOINED = "join.json"  # marks a folder as that of a site, with its format
DATA = "data.json"  # the hash of the site's data when a run began
MEMORY_FILE = re.compile(r"(\d{6,10})-(\d{1,10})-(\d{1,10})\.safetensors")
BOOKED = ("kind", "ask", "round", "exchange")  # what the ledger records of a question
NOT_WRITTEN = "it could not write its ledger, so it sent nothing"
Letter = tuple[dict[str, Any], Payload]  # the facts and tensors of a message


class Holding(Protocol):
    """What a site holds: its own data, or some clients of a scene in a simulation on several machines."""

    simulated: bool  # whether it may answer questions of the evaluation: never with real data

    def introduction(self, task: dict[str, Any] | None, least_count: int = 0) -> dict[str, Any]:
        """What the site tells the coordinator about itself; an error if the task does not fit its data."""

    def clients(self, run: dict[str, Any], number: int | None) -> tuple[int, ...]:
        """The numbers of the clients that live here."""

    def host(self, run: dict[str, Any], number: int | None, memory: Memory) -> Host:
        """The host that answers for these clients."""

    def agree_on_encoder(self, run: dict[str, Any]) -> Any:
        """The encoder of a run, if it has one; an error if its weights are not those of the coordinator."""

    def sums(self, run: dict[str, Any]) -> Tensor | None:
        """The sums of the encoder's columns over the samples here; None if there are too few."""

    def contents(self) -> Contents:
        """The hash of the data."""

    def finish(self, name: str, run: dict[str, Any], verdict: Answer, folder: Path) -> None:
        """Write the verdict on the site's labels into its folder."""


class Site:
    """The site's half of a run; it does not depend on how messages travel."""

    def __init__(
        self, name: str, holding: Holding, folder: Path, say: Callable[[str], None], allowed: Exposure = USUAL
    ) -> None:
        self.name, self.holding, self.folder, self.tell = name, holding, folder, say
        self.allowed: Exposure = "sample" if holding.simulated else allowed  # the coordinator has the scene, too
        self.ready: tuple[str, Host] | None = None  # the run of the last question, and its host
        self.finished = False
        self.failure: FedwinnowError | None = None  # why the site cannot take part or finish
        self.unheard = False  # whether the coordinator does not know yet that this site cannot take part

    def say(self, text: str) -> None:
        """Print text for the people at this site, without control characters: it may quote the coordinator."""
        self.tell(harmless(text))

    def answer(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """Answer one message; an error is an answer, too, and does not mention samples or files."""
        try:
            kind = facts.get("kind")
            if kind == "hello":
                return self.introduced(facts)
            if kind == "sums":
                return self.sums(facts)
            if kind == "ask":
                return self.ask(facts, payload)
            if kind == "finish":
                return self.finish(facts, payload)
            if kind == "refused":
                if not self.unheard:  # otherwise it was printed here already
                    self.say(f"the coordinator cannot use this site: {one_line(facts.get('reason'))}")
                self.unheard = False
                return self.booked(facts, {"site": self.name}, {})
            raise for_others(DataError("the coordinator sent a message of a kind that is not known here."))
        except FedwinnowError as problem:
            return self.failed(facts, problem)
        except Exception as problem:
            return self.failed(facts, unexpected(problem))

    def failed(self, facts: dict[str, Any], problem: FedwinnowError) -> Letter:
        """An error as an answer: this site prints all of it, the coordinator gets one sentence meant for others."""
        self.take_note(facts, problem)
        said: dict[str, Any] = {"error": one_line(problem.told or "it could not answer; its own terminal says why")}
        if facts.get("kind") == "hello":
            said["site"] = self.name
        if isinstance(problem, Declined):
            said["declined"] = True
        try:
            return self.booked(facts, said, {})
        except DataError as unwritten:
            self.say(f"error: {unwritten}")
            return {"error": NOT_WRITTEN}, {}

    def take_note(self, facts: dict[str, Any], problem: FedwinnowError) -> None:
        """Keep an error that ends the site's part in the run, so that the caller raises it; print any other."""
        if facts.get("kind") in ("hello", "finish") or isinstance(problem, Declined):
            self.failure = type(problem)(harmless(str(problem)))
            self.unheard = facts.get("kind") == "hello"
        else:
            self.say(f"error: {problem}")

    def introduced(self, facts: dict[str, Any]) -> Letter:
        """What this site tells the coordinator about itself, once it has agreed to what the method sends."""
        self.failure, self.unheard = None, False
        method = self.agreed(facts)
        asked = experiment_of(facts).least_count
        said = {"site": self.name, **self.holding.introduction(facts.get("task"), asked)}
        self.holding.agree_on_encoder(facts)
        if "few" in said:
            self.say("this site has fewer samples than the least count: it takes no part and sends nothing else")
        exposed = {**method.exposed(), **(SUMS_EXPOSE if facts.get("encoder") else {})}
        keys = ", ".join(f"{key} ({kind})" for key, kind in exposed.items())
        self.say(f"the coordinator runs {method.name}; what may leave this site: {keys}")
        return self.booked(facts, said, {})

    def agreed(self, run: dict[str, Any]) -> Method:
        """The method of a run from this site's own catalogue; refused if it sends more than this site allows."""
        method = find_method(experiment_of(run).method)
        refuse_beyond(method, method.exposed(), self.allowed)
        return method

    def sums(self, facts: dict[str, Any]) -> Letter:
        """The sums of an encoder's columns over the samples of this site, before the first round."""
        refuse_beyond(self.agreed(facts), SUMS_EXPOSE, self.allowed)
        sent = self.holding.sums(facts)
        if sent is None:
            return self.booked(facts, {"client": 0, "absent": True}, {})
        self.say("this site tells the sums of the encoder's columns over its samples, once, for the scaling")
        return self.booked(facts, {"client": 0}, {REPLY + SUMS: sent}, more=SUMS_EXPOSE)

    def ask(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """One question of the method, or of the evaluation of a simulation."""
        run, host = self.prepared(facts)
        task = self.task(facts, payload, host.method)
        answer = host.answer(task)
        if answer.error is not None:
            self.say(f"round {task.round}, {task.ask}: {answer.error}\n{answer.trace}".rstrip())
            # Only with a trace does the error begin with the exception's name; otherwise it may contain a path.
            kind = f" ({answer.error.partition(':')[0]})" if answer.trace else ""
            return self.booked(facts, {"error": one_line(f"it failed{kind}; its own terminal says why")}, {})
        if answer.absent:
            return self.booked(facts, {"client": task.client, "absent": True}, {}, run, host.method)
        if not task.measures:
            prune(host.memory.folder, task)
            self.check_reply(answer.reply, host.method)
        counts = {"forward_samples": answer.forward_samples, "backward_samples": answer.backward_samples}
        if not self.holding.simulated and host.setup.settings.least_count:
            mine = host.sites.holdings.of(task.client)
            counts = {name: whole_passes(count, mine.stop - mine.start) for name, count in counts.items()}
        said = {"client": task.client, "memory": answer.memory, **counts}
        sent = {REPLY + key: value for key, value in answer.reply.items()}
        if self.holding.simulated:
            sent |= {NOTES + key: value for key, value in answer.notes.items()}
        return self.booked(facts, said, sent, run, host.method)

    def check_reply(self, reply: Payload, method: Method) -> None:
        """The last check of a reply: its keys are declared, its numbers finite, and this site allows them."""
        exposed = method.exposed()
        if (problem := problem_with(reply, exposed)) is not None:
            raise for_others(DataError(f"{problem}; nothing was sent"))
        refuse_beyond(method, {key: exposed[key] for key in reply}, self.allowed)

    def finish(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """The run is over: judge the labels of this site and write the verdict into its folder."""
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
            raise for_others(DataError("the coordinator's message does not say which run it belongs to."))
        text = json.dumps([run, None if self.holding.simulated else number], sort_keys=True)
        if self.ready is None or self.ready[0] != text:
            self.agreed(run)
            memory = Memory(self.place(run) / "clients")
            host = self.holding.host(run, number, memory)
            refuse_other_model(run, host)
            self.note_data(run, begins=facts.get("round") in (0, 1) and facts.get("memory") is None)
            self.ready = text, host
        return run, self.ready[1]

    def note_data(self, run: dict[str, Any], *, begins: bool) -> None:
        """Record the hash of the data when a run begins; refuse to go on with other data."""
        path, now = self.place(run) / DATA, self.holding.contents().as_value()
        if begins or not path.exists():
            write_text(path, json.dumps(now) + "\n")
        elif json_of(path, {"hash": str})["hash"] != now["hash"]:
            raise for_others(
                StaleError(
                    "the data of this site has changed since the run began. Restore it, or let the coordinator start "
                    "anew."
                )
            )

    def place(self, run: dict[str, Any]) -> Path:
        """The folder of a run at this site."""
        return self.folder / identity(run)

    def task(self, facts: dict[str, Any], payload: Payload, method: Method) -> Task:
        """The question of a message; every client, function and file that it names is checked."""
        client, memory, ask = facts.get("client"), facts.get("memory"), str(facts.get("ask"))
        here = self.holding.clients(facts["run"], facts.get("number"))
        if not isinstance(client, int) or client not in here:
            raise for_others(UsageError(f"client {client!r} was asked; site {self.name} has {clients_in_words(here)}."))
        if memory is not None and not names_memory(memory, client):
            raise for_others(
                DataError(f"the coordinator names the memory {memory!r}, which is not that of client {client}.")
            )
        task = Task(client, ask, int(facts["round"]), int(facts["exchange"]), payload, memory)
        if task.measures and not self.holding.simulated:
            raise for_others(
                UsageError(f"the coordinator asked for '{ask}', which tells about single samples: refused.")
            )
        if not task.measures and not answerable(method, ask):
            raise for_others(
                UsageError(f"the coordinator asked for '{ask}', which method '{method.name}' does not answer.")
            )
        return task

    def booked(
        self,
        facts: dict[str, Any],
        said: dict[str, Any],
        sent: Payload,
        run: dict[str, Any] | None = None,
        method: Method | None = None,
        more: dict[str, Exposure] | None = None,
    ) -> Letter:
        """Record in the site's ledger what is about to leave; if it cannot be recorded, it does not leave."""
        folder = self.folder if run is None else self.place(run)
        exposes, forwarded = (more or {}, {}) if method is None else (method.exposed(), method.forwarded())
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **{key: short(facts[key]) for key in BOOKED if key in facts},
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


def refuse_other_model(run: dict[str, Any], host: Host) -> None:
    """Refuse a model whose frozen part is not the coordinator's: it is not sent, so each would train another model."""
    if run.get("frozen", []) != host.frozen:
        raise for_others(
            UsageError(
                "the frozen part of the model has other values here than at the coordinator. Install the same version "
                "of the package that builds it, with the same file of weights, on every machine."
            )
        )


def unexpected(problem: Exception) -> FedwinnowError:
    """An unexpected exception; the coordinator is told its type only."""
    kind = type(problem).__name__
    return for_others(RunError(f"{kind}: {problem}"), f"{kind}; its own terminal says more")


def short(value: Any) -> Any:
    """A value of a question for the ledger: a number as it is, anything else as a short text."""
    return value if isinstance(value, int) and value.bit_length() < 64 else one_line(value, 80)


def claim(folder: Path, name: str) -> None:
    """Mark the folder as that of a site, and remove what a killed process left; refuse one of a newer version."""
    for path in (folder / JOINED, folder / "site.json"):
        if path.exists():
            check_format(path, json_of(path).get("format"))
    try:
        sweep(folder)
        write_text(folder / JOINED, json.dumps({"format": FORMAT, "site": name}) + "\n")
    except OSError as problem:
        raise DataError(f"{folder}: cannot be written ({problem.strerror}). Choose another --out.") from None


def answerable(method: Method, ask: str) -> bool:
    """Whether a name is that of a public method function whose first argument is a client."""
    function = getattr(type(method), ask, None) if ask.isidentifier() and not ask.startswith("_") else None
    return inspect.isfunction(function) and list(inspect.signature(function).parameters)[1:2] == ["client"]


def names_memory(name: Any, client: int) -> bool:
    """Whether this is the name of a version of a client's memory."""
    found = MEMORY_FILE.fullmatch(name) if isinstance(name, str) else None
    return found is not None and int(found[1]) == client


def prune(folder: Path, task: Task) -> None:
    """Delete old memories of a client, but not the last one before this round: the coordinator may go back one."""
    found = [MEMORY_FILE.fullmatch(path.name) for path in folder.glob(f"{task.client:06d}-*")]
    mine = sorted((int(name[2]), int(name[3]), name[0]) for name in found if name is not None)
    earlier = [name for number, _, name in mine if number < task.round]
    for name in earlier[:-1]:
        (folder / name).unlink(missing_ok=True)


def clients_in_words(clients: tuple[int, ...]) -> str:
    """Client numbers for a message."""
    if not clients:
        return "no client"
    whole = clients == tuple(range(clients[0], clients[-1] + 1))
    return f"the clients {clients[0]} to {clients[-1]}" if whole and len(clients) > 1 else f"{list(clients)}"
