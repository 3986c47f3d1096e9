"""The papers' set-ups that come with the package: every name in them exists, and flags win."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest

from fedwinnow import catalogue
from fedwinnow.cli import main, parse
from fedwinnow.commands.run import Run
from fedwinnow.errors import UsageError
from fedwinnow.federation.method import find_method
from fedwinnow.federation.server import participants
from fedwinnow.flags import shipped
from fedwinnow.steps.stages import rounds_of_passes

NAMES = [
    *(f"{method}/{data}" for method in ("fedcorr", "feddiv") for data in ("cifar10", "cifar100", "clothing1m")),
    *(f"fedrn/{data}" for data in ("cifar10", "cifar100", "webvision")),
    *(f"fedes/{data}" for data in ("cifar10", "cifar100", "clothing1m")),
    *(f"fednoro/{data}" for data in ("ich", "isic2019", "fashion-mnist")),
]


def command(*flags: str) -> Run:
    made = parse(Run, "run", [*flags])
    assert isinstance(made, Run)
    return made


def test_these_are_shipped():
    assert set(NAMES) <= shipped().keys()


@pytest.mark.parametrize("name", NAMES)
def test_every_part_of_a_set_up_can_be_made(name):
    run = command("--config", name)
    assert run.method.startswith(name.partition("/")[0] + ":")
    assert find_method(run.method).name == name.partition("/")[0]
    for family, spec in (("data", run.data), ("partitions", run.partition), ("noises", run.noise)):
        assert str(catalogue.make(family, spec))
    for family, spec in (("models", run.model), ("optimizers", run.optimizer)):
        assert str(catalogue.make(family, spec))
    run.experiment()


# per data set: clients, per round, passes, rounds after them, batch, rate
PAPERS = {
    "cifar10": (100, 10, 5, 950, 10, 0.03),
    "cifar100": (50, 5, 10, 900, 10, 0.01),
    "clothing1m": (500, 10, 2, 100, 16, 0.001),
}


@pytest.mark.parametrize("method", ["fedcorr", "feddiv"])
@pytest.mark.parametrize("data", PAPERS)
def test_the_papers_numbers(method, data):
    clients, per_round, passes, after, batch, rate = PAPERS[data]
    run = command("--config", f"{method}/{data}")
    assert (run.clients, run.batch_size, run.epochs) == (clients, batch, 5)
    assert participants(run.participation, run.clients, run.clients) == per_round
    assert run.optimizer == f"sgd:lr={rate:g},momentum=0.5"
    rounds_per_pass = math.ceil(clients / per_round)
    server = SimpleNamespace(rounds=run.rounds, rounds_per_pass=rounds_per_pass, per_round=per_round)
    made = find_method(run.method)
    assert made.passes == passes
    assert run.rounds - rounds_of_passes(server, made.passes) == after


def test_flags_win_over_a_shipped_set_up():
    run = command("--config", "feddiv/cifar10", "--rounds", "5", "--method", "feddiv:preset=code")
    assert (run.rounds, run.method) == (5, "feddiv:passes=5,eta=0,preset=code")
    assert (run.batch_size, run.model, run.clients) == (10, "resnet18", 100)


def test_a_file_of_that_name_goes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "feddiv").mkdir()
    (tmp_path / "feddiv" / "cifar10").write_text("rounds = 3\n", encoding="utf-8")
    assert command("--config", "feddiv/cifar10").rounds == 3


def test_an_unknown_name_lists_the_known():
    with pytest.raises(UsageError, match="feddiv/cifar10"):
        command("--config", "feddiv/cifar11")


def test_the_command_lists_them(capsys):
    with pytest.raises(SystemExit):
        main(["configs", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == sorted(shipped())
    assert all(len(entry["summary"]) > 30 for entry in listed)
