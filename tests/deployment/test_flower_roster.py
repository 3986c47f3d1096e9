"""Who is there: sites that come, leave, come back as somebody else, or claim what another site has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")

from fedwinnow.deployment import flower_backend
from fedwinnow.deployment.certificates import make_certificates
from fedwinnow.deployment.flower_backend import Flower, Lost, Names, Roster, Unfit, answer_of
from fedwinnow.deployment.flower_link import Link
from fedwinnow.deployment.flower_records import from_records, to_records
from fedwinnow.deployment.flower_run import LARGEST, Terms, coordinate, gather, no_samples, other_scene
from fedwinnow.deployment.keys import ServerFiles
from fedwinnow.deployment.ledger_heads import Heads
from fedwinnow.errors import DataError, RunError, UsageError
from fedwinnow.experiment.play import Execution
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Answer, Task
from over_network import free_port

Claims = dict[int, dict[str, Any]]


@pytest.fixture
def told() -> list[tuple[int, str]]:
    """Which nodes were told that they cannot take part, and why."""
    return []


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch, told: list[tuple[int, str]]) -> Claims:
    """What the nodes that are connected say of themselves; a test changes it as sites come and go."""
    found: Claims = {}

    def answer(grid: Any, letters: list[Any], timeout: float) -> list[Any]:
        for one in letters:
            facts, _ = from_records(one.content)
            if facts["kind"] == "refused":
                told.append((one.node, facts["reason"]))
        gone = Lost("the site is not connected")
        return [(one, to_records(found[one.node], {}, {}) if one.node in found else gone) for one in letters]

    monkeypatch.setattr(flower_backend, "exchange", answer)
    monkeypatch.setattr(flower_backend, "ASKED_AGAIN", -1.0)
    return found


SCENE: dict[str, Any] = {"kind": "hello", "task": None}
OWN_DATA: dict[str, Any] = {"kind": "hello", "task": {}}


def roster_of(
    claims: Claims,
    unfit: Unfit = lambda facts: None,
    hello: dict[str, Any] = SCENE,
    names: Names | None = None,
) -> tuple[Roster, list[str]]:
    said: list[str] = []
    grid: Any = SimpleNamespace(get_node_ids=lambda: list(claims))
    return Roster(grid, hello, unfit, names, said.append), said


def test_a_site_that_left_is_asked_again_when_it_is_back(claims: Claims) -> None:
    roster, _ = roster_of(claims)
    claims[7] = {"site": "east", "clients": [0, 1]}
    roster.refresh()
    assert roster.places(()) == {0: 7, 1: 7}
    claims.clear()
    roster.refresh()
    assert roster.places(()) == {}
    claims[7] = {"site": "east", "clients": [1]}
    roster.refresh()
    assert roster.places(()) == {1: 7}


def test_of_two_sites_with_one_name_the_second_waits_until_the_first_has_left(claims: Claims) -> None:
    roster, said = roster_of(claims, hello=OWN_DATA)
    claims[7], claims[9] = {"site": "east", "samples": 5}, {"site": "east", "samples": 6}
    for _ in range(3):
        roster.refresh()
    assert said == [
        "site east is there",
        "site east cannot take part: a site of this name is there already (join --name), or its last visit has not "
        "ended yet",
    ]
    assert roster.places(("east",)) == {0: 7}
    del claims[7]
    roster.refresh()
    assert roster.places(("east",)) == {0: 9}


def test_a_client_is_at_one_site(claims: Claims) -> None:
    roster, said = roster_of(claims)
    claims[7], claims[9] = {"site": "east", "clients": [0, 1]}, {"site": "west", "clients": [1, 2]}
    roster.refresh()
    assert said[-1].startswith("site west cannot take part: client 1 is at site east already")
    assert roster.places(()) == {0: 7, 1: 7}
    claims[9] = {"site": "west", "clients": [2]}
    roster.refresh()
    assert roster.places(()) == {0: 7, 1: 7, 2: 9}


@pytest.mark.parametrize("clients", ["0-4", {"0": 1}, [[0]], [0.5], 3, [True]])
def test_clients_that_are_no_numbers_are_refused(claims: Claims, clients: Any) -> None:
    roster, said = roster_of(claims)
    claims[7] = {"site": "east", "clients": clients}
    roster.refresh()
    assert "allowed: a list of numbers" in said[-1]
    assert roster.places(()) == {}


@pytest.mark.parametrize("samples", [None, 0, -3, LARGEST, "many", [5], True])
def test_a_site_whose_samples_cannot_be_so_is_left_out_and_told_while_the_others_wait(
    claims: Claims, told: list[tuple[int, str]], samples: Any
) -> None:
    roster, said = roster_of(claims, no_samples, OWN_DATA)
    claims[7], claims[9] = {"site": "east", "samples": samples}, {"site": "west", "samples": 6}
    for _ in range(3):
        roster.refresh()
    reason = f"it says that it has {samples} samples; allowed: a number from 1 to {LARGEST - 1}"
    assert said == [f"site east cannot take part: {reason}", "site west is there"]
    assert told == [(7, reason)]
    claims[7] = {"site": "east", "samples": 5}
    roster.refresh()
    assert roster.places(("east", "west")) == {0: 7, 1: 9}


def test_a_site_with_another_scene_is_left_out_and_told(claims: Claims, told: list[tuple[int, str]]) -> None:
    stage: Any = SimpleNamespace(scene=SimpleNamespace(hash="c0ffee"))
    roster, _ = roster_of(claims, other_scene(stage))
    claims[7] = {"site": "east", "clients": [0], "scene": "c0ffee"}
    claims[9] = {"site": "west", "clients": [1], "scene": "decade"}
    claims[11] = {"site": "south", "scene": "c0ffee"}
    roster.refresh()
    assert roster.places(()) == {0: 7}
    assert [node for node, _ in told] == [9, 11]
    assert "the scene decade, the coordinator c0ffee. Copy" in told[0][1]


def test_when_too_few_have_come_it_is_said_who_could_not_take_part(claims: Claims) -> None:
    claims[7] = {"site": "east", "samples": 0}
    roster, _ = roster_of(claims, hello=OWN_DATA)
    with pytest.raises(
        RunError, match=r"only 0 of 1 sites came .* The site east cannot take part: it says that it has 0"
    ):
        gather(roster.grid, roster.hello, no_samples, Terms(sites=1, patience=0.01, say=lambda text: None))


def test_who_comes_when_the_run_has_begun_is_told_once_that_there_is_no_room(
    claims: Claims, told: list[tuple[int, str]]
) -> None:
    roster, said = roster_of(claims, hello=OWN_DATA)
    claims[7] = {"site": "east", "samples": 5}
    roster.refresh()
    roster.begin(("east",))
    claims[9] = {"site": "west", "samples": 6}
    for _ in range(3):
        roster.refresh()
    reason = "the run began without it and has no room for more sites"
    assert said == ["site east is there", f"site west cannot take part: {reason}"]
    assert told == [(9, reason)]
    assert roster.places(("east",)) == {0: 7}


# --- nobody in another's place -------------------------------------------------------------------------------------

KEYS: Names = {7: "east", 8: "north", 9: "west"}.get


def test_where_sites_have_their_own_data_a_site_is_its_key_and_not_the_clients_that_it_claims(
    claims: Claims, told: list[tuple[int, str]]
) -> None:
    roster, said = roster_of(claims, no_samples, OWN_DATA, KEYS)
    claims |= {node: {"site": "me", "samples": 5} for node in (7, 8)}
    roster.refresh()
    claims[9] = {"site": "me", "samples": 5, "clients": [0, 1, 2]}
    roster.refresh()
    assert roster.places(("east", "north", "west")) == {0: 7, 1: 8}
    reason = "it says which clients it has, but in this run every site is one client, by its name"
    assert told == [(9, reason)]
    assert said[-1] == f"site west cannot take part: {reason}"
    claims[9] = {"site": "me", "samples": 5}
    roster.refresh()
    assert roster.places(("east", "north", "west")) == {0: 7, 1: 8, 2: 9}


@pytest.mark.parametrize("late", [False, True], ids=["before the start", "after it"])
def test_a_name_that_belongs_to_another_key_is_not_heard(claims: Claims, late: bool) -> None:
    roster, said = roster_of(claims, no_samples, OWN_DATA, KEYS)
    claims[7] = {"site": "east", "samples": 5}
    if late:
        claims[9] = {"site": "west", "samples": 6}
        roster.refresh()
        roster.begin(("east", "west"))
        del claims[9]
    del claims[7]
    claims[9] = {"site": "east", "samples": 6}  # east has left, and west comes in its name
    roster.refresh()
    assert roster.places(("east", "west")) == {1: 9}
    claims[7] = {"site": "west", "samples": 5}  # east is back under a new name
    roster.refresh()
    assert roster.places(("east", "west")) == {0: 7, 1: 9}
    assert {line for line in said if "cannot" in line} == set()


def test_a_key_that_is_that_of_no_site_takes_no_place(claims: Claims) -> None:
    roster, said = roster_of(claims, no_samples, OWN_DATA, KEYS)
    claims[666] = {"site": "east", "samples": 5}
    roster.refresh()
    assert roster.places(("east",)) == {}
    assert said == ["site 666 cannot take part: its key belongs to no site"]


def test_once_a_simulation_has_begun_its_clients_stay_where_they_are(claims: Claims) -> None:
    roster, said = roster_of(claims, names=KEYS)
    claims[7], claims[9] = {"clients": [0, 1]}, {"clients": [2]}
    roster.refresh()
    roster.begin(("a", "b", "c"))
    claims.clear()
    roster.refresh()
    claims[9] = {"clients": [0, 1, 2]}  # while east is away
    roster.refresh()
    assert said[-1] == "site west cannot take part: client 0 belongs to site east in this run"
    claims[8] = {"clients": [3]}
    roster.refresh()
    assert said[-1] == "site north cannot take part: client 3 belongs to no site in this run"
    claims[7], claims[9] = {"clients": [0, 1]}, {"clients": [2]}
    roster.refresh()
    assert roster.places(()) == {0: 7, 1: 7, 2: 9}


def test_a_site_that_declines_is_not_waited_for_where_the_quorum_allows(claims: Claims) -> None:
    claims[7] = {"site": "east", "samples": 5}
    claims[9] = {"error": "refused"}
    said: list[str] = []
    grid = roster_of(claims)[0].grid
    terms = Terms(sites=2, say=said.append, names=KEYS, quorum=0.5)
    assert set(gather(grid, OWN_DATA, no_samples, terms).known) == {7}
    assert said[-2:] == ["1 of 2 sites are there: east", "the run begins without west"]
    with pytest.raises(RunError, match=r"only 1 of 2 sites take part; the quorum is 2\. .* the site refused"):
        gather(grid, OWN_DATA, no_samples, replace(terms, quorum=1.0))


def test_a_site_whose_people_have_not_answered_is_asked_again_and_not_counted_as_declined(
    claims: Claims, told: list[tuple[int, str]]
) -> None:
    roster, said = roster_of(claims, hello=OWN_DATA)
    claims[1] = {"site": "east", "error": "undecided"}
    for _ in range(3):
        roster.refresh()
    assert said == ["site east is asked again: the people at the site have not answered yet (code undecided)"]
    assert (told, roster.declined, roster.known) == ([], {}, {})  # they are reading: nothing is told to them
    claims[1] = {"site": "east", "samples": 9}
    roster.refresh()
    assert said[1:] == ["site east is there"]


def test_a_site_that_declined_and_came_back_is_there(claims: Claims) -> None:
    roster, _ = roster_of(claims, no_samples, OWN_DATA, KEYS)
    claims[7] = {"error": "refused"}
    roster.refresh()
    assert roster.declined == {7: "east"}
    claims[7] = {"samples": 5}
    roster.refresh()
    assert roster.declined == {}
    assert set(roster.known) == {7}


# --- what sites say ------------------------------------------------------------------------------------------------

EVIL = "\x1b[2Jred\x07\u202e" + "x" * 1_000_000


def test_what_a_site_says_is_printed_without_control_characters_and_not_at_length(claims: Claims) -> None:
    roster, said = roster_of(claims, no_samples, OWN_DATA)
    claims[7], claims[8] = {"site": EVIL, "samples": EVIL}, {"error": EVIL}
    claims[9] = {"site": EVIL, "samples": 5}
    roster.refresh()
    assert len(said) == 3
    assert all(line.isprintable() and len(line) < 500 for line in said)
    assert said[1] == "site 8 cannot take part: it failed, and its code is not known here"
    assert roster.known[9]["site"].isprintable()


@pytest.mark.parametrize(
    "facts",
    [
        {"error": EVIL},
        {"memory": EVIL},
        {"memory": "../../x"},
        {"memory": "000004-1-0.safetensors"},
        {"memory": "../000003-1-0.safetensors"},
    ],
)
def test_an_answer_that_cannot_be_used_is_a_short_error(facts: dict[str, Any]) -> None:
    answer = answer_of(3, to_records(facts, {"reply.weights": torch.ones(1)}, {}))
    assert answer.error is not None
    assert answer.error.isprintable()
    assert len(answer.error) <= 300
    assert answer.memory is None
    assert answer.broken == ("memory" in facts)


def test_the_name_of_a_tensor_is_looked_at(claims: Claims) -> None:
    for name in (EVIL[:90], EVIL):
        answer = answer_of(3, to_records({}, {f"reply.{name}": torch.ones(1)}, {}))
        assert answer.error is not None
        assert answer.error.startswith("a tensor has the name")
        assert answer.error.isprintable()


def test_numbers_of_samples_that_cannot_be_are_not_counted() -> None:
    answer = answer_of(3, to_records({"forward_samples": 10**400, "backward_samples": True}, {}, {}))
    assert (answer.forward_samples, answer.backward_samples) == (0, 0)


def test_who_is_not_reached_at_the_end_is_named_by_reason(claims: Claims) -> None:
    roster, _ = roster_of(claims)
    claims[7] = {"site": "east", "clients": [0, 1]}
    host: Any = None
    backend = Flower(host, roster, {}, (), 1.0, Heads(Path("nowhere"), print))
    assert backend.finish(3, {client: ({}, None) for client in range(4)}) == {"the site is not connected": [2, 3]}


def test_every_answer_is_that_of_the_client_who_was_asked_whoever_is_ready_first(
    claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    roster, _ = roster_of(claims)
    claims[7], claims[9] = {"site": "east", "clients": [5, 6]}, {"site": "west", "clients": [8]}
    roster.refresh()

    def last_first(grid: Any, letters: list[Any], timeout: float) -> Any:
        for letter in reversed(letters):
            facts, _ = from_records(letter.content)
            assert letter.node == {5: 7, 6: 7, 8: 9}[facts["client"]]
            yield letter, to_records({}, {"reply.mine": torch.tensor(facts["client"])}, {})

    monkeypatch.setattr(flower_backend, "exchange", last_first)
    host: Any = None
    backend = Flower(host, roster, {}, (), 1.0, Heads(Path("nowhere"), print))
    monkeypatch.setattr(roster, "refresh", lambda: None)
    answers = list(backend.exchange(Task(client, "train", 1, 0, {}) for client in (6, 8, 5)))
    assert [(answer.client, int(answer.reply["mine"])) for answer in answers] == [(6, 6), (8, 8), (5, 5)]


# --- what is said before anybody is waited for ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "oracle"}, "needs the true labels"),
        ({"method": "fedavgg"}, "Did you mean 'fedavg'"),
        ({"model": "lenet+mlp"}, "averages models"),
        ({"validation": 0.2}, "--validation"),
    ],
)
def test_what_cannot_be_played_is_said_before_anybody_is_waited_for(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    nobody: Any = None
    with pytest.raises(UsageError, match=said):
        coordinate(nobody, Experiment(data="digits:train=60", **settings), tmp_path, Execution(), Terms(sites=1))


def test_a_folder_that_holds_a_run_is_refused_before_anybody_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[method]\nkind = 'fedavg'\n")
    nobody: Any = None
    with pytest.raises(UsageError, match=r"already holds a run\. Add --resume"):
        coordinate(nobody, Experiment(data="digits:train=60"), tmp_path, Execution(), Terms(sites=1))


def test_a_key_that_is_not_that_of_the_certificate_is_named(tmp_path: Path) -> None:
    make_certificates(tmp_path, ("localhost",), ("a",))
    (tmp_path / "server.key").write_bytes(b"no key")
    with pytest.raises(DataError, match=r"server\.crt and server\.key cannot be read"):
        Link("127.0.0.1", free_port(), ServerFiles(tmp_path), 5.0, print)


def test_one_key_for_two_sites_is_refused(tmp_path: Path) -> None:
    make_certificates(tmp_path, ("localhost",), ("a", "b"))
    (tmp_path / "sites" / "b.pub").write_bytes((tmp_path / "sites" / "a.pub").read_bytes())
    with pytest.raises(DataError, match=r"sites/b\.pub is the key of another site too"):
        Link("127.0.0.1", free_port(), ServerFiles(tmp_path), 5.0, print)


@pytest.mark.parametrize("simulated", [True, False])
def test_notes_are_taken_from_sites_of_a_simulation_and_only_one_value_per_sample(simulated: bool) -> None:
    sites = SimpleNamespace(holdings=SimpleNamespace(sizes=[4]))
    host, roster = SimpleNamespace(sites=sites, judged=sites, parts={}), SimpleNamespace(simulated=simulated)
    backend = Flower(host, roster, {}, ("a",), 1.0, None)  # type: ignore[arg-type]
    good = backend.with_notes(Answer(0, notes={"selected": torch.ones(4), "own": torch.ones(2, 2)}))
    assert (good.error, len(good.notes)) == (None, 2 if simulated else 0)
    bad = backend.with_notes(Answer(0, notes={"pseudo_labels": torch.tensor(3)}))
    assert bad.error == ("its note 'pseudo_labels' has the shape (), not (4,)" if simulated else None)
    assert bad.broken == simulated
