"""Clients that fail, methods that fail, and settings at the edge: each has one defined end."""

from __future__ import annotations

import json

import pytest

from fedwinnow.cli import main
from fedwinnow.errors import RunError
from fedwinnow.experiment.play import Execution
from stages import equal, ready, run

FAULTY = '''
"""A method whose client 1 fails in a chosen way from round 2 on."""
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
import torch
from fedwinnow.federation.method import Exchange, Method
from fedwinnow.options import option


@dataclass(frozen=True)
class Faulty(Method):
    """Fails."""

    name: ClassVar[str] = "faulty"
    fault: str = option("none", "What client 1 does.")
    all: bool = option(False, "All clients do.")

    def train(self, client, got):
        client.state["visits"] = client.state.get("visits", torch.zeros(1)) + 1
        reply = super().train(client, got)
        if client.round < 2 or (client.id != 1 and not self.all):
            return reply
        weights = reply["weights"]
        if self.fault == "raises":
            raise ValueError("the scanner is off")
        faults = {
            "nan": reply | {"weights": weights * float("nan")},
            "inf": reply | {"weights": weights + float("inf")},
            "shape": reply | {"weights": weights[:-1]},
            "dtype": reply | {"weights": weights.long()},
            "key": reply | {"names": torch.ones(3)},
            "list": reply | {"weights": weights.tolist()},
            "empty": {},
            "none": None,
            "incomplete": {"samples": reply["samples"]},
            "memory": reply,
        }
        if self.fault == "memory":
            client.state["visits"] = "often"
        return faults[self.fault]
'''

FAULTS = {
    "raises": "ValueError: the scanner is off",
    "nan": "'weights' in its reply is not finite",
    "inf": "'weights' in its reply is not finite",
    "shape": r"'weights' in its reply has the shape \(\d+,\), not \(\d+,\)",
    "dtype": "'weights' in its reply is torch.int64, not torch.float32",
    "key": "its reply has the key 'names', which the method does not declare",
    "list": "'weights' in its reply is a list, not a tensor",
    "empty": "it returned nothing",
    "none": "it returned nothing",
    "memory": r"method .faulty.: client\.state\[.visits.\] is not a tensor",
}


@pytest.fixture
def method(tmp_path):
    (tmp_path / "faulty.py").write_text(FAULTY)
    return str(tmp_path / "faulty.py")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_client_round_and_exchange(tmp_path, method, fault):
    with pytest.raises(RunError, match=rf"client 1 \(client-1\), round 2, train: {FAULTS[fault]}"):
        run(tmp_path / "run", method=f"{method}:fault={fault}")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("failed", 1)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_dropped_client_is_counted_and_the_run_goes_on(tmp_path, method, fault):
    result = run(tmp_path / "run", method=f"{method}:fault={fault}", on_client_error="drop")
    first, second, third = result.rounds
    assert (first["dropped"], first["participants"]) == ({}, [0, 1, 2, 3])
    for row in (second, third):
        assert list(row["dropped"]) == ["client-1"]
        assert row["participants"] == [0, 2, 3]
    assert result.summary["status"] == "finished"
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert ledger["sites"]["client-1"]["weights"]["count"] == 1
    assert ledger["sites"]["client-2"]["weights"]["count"] == 3


def test_a_dropped_client_leaves_no_trace_in_the_average_or_its_memory(tmp_path, method):
    federation = ready(tmp_path, Execution(on_client_error="drop"), method=f"{method}:fault=raises").federation
    federation.play_round(1)
    before = federation.memory.versions[1]
    federation.play_round(2)
    assert federation.memory.versions[1] == before

    without = ready(tmp_path / "other", method="fedavg").federation
    without.play_round(1)
    without.server.available = (0, 2, 3)
    without.play_round(2)
    assert equal(federation.server.weights, without.server.weights)


def test_without_a_quorum_the_run_stops_and_the_failed_round_leaves_nothing(tmp_path, method):
    good = run(tmp_path / "good", method=method, rounds=1)
    settings = {"method": f"{method}:fault=raises,all=true", "on_client_error": "drop"}
    with pytest.raises(RunError, match=r"round 2, train: only 0 of 4 clients answered; the quorum is 2.*scanner"):
        run(tmp_path / "run", **settings)
    folder = tmp_path / "run"
    assert [json.loads(line)["round"] for line in (folder / "rounds.jsonl").read_text().splitlines()] == [1]
    for name in ("state.safetensors", "state.json"):
        assert (folder / name).read_bytes() == (good.folder / name).read_bytes()
    assert sorted(path.name for path in (folder / "clients").iterdir() if "-1-" in path.name) == sorted(
        path.name for path in (good.folder / "clients").iterdir()
    )


