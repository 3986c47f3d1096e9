"""The backend for clients at other machines: tasks and answers as messages over any Flower grid."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedwinnow.deployment.error_codes import REFUSED, UNDECIDED, in_words
from fedwinnow.deployment.flower_records import facts_in, from_records, to_records
from fedwinnow.deployment.foreign_text import one_line
from fedwinnow.deployment.ledger_heads import Heads
from fedwinnow.deployment.site import NOTES, REPLY, names_memory
from fedwinnow.errors import DataError
from fedwinnow.federation.host import Answer, Host, Task
from fedwinnow.mathematics.payload import Payload

AHEAD = 2  # messages on their way per node, so that a site has the next one when it ends the one before
SOON = 0.02  # seconds until the next look for a missing part of a message
SHORTEST, LONGEST = 0.05, 1.0  # seconds between two looks for a message
PATIENCE_FOR_HELLO = 60.0  # seconds
ASKED_AGAIN = 3.0  # seconds until a site that cannot take part is asked again

MOST_COUNTED = 10**15  # samples that a site computed with: a larger number is a mistake
LONGEST_NAME = 60  # letters of a site's name
CHECKS = "checks"  # in the answer of a site that only checks its setup (join --check)
# Notes with one value for each sample of a site that is trained on, and that is judged.
OF_TRAINING, OF_JUDGING = ("selected", "pseudo_labels", "relabelled"), ("local_predicted", "global_predicted")

Packed = dict[int, tuple[Tensor, Array]]
Unfit = Callable[[dict[str, Any]], str | None]  # why a site that says this of itself cannot take part
Names = Callable[[int], str | None]  # the name that a node's key belongs to


@dataclass(frozen=True, eq=False)
class Letter:
    """A message to a node; `number` identifies it within one exchange."""

    number: int
    node: int | None  # None: its receiver is not connected
    content: RecordDict


@dataclass(frozen=True)
class Lost:
    """Why there is no reply."""

    reason: str


def pause(since: float) -> float:
    """Wait before the next look: a tenth of the time in which nothing came, so that looking costs little."""
    time.sleep(min(max((time.monotonic() - since) / 10, SHORTEST), LONGEST))
    return since


def exchange(grid: Grid, letters: Sequence[Letter], timeout: float) -> Iterator[tuple[Letter, RecordDict | Lost]]:
    """Send letters, a few at a time to each node; yields each with its reply, or why there is none, as it comes."""
    waiting: dict[int | None, deque[Letter]] = {}
    for letter in letters:
        waiting.setdefault(letter.node, deque()).append(letter)
    under_way: dict[str, tuple[Letter, float]] = {}
    since = time.monotonic()
    while waiting or under_way:
        yield from post(grid, waiting, under_way, timeout)
        looked = time.monotonic()  # before pulling, which a dying site may delay: others must not time out by it
        arrived = list(grid.pull_messages(list(under_way))) if under_way else []
        for message in arrived:
            letter, _ = under_way.pop(message.metadata.reply_to_message_id)
            for name, (other, _) in under_way.items():
                if other.node == letter.node:  # the site begins with this one only now
                    under_way[name] = other, time.monotonic() + timeout
            yield letter, Lost(reason_of(message)) if message.has_error() else message.content
        for name in [name for name, (_, until) in under_way.items() if until < looked]:
            yield under_way.pop(name)[0], Lost(f"no reply within {timeout:g} seconds")
        if arrived or under_way:
            since = time.monotonic() if arrived else pause(since)


def post(
    grid: Grid,
    waiting: dict[int | None, deque[Letter]],
    under_way: dict[str, tuple[Letter, float]],
    timeout: float,
) -> Iterator[tuple[Letter, Lost]]:
    """Send as many letters as each node has room for; those to a node that is not connected are lost at once."""
    busy = [letter.node for letter, _ in under_way.values()]
    ready = {node: AHEAD - busy.count(node) for node in waiting}
    there = set(grid.get_node_ids()) if any(room > 0 for room in ready.values()) else set()
    for node, room in ready.items():
        for _ in range(min(room, len(waiting[node]))):
            letter = waiting[node].popleft()
            if node not in there:
                yield letter, Lost("the site is not connected")
                continue
            message = Message(letter.content, dst_node_id=node, message_type="train", ttl=AHEAD * timeout)
            name = next(iter(grid.push_messages([message])), "")
            if name:
                under_way[name] = letter, time.monotonic() + timeout
            else:
                yield letter, Lost("the link did not take the message")
        if not waiting[node]:
            del waiting[node]


def reason_of(message: Message) -> str:
    """Flower's reason why a message has no reply."""
    return f"the site was lost ({one_line(message.error.reason, 120) or message.error.code})"


