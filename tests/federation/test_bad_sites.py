"""One bad site costs its own part of a round: it is found, left out, and after three bad replies asked no more."""

from __future__ import annotations

import json
import re

import pytest
import torch

from fedwinnow.backends.make_backend import Serial
from fedwinnow.errors import RunError
from fedwinnow.experiment.play import Execution
from fedwinnow.federation.conversation import HeldReplies, culprits
from fedwinnow.federation.host import Answer
from fedwinnow.mathematics.payload import COUNT, SAMPLES, ReplyForm, far_away, problem_with_form
from fedwinnow.testing import toy_data
from mutated_replies import METHODS, settings_of
from stages import equal, ready, run

OWN = """
from dataclasses import dataclass
from typing import ClassVar
import torch
from fedwinnow.federation.method import Method


@dataclass(frozen=True)
class Own(Method):
    name: ClassVar[str] = "own"
    exposes: ClassVar = {{**Method.exposes, "mood": "client"}}

    def train(self, client, got):
        moody = client.id in {moody} and client.round == 2
        return super().train(client, got) | {{"mood": torch.tensor(9.0 if moody else 1.0)}}

    def merge(self, server, replies):
        server.state["merges"] = server.state.get("merges", torch.zeros(1)) + 1
        server.note(merged=True)
        {body}
"""
STREAMING = """
        def strict():
            for client, reply in replies:
                1 / (float(reply["mood"]) < 5)
                yield client, reply

        super().merge(server, strict())"""
GATHERING = """
        told = dict(replies)
        1 / (max(float(reply["mood"]) for reply in told.values()) < 5)
        super().merge(server, iter(told.items()))"""


def own(folder, body, moody=(1,)):
    (folder / "own.py").write_text(OWN.format(body=body, moody=set(moody) or "()"))
    return str(folder / "own.py")


def change(monkeypatch, client, how, rounds=range(1, 100)):
    """Let one client's replies to the method be changed; returns the rounds in which it was asked."""
    usual, asked = Serial.exchange, []

    def exchange(backend, tasks):
        seen = []
        for answer in usual(backend, (seen.append(task) or task for task in tasks)):
            if answer.client == client and not seen[-1].measures:
                asked.append(seen[-1].round)
                if seen[-1].round in rounds:
                    answer.reply = how(answer.reply)
            yield answer

    monkeypatch.setattr(Serial, "exchange", exchange)
    return asked


def short(reply):
    return reply | {"weights": reply["weights"][1:]}


# --- three violations ------------------------------------------------------------------------------------------------


def test_three_bad_replies_end_the_part_of_a_site(tmp_path, monkeypatch):
    asked = change(monkeypatch, 1, short, rounds=(1, 3, 4))
    result = run(tmp_path / "run", on_client_error="drop", rounds=6)
    assert [list(row["dropped"]) for row in result.rounds] == [["client-1"], [], ["client-1"], ["client-1"], [], []]
    assert [row.get("ended", []) for row in result.rounds] == [[], [], [], ["client-1"], [], []]
    assert [1 in row["participants"] for row in result.rounds] == [False, True, False, False, False, False]
    assert asked == [1, 2, 3, 4]
    assert result.summary["ended"] == ["client-1"]


def test_the_count_goes_on_after_a_resume(tmp_path, monkeypatch):
    asked = change(monkeypatch, 1, short)
    run(tmp_path / "run", on_client_error="drop", rounds=2)
    result = run(tmp_path / "run", on_client_error="drop", rounds=5, resume=True)
    assert asked == [1, 2, 3]
    assert [row.get("ended", []) for row in result.rounds] == [[], [], ["client-1"], [], []]
    again = run(tmp_path / "run", on_client_error="drop", rounds=6, resume=True)
    assert asked == [1, 2, 3]
    assert again.rounds[-1]["participants"] == [0, 2, 3]


def test_a_site_that_fails_by_itself_is_asked_again(tmp_path, monkeypatch):
    usual = Serial.exchange

    def exchange(backend, tasks):
        for answer in usual(backend, tasks):
            yield Answer(1, error="its disk is full") if answer.client == 1 else answer

    monkeypatch.setattr(Serial, "exchange", exchange)
    with monkeypatch.context() as patch:
        patch.setattr("fedwinnow.experiment.play.Player.finish", lambda player: {})
        run_rows = ready(tmp_path, Execution(on_client_error="drop"), rounds=5)
        run_rows.play()
    rows = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [list(row["dropped"]) for row in rows] == [["client-1"]] * 5
    assert not any("ended" in row for row in rows)


