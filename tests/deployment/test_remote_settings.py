"""Settings that come from another machine name parts and never a file, in whatever form they are written."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import pytest

from fedwinnow import catalogue
from fedwinnow.data.load import load
from fedwinnow.deployment.agreement import NOT_SENT, experiment_of, settings_of
from fedwinnow.deployment.foreign_text import harmless, one_line
from fedwinnow.deployment.real_sites import real_stage, task_data
from fedwinnow.deployment.remote_settings import FAMILY_OF, refuse_files, without_files
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.settings import Experiment
from fedwinnow.models.mlp import Mlp
from fedwinnow.options import file_options, option
from fedwinnow.version import __version__

FILE = "model_backup.safetensors"


@pytest.fixture(autouse=True)
def folder_with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site's folder has files that would be read; whoever is asked must not even tell that they are there."""
    monkeypatch.chdir(tmp_path)
    for name in (FILE, "secret.csv", "secret.npz", "evil.py", "evil"):
        (tmp_path / name).write_text("label\n1\n", encoding="utf-8")
    (tmp_path / "mnist").mkdir()


def sent(**settings: Any) -> Experiment:
    return experiment_of({"fedwinnow": __version__, "experiment": settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"model": {"kind": "resnet18", "weights": FILE}},
        {"model": f"resnet18:weights={FILE}"},
        {"model": f"resnet18:norm=group,weights='{FILE}'"},
        {"model": {"kind": f"resnet18:weights={FILE}"}},
        {"model": f"mlp+resnet18:weights={FILE}"},
        {"model": ["mlp", f"resnet50:weights={FILE}"]},
        {"model": ["mlp", {"kind": "resnet50", "weights": FILE}]},
        {"model": "resnet18:weights=~"},
        {"model": "evil.py"},
        {"model": {"kind": "./evil.py"}},
        {"model": "evil.py:build"},
        {"model": "evil"},
        {"method": "evil.py"},
        {"method": {"kind": "evil.py"}},
        {"method": {"kind": "fedavg", "loss": f"resnet18:weights={FILE}"}},
        {"method": f"fedavg:loss=resnet18:weights={FILE}"},
        {"method": {"kind": "fedavg", "loss": "per_client:path=secret.csv"}},
        {"method": {"kind": "fedavg", "loss": {"kind": "resnet18", "weights": FILE}}},
        {"optimizer": "evil.py"},
        {"optimizer": {"kind": "csv", "path": "secret.csv"}},
        {"public": "secret.csv"},
        {"public": "secret.npz"},
        {"public": "evil"},
        {"public": "mnist_folder"},
        {"public": "csv:path=secret.csv,label=label"},
        {"public": {"kind": "npz", "path": "secret.npz"}},
        {"public": "huggingface:dataset=mnist"},
        {"scene": "scene"},
        {"data": "secret.csv"},
        {"noise": "per_client:path=secret.csv"},
        {"views": "../x"},
        {"judge": "evil.py"},
    ],
)
def test_no_file_is_named_in_any_form(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[str] = []
    looked = Path.stat

    def look(path: Path, **more: Any) -> Any:
        if not path.is_absolute():
            touched.append(str(path))
        return looked(path, **more)

    with monkeypatch.context() as watched:
        watched.setattr(Path, "stat", look)  # is_file, is_dir and exists ask it
        with pytest.raises((UsageError, DataError)) as refusal:
            sent(**settings)
    assert touched == []
    assert refusal.value.code in (None, "settings")


@pytest.mark.parametrize("text", ["../x", "/etc/hosts", "a\\b", "~x", "x.py"])
def test_a_path_is_refused_in_whatever_setting_it_stands(text: str) -> None:
    for settings in ({"views": text}, {"batch_norm": {"deep": [text]}}, {"optimizer": {text: 1}}):
        with pytest.raises(UsageError, match="names a file or path"):
            refuse_files(settings)


@pytest.mark.parametrize("name", ["roundz", "scene", "data", "noise", "out"])
def test_a_setting_that_no_site_takes_is_named(name: str) -> None:
    with pytest.raises(DataError, match=rf"the setting '{name}', which no site takes"):
        sent(**{name: "x"})


def test_a_file_that_is_there_and_one_that_is_not_are_refused_in_the_same_words() -> None:
    told = []
    for name in (FILE, "nowhere.safetensors"):
        with pytest.raises(UsageError) as refusal:
            sent(model={"kind": "resnet18", "weights": name})
        told.append(f"{refusal.value.code}: {refusal.value}".replace(name, "NAME"))
    assert told[0] == told[1]
    assert "settings: --model names a file or path: resnet18:weights=NAME" in told[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "resnet18:norm=group"},
        {"model": {"kind": "resnet18", "weights": "none"}},
        {"model": {"kind": "resnet18", "weights": None}},
        {"model": "lenet+mlp:hidden=16"},
        {"method": {"kind": "fedavg", "loss": "gce:q=0.7", "aggregate": "trimmed_mean:share=0.2"}},
        {"method": "fedgr:gmm_scope=client"},
        {"optimizer": "adam:lr=0.001"},
        {"public": "0.2"},
        {"public": "digits:train=60"},
        {"views": "flip", "clip": 1.0, "seed": 3, "validation": 0.2},
    ],
)
def test_what_names_no_file_travels(settings: dict[str, Any]) -> None:
    assert isinstance(sent(**settings), Experiment)


