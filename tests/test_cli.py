"""The front door: every command, for people and for machines, and every exit code."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest

from fedwinnow.cli import COMMANDS, main
from fedwinnow.commands.audit import show_truth
from fedwinnow.commands.common import Flags
from fedwinnow.commands.doctor import EXTRAS
from fedwinnow.errors import missing_extra
from fedwinnow.version import __version__

ROOT = Path(__file__).parent.parent
SMALL = ["--data", "digits:train=100", "--clients", "4"]


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """Run a command in a folder of its own; the exit code, what it printed and what it complained about."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*words])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def scene(call):
    """The folder of a small scene."""
    assert call("scene", "make", *SMALL, "--noise", "constant:rate=0.5", "--out", "made", "--quiet") == (0, "", "")
    return "made"


def as_json(outcome):
    code, out, err = outcome
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_overview_names_every_command(call):
    code, out, _ = call("--help")
    assert code == 0
    assert all(name in out for name in COMMANDS)
    assert call()[1] == call("help")[1] == out


def test_version(call):
    assert call("--version") == (0, f"fedwinnow {__version__}\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_its_flags(call, name):
    code, out, _ = call(*name.split(), "--help")
    assert code == 0
    assert "--json" in out
    assert "--quiet" in out


def test_a_group_of_commands_explains_itself(call):
    code, out, _ = call("scene", "--help")
    assert code == 0
    assert out.count("fedwinnow scene") == 5


# --- scenes --------------------------------------------------------------------------------------------------------


def test_make_prints_the_map_and_where_it_went(call):
    code, out, err = call("scene", "make", *SMALL, "--noise", "constant:rate=0.5", "--out", "made")
    assert (code, err) == (0, "")
    assert "client-3" in out
    assert "realised 50.0 %" in out
    assert "scene draw made" in out


def test_make_for_machines(call, tmp_path):
    made = as_json(call("scene", "make", *SMALL, "--noise", "linear:low=0,high=0.6", "--seed", "5", "--json"))
    assert made["folder"] == str(Path("scenes/scene"))
    assert made["seed"] == 5
    assert made["partition"] == "iid"
    assert made["noise"] == "linear:high=0.6"
    assert made["data"]["source"] == "digits:train=100"
    assert [client["nominal"] for client in made["clients"]] == pytest.approx([0, 0.2, 0.4, 0.6])
    assert {"site", "samples", "kind", "nominal", "realised"} == set(made["clients"][0])
    assert sum(map(sum, made["transitions"])) == sum(client["samples"] for client in made["clients"]) == 80
    assert json.loads((tmp_path / "scenes/scene/scene.json").read_text())["hash"] == made["hash"]


def test_the_same_seed_gives_the_same_scene_and_another_another(call):
    hashes = [as_json(call("scene", "make", *SMALL, "--seed", seed, "--json"))["hash"] for seed in "112"]
    assert hashes[0] == hashes[1] != hashes[2]


def test_show(call, scene):
    code, out, _ = call("scene", "show", scene)
    assert code == 0
    assert "client-3" in out
    assert "client-1 " not in call("scene", "show", scene, "--limit", "1")[1]
    shown = as_json(call("scene", "show", scene, "--json"))
    assert shown["realised_rate"] == 0.5
    assert shown["noise"] == "constant:rate=0.5"
    assert call("scene", "show", scene, "--quiet") == (0, "", "")


def test_draw(call, scene, tmp_path):
    pictures = as_json(call("scene", "draw", scene, "--format", "svg", "--out", "drawn", "--json"))
    assert [tmp_path.joinpath(path).name for path in pictures] == ["partition.svg", "rates.svg", "transitions.svg"]
    assert all(tmp_path.joinpath(path).read_text().startswith("<?xml") for path in pictures)
    assert call("scene", "draw", scene, "--quiet") == (0, "", "")
    assert (tmp_path / scene / "rates.png").read_bytes().startswith(b"\x89PNG")


def test_export_and_import_give_the_same_scene(call, scene, tmp_path):
    assert as_json(call("scene", "export", scene, "--out", "out.npz", "--json")) == {"file": "out.npz"}
    assert call("scene", "export", scene, "--out", "out.csv", "--quiet") == (0, "", "")
    assert (tmp_path / "out.csv").read_text().startswith("client,given,true\n")
    words = ["scene", "import", "--data", "digits:train=100", "--from", "out.npz", "--out", "again"]
    again = as_json(call(*words, "--json"))
    assert again["hash"] == as_json(call("scene", "show", scene, "--json"))["hash"]
    assert again["partition"] == "imported"
    assert call(*words, "--quiet") == (0, "", "")


def test_demo(call, tmp_path):
    shown = as_json(call("demo", "--rounds", "1", "--json"))
    assert shown["realised_rate"] == pytest.approx(0.229, abs=0.001)
    assert len(shown["pictures"]) == 3
    assert all(tmp_path.joinpath(path).stat().st_size > 1000 for path in shown["pictures"])
    assert set(shown["runs"]) == {"fedavg", "winnow"}
    assert (tmp_path / "demo" / "winnow" / "report.html").exists()
    assert call("demo", "--rounds", "1", "--quiet") == (0, "", "")  # finds all of it done


def test_the_demo_says_first_how_long_it_takes_and_goes_on_without_the_library_that_draws(call, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # an import of it fails, as where it is not installed
    code, out, _ = call("demo", "--rounds", "1", "--out", "plain")
    said = " ".join(out.split())
    assert code == 0
    assert said.startswith("the demo takes about a minute on two cores")
    assert said.count("no pictures this time: drawing pictures needs the extra 'figures'") == 1
    assert "pip install '.[figures]'" in said
    assert "fedwinnow[" not in said
    assert list((tmp_path / "plain").glob("*.png")) == []
    assert "measured, because labels were made wrong here" in said
    code, out, problem = call("scene", "draw", "plain")
    assert code == 2
    assert "pip install '.[figures]'" in " ".join(problem.split())


def test_what_is_missing_is_never_sought_on_a_package_index():
    assert "fedwinnow[" not in str(missing_extra("figures", "drawing"))
    for folder in ("src", "docs", "examples"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".md", ".yaml"):
                assert "fedwinnow[" not in path.read_text(encoding="utf-8"), path


def test_brackets_in_a_path_are_no_markup(call):
    words = ["run", *SMALL, "--model", "linear", "--rounds", "1", "--epochs", "1"]
    code, out, _ = call(*words, "--out", "odd [/b] [red]place")
    assert code == 0
    assert "written to odd [/b] [red]place" in " ".join(out.split())


def test_a_trial_audit_that_calls_nothing_says_so(capsys):
    show_truth({"truth": {"found": 0, "wrong": 7, "called": 0}}, Flags().console())
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("measured, because labels were made wrong here: 0 of 7 wrong labels found; no calls.")


def test_a_trial_without_wrong_labels_does_not_speak_of_labels_made_wrong(capsys):
    show_truth({"truth": {"found": 0, "wrong": 0, "called": 4}}, Flags().console())
    said = " ".join(capsys.readouterr().out.split())
    assert said == (
        "measured, because the true labels are known here: none is wrong; 0 of its 4 calls are right (0 %)."
    )


# --- the catalogue -------------------------------------------------------------------------------------------------

FAMILIES = {"data": "digits", "partitions": "shards", "noises": "uniform", "flips": "pair", "models": "resnet18"}


@pytest.mark.parametrize(("family", "name"), FAMILIES.items())
def test_the_catalogue(call, family, name):
    code, out, _ = call(family)
    assert code == 0
    assert name in out
    listed = as_json(call(family, "--json"))
    assert name in [entry["name"] for entry in listed]
    shown = as_json(call(family, name, "--json"))
    assert set(shown) == {"name", "summary", "details", "facts", "options"}
    assert all(
        {"name", "type", "default", "sentence", "symbol", "source", "presets"} == set(one) for one in shown["options"]
    )
    assert shown["summary"] in " ".join(call(family, name)[1].split())
    assert call(family, "--quiet") == (0, "", "")


def test_the_catalogue_shows_every_option_with_default_symbol_and_source(call):
    out = " ".join(call("noises", "fedcorr")[1].split())
    assert "rho" in out
    assert "0.6" in out
    assert "ρ" in out
    assert "FedDiv" in out


# --- doctor --------------------------------------------------------------------------------------------------------


def test_doctor(call):
    findings = as_json(call("doctor", "--json"))
    assert {"Python", "torch", "device", "cores", "memory", "data digits", "writing to cache"} <= {
        finding["what"] for finding in findings
    }
    assert {"what", "state", "detail", "advice"} == set(findings[0])
    code, out, _ = call("doctor")
    assert code == 0
    assert "Everything needed is there." in out
    assert call("doctor", "--quiet") == (0, "", "")


def test_doctor_knows_every_extra():
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert EXTRAS.keys() == project["optional-dependencies"].keys() - {"all", "audit-compare"}  # for the benchmarks


def test_doctor_says_which_file_of_a_data_set_is_missing(call, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDWINNOW_DATA", str(tmp_path))
    findings = {finding["what"]: finding for finding in as_json(call("doctor", "--json"))}
    assert findings["data mnist"]["state"] == "absent"
    assert "train-images-idx3-ubyte" in findings["data mnist"]["detail"]
    assert str(tmp_path) in findings["data mnist"]["detail"]


def test_doctor_fails_when_something_needed_is_missing(call, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDWINNOW_CACHE", str(tmp_path / "file" / "cache"))
    code, out, _ = call("doctor")
    assert code == 3
    assert "1 needed things are missing" in out
    assert "Set FEDWINNOW_CACHE" in out
    assert call("doctor", "--quiet")[:2] == (3, "")


# --- wrong use -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("demmo", "Did you mean 'demo'?"),
        ("scene mak", "Did you mean 'scene make'?"),
        ("scene", "scene import"),
        ("scene make --sed 3", "--seed"),
        ("scene make --clients many", "--clients"),
        ("scene make --partition shard", "Did you mean 'shards'?"),
        ("scene make --partition shards:per_clients=2", "Did you mean 'per_client'?"),
        ("scene make --noise unifrom", "Did you mean 'uniform'?"),
        ("scene make --noise constant:flip=pear", "Did you mean 'pair'?"),
        ("scene make --noise constant:flip=pair,stepp=1", "Did you mean 'step'?"),
        ("scene make --data digitz", "Did you mean 'digits'?"),
        ("scene make --test 1.5", "below 1"),
        ("scene draw x --format gif", "svg"),
        ("scene export x --out x.txt", ".npz or .csv"),
        ("scene show --limit -1", "0 or more"),
        ("scene import", "--from"),
        ("partitions shard", "Did you mean 'shards'?"),
        ("models resnet81", "Did you mean 'resnet18'?"),
    ],
)
def test_wrong_use_ends_with_2_and_a_hint(call, words, hint):
    code, out, err = call(*words.split())
    assert (code, out) == (2, "")
    assert hint in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("scene show nowhere", "nowhere"),
        ("scene import --from nowhere.npz", "nowhere.npz"),
        ("scene make --data csv:path=nowhere.csv,label=y", "nowhere.csv"),
        ("scene make --data mnist", "train-images-idx3-ubyte"),
        ("scene make --clients 100000", "at most 1438 clients"),
        ("scene make --partition column", "site"),
        ("scene make --config bad.toml", "bad.toml"),
        ("scene make --out bad.toml/below", "bad.toml"),
        ("scene draw nowhere", "nowhere"),
    ],
)
def test_a_data_problem_ends_with_3_and_names_the_place(call, tmp_path, words, hint):
    (tmp_path / "bad.toml").write_text("= 3")
    code, out, err = call(*words.split())
    assert (code, out) == (3, "")
    assert hint in err


