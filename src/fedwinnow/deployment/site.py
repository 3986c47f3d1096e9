"""A site: answers the coordinator's questions for the clients whose data is here, and records what leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedwinnow.all_settings import SiteSettings
from fedwinnow.deployment.agreed_audit import AUDIT
from fedwinnow.deployment.agreement import hello_name, identity
from fedwinnow.deployment.asked import SUMS_EXPOSE, terms_of, what_is_asked
from fedwinnow.deployment.consent import ByPolicy, Consent, Trial, Undecided, declined
from fedwinnow.deployment.error_codes import FAILED, LEDGER, REFUSED, for_others
from fedwinnow.deployment.exposure_limit import USUAL, Declined, refuse_beyond
from fedwinnow.deployment.first_model import FirstModel, refuse_large_inputs
from fedwinnow.deployment.foreign_text import harmless, one_line
from fedwinnow.deployment.held_agreement import HeldAgreement, recorded, refuse_difference, was_same
from fedwinnow.deployment.holding import Holding, Letter
from fedwinnow.deployment.ledger_chain import SiteLedger
from fedwinnow.deployment.model_size import with_size
from fedwinnow.deployment.policy import shipped
from fedwinnow.deployment.site_in_audit import OPINIONS, InAudit, must_audit, nothing_to_train_on
from fedwinnow.deployment.site_spending import Spending
from fedwinnow.deployment.site_sums import KIND, OF_A_PHASE, OPENED, SiteSums, SumQuestion
from fedwinnow.deployment.sum_identity import Identities
from fedwinnow.errors import DataError, FedwinnowError, RunError, StaleError, UsageError
from fedwinnow.experiment.encoder_sums import OF_ENCODER
from fedwinnow.experiment.encoding import SUMS
from fedwinnow.federation.host import Answer, Host, Task
from fedwinnow.federation.ledger import receivers, whole_passes
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import Method
from fedwinnow.federation.summing.summed_form import EXPOSED
from fedwinnow.files import FORMAT, check_format, json_of, sweep, write_text
from fedwinnow.mathematics.payload import Exposure, Payload, problem_with

REPLY, NOTES = "reply.", "notes."
JOINED = "join.json"  # marks a folder as that of a site, with its format
DATA = "data.json"  # the hash of the site's data when a run began
MEMORY_FILE = re.compile(r"(\d{6,10})-(\d{1,10})-(\d{1,10})\.safetensors")
BOOKED = ("kind", "phase", "ask", "round", "exchange")  # what the ledger records of a question
MOST_AGREEMENTS = 20  # different runs of one visit: a coordinator that changes its settings needs a few
LOG = "site.log"  # what this site said to its people


class Site:
    """The site's half of a run; it does not depend on how messages travel."""

    def __init__(
        self,
        name: str,
        holding: Holding,
        folder: Path,
        say: Callable[[str], None],
        allowed: Exposure = USUAL,
        consent: Consent | None = None,
        identities: Identities | None = None,
    ) -> None:
        """Without `consent` the default policy decides, with this exposure; for a shared scene nobody has to."""
        self.name, self.holding, self.folder, self.tell = name, holding, folder, say
        self.ledger = SiteLedger(folder, name)
        self.secure = SiteSums(identities)
        usual = Trial() if holding.simulated else ByPolicy(shipped(exposure=allowed), "the default policy")
        self.consent: Consent = consent or usual
        self.coordinator: str | None = None  # the fingerprint of the coordinator's key, once it is known
        self.shown = ""  # what was last shown to the people at this site as what is asked
        self.held: HeldAgreement | None = None  # what the coordinator is held to
        self.agreements = 0  # how many different runs were agreed to
        self.ready: tuple[str, Host] | None = None  # the run of the last question, and its host
        self.first: FirstModel | None = None  # the models that the agreed seed gives
        self.finished = False
        self.spent: dict[str, Any] | None = None  # of a budget of privacy, by the message that is being answered
        self.failure: FedwinnowError | None = None  # why the site cannot take part or finish
        self.unheard = False  # whether the coordinator does not know yet that this site cannot take part
        self.audit = InAudit(self)

    def say(self, text: str) -> None:
        """Print text for the people at this site and add it to their log, without control characters."""
        plain = harmless(text)  # it may quote the coordinator
        self.tell(plain)
        with contextlib.suppress(OSError), (self.folder / LOG).open("a", encoding="utf-8") as stream:
            stream.write(f"{now()} {plain}\n")

    def answer(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """Answer one message; an error is an answer, too, and leaves this site as a code."""
        self.spent = None
        try:
            kind = facts.get("kind")
            if kind == "hello":
                return self.introduced(facts)
            if kind == "sums":
                return self.sums(facts)
            if kind == "ask":
                return self.ask(facts, payload)
            if kind == "count":
                return self.audit.count(facts, payload)
            if kind == "conclude":
                return self.audit.conclude(facts, payload)
            if kind == "looks":
                return self.audit.looks(facts, payload)
            if kind == "looked":
                return self.audit.looked(facts, payload)
            if kind == KIND:
                return self.summed(facts, payload)
            if kind == "finish":
                return self.finish(facts, payload)
            if kind == "refused":
                if not self.unheard:  # otherwise it was printed here already
                    self.say(f"the coordinator cannot use this site: {one_line(facts.get('reason'))}")
                self.unheard = False
                return self.booked(facts, {"site": self.name}, {})
            raise for_others(DataError("the coordinator sent a message of a kind that is not known here."), "message")
        except FedwinnowError as problem:
            return self.failed(facts, problem)
        except Exception as problem:
            return self.failed(facts, unexpected(problem))

    def failed(self, facts: dict[str, Any], problem: FedwinnowError) -> Letter:
        """An error as an answer: this site prints all of it, the coordinator gets a code."""
        self.take_note(facts, problem)
        said: dict[str, Any] = {"error": problem.code or FAILED}
        if facts.get("kind") == "hello":
            said["site"] = self.name
        try:
            return self.booked(facts, said, {})
        except DataError as unwritten:
            self.say(f"error: {unwritten}")
            return {"error": LEDGER}, {}  # the only thing that leaves without a line

    def take_note(self, facts: dict[str, Any], problem: FedwinnowError) -> None:
        """Keep an error that ends the site's part in the run, so that the caller raises it; print any other."""
        if isinstance(problem, Undecided):
            return  # its people are being asked
        if facts.get("kind") in ("hello", "conclude", "looked", "finish") or isinstance(problem, Declined):
            self.failure = type(problem)(harmless(str(problem)))
            self.unheard = facts.get("kind") == "hello"
        else:
            self.say(f"error: {problem}")

    def introduced(self, facts: dict[str, Any]) -> Letter:
        """What this site tells the coordinator about itself, once its people or their policy have agreed."""
        self.failure, self.unheard = None, False
        held = self.agree(facts)
        said = {"site": self.name, **self.holding.introduction(facts.get("task"), held.asked.experiment.least_count)}
        self.holding.agree_on_encoder(facts)
        self.audit.introduced(facts)
        if "few" in said:
            self.say("this site has fewer samples than the least count: it takes no part and sends nothing else")
        return self.booked(facts, said, {})

    def agree(self, message: dict[str, Any], before: str | None = None) -> HeldAgreement:
        """Show what is asked and let it be agreed to; the same as before stays agreed, unless the run begins anew."""
        asked = what_is_asked(message, self.holding.samples, self.coordinator)
        asked = with_size(asked, message, self.holding)
        self.secure.check(message, asked.experiment)
        if asked.experiment.secure_sums and asked.method.singles():
            raise declined(f"method '{asked.method.name}' needs single replies, which secure sums do not give")
        if self.held is not None and self.held.covers(asked) and (asked.done or not self.held.rounds):
            self.held.renew(asked)
            return self.held
        record = recorded(self.folder)
        if asked.done:
            asked = dataclasses.replace(asked, known=was_same(record, asked))
        shown = "\n  ".join(["the coordinator asks of this site:", *asked.lines()])
        if shown != self.shown:
            self.shown = shown
            self.say(shown)
        if self.agreements >= MOST_AGREEMENTS:
            raise declined(f"it was asked for {self.agreements} different runs already; join again to agree to more")
        self.consent.ask(asked, before)
        self.agreements += self.held is None or not self.held.covers(asked)
        rounds = self.held.rounds if self.held is not None and self.held.covers(asked) else {}
        self.held, self.ready = HeldAgreement(asked), None
        self.held.rounds = rounds
        self.held.record(self.folder, self.name, self.consent.by, now())
        self.say(f"agreed, by {self.consent.by}; what leaves stands in {self.ledger.path}")
        return self.held

    def agreed(self, message: dict[str, Any]) -> HeldAgreement:
        """The agreement that a message belongs to; refused if it asks for something else.

        A site that was started again in the middle of a run is not greeted again: it holds the coordinator to what is
        in its folder, and its policy decides once more.
        """
        if self.held is None:
            record = recorded(self.folder)
            refuse_difference(record["terms"] if record else terms_of(message), message)
            held = self.agree(message, before=record["by"] if record else None)
        else:
            held = self.held
            held.check(message)
        held.part_of(message)
        return held

    def sums(self, facts: dict[str, Any]) -> Letter:
        """The sums of an encoder's columns over the samples of this site, before the first round."""
        held = self.agreed(facts)
        refuse_single(held.asked.experiment)
        held.sum_up()
        refuse_beyond(held.asked.method, SUMS_EXPOSE, self.allowed)
        if held.asked.experiment.privacy is not None:
            raise for_others(UsageError("sums of an encoder were asked for, which --privacy does not cover."), REFUSED)
        sent = self.holding.sums(facts)
        if sent is None:
            return self.booked(facts, {"client": 0, "absent": True}, {})
        self.say("this site tells the sums of the encoder's columns over its samples, once, for the scaling")
        return self.booked(facts, {"client": 0}, {REPLY + SUMS: sent}, more=SUMS_EXPOSE)

    @property
    def allowed(self) -> Exposure:
        """The most that others may learn from a reply."""
        exposure = self.consent.policy.exposure
        if exposure is None:
            raise declined("its policy names no exposure")
        return "sample" if self.holding.simulated else exposure  # the coordinator has a scene, too

    def ask(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """One question of the method, or of the evaluation of a simulation."""
        run, host = self.prepared(facts)
        task = self.task(facts, payload, host.method)
        if not task.measures:
            refuse_single(host.setup.settings)
        self.in_turn(task)
        if nothing_to_train_on(run, host, task):
            return self.booked(facts, {"client": task.client, "absent": True}, {}, run, host.method)
        if not self.holding.simulated:
            self.spent = Spending(self.folder, self.place(run)).book(host, task)
        answer = host.answer(task)
        if answer.error is not None:
            self.say(f"round {task.round}, {task.ask}: {answer.error}\n{answer.trace}".rstrip())
            return self.booked(facts, {"error": FAILED}, {}, run)
        if answer.absent:
            return self.booked(facts, {"client": task.client, "absent": True}, {}, run, host.method)
        if task.ask == OPINIONS:
            self.audit.keep(run, host, task, answer)
        if not task.measures:
            prune(host.memory.folder, task)
            self.check_reply(answer.reply, host.method)
            if self.held is not None and not self.holding.simulated and task.trains(answer.reply):
                self.held.answered_with_model(task.ask)
        counts = {"forward_samples": answer.forward_samples, "backward_samples": answer.backward_samples}
        if not self.holding.simulated and host.setup.settings.least_count:
            mine = host.sites.holdings.of(task.client)
            counts = {name: whole_passes(count, mine.stop - mine.start) for name, count in counts.items()}
        said = {"client": task.client, "memory": answer.memory, **counts}
        sent = {REPLY + key: value for key, value in answer.reply.items()}
        if self.holding.simulated:
            sent |= {NOTES + key: value for key, value in answer.notes.items()}
        return self.booked(facts, said, sent, run, host.method)

    def in_turn(self, task: Task) -> None:
        """Refuse a question of a real run out of its turn, and a first model that the coordinator has chosen."""
        if self.holding.simulated or self.held is None or task.measures:
            return
        self.held.begin(task.round, task.exchange)
        if (task.round, task.exchange) == (1, 0) and self.held.asked.from_seed and self.first is not None:
            self.first.refuse_other(task.payload)

    def summed(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """One phase of a secure sum: of answers to the method, or of an encoder's columns before the first round."""
        if "run" not in facts:
            return self.summed_columns(facts, payload)
        run, host = self.prepared(facts)
        settings = host.setup.settings
        question = SumQuestion.of(facts, payload, identity(run), settings.secure_threshold)
        task = self.task(facts, question.got, host.method)
        if task.measures or not settings.secure_sums:
            raise for_others(UsageError("a secure sum was asked for that this run does not have."), "question")
        answers: list[Answer] = []

        def reply() -> Payload:
            self.in_turn(task)
            answers.append(answer := host.answer(task))
            if answer.error is not None or answer.absent:
                raise NoReply
            prune(host.memory.folder, task)
            if (problem := problem_with(answer.reply, host.method.exposed())) is not None:
                raise for_others(DataError(f"{problem}; nothing was sent"), "reply")
            if self.held is not None and not self.holding.simulated and task.trains(answer.reply):
                self.held.answered_with_model(task.ask)
            return answer.reply

        try:
            sums, opened = host.method.summed(), self.place(run) / OPENED
            sent, clipped = self.secure.answer(question, settings.seed, sums, reply, opened)
        except NoReply:
            if answers[0].absent:
                return self.booked(facts, {"client": task.client, "absent": True}, {}, run, host.method)
            self.say(f"round {task.round}, {task.ask}: {answers[0].error}\n{answers[0].trace}".rstrip())
            return self.booked(facts, {"error": FAILED}, {}, run)
        if clipped:
            self.say(f"round {task.round}, {task.ask}: {clipped} values were clipped for the secure sum")
        said = {"client": task.client, **({"memory": answers[0].memory} if answers else {})}
        letter = {REPLY + key: value for key, value in sent.items()}
        if self.holding.simulated and answers:
            said |= {"forward_samples": answers[0].forward_samples, "backward_samples": answers[0].backward_samples}
            letter |= {NOTES + key: value for key, value in answers[0].notes.items()}
        return self.booked(facts, said, letter, run, more=EXPOSED)

    def summed_columns(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """One phase of the secure sum of an encoder's columns."""
        held = self.agreed({key: value for key, value in facts.items() if key not in OF_A_PHASE})
        experiment = held.asked.experiment
        question = SumQuestion.of(facts, payload, hello_name(facts), experiment.secure_threshold)
        if question.session.ask != SUMS or not experiment.secure_sums:
            raise for_others(UsageError("a secure sum was asked for that this run does not have."), "question")

        def reply() -> Payload:
            held.sum_up()
            if (sent := self.holding.sums(facts)) is None:
                raise NoReply
            self.say("this site tells the sums of the encoder's columns over its samples, once, masked")
            return {SUMS: sent}

        try:
            sent, _ = self.secure.answer(question, experiment.seed, OF_ENCODER, reply, None)
        except NoReply:
            return self.booked(facts, {"client": question.client, "absent": True}, {})
        return self.booked(
            facts, {"client": question.client}, {REPLY + key: value for key, value in sent.items()}, more=EXPOSED
        )

    def check_reply(self, reply: Payload, method: Method) -> None:
        """The last check of a reply: its keys are declared, its numbers finite, and this site allows them."""
        exposed = method.exposed()
        if (problem := problem_with(reply, exposed)) is not None:
            raise for_others(DataError(f"{problem}; nothing was sent"), "reply")
        refuse_beyond(method, {key: exposed[key] for key in reply}, self.allowed)

    def finish(self, facts: dict[str, Any], payload: Payload) -> Letter:
        """The run is over; if it was no audit, its last model puts the labels of a real site in order."""
        if isinstance(facts.get("run"), dict) and facts["run"].get(AUDIT):
            self.agreed(facts["run"])
            if not self.audit.concluded:
                self.say(f"this site has no part in the conclusion of the audit: {one_line(facts.get('reason'))}")
            self.finished = True
            return self.booked(facts, {"site": self.name}, {}, facts["run"])
        run, host = self.prepared(facts)
        if not self.holding.simulated:
            self.put_in_order(run, host, self.task(facts | {"ask": "train"}, payload, host.method))
        self.finished = True
        return self.booked(facts, {"site": self.name}, {}, run)

    def put_in_order(self, run: dict[str, Any], host: Host, task: Task) -> None:
        """Write the labels in the order in which the last model doubts them; nothing of it leaves."""
        from fedwinnow.deployment.site_audit import RUN_JUDGE, with_judge, write_order

        task.ask = OPINIONS
        found = with_judge(host, RUN_JUDGE).answer(task)
        self.ready = None  # the host of a further question judges nothing
        if found.error is not None:
            self.say(f"the labels could not be judged: {found.error}\n{found.trace}".rstrip())
            return
        here = self.audit.here(run, host, task.client)
        self.audit.make_room(here.folder)
        write_order(here, run, found.reply)

    def prepared(self, facts: dict[str, Any]) -> tuple[dict[str, Any], Host]:
        """The run that a message belongs to, and the host that answers for it."""
        run, number = facts.get("run"), facts.get("number")
        if not isinstance(run, dict):
            raise for_others(DataError("the coordinator's message does not say which run it belongs to."), "message")
        number = None if self.holding.simulated else number
        self.agreed(run).check_run(run, number)
        text = json.dumps([run, number], sort_keys=True)
        if self.ready is None or self.ready[0] != text:
            memory = Memory(self.place(run) / "clients")
            host = self.holding.host(run, number, memory)
            refuse_other_model(run, host)
            if not self.holding.simulated:
                refuse_large_inputs(host, self.consent.policy.input_size)
                self.first = None if host.method.own_models else FirstModel(host)
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
                ),
                "changed",
            )

    def place(self, run: dict[str, Any]) -> Path:
        """The folder of a run at this site."""
        return self.folder / identity(run)

    def task(self, facts: dict[str, Any], payload: Payload, method: Method) -> Task:
        """The question of a message; every client, function and file that it names is checked."""
        client, memory, ask = facts.get("client"), facts.get("memory"), str(facts.get("ask"))
        here = self.holding.clients(facts["run"], facts.get("number"))
        if not isinstance(client, int) or client not in here:
            raise for_others(
                UsageError(f"client {client!r} was asked; site {self.name} has {clients_in_words(here)}."), "question"
            )
        if memory is not None and not names_memory(memory, client):
            raise for_others(
                DataError(f"the coordinator names the memory {memory!r}, which is not that of client {client}."),
                "question",
            )
        task = Task(client, ask, int(facts["round"]), int(facts["exchange"]), payload, memory)
        if task.ask == OPINIONS:
            must_audit(facts["run"])  # the answer stays here
        elif task.measures and not self.holding.simulated:
            raise for_others(
                UsageError(f"the coordinator asked for '{ask}', which tells about single samples: refused."),
                "question",
            )
        if not task.measures and not answerable(method, ask):
            raise for_others(
                UsageError(f"the coordinator asked for '{ask}', which method '{method.name}' does not answer."),
                "question",
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
        exposes, forwarded = (more or {}, {}) if method is None else (method.exposed(), method.forwarded())
        line: dict[str, Any] = {
            "time": now(),
            **{key: short(facts[key]) for key in BOOKED if key in facts},
            **({} if run is None else {"run": identity(run)}),
            "said": said,
            **({} if self.spent is None else {"privacy": self.spent}),
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
        self.ledger.book(line)
        return said, sent


def refuse_other_model(run: dict[str, Any], host: Host) -> None:
    """Refuse a model whose frozen part is not the coordinator's: it is not sent, so each would train another model."""
    if run.get("frozen", []) != host.frozen:
        raise for_others(
            UsageError(
                "the frozen part of the model has other values here than at the coordinator. Install the same version "
                "of the package that builds it, with the same file of weights, on every machine."
            ),
            "model",
        )


class NoReply(Exception):
    """There is nothing to sum: the method failed here, or there are too few samples."""


def refuse_single(settings: SiteSettings) -> None:
    """Refuse to answer for this site alone where the run has secure sums."""
    if settings.secure_sums:
        raise for_others(
            UsageError("the coordinator asked for a single reply, and this run has secure sums: nothing was sent."),
            "question",
        )


def unexpected(problem: Exception) -> FedwinnowError:
    """An unexpected exception as an error of this program."""
    return RunError(f"{type(problem).__name__}: {problem}")


def now() -> str:
    """The time, for ledger and log."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


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