class Roster:
    """Which sites are connected, and at which node each client is.

    With keys, a site is identified by its key and not by the name that it states. Only in a simulation does a site
    state which clients it has; once the run has begun, they stay with it.
    """

    def __init__(
        self, grid: Grid, hello: dict[str, Any], unfit: Unfit, names: Names | None, say: Callable[[str], None]
    ) -> None:
        self.grid, self.hello, self.unfit, self.names, self.say = grid, hello, unfit, names, say
        self.simulated = hello["task"] is None  # a coordinator has either a task or a scene
        self.members: tuple[str, ...] | None = None  # the sites of the run, once it has begun
        self.owners: dict[int, str] | None = None  # client -> its site, once a simulation has begun
        self.known: dict[int, dict[str, Any]] = {}  # node -> what it stated about itself
        self.refused: dict[int, tuple[str, float]] = {}  # node -> why, and when to ask again
        self.declined: dict[int, str] = {}  # node -> the name of a site that declines to take part
        self.checking: dict[int, float] = {}  # node of a site that only checks -> when to ask again

    def begin(self, site_names: tuple[str, ...]) -> None:
        """The run begins: from now on its sites, and the site of each client, are fixed."""
        if self.simulated:
            self.owners = {client: self.known[node]["site"] for client, node in self.places(site_names).items()}
        else:
            self.members = site_names

    def refresh(self) -> None:
        """Ask new nodes who they are, and refused ones again; forget those that have left."""
        there, now = list(self.grid.get_node_ids()), time.monotonic()
        self.known = {node: facts for node, facts in self.known.items() if node in there}
        patient = [node for node, (_, until) in self.refused.items() if until > now]
        patient += [node for node, until in self.checking.items() if until > now]
        new = [node for node in there if node not in self.known and node not in patient]
        letters = [Letter(place, node, to_records(self.hello, {}, {})) for place, node in enumerate(new)]
        news: list[Letter] = []
        for letter, outcome in exchange(self.grid, letters, PATIENCE_FOR_HELLO):
            if isinstance(outcome, Lost):
                continue  # it is asked again at the next look
            assert letter.node is not None
            reason = self.introduce(letter.node, outcome)
            if reason is not None:
                news.append(Letter(len(news), letter.node, to_records({"kind": "refused", "reason": reason}, {}, {})))
        for _ in exchange(self.grid, news, PATIENCE_FOR_HELLO):
            continue  # a site that does not hear it will be asked again or has left

    def introduce(self, node: int, content: RecordDict) -> str | None:
        """Record what a node states about itself; returns the reason to send it if it cannot take part.

        A site that declined is sent the reason as well: it waits for that before it leaves.
        """
        unread = ""
        try:
            facts, _ = from_records(content)
        except DataError as problem:
            facts, unread = {"error": ""}, one_line(problem)
        name = self.name_of(node, facts)
        before, _ = self.refused.pop(node, ("", 0.0))
        self.declined.pop(node, None)
        if not unread and name is not None and facts.get(CHECKS) is True:
            return self.only_checked(node, name)
        reason = unread or self.problem_with(name, facts)
        if reason is None:
            self.known[node] = {
                "site": name,
                **{key: facts[key] for key in ("samples", "few", "clients") if key in facts},
            }
            if self.members is None or name in self.members:
                self.say(f"site {name} is there")
                return None
            reason = "the run began without it and has no room for more sites"
        elif facts.get("error") == REFUSED:
            self.declined[node] = name or str(node)
        undecided = facts.get("error") == UNDECIDED
        text = f"site {name or node} {'is asked again' if undecided else 'cannot take part'}: {reason}"
        if node not in self.known:
            self.refused[node] = text, time.monotonic() + ASKED_AGAIN
        if text != before:
            self.say(text)
        if undecided:
            return None  # its people are reading; there is nothing to tell them
        return reason if text != before or "error" in facts else None

    def only_checked(self, node: int, name: str) -> str:
        """A site that looks whether it could take part: it gets no place, and hears that its answer came."""
        self.checking[node] = time.monotonic() + ASKED_AGAIN
        self.say(f"site {name} checks its setup (join --check); it takes no place")
        return "this was a check"

    def name_of(self, node: int, facts: dict[str, Any]) -> str | None:
        """The name of the node's key, None for an unknown key; without keys the name that the site states."""
        if self.names is not None:
            return self.names(node)
        return one_line(facts.get("site", ""), LONGEST_NAME) or str(node)

    def problem_with(self, name: str | None, facts: dict[str, Any]) -> str | None:
        """Why a node cannot take part, as printable text; None if it can."""
        if name is None:
            return "its key belongs to no site"
        reason = in_words(facts["error"]) if "error" in facts else self.conflict(name, facts) or self.unfit(facts)
        return None if reason is None else one_line(reason)

    def conflict(self, name: str, claim: dict[str, Any]) -> str | None:
        """Why a new site conflicts with a site that is connected; None if it does not."""
        for facts in self.known.values():
            if facts["site"] == name:
                return "a site of this name is there already (join --name), or its last visit has not ended yet"
        if self.simulated:
            return self.conflict_of_clients(name, claim.get("clients"))
        if "clients" in claim:
            return "it says which clients it has, but in this run every site is one client, by its name"
        return None

    def conflict_of_clients(self, name: str, numbers: Any) -> str | None:
        """Why a site of a simulation cannot have the clients that it states; None if it can."""
        if numbers is None:
            return None  # `unfit` refuses it
        if not isinstance(numbers, list) or not all(type(one) is int for one in numbers):
            return f"it says that it has the clients {str(numbers)[:80]}; allowed: a list of numbers"
        for facts in self.known.values():
            if both := set(numbers) & set(facts.get("clients") or ()):
                where = f"client {min(both)} is at site {facts['site']} already"
                return f"{where}; allowed: every client at one site (join --clients)"
        if self.owners is not None and (others := [one for one in numbers if self.owners.get(one) != name]):
            owner = self.owners.get(others[0])
            return f"client {others[0]} belongs to {'no site' if owner is None else f'site {owner}'} in this run"
        return None

    def places(self, site_names: tuple[str, ...]) -> dict[int, int]:
        """The node of every client: in a simulation a site states its clients, else it is one client, by its name."""
        found: dict[int, int] = {}
        for node, facts in self.known.items():
            if self.simulated:
                found |= dict.fromkeys(facts.get("clients") or (), node)
            elif facts["site"] in site_names:
                found[site_names.index(facts["site"])] = node
        return found