@pytest.mark.parametrize("samples", [10**18, 17, -1, 2.5])
def test_nobody_has_more_samples_than_was_agreed(tmp_path, monkeypatch, samples):
    change(monkeypatch, 1, lambda reply: reply | {"samples": torch.tensor(samples)}, rounds=(2,))
    result = run(tmp_path / "run", on_client_error="drop", data=toy_data(samples=64), rounds=2)
    assert "'samples' in its reply has" in result.rounds[1]["dropped"]["client-1"]


def test_after_a_bad_reply_a_site_is_asked_nothing_more_in_the_round(tmp_path, monkeypatch):
    asked = change(monkeypatch, 1, lambda reply: {}, rounds=(2,))
    run(tmp_path / "run", on_client_error="drop", rounds=3, method="winnow:warm_up=1,em_steps=3")
    assert asked == [1, 2, 3, 3, 3, 3]  # in round 2 it would have been asked three times for counts, then to train


# --- what the server's half raises -----------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [STREAMING, GATHERING], ids=["streaming", "gathering"])
@pytest.mark.parametrize("moody", [(1,), (3,), (0, 3)], ids=str)
def test_what_the_servers_half_raises_on_a_reply_is_that_sites_failure(tmp_path, body, moody):
    federation = ready(tmp_path, Execution(on_client_error="drop"), method=own(tmp_path, body, moody)).federation
    assert federation.play_round(1).dropped == {}
    tally = federation.play_round(2)
    assert sorted(tally.dropped) == [f"client-{client}" for client in moody]
    assert "the server's half of own fails: ZeroDivisionError" in next(iter(tally.dropped.values()))
    assert tally.participants == [client for client in range(4) if client not in moody]
    assert federation.server.state["merges"].item() == 2  # what was tried in vain has left nothing
    assert federation.server.notes == {"stage": "train", "merged": True}
    assert set(federation.violations) == set(tally.dropped)

    without = ready(tmp_path / "other", method="fedavg").federation
    without.play_round(1)
    without.server.available = tuple(tally.participants)
    without.play_round(2)
    assert equal(federation.server.weights, without.server.weights)


def test_a_mistake_of_the_servers_half_is_blamed_on_nobody(tmp_path):
    method = own(tmp_path, "super().merge(server, replies); 1 / (server.round < 2)")
    federation = ready(tmp_path, Execution(on_client_error="drop"), method=method).federation
    federation.play_round(1)
    with pytest.raises(RunError, match="round 2, the server's half of own: ZeroDivisionError"):
        federation.play_round(2)
    assert federation.violations == {}


def test_the_culprits_are_found_whoever_they_are():
    def without(bad):
        return lambda places: len(places) >= 1 and not set(bad) & set(places)

    assert culprits([1.0, 9.0, 3.0], without([2])) == [2]
    assert culprits([1.0, 9.0, 3.0, 5.0], without([0, 2])) == [0, 2]
    assert culprits([1.0, 1.0], lambda places: False) is None
    assert culprits([1.0], lambda places: True) is None
    assert culprits([1.0], lambda places: not places, fewest=0) == [0]


# --- models that explode ---------------------------------------------------------------------------------------------

DEEP = {"model": "mlp:hidden=4,layers=9", "clients": 2}


def large(reply):
    """Nine layers of weights of 10^5: every one is a finite number, the answers are not."""
    return reply | {"weights": torch.full_like(reply["weights"], 1e5)}


def test_whose_model_makes_the_merged_one_explode_is_left_out(tmp_path, monkeypatch):
    change(monkeypatch, 1, large, rounds=(2,))
    result = run(tmp_path / "run", on_client_error="drop", **DEEP)
    assert [list(row["dropped"]) for row in result.rounds] == [[], ["client-1"], []]
    assert "gives answers that are not finite" in result.rounds[1]["dropped"]["client-1"]
    assert all(row["loss"] is not None for row in result.rounds)


def test_a_model_that_exploded_is_not_saved(tmp_path, monkeypatch):
    good = run(tmp_path / "good", rounds=1, **DEEP)
    change(monkeypatch, 1, large, rounds=(2,))
    with pytest.raises(
        RunError, match=r"round 2: the merged model gives answers that are not finite\. It is not saved"
    ):
        run(tmp_path / "run", **DEEP)
    for name in ("state.safetensors", "rounds.jsonl"):
        kept = (tmp_path / "run" / name).read_bytes()
        assert kept == (good.folder / name).read_bytes() or name == "rounds.jsonl"
        assert name != "rounds.jsonl" or kept.count(b"\n") == 1


def test_a_model_far_from_all_others_is_left_out(tmp_path, monkeypatch):
    change(monkeypatch, 1, lambda reply: reply | {"weights": reply["weights"] * 1000}, rounds=(2,))
    result = run(tmp_path / "run", on_client_error="drop")
    assert "the training has diverged" in result.rounds[1]["dropped"]["client-1"]
    assert result.rounds[2]["dropped"] == {}


