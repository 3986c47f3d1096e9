"""Who is there: sites that come, leave, come back as somebody else, or claim what another site has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed: pip install '.[flower]'")

from fedwinnow.backends import flower
from fedwinnow.backends.flower import Flower, Lost, Roster, Unfit
from fedwinnow.backends.flower_link import Link
from fedwinnow.backends.flower_records import from_records, to_records
from fedwinnow.backends.flower_run import LARGEST, Terms, coordinate, gather, no_samples, other_scene
from fedwinnow.errors import DataError, RunError, UsageError
from fedwinnow.experiment.play import Manner
from fedwinnow.experiment.settings import Experiment
from fedwinnow.network.keys import ServerFiles, make_certificates
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

    monkeypatch.setattr(flower, "exchange", answer)
    monkeypatch.setattr(flower, "ASKED_AGAIN", -1.0)
    return found


def roster_of(claims: Claims, unfit: Unfit = lambda facts: None) -> tuple[Roster, list[str]]:
    said: list[str] = []
    grid: Any = SimpleNamespace(get_node_ids=lambda: list(claims))
    return Roster(grid, {"kind": "hello", "task": None}, unfit, lambda node: None, said.append), said


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
    roster, said = roster_of(claims)
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


@pytest.mark.parametrize("clients", ["0-4", {"0": 1}, [[0]], [0.5], 3])
def test_clients_that_are_no_numbers_are_refused(claims: Claims, clients: Any) -> None:
    roster, said = roster_of(claims)
    claims[7] = {"site": "east", "clients": clients}
    roster.refresh()
    assert "allowed: a list of numbers" in said[-1]
    assert roster.places(()) == {}


@pytest.mark.parametrize("samples", [None, 0, -3, LARGEST, "many", [5]])
def test_a_site_whose_samples_cannot_be_so_is_left_out_and_told_while_the_others_wait(
    claims: Claims, told: list[tuple[int, str]], samples: Any
) -> None:
    roster, said = roster_of(claims, no_samples)
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
    roster, _ = roster_of(claims)
    with pytest.raises(
        RunError, match=r"only 0 of 1 sites came .* The site east cannot take part: it says that it has 0"
    ):
        gather(roster.grid, roster.hello, no_samples, Terms(sites=1, patience=0.01, say=lambda text: None))


def test_who_comes_when_the_run_has_begun_is_told_once_that_there_is_no_room(
    claims: Claims, told: list[tuple[int, str]]
) -> None:
    roster, said = roster_of(claims)
    claims[7] = {"site": "east", "samples": 5}
    roster.refresh()
    roster.members = ("east",)
    claims[9] = {"site": "west", "samples": 6}
    for _ in range(3):
        roster.refresh()
    reason = "the run began without it and has no room for more sites"
    assert said == ["site east is there", f"site west cannot take part: {reason}"]
    assert told == [(9, reason)]
    assert roster.places(("east",)) == {0: 7}


def test_who_is_not_reached_at_the_end_is_named_by_reason(claims: Claims) -> None:
    roster, _ = roster_of(claims)
    claims[7] = {"site": "east", "clients": [0, 1]}
    host: Any = None
    backend = Flower(host, roster, {}, (), 1.0)
    assert backend.finish(3, {client: ({}, None) for client in range(4)}) == {"the site is not connected": [2, 3]}


# --- what is said before anybody is waited for ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "oracle"}, "told which labels are right"),
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
        coordinate(nobody, Experiment(data="digits:train=60", **settings), tmp_path, Manner(), Terms(sites=1))


def test_a_folder_that_holds_a_run_is_refused_before_anybody_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    nobody: Any = None
    with pytest.raises(UsageError, match=r"already holds a run\. Add --resume"):
        coordinate(nobody, Experiment(data="digits:train=60"), tmp_path, Manner(), Terms(sites=1))


def test_a_key_that_is_not_that_of_the_certificate_is_named(tmp_path: Path) -> None:
    make_certificates(tmp_path, ("localhost",), ("a",))
    (tmp_path / "server.key").write_bytes(b"no key")
    with pytest.raises(DataError, match=r"server\.crt and server\.key cannot be read"):
        Link("127.0.0.1", free_port(), ServerFiles(tmp_path), 5.0, print)