class Flower:
    """Reaches clients through a grid; scores the test part in this process."""

    def __init__(
        self,
        host: Host | None,
        roster: Roster,
        run: dict[str, Any],
        names: tuple[str, ...],
        timeout: float,
        heads: Heads,
    ) -> None:
        self.host, self.roster, self.run, self.names, self.timeout = host, roster, run, names, timeout
        self.heads = heads  # of the sites' ledgers

    def exchange(self, tasks: Iterable[Task]) -> Iterator[Answer]:
        """Answers in the order of the tasks."""
        self.roster.refresh()
        places = self.roster.places(self.names)
        packed: Packed = {}
        clients: list[int] = []
        letters: list[Letter] = []
        number = 0
        for task in tasks:
            facts = self.facts("ask", task.client) | {
                "ask": task.ask,
                "round": task.round,
                "exchange": task.exchange,
                "memory": task.memory,
            }
            content = to_records(facts, task.payload, packed)
            letters.append(Letter(len(letters), places.get(task.client), content))
            clients.append(task.client)
            number = task.round
        ready: dict[int, Answer] = {}
        turn = 0
        for letter, outcome in self.answers(letters, number):
            ready[letter.number] = self.with_notes(answer_of(clients[letter.number], outcome))
            while turn in ready:
                yield ready.pop(turn)
                turn += 1

    def with_notes(self, answer: Answer) -> Answer:
        """The answer with its notes for the evaluation: only sites of a simulation make any, one value per sample."""
        host = self.host
        if not self.roster.simulated or host is None:
            answer.notes = {}
            return answer
        trained, judged = (int(part.holdings.sizes[answer.client]) for part in (host.sites, host.judged))
        wanted = {**dict.fromkeys(OF_TRAINING, trained), **dict.fromkeys(OF_JUDGING, judged)}
        wanted["local_tested"] = len(host.parts.get("test", ()))
        for name, count in wanted.items():
            if name in answer.notes and tuple(answer.notes[name].shape) != (count,):
                said = f"its note '{name}' has the shape {tuple(answer.notes[name].shape)}, not ({count},)"
                return Answer(answer.client, error=said, broken=True)
        return answer

    def asked(self, contents: dict[int, tuple[dict[str, Any], Payload]], number: int) -> dict[int, Answer]:
        """Send each of these clients a message of its own, and return what they answer."""
        self.roster.refresh()
        places = self.roster.places(self.names)
        letters = [
            Letter(client, places.get(client), to_records(facts, payload, {}))
            for client, (facts, payload) in contents.items()
        ]
        return {letter.number: answer_of(letter.number, outcome) for letter, outcome in self.answers(letters, number)}

    def answers(self, letters: Sequence[Letter], number: int) -> Iterator[tuple[Letter, RecordDict | Lost]]:
        """Send letters of a round, and yield the replies; the heads of the sites' ledgers are stored at the end."""
        try:
            for letter, outcome in exchange(self.roster.grid, letters, self.timeout):
                site = self.roster.known.get(letter.node or 0)
                if site is not None and not isinstance(outcome, Lost):
                    with contextlib.suppress(DataError):  # whoever reads the whole reply reports it
                        self.heads.note(site["site"], number, facts_in(outcome))
                yield letter, outcome
        finally:
            self.heads.write()

    def facts(self, kind: str, client: int) -> dict[str, Any]:
        """What every message to a client contains, so that a restarted site needs nothing else."""
        return {"kind": kind, "run": self.run, "number": client, "client": client}

    def finish(self, number: int, payloads: dict[int, tuple[Payload, str | None]]) -> dict[str, list[int]]:
        """Tell every site that the run is over and send the last model; returns the clients not reached, by reason."""
        return self.end(number, {client: {"memory": memory} for client, (_, memory) in payloads.items()}, payloads)

    def end(
        self,
        number: int,
        told: dict[int, dict[str, Any]],
        payloads: dict[int, tuple[Payload, str | None]] | None = None,
    ) -> dict[str, list[int]]:
        """Tell every site that the run is over, each once; returns the clients not reached, by reason."""
        self.roster.refresh()
        places = self.roster.places(self.names)
        letters, packed = [], Packed()
        known: set[int] = set()
        for client, more in told.items():
            node = places.get(client)
            if node in known:
                continue
            if node is not None:
                known.add(node)
            facts = self.facts("finish", client) | {"round": number, "exchange": 0, "memory": None, **more}
            payload = {} if payloads is None else payloads[client][0]
            letters.append(Letter(client, node, to_records(facts, payload, packed)))
        silent: dict[str, list[int]] = {}
        for letter, outcome in self.answers(letters, number):
            answer = answer_of(letter.number, outcome)
            if answer.error is not None:
                silent.setdefault(answer.error, []).append(letter.number)
        return silent

    def score(self, part: str, weights: Payload, count: int) -> Tensor:
        """Logits of the coordinator's own samples."""
        assert self.host is not None  # there is one in every run; a sum of looks needs none
        return self.host.score(part, weights, 0, count)

    def close(self) -> None:
        """Nothing to close: the caller opened the link and closes it."""


