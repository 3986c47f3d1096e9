"""The questions of an audit over a network, with all sites in this process: who is lost, who lies, what leaves."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedwinnow.auditing.audit import AuditSettings
from fedwinnow.auditing.claims import SiteFinding
from fedwinnow.auditing.looks import Survey, draw_looks, read_looks
from fedwinnow.auditing.looks_over_sites import (
    LooksHere,
    SiteLooks,
    found_over_sites,
    parts_of,
    problem_with_looks,
    told_looks,
)
from fedwinnow.auditing.site_half import Told
from fedwinnow.auditing.spreadsheet_files import read_table
from fedwinnow.auditing.update import update_audit
from fedwinnow.auditing.wire_values import problem_with_answer, told_as_values, told_from_values
from fedwinnow.cli import main
from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.dataset import Dataset
from fedwinnow.errors import DataError, RunError, UsageError
from fedwinnow.experiment.play import Execution
from fedwinnow.experiment.settings import Experiment
from fedwinnow.mathematics.payload import Payload
from looks_material import answer, make_audit

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedwinnow.deployment.asked_before import LooksTold
from fedwinnow.deployment.flower_audit import coordinate_audit
from fedwinnow.deployment.flower_records import from_records, reply_of, to_records
from fedwinnow.deployment.flower_run import Terms
from fedwinnow.deployment.site import Site
from fedwinnow.deployment.site_data import OwnData
from fedwinnow.deployment.status.status import Status

NAMES = ("a", "b", "c")
QUICK: dict[str, Any] = {"rounds": 2, "epochs": 2, "optimizer": "sgd:lr=0.1", "batch_size": 16, "participation": 1.0}
Change = Callable[[dict[str, Any], dict[str, Any], Payload], tuple[dict[str, Any], Payload]]


def rows(seed: int, count: int = 90) -> Dataset:
    """Two classes, some samples easy and some hard; every eighth label is wrong."""
    luck = np.random.default_rng(seed)
    true = np.arange(count) % 2
    samples = luck.normal(size=(count, 3)) + np.outer((2 * true - 1) * luck.uniform(0.2, 4, count), [1, 1, 0])
    given = np.where(np.arange(count) % 8 == 0, 1 - true, true)
    return from_arrays(samples, given, name="rows", ids=[f"{seed}-{number}" for number in range(count)])


@pytest.fixture(scope="module", autouse=True)
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The coordinator's own samples."""
    path, data = tmp_path_factory.mktemp("coordinator") / "own.npz", rows(9, 40)
    np.savez(path, x=data.train.features.take(np.arange(40)), y=data.train.labels)
    OWN.append(str(path))
    return path


OWN: list[str] = []  # its path, which is among the settings of the run


class Sites(Grid):
    """Sites in this process; `change` may change what one answers, and `gone` has those that are not connected."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.replies: dict[str, Message] = {}
        self.said: list[str] = []
        held = {name: OwnData(rows(number), **more) for number, name in enumerate(NAMES)}
        self.sites = {
            number: Site(name, one, folder / name, self.said.append)
            for number, (name, one) in enumerate(held.items(), 1)
        }
        self.gone: set[int] = set()
        self.asked: list[dict[str, Any]] = []
        self.sent: list[tuple[dict[str, Any], Payload]] = []
        self.questions: list[tuple[dict[str, Any], Payload]] = []
        self.change: Change = lambda facts, said, sent: (said, sent)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *words: Any, **more: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies[name] for name in message_ids]

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.sites if node not in self.gone]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            names.append(f"message {len(self.replies)}")
            message.metadata.__dict__["_message_id"] = names[-1]
            facts, payload = from_records(message.content)
            node = message.metadata.dst_node_id
            self.questions.append((facts | {"node": node}, payload))
            self.asked.append(facts | {"node": node})
            said, sent = from_records(reply_of(self.sites[node], message).content)
            said, sent = self.change(facts | {"node": node}, said, sent)
            self.sent.append((facts | {"node": node}, sent))
            self.replies[names[-1]] = Message(to_records(said, sent, {}), reply_to=message)
        return names


def audited(room: Sites, out: Path, say: list[str], **execution: Any) -> list[dict[str, Any]]:
    settings = AuditSettings(Experiment(data=OWN[0], least_count=5, method="winnow:warm_up=0.5", **QUICK))
    how = Execution(**{"on_client_error": "drop", "quorum": 0.6, **execution})
    return coordinate_audit(room, settings, out, how, Terms(3, say=say.append)).lines


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audit that was interrupted at the first question: the models are trained."""
    folder = tmp_path_factory.mktemp("trained")
    room = Sites(folder)

    def stop(facts: dict[str, Any], reply: dict[str, Any], sent: Payload) -> Any:
        if facts["kind"] == "count":
            raise KeyboardInterrupt
        return reply, sent

    room.change = stop
    with pytest.raises(KeyboardInterrupt):
        audited(room, folder / "out", [])
    return folder