@pytest.mark.parametrize(("quorum", "holds"), [(0.75, True), (0.76, False), (0.0, True), (1.0, False)])
def test_the_quorum_is_a_share_of_the_asked_clients(tmp_path, method, quorum, holds):
    execution = Execution(on_client_error="drop", quorum=quorum)
    federation = ready(tmp_path, execution, method=f"{method}:fault=raises").federation
    federation.play_round(1)
    if holds:
        assert federation.play_round(2).participants == [0, 2, 3]
    else:
        with pytest.raises(RunError, match="only 3 of 4 clients answered; the quorum is 4"):
            federation.play_round(2)


def test_a_reply_without_a_model_is_named(tmp_path, method):
    with pytest.raises(RunError, match=r"client 1 \(client-1\), round 2, train: its reply has no 'weights'"):
        run(tmp_path / "run", method=f"{method}:fault=incomplete")


@pytest.mark.parametrize(
    ("merging", "absent"),
    [
        ("arfl", "weights"),
        ("fair:quality=local,weigh=samples", "weights"),
        ("fedes", "weights"),
        ("fednoro:warm_up=1", "weights"),
        ("fednoro:warm_up=1", "indicator"),
        ("rofl:equal_weights=true", "weights"),
        ("fedrn", "accuracy"),
        ("feddiv:passes=0", "mixture"),
        ("fedavg:aggregate=median", "weights"),
    ],
)
def test_whatever_the_rule_of_merging_who_sends_too_little_is_named(tmp_path, monkeypatch, merging, absent):
    federation = ready(tmp_path, method=merging).federation
    federation.method.start(federation.server)
    usual = federation.backend.exchange

    def forgetful(tasks):
        for answer in usual(tasks):
            if answer.client == 1:
                answer.reply.pop(absent, None)
            yield answer

    monkeypatch.setattr(federation.backend, "exchange", forgetful)
    named = rf"client 1 \(client-1\), round \d, (stage '[\w -]+', )?\w+: its reply has no '{absent}'"
    with pytest.raises(RunError, match=named):
        [federation.play_round(number) for number in (1, 2)]


def test_the_command_line_ends_with_4_and_a_message(tmp_path, method, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "run --data digits:train=100 --model mlp --clients 3 --participation 1 --rounds 2 --epochs 1 --out here"
    with pytest.raises(SystemExit) as end:
        main([*words.split(), "--method", "./faulty.py:fault=nan"])
    assert end.value.code == 4
    assert "error: client 1 (client-1), round 2, train: 'weights'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(
            [*words.replace("here", "there").split(), "--method", "./faulty.py:fault=nan", "--on-client-error", "drop"]
        )
    assert end.value.code == 0
    rows = [json.loads(line) for line in (tmp_path / "there" / "rounds.jsonl").read_text().splitlines()]
    assert [len(row["dropped"]) for row in rows] == [0, 1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def choose(self, server): return [0, 99]", "asks client 99; there are the clients 0 to 3"),
        ("def choose(self, server): return [-1]", "asks client -1; there are"),
        ("def choose(self, server): return [2, 2]", "asks a client twice"),
        ("def choose(self, server): return []", "nothing to average"),
        ("def choose(self, server): return server.secret", "the server's half of own: AttributeError"),
        ("def merge(self, server, replies): return 1 / 0", "round 1, the server's half of own: ZeroDivisionError"),
        ("def send(self, server, client): return {'weights': 'none'}", "the server's half of own: AttributeError"),
        (
            "def verdict(self, client, got): return 1 / 0",
            r"client 0 \(client-0\), round 3, judge: ZeroDivisionError: .* on_client_error=drop",
        ),
        ("def verdict(self, client, got): return Verdict(torch.zeros(2), torch.zeros(2).long())", r"shape \(2,\)"),
    ],
)
def test_a_fault_of_the_server_half_is_named(tmp_path, body, message):
    own = tmp_path / "own.py"
    own.write_text(
        "import torch\nfrom dataclasses import dataclass\nfrom typing import ClassVar\n"
        "from fedwinnow.federation.method import Method, Verdict\n\n"
        f"@dataclass(frozen=True)\nclass Own(Method):\n    name: ClassVar[str] = 'own'\n    {body}\n"
    )
    with pytest.raises(RunError, match=message):
        run(tmp_path / "run", method=str(own))


def test_a_site_that_cannot_judge_is_left_out_where_failing_clients_are(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\n"
        "from fedwinnow.federation.method import Method\n\n"
        "@dataclass(frozen=True)\nclass Own(Method):\n    name: ClassVar[str] = 'own'\n"
        "    def verdict(self, client, got):\n"
        "        return super().verdict(client, got) if client.id else 1 / 0\n"
    )
    run(tmp_path / "run", method=str(own), noise="constant:rate=0.4", on_client_error="drop")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert list(summary["silent"].values()) == ["judge: ZeroDivisionError: division by zero"]
    assert 0 <= summary["detection"]["samples"]["auroc"] <= 1
    lines = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    assert [line.split(",")[5] == "" for line in lines[1:]] == [True, False, False, False]
