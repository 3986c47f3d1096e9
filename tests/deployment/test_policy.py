"""A policy allows what it names and nothing else; who reads it understands what is refused, and why."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from torch import nn

from fedwinnow.catalogue import entries
from fedwinnow.cli import main
from fedwinnow.deployment.asked import Asked, what_is_asked
from fedwinnow.deployment.model_size import parameters_of, with_size
from fedwinnow.deployment.objections import objections
from fedwinnow.deployment.policy import Policy, read_policy, shipped, write_policy
from fedwinnow.errors import DataError, FedwinnowError, UsageError
from fedwinnow.federation import method as contract
from fedwinnow.methods.fedavg import FedAvg
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Model, Shape
from fedwinnow.version import __version__

KEY = "sha256:" + "a" * 64


def asked(samples: int = 60, coordinator: str | None = KEY, **more: Any) -> Asked:
    """What a coordinator asks with these settings, or with these further terms."""
    terms = {name: more.pop(name) for name in ("start", "audit", "done", "secure_sums", "surprise") if name in more}
    message = {"kind": "hello", "fedwinnow": __version__, "experiment": {"method": "fedavg"} | more, "task": {}}
    return what_is_asked(message | terms, samples, coordinator)


def test_the_default_policy_allows_the_defaults_of_every_method_but_one() -> None:
    found = {name: objections(shipped(), asked(method=name)) for name in entries("methods")}
    assert [name for name, against in found.items() if against] == ["fedgr"]  # a value per sample


def test_a_policy_that_names_nothing_allows_nothing() -> None:
    said = " ".join(objections(Policy(), asked()))
    for name in ("methods", "exposure", "optimizers", "rounds", "epochs", "batch_size", "learning_rate", "momentum"):
        assert name in said
    much = asked(model="mlp", encoder="lite", method="fedprox:mu=2", start="a file", audit=True, secure_sums=True)
    much = dataclasses.replace(much, parameters=1)
    enough = shipped(start="any")
    assert objections(enough, much) == []
    for field in dataclasses.fields(Policy):  # each key by itself: the rest does not do
        without = dataclasses.replace(enough, **{field.name: None})
        later = field.name == "input_size"  # seen when the model is made
        assert bool(objections(without, much)) != (field.metadata["demand"] or later), field.name


@pytest.mark.parametrize(
    ("rules", "more", "said"),
    [
        ({}, {"optimizer": "sgd:lr=1"}, None),
        (
            {},
            {"optimizer": "sgd:lr=1.01"},
            "learning_rate 1.01 (sgd:lr=1.01) is asked for; the policy allows at most 1",
        ),
        ({}, {"optimizer": "adam:lr=2"}, "learning_rate 2"),
        ({}, {"optimizer": "sgd:lr=0.1,momentum=1"}, "momentum 1"),
        ({}, {"optimizer": "sgd:weight_decay=50"}, "weight_decay 50"),
        ({"optimizers": ["sgd"]}, {"optimizer": "adam"}, "optimizer 'adam' is asked for; the policy allows sgd"),
        ({}, {"batch_size": 1024}, None),
        ({}, {"batch_size": 1025}, "batch_size 1025 is asked for; the policy allows at most 1024 (batch_size)"),
        ({}, {"epochs": 101}, "epochs 101"),
        ({}, {"rounds": 1001}, "rounds 1001"),
        ({}, {"method": "fedsir:identify_epochs=101"}, "identify_epochs 101"),
        ({}, {"method": "dividemix:lambda_u=1000000000"}, "dividemix:lambda_u=1e+09 is asked for"),
        ({}, {"method": {"kind": "dividemix", "lambda_u": 1000000000}}, "dividemix:lambda_u=1e+09 is asked for"),
        ({}, {"method": "dividemix:temperature=0.00001"}, "dividemix:temperature=1e-05"),
        ({}, {"method": "fedavg:loss='sce:alpha=100000'"}, "sce:alpha=100000"),
        ({"largest_option": 1e9}, {"method": "dividemix:lambda_u=1000000000"}, None),
        ({"methods": ["winnow", "fedprox"]}, {}, "method 'fedavg' is asked for; the policy allows winnow, fedprox"),
        ({"methods": []}, {}, "method 'fedavg' is asked for; the policy allows none"),
        ({"models": ["linear"]}, {"model": "linear"}, None),
        ({"models": ["linear"]}, {"model": "mlp:hidden=4000"}, "model 'mlp' is asked for"),
        ({"models": ["linear"]}, {"model": {"kind": "mlp"}}, "model 'mlp' is asked for"),
        ({"models": ["linear"]}, {"model": "linear+mlp"}, "model 'mlp' is asked for"),
        ({"models": ["linear"]}, {}, "model 'none' is asked for"),  # not named, so any
        ({"encoders": []}, {"encoder": "lite"}, "encoder 'lite' is asked for"),
        ({}, {"start": "another run"}, 'the policy does not name start = "any"'),
        ({"start": "any"}, {"start": "another run"}, None),
        ({}, {"done": 3}, "the run goes on after 3 rounds in which this site took no part"),
        ({}, {"audit": {"judge": "opinion"}}, None),
        ({"audit": False}, {"audit": {"judge": "opinion"}}, "does not name audit = true"),
        ({}, {"surprise": 1}, "surprise = 1 is asked for; the policy does not name it (settings)"),
        ({"settings": ["surprise"]}, {"surprise": 1}, None),
        ({}, {"secure_sums": True}, None),
        ({"settings": []}, {"secure_sums": True}, "secure_sums"),
        ({}, {"memorisation_every": 1}, "memorisation_every = 1 is asked for"),
        ({"exposure": "model"}, {}, "method 'fedavg' sends 'samples' (about the site as a whole)"),
        ({"exposure": "sample"}, {"method": "fedgr"}, None),
        ({"least_samples": 61}, {}, "this site has 60 samples; the policy demands 61"),
        ({"coordinator": KEY}, {}, None),
        ({"coordinator": "sha256:" + "b" * 64}, {}, f"the coordinator's key is {KEY}; the policy names sha256:bbb"),
        ({"coordinator": KEY}, {"coordinator": None}, "the coordinator's key is not known"),
    ],
)
def test_what_a_policy_has_against_what_is_asked(rules: dict[str, Any], more: dict[str, Any], said: str | None) -> None:
    found = objections(shipped(**rules), asked(**more))
    assert len(found) == (said is not None), found
    assert said is None or said in found[0]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("mlp:hidden=1000", None),
        (
            "mlp:hidden=1000000000",
            "a model of 11,000,000,003 weights is asked for; the policy allows at most 100,000,000",
        ),
        ("linear+mlp:hidden=1000000000", "a model of 11,000,000,003 weights"),  # the largest counts
        ({"kind": "mlp", "hidden": 30_000, "layers": 2}, "a model of 900,"),
    ],
)
def test_a_model_that_would_fill_the_memory_is_refused_before_it_is_built(model: Any, said: str | None) -> None:
    holding: Any = SimpleNamespace(shape_of_model=lambda message: Shape("rows", (7,), 3))
    found = objections(shipped(), with_size(asked(model=model), {}, holding))
    assert [said in one for one in found] == ([] if said is None else [True])
    assert objections(shipped(parameters=10**12), with_size(asked(model=model), {}, holding)) == []


def test_a_model_of_endless_layers_is_refused_without_building_them() -> None:
    with pytest.raises(UsageError, match="more than 10,000 tensors of weights") as problem:
        parameters_of("mlp:hidden=1,layers=1000000000", Shape("rows", (7,), 3))
    assert problem.type is UsageError
    holding: Any = SimpleNamespace(shape_of_model=lambda message: Shape("rows", (7,), 3))
    with pytest.raises(UsageError) as told:
        with_size(asked(model="mlp:hidden=1,layers=1000000000"), {}, holding)
    assert told.value.code == "settings"


@pytest.mark.parametrize("name", entries("models"))
def test_a_model_has_as_many_weights_as_were_counted(name: str) -> None:
    shapes = (Shape("images", (32, 32, 3), 10), Shape("rows", (7,), 3), Shape("tokens", (20,), 2, 500))
    fitting = {"text": shapes[2], "linear": shapes[1], "mlp": shapes[1]}.get(name, shapes[0])
    built = make_model(name, fitting)
    assert parameters_of(name, fitting) == sum(value.numel() for value in built.parameters())


def test_a_model_that_computes_with_its_weights_when_it_is_made_is_counted_too() -> None:
    class Odd(nn.Linear):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__(inputs, outputs)
            self.size = float(self.weight.detach().sum())

    @dataclasses.dataclass(frozen=True)
    class OddModel(Model):
        """Of another package."""

        name: ClassVar[str] = "odd"

        def build(self, shape: Shape) -> nn.Module:
            return nn.Sequential(nn.Flatten(), Odd(shape.numbers, shape.classes))

    assert parameters_of(OddModel(), Shape("rows", (7,), 3)) == 24


def test_a_run_that_goes_on_is_known_to_the_site_that_took_part() -> None:
    assert objections(shipped(), dataclasses.replace(asked(done=3), known=True)) == []


def test_a_method_of_others_is_held_to_what_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing but `exposes`, and its own word for it does not count."""

    @dataclasses.dataclass(frozen=True)
    class Curious(FedAvg):
        """Sends what it should not."""

        name: ClassVar[str] = "curious"
        exposes: ClassVar[dict[str, Any]] = {**FedAvg.exposes, "losses": "sample"}

    monkeypatch.setattr("fedwinnow.deployment.asked.find_method", lambda spec: Curious())
    assert "'losses' (about single samples)" in objections(shipped(), asked())[0]
    assert objections(shipped(exposure="sample"), asked()) == []
    assert contract.find_method("fedavg").exposed() == FedAvg.exposes