def test_far_away():
    assert far_away([1.0, 2.0, 201.0], 0.5) == [2]
    assert far_away([1.0, 2.0, 199.0], 0.5) == []  # not a hundred times the usual one
    assert far_away([0.01, 0.02, 9.0], 0.5) == []  # not ten times the model, or 10
    assert far_away([0.0, 0.0, 11.0], 0.5) == [2]
    assert far_away([1.0, 1e9], 0.5) == []
    assert far_away([1.0, 1.0, 500.0], 60.0) == []


# --- questions that go in turn, and those that only a bad site is asked ----------------------------------------------


@pytest.mark.parametrize("method", ["fedcorr:passes=1", "feddiv:passes=1"])
def test_a_bad_site_whose_turn_it_is_does_not_stop_the_others(tmp_path, monkeypatch, method):
    change(monkeypatch, 1, short, rounds=(1,))
    result = run(tmp_path / "run", on_client_error="drop", quorum=0.75, method=method)
    assert result.rounds[0]["participants"] == [0, 2, 3]
    with pytest.raises(RunError, match="only 3 of 4 clients answered; the quorum is 4"):
        run(tmp_path / "strict", on_client_error="drop", quorum=0.76, method=method)


def test_a_round_in_which_only_a_bad_site_is_asked_is_lost_and_the_run_goes_on(tmp_path, monkeypatch):
    file = tmp_path / "choosy.py"
    file.write_text(
        OWN.format(moody="()", body="super().merge(server, replies)")
        + "\n    def choose(self, server):\n        return [1] if server.round == 2 else server.sample()\n"
    )
    change(monkeypatch, 1, short, rounds=(2,))
    result = run(tmp_path / "run", on_client_error="drop", method=str(file))
    assert [row["participants"] for row in result.rounds] == [[0, 1, 2, 3], [], [0, 1, 2, 3]]


# --- honest runs stay as they were -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS[::5])
def test_holding_replies_changes_nothing(tmp_path, method):
    settings = settings_of(method) | {"rounds": 3}
    first = run(tmp_path / "stop", **settings)
    second = run(tmp_path / "drop", on_client_error="drop", **settings)
    assert (tmp_path / "stop/state.safetensors").read_bytes() == (tmp_path / "drop/state.safetensors").read_bytes()
    timed = ("seconds", "evaluation_seconds", "memory_mb")
    assert [{key: row[key] for key in row if key not in timed} for row in first.rounds] == [
        {key: row[key] for key in row if key not in timed} for row in second.rounds
    ]


def test_replies_beyond_the_room_are_held_on_disk():
    with HeldReplies(room=10) as held:
        reads = [held.hold(Answer(n, {"weights": torch.full((2,), n)}), f"client {n}", 1, 0) for n in range(3)]
        assert held.folder is not None
        assert [read()["weights"].tolist() for read in reads] == [[0, 0], [1, 1], [2, 2]]
        assert reads[2]().sender == "client 2"


# --- forms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "form", "problem"),
    [
        (torch.tensor(5), COUNT, None),
        (torch.tensor([5.0]), COUNT, None),
        (torch.tensor(8), COUNT, None),
        (torch.tensor(9), COUNT, "allowed: 0 to 8"),
        (torch.tensor(-1), COUNT, "has values from -1"),
        (torch.tensor(2.5), COUNT, "not whole"),
        (torch.tensor([1, 2]), COUNT, r"the shape \(2,\), not \(\)"),
        (torch.tensor(True), COUNT, "is torch.bool"),
        (torch.tensor(float("nan")), COUNT, "has values from nan"),
        (torch.zeros(8), ReplyForm((SAMPLES,)), None),
        (torch.zeros(7), ReplyForm((SAMPLES,)), r"the shape \(7,\), not \(8\)"),
        (torch.zeros(2, 5), ReplyForm((2, None)), None),
        (torch.zeros(2).half(), ReplyForm((2,)), "is torch.float16, not torch.float32 or torch.float64"),
        (torch.full((2,), 1e13), ReplyForm((2,)), "has values from 1e"),
        (torch.full((2,), 1e13), ReplyForm((2,), most=None), None),
        (torch.zeros(2), ReplyForm((2,), check=lambda value: "is dull"), "is dull"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # the text of a form has an address of the process
)
def test_a_tensor_is_compared_with_its_form(value, form, problem):
    found = problem_with_form(value, form, samples=8)
    assert found is None if problem is None else re.search(problem, found or "nothing")
