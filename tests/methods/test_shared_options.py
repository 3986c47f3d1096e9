"""An option that every method has changes the result, or is refused and not listed; no third way."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import pytest
import torch

from fedwinnow import Method, catalogue, run
from fedwinnow.auditing.judging_models import find_judge, prepare_audit
from fedwinnow.cli import dispatch
from fedwinnow.errors import UsageError
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.method import find_method
from fedwinnow.options import option
from fedwinnow.testing import toy_data

NAMES = sorted(catalogue.entries("methods"))
NEEDS = {"trusted_data": {"trusted": 0.3}, "public_data": {"public": 0.3}}
OTHER = {
    "loss": "sce:alpha=0.3",
    "mixup": "0.7",
    "aggregate": "norm_clipping:limit=0.01",
    "steady": "0.5",
}
SMALL = {
    "data": toy_data(samples=36),
    "model": "linear",
    "clients": 3,
    "participation": 1.0,
    "rounds": 4,
    "epochs": 1,
    "batch_size": 6,
    "optimizer": "sgd:lr=0.1",
    "noise": "constant:rate=0.3",
}


def spec(name, values):
    return {"kind": name, **values}


def state_after(folder, name, values):
    needs = {}
    for need in catalogue.find("methods", name).facts["needs"]:
        needs |= NEEDS.get(need, {})
    return {
        path.name: path.read_bytes()
        for path in run(out=folder, method=spec(name, values), **SMALL, **needs).folder.rglob("*")
        if path.suffix in (".safetensors", ".npz", ".csv")
    }


@pytest.mark.parametrize("name", NAMES)
def test_each_option_of_all_methods_changes_something_or_is_refused(name, tmp_path):
    listed = {text.name for text in catalogue.find("methods", name).options}
    plain: dict[str, bytes] = {}
    for key, value in OTHER.items():
        if key not in listed:
            with pytest.raises(UsageError, match=rf"{name}: {key}=.* was given, but .*allowed: "):
                find_method(spec(name, {key: value}))
            continue
        if key != "steady":  # it has tests of its own
            plain = plain or state_after(tmp_path / "plain", name, {})
            assert state_after(tmp_path / key, name, {key: value}) != plain, key


@pytest.mark.parametrize("name", NAMES)
def test_source_text_and_compiled_code_agree(name):
    entry = catalogue.find("methods", name)
    part = entry.load()
    assert [text.name for text in entry.options] == [f.name for f in fields(part) if f.name not in part.unused()]


# --- methods of others ---------------------------------------------------------------------------------------------

HEAD = """
from dataclasses import dataclass
from typing import ClassVar

from torch.nn.functional import cross_entropy

from fedwinnow import Method
from fedwinnow.federation.method import Exchange
from fedwinnow.methods.fedprox import FedProx


@dataclass(frozen=True)
class Mine({base}):
    \"\"\"Something of mine.\"\"\"

    name: ClassVar[str] = "mine"
"""
OWN_LOSS = """
    def objective(self, client, rows, x, y, got):
        return cross_entropy(client.model(x), y)
"""
THEIRS = {
    "nothing overridden": ("Method", "", ()),
    "a loss of its own": ("Method", OWN_LOSS, ("loss", "mixup")),
    "a loss on top": (
        "Method",
        """
    def objective(self, client, rows, x, y, got):
        return 2 * super().objective(client, rows, x, y, got)
""",
        (),
    ),
    "mixed, but with a loss of its own": (
        "Method",
        """
    def objective(self, client, rows, x, y, got):
        x, target = self.mix(client, x, y)
        return -(client.model(x).log_softmax(1)[:, 0]).mean()
""",
        ("loss",),
    ),
    "training of its own": (
        "Method",
        """
    def train(self, client, got):
        client.model.load(got)
        client.fit(lambda rows, x, y: cross_entropy(client.model(x), y))
        return self.reply(client)
""",
        ("loss", "mixup"),
    ),
    "another question": (
        "Method",
        """
    def question(self, server):
        return "train on site", "learn"

    def learn(self, client, got):
        client.model.load(got)
        client.fit(lambda rows, x, y: cross_entropy(client.model(x), y))
        return self.reply(client)
""",
        ("loss", "mixup"),
    ),
    "merging of its own": (
        "Method",
        """
    def merge(self, server, replies):
        for _, reply in replies:
            server.weights = {"weights": reply["weights"]}
""",
        ("aggregate",),
    ),
    "a conversation of its own": (
        "Method",
        """
    def exchanges(self, server):
        server.note(stage="only")
        for _, reply in (yield Exchange("train", self.choose(server), lambda client: self.send(server, client))):
            server.weights = {"weights": reply["weights"]}
""",
        ("aggregate",),
    ),
    "a child of one of ours": ("FedProx", "", ()),
    "a child of one of ours, with a loss of its own": ("FedProx", OWN_LOSS, ("loss", "mixup")),
    "says that it does": ("Method", '    uses: ClassVar[tuple[str, ...]] = ("loss",)\n' + OWN_LOSS, ("mixup",)),
}


@pytest.mark.parametrize("case", THEIRS)
def test_methods_of_others_need_no_ceremony(case, tmp_path, capsys):
    base, body, ineffective = THEIRS[case]
    path = tmp_path / "mine.py"
    path.write_text(HEAD.format(base=base) + body)
    assert dispatch(["methods", str(path)]) == 0
    shown = capsys.readouterr().out
    for key, value in OTHER.items():
        if key in ineffective:
            assert f" {key} " not in shown
            with pytest.raises(UsageError, match=rf"mine: {key}=.* this method does not use it"):
                find_method(f'{path}:{key}="{value}"')
        else:
            assert key in shown
            assert str(getattr(find_method(f'{path}:{key}="{value}"'), key)) == value
    assert run(out=tmp_path / "run", method=str(path), **SMALL).summary["status"] == "finished"


@dataclass(frozen=True)
class InANotebook(Method):
    """Has no file of its own."""

    name: ClassVar[str] = "notebook"
    strength: float = option(1.0, "Of its own loss.")

    def objective(self, client, rows, x, y, got):
        return self.strength * torch.nn.functional.cross_entropy(client.model(x), y)


def test_a_class_without_a_file_too():
    assert InANotebook.unused() == ("loss", "mixup")
    with pytest.raises(UsageError, match=r"notebook: loss=gce was given, but this method does not use it"):
        InANotebook(loss="gce")
    assert InANotebook(loss="cross_entropy").loss == "cross_entropy"  # what it has anyway may be said


def test_an_audit_leaves_alone_what_is_not_used():
    experiment = Experiment(**SMALL, method=InANotebook())
    assert prepare_audit(experiment, find_judge("mean")).method.loss == "cross_entropy"