def test_pictures_that_cannot_be_written_are_a_data_problem(call, scene, tmp_path):
    (tmp_path / "file").write_text("")
    for words in (["draw", scene, "--out", "file/below"], ["export", scene, "--out", "file/below.npz"]):
        code, _, err = call("scene", *words)
        assert code == 3
        assert "file" in err


def test_an_error_for_machines_is_json_too(call):
    code, out, err = call("scene", "show", "nowhere", "--json")
    problem = json.loads(out)
    assert problem["exit_code"] == code == 3
    assert problem["error"] in err


def test_too_little_memory_is_told_in_words(call, monkeypatch):
    def refuse(*_, **__):
        raise MemoryError("Unable to allocate 7 TiB")

    monkeypatch.setattr("fedwinnow.scene.scene.Scene.make", refuse)
    code, _, err = call("scene", "make")
    assert code == 4
    assert "7 TiB" in err


def test_a_warning_is_one_line_and_the_work_goes_on(call, tmp_path):
    rows = "".join(f"{row},{'ab'[row % 2]},{('North', 'north')[row % 2]}\n" for row in range(40))
    (tmp_path / "sites.csv").write_text("number,label,hospital\n" + rows)
    data = ["--data", "csv:path=sites.csv,label=label,site=hospital", "--partition", "column"]
    code, _, err = call("scene", "make", *data, "--quiet")
    assert code == 0
    assert err.startswith("warning: sites: these sites differ only in capitals")
    assert "'North' (n=16) and 'north' (n=16)" in err
    assert len(err.splitlines()) == 1