def test_what_is_shown_names_everything_that_matters_and_what_is_new_is_shown_too() -> None:
    shown = "\n".join(
        asked(method="krum", views="flip", rounds=7, done=2, surprise={"a": "\x1b[2J"}, encoder="lite").lines()
    )
    for words in (
        *(f"coordinator's key: {KEY}", "method: krum", "rounds: 7, of which 2 are played", "views flip"),
        "about the model: weights, counters (for the server and other sites)",
        "about the site as a whole: samples (for the server)",
        *("encoder: lite", "each sample is seen 5 times (epochs), 32 samples per step", "audit of labels: no"),
        "optimiser sgd with learning rate 0.03, momentum 0.5",
        *("made here from the seed", "also: surprise = {'a': '"),
    ):
        assert words in shown
    assert "\x1b" not in shown


def test_what_is_asked_is_told_in_words_and_not_as_the_texts_of_options() -> None:
    parts = ["fold-1", "fold-2", "fold-3"]
    one = asked(
        method="fedavg:loss='gce:q=0.5'",
        model={"kind": "mlp", "hidden": 48},
        optimizer="sgd:lr=0.1,schedule=cosine",
        audit={"judge": "heldout", "group": "patient", "name": "0" * 16, "parts": parts, "part": "", "judged": None},
    )
    shown = dict(line.split(": ", 1) for line in one.lines())
    assert shown["method"].startswith("fedavg (local training on the given labels")
    assert "; loss gce (" in shown["method"]
    assert "q 0.5" in shown["method"] or "0.5" in shown["method"].partition("loss gce")[2]
    assert "units of each hidden layer 48" in shown["model"]
    assert "learning rate 0.1, schedule cosine (how the learning rate changes" in shown["training"]
    told = shown["audit of labels"]
    assert told.startswith("yes: this site judges its own labels, and counts of them leave it; it trains 3 times")
    assert "rows with the same patient stay together" in told
    assert not re.search(r"\w=\S|[{}\[\]]", "\n".join(one.lines()))