def answer_of(client: int, outcome: RecordDict | Lost) -> Answer:
    """The outcome of a letter as an answer; everything that a site sends is checked."""
    if isinstance(outcome, Lost):
        return Answer(client, error=outcome.reason)
    try:
        facts, payload = from_records(outcome)
    except DataError as problem:
        return Answer(client, error=one_line(problem), broken=True)
    if "error" in facts:
        return Answer(client, error=in_words(facts["error"]))
    if facts.get("absent") is True:
        return Answer(client, absent=True)
    memory = facts.get("memory")
    if memory is not None and not names_memory(memory, client):
        said = f"it names the memory {one_line(memory, 80)!r}, which is not that of client {client}"
        return Answer(client, error=said, broken=True)
    return Answer(
        client=client,
        reply={key.removeprefix(REPLY): value for key, value in payload.items() if key.startswith(REPLY)},
        memory=memory,
        notes={key.removeprefix(NOTES): value for key, value in payload.items() if key.startswith(NOTES)},
        forward_samples=count_from(facts.get("forward_samples")),
        backward_samples=count_from(facts.get("backward_samples")),
    )


def count_from(value: Any) -> int:
    """A count from a site; 0 if it is not one."""
    return value if type(value) is int and 0 <= value < MOST_COUNTED else 0
