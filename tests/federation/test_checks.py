"""What a method gives is checked where it gives it: verdicts, and what it wants to remember."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from by_hand import identity, one_client
from fedwinnow import Method, run
from fedwinnow.auditing.judging_models import find_judge, judge_run
from fedwinnow.errors import RunError
from fedwinnow.experiment.play import Execution
from fedwinnow.experiment.prepare import prepare
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.method import Verdict
from fedwinnow.options import option
from fedwinnow.testing import MethodTester, toy_data

SMALL = {"data": toy_data(samples=30), "model": "linear", "clients": 3, "rounds": 1, "epochs": 1, "participation": 1.0}
HONEST = "honest"
LIES = {
    "scaled": (lambda p, s: Verdict(40 * p - 7, s), r"p_wrong is -?\d.* for sample \d+; allowed: 0 to 1"),
    "no class": (lambda p, s: Verdict(p, torch.full_like(s, -12)), r"suggested is -12 for sample 0; .* 0 to 2"),
    "one class too many": (lambda p, s: Verdict(p, torch.full_like(s, 3)), r"suggested is 3 for sample 0"),
    "no number": (lambda p, s: Verdict(p * torch.nan, s), r"p_wrong is nan for sample 0"),
    "a bit above 1": (lambda p, s: Verdict(p * 0 + 1.0001, s), r"p_wrong is 1\.0001 for sample 0"),
    "a bit below 0": (lambda p, s: Verdict(p * 0 - 1e-9, s), r"p_wrong is -1e-09 for sample 0"),
    "calls": (lambda p, s: Verdict(p > 0.5, s), r"p_wrong is torch\.bool; allowed: floating-point"),
    "whole numbers": (lambda p, s: Verdict((p > 0.5).long(), s), r"p_wrong is torch\.int64"),
    "soft suggestions": (lambda p, s: Verdict(p, s.float()), r"suggested is torch\.float32; allowed: whole numbers"),
    "a sample too few": (lambda p, s: Verdict(p[:-1], s), r"p_wrong has the shape \(\d+,\); allowed: \(\d+,\)"),
    "a table": (lambda p, s: Verdict(p, s[:, None]), r"suggested has the shape \(\d+, 1\)"),
    "a list": (lambda p, s: Verdict(p.tolist(), s), r"p_wrong is a list; allowed: a tensor"),
    "a pair": (lambda p, s: (p, s), r"returned a tuple; allowed: Verdict"),
    "nothing": (lambda p, s: None, r"returned a NoneType"),
}


@dataclass(frozen=True)
class Liar(Method):
    """Judges as FedAvg does, and says something else."""

    name: ClassVar[str] = "liar"
    lie: str = option(HONEST, "What it says.")

    def verdict(self, client, got):
        found = super().verdict(client, got)
        return found if self.lie == HONEST else LIES[self.lie][0](found.p_wrong, found.suggested)


@pytest.mark.parametrize("lie", LIES)
def test_a_verdict_that_is_none_stops_the_run_with_client_method_and_reason(lie, tmp_path):
    with pytest.raises(RunError, match=rf"client 0 \(client-0\), round 1, judge: .*'liar'.*{LIES[lie][1]}"):
        run(out=tmp_path, **SMALL, method=Liar(lie=lie))


def test_an_honest_one_passes_and_so_do_the_ends(tmp_path):
    assert run(out=tmp_path, **SMALL, method=Liar()).summary["status"] == "finished"
    LIES["ends"] = (lambda p, s: Verdict((p > 0.5).float(), s.to(torch.int32)), "")
    assert run(out=tmp_path / "ends", **SMALL, method=Liar(lie="ends")).summary["status"] == "finished"
    del LIES["ends"]


def test_an_audit_by_the_filter_checks_it_too(tmp_path):
    stage = prepare(Experiment(**SMALL, method=Liar()))
    run(out=tmp_path, **SMALL, method=Liar())
    object.__setattr__(stage.method, "lie", "scaled")
    with pytest.raises(RunError, match=r"audit: .*'liar'.*p_wrong is"):
        judge_run(stage, tmp_path, find_judge("filter"), Execution(resume=True))


def test_the_shared_tester_fails_for_a_method_that_lies(tmp_path):
    tester = MethodTester()
    for lie in ("scaled", "no class"):
        tester.__class__.method = Liar(lie=lie)
        try:
            with pytest.raises(RunError, match="liar"):
                tester.test_one_class_per_client(tmp_path / lie)
        finally:
            tester.__class__.method = ""


# --- memory --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forgetful(Method):
    """Wants to remember what cannot be remembered."""

    name: ClassVar[str] = "forgetful"
    where: str = option("nowhere", "Who remembers it.")

    def start(self, server):
        if self.where == "start":
            server.state["visits"] = 0

    def merge(self, server, replies):
        super().merge(server, replies)
        if self.where == "server" and server.round == 2:
            server.state["visits"] = 3
        if self.where == "key":
            server.state[3] = torch.tensor(3)

    def train(self, client, got):
        if self.where == "client":
            client.state["seen"] = [1, 2]
        return super().train(client, got)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("start", r"'forgetful': server\.state\['visits'\] is not a tensor but of the type int: 0\..*torch\.tensor"),
        ("server", r"'forgetful': server\.state\['visits'\] is not a tensor but of the type int: 3\..*torch\.tensor"),
        (
            "client",
            r"client 0 .*round 1, train: .*'forgetful': client\.state\['seen'\].* list: \[1, 2\].*torch\.tensor",
        ),
        ("key", r"'forgetful': server\.state has the key 3, which is not a text"),
    ],
)
def test_what_is_no_tensor_cannot_be_remembered(where, message, tmp_path):
    rounds = []

    class Watching:
        started = finished = stopped = lambda *_: None
        round = staticmethod(lambda row: rounds.append(row["round"]))

    with pytest.raises(RunError, match=message):
        run(out=tmp_path, **SMALL | {"rounds": 4}, method=Forgetful(where=where), watchers=(Watching(),))
    assert rounds == ([1] if where == "server" else [])  # at the end of the round in which it was written


# --- the model -----------------------------------------------------------------------------------------------------


def test_a_model_can_be_called():
    client = one_client([[1.0, 2.0], [3.0, 4.0]], [0, 1])
    client.model.load(identity())
    assert client.model(torch.tensor([[5.0, 6.0]])).tolist() == [[5.0, 6.0]]
    assert client.model(torch.ones(1, 2)).requires_grad