def test_the_page_shows_what_a_site_is_shown() -> None:
    page = (Path(__file__).parents[2] / "docs" / "trust.md").read_text(encoding="utf-8")
    one = dataclasses.replace(asked(method="winnow", rounds=5), parameters=1411)
    assert "\n  ".join(["the coordinator asks of this site:", *one.lines()]) in page


@pytest.mark.parametrize("audit", [True, 3, [], {"judge": 5}, {"judge": "\x1b", "group": {}, "parts": 7}])
def test_an_audit_that_nobody_can_read_is_shown_all_the_same(audit: Any) -> None:
    """It is refused later; what is shown must not fail on it."""
    shown = "\n".join(asked(audit=audit).lines())
    assert "audit of labels: " in shown
    assert "\x1b" not in shown


def test_the_file_that_is_written_is_the_default_policy(tmp_path: Path) -> None:
    write_policy(tmp_path / "site.toml")
    assert read_policy(tmp_path / "site.toml") == shipped()
    assert (shipped().exposure, shipped().learning_rate, shipped().batch_size) == ("client", 1, 1024)
    with pytest.raises(UsageError, match="the file exists"):
        write_policy(tmp_path / "site.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("learning_rat = 1", "unknown key 'learning_rat'. Did you mean 'learning_rate'?"),
        ("learning_rate = 'high'", 'learning_rate = "high" was given; allowed: a number from 0 on'),
        ("learning_rate = nan", "learning_rate = nan was given"),
        ("batch_size = 32.5", "batch_size = 32.5 was given; allowed: a whole number"),
        ("rounds = true", "rounds = true was given; allowed: a whole number"),
        ("audit = 1", "audit = 1 was given; allowed: true or false"),
        ("exposure = 'all'", 'allowed: "model", "client" or "sample"'),
        ("methods = 'fedavg'", 'allowed: "any", or a list of names'),
        ("coordinator = 'AB:CD'", '"sha256:" and 64 digits'),
        ("= 3", "not a TOML file"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "site.toml").write_text(text, encoding="utf-8")
    with pytest.raises(FedwinnowError) as problem:
        read_policy(tmp_path / "site.toml")
    assert said in str(problem.value)
    assert str(tmp_path / "site.toml") in str(problem.value)


def test_a_policy_that_is_not_there_is_an_error_that_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file. `fedwinnow join --write-policy .*` writes one"):
        read_policy(tmp_path / "site.toml")


def test_the_command_writes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["join", "--write-policy", "site.toml", "--quiet"])
    assert ended.value.code == 0
    assert tomllib.loads((tmp_path / "site.toml").read_text(encoding="utf-8"))["learning_rate"] == 1