@pytest.fixture
def half(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, to go on with."""
    return shutil.copytree(trained, tmp_path / "half")


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name / "audit.csv").read_bytes() for name in NAMES}


def at(kind: str, ask: str, node: int) -> Callable[[dict[str, Any]], bool]:
    return lambda facts: (facts["kind"], facts.get("ask"), facts["node"]) == (kind, ask, node)


def test_no_number_of_too_few_labels_leaves_and_all_stand_in_the_ledger(tmp_path: Path) -> None:
    room = Sites(tmp_path)
    lines = audited(room, tmp_path / "out", [])
    assert [line["site"] for line in lines] == list(NAMES)
    counted = [(facts, sent) for facts, sent in room.sent if facts["kind"] == "count"]
    assert {facts["ask"] for facts, _ in counted} >= {"classes", "sureness", "errors", "decoys", "scores", "figures"}
    free = ("reply.expected", "reply.called_p", "reply.unknown")  # sums of probabilities; whether there are enough
    for facts, sent in counted:
        for key, value in sent.items():
            if key not in free:
                assert not ((value > 0) & (value < 5)).any(), (facts["ask"], key)
    for number, name in enumerate(NAMES, 1):
        ledger = [json.loads(line) for line in (tmp_path / name / "ledger.jsonl").read_text().splitlines()]
        booked = [(line["ask"], set(line["sent"])) for line in ledger if line["kind"] == "count"]
        left = [
            (facts["ask"], {key.removeprefix("reply.") for key in sent})
            for facts, sent in counted
            if facts["node"] == number
        ]
        assert booked == left
        opinions = [line for line in ledger if line.get("ask") == "audit"]
        assert len(opinions) == 3
        assert all(line["sent"] == {} for line in opinions)
    coordinator = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert b"0-17" not in coordinator  # the id of a sample


def test_the_larger_least_count_of_a_site_holds(half: Path) -> None:
    room = Sites(half, least_count=12)
    audited(room, half / "out", [], resume=True)
    for facts, sent in room.sent:
        if facts["kind"] == "count" and facts["ask"] in ("classes", "sureness", "errors", "scores"):
            for value in sent.values():
                assert not ((value > 0) & (value < 12)).any()


def test_a_site_that_is_lost_midway_is_named_and_the_others_go_on(half: Path) -> None:
    room, said = Sites(half), list[str]()

    def leave(facts: dict[str, Any], reply: dict[str, Any], sent: Payload) -> Any:
        if at("count", "sureness", 2)(facts):
            room.gone.add(2)
        return reply, sent

    room.change = leave
    lines = {line["site"]: line for line in audited(room, half / "out", said, resume=True)}
    assert "the audit goes on without b: the site is not connected" in said
    assert lines["b"]["said"] == "left out"
    assert lines["a"]["judged"] == lines["c"]["judged"] == 90
    assert [(half / name / "audit.csv").exists() for name in NAMES] == [True, False, True]
    table = read_table(half / "out" / "sites.csv", ("site", "said", "reason"))
    assert [row["said"] == "left out" for row in table] == [False, True, False]
    assert "left out" in (half / "out" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("how", [{"quorum": 1.0}, {"on_client_error": "stop"}])
def test_below_the_quorum_the_audit_ends(half: Path, how: dict[str, Any]) -> None:
    room, out = Sites(half), half / "out"

    def leave(facts: dict[str, Any], reply: dict[str, Any], sent: Payload) -> Any:
        if at("count", "classes", 3)(facts):
            room.gone.add(3)
        return reply, sent

    room.change = leave
    with pytest.raises(RunError, match="--resume"):
        audited(room, out, [], **how, resume=True)
    assert not (out / "sites.csv").exists()


def test_the_status_page_follows_an_audit(tmp_path: Path) -> None:
    room, status, seen = Sites(tmp_path), Status(3), list[tuple[str, int, str]]()

    def look(facts: dict[str, Any], reply: dict[str, Any], sent: Payload) -> Any:
        state = status.state()
        seen.append((state["phase"], state["training"], facts.get("ask") or facts["kind"]))
        if at("count", "errors", 2)(facts):
            room.gone.add(2)
        return reply, sent

    room.change = look
    settings = AuditSettings(Experiment(data=OWN[0], least_count=5, method="winnow:warm_up=0.5", **QUICK))
    terms = Terms(3, say=lambda text: None, meet=status.meet, step=status.step)
    how = Execution(on_client_error="drop", quorum=0.6)
    coordinate_audit(room, settings, tmp_path / "out", how, terms, (status,))
    steps = list(dict.fromkeys(seen))
    trained = [("running", number, "train") for number in (1, 2, 3)]
    judged = [("judging", number, "audit") for number in (1, 2, 3)]
    assert [one for one in steps if one in trained + judged] == [
        one for pair in zip(trained, judged, strict=True) for one in pair
    ]
    assert ("waiting", 0, "hello") in steps
    assert ("counting", 3, "figures") in steps
    assert ("writing", 3, "conclude") in steps
    state = status.state()
    assert (state["phase"], [site["lost"] for site in state["sites"]]) == (
        "finished",
        [None, "the site is not connected", None],
    )


def test_resume_goes_on_where_the_audit_was(half: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="an unfinished audit"):
        audited(Sites(half), half / "out", [])
    again = Sites(half)  # every site has been started anew, too
    audited(again, half / "out", [], resume=True)
    assert not [facts for facts in again.asked if facts.get("ask") == "train"]  # the models were trained already
    audited(Sites(tmp_path), tmp_path / "out", [])  # without an interruption
    assert files(half) == files(tmp_path)
    with pytest.raises(UsageError, match="already holds an audit"):
        audited(Sites(half), half / "out", [])


@pytest.mark.parametrize(
    ("ask", "lie", "words"),
    [
        ("classes", lambda sent: {key: value * torch.nan for key, value in sent.items()}, "is no count"),
        ("classes", lambda sent: {"reply.given": sent["reply.given"]}, "has other numbers than those of other sites"),
        pytest.param(
            "errors",
            lambda sent: {"reply.errors": sent["reply.errors"][:1]},
            "another shape",
            marks=pytest.mark.slow,
        ),
        ("decoys", lambda sent: {**sent, "reply.more": sent["reply.found"]}, "nobody asked for"),
    ],
)
def test_a_site_that_answers_nonsense_costs_its_own_part_only(
    half: Path, ask: str, lie: Callable[[Payload], Payload], words: str
) -> None:
    room, said = Sites(half), list[str]()
    room.change = lambda facts, reply, sent: (reply, lie(sent) if at("count", ask, 1)(facts) else sent)
    lines = {line["site"]: line for line in audited(room, half / "out", said, resume=True)}
    assert words in lines["a"]["reason"]
    assert lines["a"]["said"] == "left out"
    assert "left out" not in (lines["b"]["said"], lines["c"]["said"])
    assert (half / "b" / "audit.csv").exists()
    assert any("this site has no part in the conclusion" in text for text in room.said)


def test_what_people_did_with_an_earlier_audit_is_moved_and_not_lost(half: Path) -> None:
    for name in ("decisions.csv", "audit.csv", "site.json"):
        (half / "a" / name).write_text('{"audit": "0123456789abcdef"}')
    room = Sites(half)
    audited(room, half / "out", [], resume=True)
    assert {path.name for path in (half / "a" / "earlier-1").iterdir()} == {"decisions.csv", "audit.csv", "site.json"}
    assert not (half / "a" / "decisions.csv").exists()
    assert any("was moved to" in text for text in room.said)
    assert not (half / "b" / "earlier-1").exists()
    (half / "b" / "decisions.csv").write_text("id,reviewer,decision,label,time\n")
    before = (half / "b" / "audit.csv").stat().st_mtime_ns
    audited(
        Sites(half), half / "out", [], resume=True
    )  # told once more: what is there already stays, with the decisions
    assert (half / "b" / "decisions.csv").exists()
    assert (half / "b" / "audit.csv").stat().st_mtime_ns == before


def test_an_audit_by_groups_is_refused_where_the_data_has_other_groups(tmp_path: Path) -> None:
    room, said = Sites(tmp_path), list[str]()
    settings = AuditSettings(Experiment(data=OWN[0], **QUICK))
    with pytest.raises(RunError, match="only 0 of 3 sites came"):
        coordinate_audit(
            room, settings, tmp_path / "out", Execution(), Terms(3, say=said.append, patience=0.1), group="patient"
        )
    assert "join with --data ...,group=patient" in str(room.sites[1].failure)


# --- a coordinator that asks for more than was agreed ----------------------------------------------------------------


@dataclasses.dataclass
class Greedy:
    """A coordinator after an honest audit, and one of its sites; it has every question of the audit."""

    folder: Path
    room: Sites

    def question(self, kind: str, ask: str | None = None) -> tuple[dict[str, Any], Payload]:
        found = (each for each in self.room.questions if each[0]["kind"] == kind and each[0]["node"] == 1)
        facts, payload = next(each for each in found if each[0].get("ask") == ask)
        return {key: value for key, value in facts.items() if key != "node"}, payload

    def again(self, facts: dict[str, Any], payload: Payload) -> tuple[dict[str, Any], Payload]:
        return self.room.sites[1].answer(facts, payload)

    def restart(self) -> None:
        """The site was started anew."""
        self.room.sites[1] = Site("a", OwnData(rows(0)), self.folder / "a", self.room.said.append)

    def ledger(self) -> dict[str, Any]:
        """The last line."""
        return dict(json.loads((self.folder / "a" / "ledger.jsonl").read_text().splitlines()[-1]))


@pytest.fixture
def greedy(half: Path) -> Greedy:
    room = Sites(half)
    audited(room, half / "out", [], resume=True)
    return Greedy(half, room)


def told_at(facts: dict[str, Any], threshold: float) -> dict[str, Any]:
    return facts | {"told": facts["told"] | {"threshold": threshold}}


def test_an_audit_is_not_asked_again_and_again_with_other_thresholds(greedy: Greedy) -> None:
    """The difference of two thresholds could be a single label."""
    facts, payload = greedy.question("count", "figures")
    first = greedy.again(facts, payload)[1]
    assert first["reply.called"] >= 0
    for threshold in (0.4, 0.3):  # as after a site was lost
        assert "reply.called" in greedy.again(told_at(facts, threshold), payload)[1]
    said, sent = greedy.again(told_at(facts, 0.2), payload)
    assert (said, sent) == ({"error": "departed"}, {})
    line = greedy.ledger()
    assert (line["kind"], line["ask"], line["said"], line["sent"]) == ("count", "figures", said, {})
    assert "it asks 'figures' of an audit once more and otherwise" in greedy.room.said[-1]
    greedy.restart()
    assert greedy.again(told_at(facts, 0.2), payload)[0] == {"error": "departed"}
    assert torch.equal(greedy.again(facts, payload)[1]["reply.called"], first["reply.called"])  # what was asked before


def test_what_is_told_with_a_question_may_not_change_without_end_either(greedy: Greedy) -> None:
    facts, payload = greedy.question("count", "scores")
    answers = []
    for many in range(5):
        common = torch.tensor([many % 2 == 0, True])
        going = torch.eye(2, dtype=torch.float64) * (1 - many / 10)
        answers.append(greedy.again(facts, payload | {"common": common, "going": going})[0])
    assert [("error" in said) for said in answers] == [False, False, True, True, True]  # one was the audit's own


def test_a_site_judges_its_labels_by_few_models(greedy: Greedy) -> None:
    facts, payload = greedy.question("ask", "audit")
    answers = [
        greedy.again(facts, payload | {"weights": payload["weights"] + many})[0].get("error") for many in range(5)
    ]
    assert answers == [None, None, None, "departed", "departed"]


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run["audit"].update(judge="final"),
        lambda run: run["audit"].update(group="patient"),
        lambda run: run["audit"].update(name="0" * 16),
        lambda run: run["audit"].update(parts=["fold-1", "fold-2"]),
        lambda run: run["audit"].update(part="half-1"),
        lambda run: run["experiment"].update(least_count=0),
        lambda run: run["experiment"].update(seed=1),
        lambda run: run.pop("audit"),
    ],
)
@pytest.mark.parametrize("kind", ["count", "conclude", "ask", "looks", "finish"])
def test_an_audit_with_other_terms_than_agreed_is_refused_and_booked(
    greedy: Greedy, change: Callable[[dict[str, Any]], Any], kind: str
) -> None:
    asked = {"count": "classes", "ask": "audit"}.get(kind)
    facts, payload = greedy.question("conclude" if kind == "looks" else kind, asked)
    facts = json.loads(json.dumps(facts)) | {"kind": kind}
    change(facts["run"])
    for _ in range(2):
        said, sent = greedy.again(facts, payload)
        assert (said, sent) == ({"error": "departed"}, {})
        line = greedy.ledger()
        assert (line["kind"], line["said"], line["sent"]) == (kind, said, {})
        greedy.restart()


def test_the_ledger_of_an_audit_is_proven_by_the_coordinators_heads(
    greedy: Greedy, capsys: pytest.CaptureFixture[str]
) -> None:
    site, heads = greedy.folder / "a", greedy.folder / "out" / "ledger_heads.jsonl"

    def verified(code: int, *more: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["ledger", "verify", str(site), *more])
        assert ended.value.code == code
        said = capsys.readouterr()
        return said.out + said.err

    assert "consistent, unproven" in verified(0)
    assert "proven" in verified(0, "--heads", str(heads))
    path = site / "ledger.jsonl"
    before = path.read_text()
    path.write_text(before.replace("figures", "classes", 1))
    assert path.read_text() != before
    verified(3, "--heads", str(heads))


# --- what is told ----------------------------------------------------------------------------------------------------


def a_told() -> Told:
    finding = SiteFinding(True, np.array([True, False, True]), np.linspace(0.1, 1 / 3, 36), 0.1, 0.2, 1 / 7, 0.3, True)
    known = np.array([True, True, False])
    return Told(1, known, ~known, finding, np.full((3, 3), 1 / 3), np.linspace(0, 1, 48), 1 / 3, 7)


def test_what_is_told_arrives_exactly() -> None:
    told = a_told()
    facts, payload = told_as_values(told)
    found = told_from_values(json.loads(json.dumps(facts)), payload, 3)
    for one, other in ((told, found), (told.finding, found.finding)):
        assert other is not None
        for field in dataclasses.fields(one):  # type: ignore[arg-type]
            if field.name != "finding":
                assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name
    assert vars(told_from_values(told_as_values(Told())[0], {}, 3)) == vars(Told())


@pytest.mark.parametrize(
    ("facts", "payload"),
    [
        ({"threshold": float("nan")}, {}),
        ({"threshold": 2}, {}),
        ({"look": -1}, {}),
        ({"best": 9}, {}),
        ({"finding": {"skilled": 1}}, {}),
        ({}, {"going": torch.zeros(2, 2, dtype=torch.float64)}),
        ({}, {"limits": torch.full((48,), float("nan"), dtype=torch.float64)}),
        ({}, {"common": torch.zeros(3)}),
        ({}, {"strange": torch.zeros(3)}),
    ],
)
def test_what_no_coordinator_tells_is_refused(facts: dict[str, Any], payload: Payload) -> None:
    told, arrays = told_as_values(a_told())
    with pytest.raises(DataError, match="cannot be used"):
        told_from_values(told | facts, arrays | payload, 3)


def test_an_answer_that_fits_has_no_problem() -> None:
    assert problem_with_answer("losses", {}, 3) is None  # a judge that does not choose
    assert problem_with_answer("figures", {"unknown": np.zeros(3)}, 3) is None
    assert "another shape" in str(problem_with_answer("figures", {"unknown": np.zeros(4)}, 3))
    assert "no count" in str(problem_with_answer("figures", {"unknown": np.array([1e13, 0, 0])}, 3))


# --- looks -----------------------------------------------------------------------------------------------------------


def test_looks_are_told_for_strata_together_until_enough_labels_are_concerned() -> None:
    looked = np.array([3.0, 3, 3, 3, 3, 0, 3])
    found = np.array([3.0, 2, 1, 0, 0, 0, 0])
    # 3 looks are too few; 5 of 6 found wrong leave 1 right; 6 of 9 leave 3; of 12 there are 6 right.
    assert parts_of(looked, found, 5) == [slice(0, 4), slice(4, 7)]
    assert parts_of(looked, found, 0) == [slice(place, place + 1) for place in (0, 1, 2, 3, 4, 6)]
    # What is left at the end, 1 of 3 wrong, joins the parts above: 1 of 9 would still be too few, 7 of 15 are not.
    assert parts_of(np.array([6.0, 6, 3]), np.array([6.0, 0, 1]), 5) == [slice(0, 3)]
    assert parts_of(np.array([4.0, 4]), np.array([4.0, 1]), 5) == []  # 5 of 8 wrong leave 3 right: nothing is told


def looked_at(folder: Path, **more: Any) -> dict[tuple[str, str], str]:
    truth = make_audit(folder, **more)
    for name in ("north", "south", "east"):
        while draw_looks(Survey(folder / name), 30):
            for sample in read_looks(folder / name):
                answer(folder / name, name, sample, truth)
    return truth


def told_of(folder: Path, least: int) -> tuple[Any, list[SiteLooks], Any]:
    """What sites with the folders of an audit would tell a coordinator."""
    survey = Survey(folder)
    sums = [told_looks(site.folder, survey.strata, least) for site in survey.sites]
    assert [problem_with_looks(one, len(survey.strata)) for one in sums] == [None] * 3
    return survey, [SiteLooks.of(one) for one in sums], sums


def test_the_sum_over_a_network_is_that_of_one_machine(tmp_path: Path) -> None:
    looked_at(tmp_path)
    survey, looks, _ = told_of(tmp_path, 0)
    found = found_over_sites(survey.strata, survey.sizes, looks, survey.sites[0].facts["seed"])
    one = update_audit(tmp_path).looks
    there = found.values(None, threshold=0.5, cost=0.2)
    assert {key: value for key, value in there.items() if key != "said"} == {
        k: v for k, v in one.items() if k != "said"
    }


def test_with_a_least_count_nothing_small_is_told_and_little_is_lost(tmp_path: Path) -> None:
    truth = looked_at(tmp_path)
    survey, looks, sums = told_of(tmp_path, 5)
    for one, said in zip(looks, sums, strict=True):
        for looked, found in zip(one.parts.looked, one.parts.found, strict=True):
            assert looked >= 5
            assert found == 0 or found >= 5
            assert found == looked or looked - found >= 5
        assert (said["found"] > 0).sum() <= len(one.parts.found)
    found = found_over_sites(survey.strata, survey.sizes, looks, 5).values(None, threshold=0.5, cost=0.2)
    wrong = (
        sum(truth[site.name, row["id"]] != row["given"] for site in survey.sites for row in site.rows)
        / survey.sizes.sum()
    )
    assert found["all"]["low"] <= wrong <= found["all"]["high"]
    exact = found_over_sites(survey.strata, survey.sizes, told_of(tmp_path, 0)[1], 5)
    assert abs(found["called"] - exact.values(None, threshold=0.5, cost=0.2)["called"]) < 0.35 * found["called"]


def at_ends(sums: Any) -> dict[int, tuple[float, float]]:
    """Looks and wrong labels down to each stratum at which a part ends: what everybody can add up from an answer."""
    part, found, ends = sums["part"], {}, (0.0, 0.0)
    for number in np.unique(part[part >= 0]):
        where = np.flatnonzero(part == number)
        ends = ends[0] + sums["looked"][where].sum(), ends[1] + sums["found"][where].sum()
        found[int(where[-1])] = ends
    return found


def test_the_difference_of_two_answers_about_looks_shows_no_single_look(tmp_path: Path) -> None:
    luck, least, differences = np.random.default_rng(3), 5, 0
    for trial in range(40):
        told, answers = LooksTold(tmp_path / str(trial), 0), []
        looked, found = np.zeros(8), np.zeros(8)
        for _ in range(25):
            new = luck.poisson(luck.choice([0.2, 1, 4]), 8).astype(np.float64)
            looked, found = looked + new, found + luck.binomial(new.astype(int), np.linspace(0.9, 0.1, 8))
            before = told.states()
            sums = told.told(LooksHere(looked, found, np.zeros(2)), least)
            assert problem_with_looks(sums, 8) is None
            if len(told.states()) > len(before):
                answers.append(at_ends(sums))
            elif before:
                assert all(np.array_equal(sums[key], before[-1]["sums"][key]) for key in sums)
        for place, one in enumerate(answers):
            for other in answers[place + 1 :]:
                for end in one.keys() & other.keys():
                    more = np.subtract(other[end], one[end])
                    differences += 1
                    for many in (more[1], more[0] - more[1]):
                        assert many == 0 or many >= least, (trial, end)
    assert differences > 100  # what is guarded here does happen


def test_pairs_of_answers_are_told_anew_when_there_are_enough_new_ones(tmp_path: Path) -> None:
    told, looked = LooksTold(tmp_path, 0), np.array([20.0, 20.0])
    pairs = []
    for number, (both, differ) in enumerate([(6, 0), (9, 0), (11, 1), (11, 5), (30, 12)]):
        here = LooksHere(looked + 10 * number, (looked + 10 * number) / 2, np.array([both, differ], np.float64))
        pairs.append(told.told(here, 5)["pairs"].tolist())
    assert (pairs[0], pairs[1], pairs[-1]) == ([6, 0], [6, 0], [30, 12])
    for number, one in enumerate(pairs):
        for other in pairs[number + 1 :]:
            assert all(more == 0 or more >= 5 for more in np.subtract(other, one))


def test_too_few_looks_say_what_to_do(tmp_path: Path) -> None:
    make_audit(tmp_path)
    survey, looks, _ = told_of(tmp_path, 5)
    with pytest.raises(UsageError, match="at 0 of the labels drawn by lot; needed: 10"):
        found_over_sites(survey.strata, survey.sizes, looks, 5)


@pytest.mark.parametrize(
    "change",
    [{"found": np.full(3, 9.0)}, {"pairs": np.array([1.0, 2])}, {"part": np.full(3, 7.0)}, {"looked": np.zeros(2)}],
)
def test_looks_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    fine = {"looked": np.full(3, 5.0), "found": np.zeros(3), "part": np.arange(3.0), "pairs": np.zeros(2)}
    assert problem_with_looks(fine, 3) is None
    assert problem_with_looks(fine | change, 3) is not None