@pytest.mark.parametrize("method", list(catalogue.entries("methods")))
def test_every_method_travels_with_all_of_its_options(method: str) -> None:
    made = catalogue.make("methods", method)
    values = {key: "none" if value is None else value for key, value in made.values().items()}
    refuse_files({"method": {"kind": method, **values}})


def test_every_setting_that_names_a_part_is_looked_into() -> None:
    parts = {name for name, hint in get_type_hints(Experiment).items() if hint is Any}
    assert parts <= {*FAMILY_OF, *NOT_SENT, "privacy"}  # kinds of privacy have numbers only
    paths = {name for name, hint in get_type_hints(Experiment).items() if "Path" in str(hint)}
    assert paths <= {*NOT_SENT}


def test_every_path_in_the_catalogue_is_an_option_that_names_a_file() -> None:
    for family in catalogue.FAMILIES:
        for entry in catalogue.entries(family).values():
            declared = {one.name for one in entry.options if "path" in one.type}
            assert declared <= file_options(entry.load()), entry.name
    assert file_options(catalogue.find("data", "huggingface").load()) == {"dataset"}


def test_a_path_of_a_third_partys_model_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class Strange(Mlp):
        name: ClassVar[str] = "strange"
        table: str = option("", "A file by a text.", names_file=True)

    entry = catalogue.entries("models")["mlp"]
    monkeypatch.setattr(type(entry), "load", lambda self: Strange)
    with pytest.raises(UsageError, match="mlp:table=secret"):
        refuse_files({"model": {"kind": "mlp", "table": "secret"}})


# --- at the coordinator --------------------------------------------------------------------------------------------


def travelling(**settings: Any) -> dict[str, Any]:
    own = task_data(load("digits:train=60"))
    return settings_of(real_stage(Experiment(**settings), own, {"anybody": 1}))


def test_first_weights_travel_themselves_and_not_the_name_of_their_file() -> None:
    assert without_files("resnet18:weights=a.safetensors,norm=group") == "resnet18:norm=group"
    assert without_files("resnet18:weights='/a, b/c.safetensors'") == "resnet18"
    for whole in ("resnet18:norm=group", "lenet", "./evil.py:build", "odd:", "a:b"):
        assert without_files(whole) == whole
    assert travelling(model="resnet18:weights=/somewhere/w.safetensors")["model"] == "resnet18"


def test_what_no_site_would_take_is_said_by_the_coordinator_itself() -> None:
    with pytest.raises(UsageError, match=r"--model names a file or path: .*evil\.py"):
        travelling(model="./evil.py:build")


# --- text ----------------------------------------------------------------------------------------------------------


def test_a_line_of_another_machine_is_short_and_printable() -> None:
    assert one_line("a\x1b[31m b\r\n\tc\u2028d\ud800e\u202ef") == "a [31m b c d e f"
    assert one_line("x" * 400) == "x" * 297 + "..."
    assert one_line("é ß 中 \N{NO-BREAK SPACE}.") == "é ß 中 ."
    assert one_line(None) == "None"


def test_lines_of_our_own_keep_their_form() -> None:
    assert harmless('Traceback:\n  File "x"\n\x1b[2J') == 'Traceback:\n  File "x"\n [2J'
    assert len(harmless("\n".join(["y" * 5000] * 1000))) <= 200 * 2001


def test_a_model_to_start_with_is_nothing_for_a_site() -> None:
    run = {"fedwinnow": __version__, "experiment": {"start": "model"}}
    with pytest.raises(DataError, match="the setting 'start', which no site takes"):
        experiment_of(run)
