"""A result belongs to the code and data that made it: every change of either is noticed, and nothing else is."""

from __future__ import annotations

import functools
import json
import linecache
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fedwinnow
import stages
from fedwinnow import files
from fedwinnow.data import content_hash
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.load import load
from fedwinnow.errors import StaleError, UsageError
from fedwinnow.experiment.own_code import code_of, code_of_class, code_of_file, code_of_models
from fedwinnow.experiment.play import Execution, play
from fedwinnow.experiment.report.run_report import report_of
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.testing import comparable, toy_data
from remembering import REMEMBERING, At, interrupt
from run_folders import write_run
from stages import TINY, run

METHOD = """
from dataclasses import dataclass
from typing import ClassVar
from fedwinnow import Method
{imports}

@dataclass(frozen=True)
class Mine(Method):
    name: ClassVar[str] = "mine"

    def choose(self, server):
        return {chosen}
"""
NEWEST = "sorted(server.available)[:2]"
OLDEST = "sorted(server.available)[2:]"


def write_method(path: Path, chosen: str = NEWEST, imports: str = "") -> Path:
    path.write_text(METHOD.format(imports=imports, chosen=chosen))
    return path


def refused(folder: Path, words: str, **settings) -> None:
    """The folder is refused in words that say what has changed, whether it is continued or not, and stays as it is."""
    before = comparable(folder)
    for resume in (True, False):
        with pytest.raises(StaleError, match=words):
            run(folder, resume=resume, **settings)
    assert comparable(folder) == before


def broken_off(folder: Path, **settings) -> None:
    """A run that was interrupted after its first round."""
    with pytest.raises(KeyboardInterrupt):
        run(folder, watchers=(At(1, interrupt),), **settings)


# --- code in files -------------------------------------------------------------------------------------------------


def test_a_changed_method_is_refused_and_redone(tmp_path):
    method, folder = write_method(tmp_path / "my_method.py"), tmp_path / "run"
    first = run(folder, method=str(method))
    assert {tuple(row["participants"]) for row in first.rounds} == {(0, 1)}
    write_method(method, OLDEST)
    refused(folder, r"my_method.py has changed since this run was made\. Add redo=True", method=str(method))
    refused(folder, "my_method.py has changed", method=str(method), rounds=5)  # nor is it continued with more rounds
    again = run(folder, method=str(method), redo=True)
    assert {tuple(row["participants"]) for row in again.rounds} == {(2, 3)}
    assert run(folder, method=str(method), resume=True).summary == again.summary  # and now it is this run


def test_a_changed_default_of_a_method_is_named_by_its_file_and_can_be_redone(tmp_path):
    method, folder = tmp_path / "remembering.py", tmp_path / "run"
    method.write_text(REMEMBERING)
    run(folder, method=str(method))
    method.write_text(REMEMBERING.replace("option(2.0", "option(3.0"))
    refused(folder, "remembering.py has changed", method=str(method))
    run(folder, method=str(method), redo="stale")
    assert "limit = 3.0" in (folder / "config.toml").read_text()


def test_a_changed_module_that_a_method_imports_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    helper, package = tmp_path / "identity_helpers.py", tmp_path / "identity_package"
    helper.write_text("from identity_package.inner import few\n")
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("from . import deep\nfew = deep.number\n")
    (package / "deep.py").write_text("number = 2\n")
    (tmp_path / "unrelated.py").write_text("")
    method = write_method(
        tmp_path / "my_method.py", "sorted(server.available)[:few]", "from identity_helpers import few"
    )
    found = code_of_file(method)
    wanted = ["my_method.py", "identity_helpers.py"]
    assert list(found)[:2] == wanted
    assert set(found) == {
        *wanted,
        "identity_package/__init__.py",
        "identity_package/inner.py",
        "identity_package/deep.py",
    }
    folder = tmp_path / "run"
    run(folder, method=str(method))
    (package / "deep.py").write_text("number = 3\n")
    # This process still has the module that it imported, so the run would come out the same.
    assert run(folder, method=str(method), resume=True).summary["status"] == "finished"
    for name in [name for name in sys.modules if name.startswith("identity_")]:
        monkeypatch.delitem(sys.modules, name)
    refused(folder, "identity_package/deep.py, which my_method.py imports, has changed", method=str(method))


def test_a_helper_of_a_folder_that_is_not_imported_yet_is_found_by_its_place(tmp_path):
    (tmp_path / "lazily.py").write_text("x = 1\n")
    (tmp_path / "by_name.py").write_text("x = 1\n")
    file = tmp_path / "m.py"
    file.write_text("import importlib\ndef f():\n import lazily\n return importlib.import_module('by_name')\n")
    assert list(code_of_file(file)) == ["m.py", "lazily.py", "by_name.py"]


def test_a_changed_model_file_is_refused(tmp_path):
    model, folder = tmp_path / "model.py", tmp_path / "run"
    text = "from torch import nn\ndef build(classes, sample_shape):\n    return nn.Linear(sample_shape[0], classes)\n"
    model.write_text(text)
    run(folder, model=f"{model}:build")
    model.write_text(
        text.replace("nn.Linear(", "nn.Sequential(nn.Tanh(), nn.Linear(").replace("classes)\n", "classes))\n", 1)
    )
    refused(folder, "model.py has changed", model=f"{model}:build")


def test_line_ends_are_no_change(tmp_path):
    file = write_method(tmp_path / "m.py")
    before = code_of_file(file)
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert code_of_file(file) == before


def test_an_installed_method_is_known_by_its_source(tmp_path, monkeypatch):
    """As an entry point would bring it: a class of a module in site-packages, with a module beside it."""
    place = tmp_path / "site-packages" / "identity_plugin"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("")
    (place / "beside.py").write_text("import torch\nfew = 2\n")
    write_method(place / "method.py", "sorted(server.available)[:few]", "from .beside import few\nimport numpy, pytest")
    monkeypatch.syspath_prepend(place.parent)
    from identity_plugin.method import Mine

    assert list(code_of_class(Mine)) == ["method.py", "beside.py"]
    folder = tmp_path / "run"
    run(folder, method=Mine())
    assert list(json.loads((folder / "identity.json").read_text())["code"]["method"]) == ["method.py", "beside.py"]


def test_our_own_parts_are_no_code_of_the_user(tmp_path):
    run(tmp_path, method="fedprox", model="mlp", optimizer="adam")
    assert json.loads((tmp_path / "identity.json").read_text())["code"] == {}


# --- weights and objects -------------------------------------------------------------------------------------------


class Net(nn.Module):
    """A module whose representation says nothing about what is in it."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale, self.layer = scale, nn.Linear(2, 3)

    def forward(self, x):
        return self.layer(x) * self.scale


def test_other_weights_under_the_same_name_are_refused(tmp_path):
    torch.manual_seed(0)
    first, second = Net(), Net()
    assert repr(first) == repr(second)
    run(tmp_path, model=first)
    assert run(tmp_path, model=first, resume=True).summary["status"] == "finished"
    refused(tmp_path, "the weights of Net have changed", model=second)
    other = Net(2.0)
    other.load_state_dict(first.state_dict())
    refused(tmp_path, "the settings of Net have changed", model=other)
    frozen = Net()
    frozen.load_state_dict(first.state_dict())
    assert code_of(frozen) == code_of(first)
    assert code_of(frozen.eval()) == code_of(first)
    frozen.layer.bias.requires_grad_(False)
    assert code_of(frozen) != code_of(first)


def test_a_changed_file_of_weights_is_noticed(tmp_path):
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(b"one")
    spec = f"resnet18:weights={weights}"
    before = code_of_models(spec)
    assert list(before) == ["the file w.safetensors"]
    assert code_of_models({"kind": "resnet18", "weights": str(weights)}) == before
    weights.write_bytes(b"two")
    assert code_of_models(spec) != before


def test_what_a_function_closes_over_counts():
    def maker(width):
        def build(classes):
            return nn.Linear(width, classes)

        return build

    assert code_of(maker(2)) == code_of(maker(2))
    assert code_of(maker(2)) != code_of(maker(3))
    assert code_of(functools.partial(maker, 2)) == code_of(functools.partial(maker, 2))
    assert code_of(functools.partial(maker, 2)) != code_of(functools.partial(maker, width=2))


# --- notebooks -----------------------------------------------------------------------------------------------------

CELL = """
from torch import nn
WIDTH = 8
NOTES = {"b", "a", "c"}

class Block(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.layer = nn.Linear(width, classes)

    def forward(self, x):
        return self.layer(x)

def build(sample_shape, classes):
    assert NOTES
    return nn.Sequential(nn.Linear(sample_shape[0], WIDTH), Block(WIDTH, classes))
"""
CELLS: list[int] = []


def cell(text: str, *, known: bool = True) -> dict:
    """Run a cell as a notebook does: in __main__, with its text where Python looks for it, or nowhere."""
    CELLS.append(1)
    name = f"<cell-{len(CELLS)}>"
    if known:
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), names)
    return names


@pytest.mark.parametrize("known", [True, False])
def test_a_restarted_notebook_is_the_same_run(tmp_path, known):
    first = cell(CELL, known=known)["build"]
    before = run(tmp_path, model=first)
    restarted = cell(CELL, known=known)["build"]
    assert restarted is not first
    assert run(tmp_path, model=restarted, resume=True).summary == before.summary
    for old, new in [
        ("WIDTH = 8", "WIDTH = 9"),
        ("self.layer(x)", "-self.layer(x)"),
        ("nn.Sequential(", "nn.Sequential(nn.Tanh(), "),
    ]:
        refused(tmp_path, "the function build has changed", model=cell(CELL.replace(old, new), known=known)["build"])


def test_the_forms_that_a_model_of_a_notebook_can_have():
    """Each is the same after a restart, and another one after a change of what only it has."""
    more = CELL + textwrap.dedent("""
        import functools
        from dataclasses import dataclass

        @dataclass
        class Maker:
            width: int = 8

            def __call__(self, classes):
                return nn.Linear(self.width, classes)

            def make(self, classes):
                return nn.Linear(self.width, classes)

        forms = [lambda classes: Block(2, classes), functools.partial(Block, 2), Maker(), Maker().make, Block(2, 3)]
        forms.append(Block)
    """)

    def seeded(text):
        torch.manual_seed(0)
        return [code_of(form) for form in cell(text)["forms"]]

    assert seeded(more) == seeded(more)
    changed = seeded(more.replace("self.layer(x)", "-self.layer(x)").replace("width: int = 8", "width: int = 9"))
    assert all(before != after for before, after in zip(seeded(more), changed, strict=True))
    assert not any("0x" in key for form in seeded(more) for key in form)


def test_two_lambdas_of_one_line_are_told_apart():
    made = cell("forms = [lambda classes: classes + 1, lambda classes: classes + 2]\n")["forms"]
    assert code_of(made[0]) != code_of(made[1])


def test_another_process_finds_the_same_hashes(tmp_path):
    """The order of sets and the places of objects differ from process to process."""
    program = tmp_path / "notebook.py"
    program.write_text(
        CELL + "from fedwinnow.experiment.own_code import code_of\nprint(code_of(build), code_of(Block))\n"
    )
    started = [
        subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    first, second = (process.communicate()[0] for process in started)
    assert b"the function build" in first
    assert first == second


def test_a_sweep_of_a_restarted_notebook_goes_on(tmp_path):
    settings = {"data": toy_data(), **TINY, "seeds": 1, "out": tmp_path}
    first = fedwinnow.sweep([{"method": "fedavg", "model": cell(CELL)["build"], "name": "mine"}], **settings)
    assert [outcome.status for outcome in first.outcomes] == ["finished"]
    again = fedwinnow.sweep([{"method": "fedavg", "model": cell(CELL)["build"], "name": "mine"}], **settings)
    assert [outcome.status for outcome in again.outcomes] == ["skipped"]
    other = cell(CELL.replace("WIDTH = 8", "WIDTH = 9"))["build"]
    stale = fedwinnow.sweep([{"method": "fedavg", "model": other, "name": "mine"}], **settings)
    assert [outcome.message for outcome in stale.stale] == ["the function build has changed since this run was made"]
    with pytest.raises(fedwinnow.errors.RunError, match="stale"):
        stale.table()
    assert "0x" not in (tmp_path / "sweep.json").read_text()


# --- data ----------------------------------------------------------------------------------------------------------


def write_table(path: Path, first: str = "1.0") -> Path:
    rows = [f"{number % 7 if number else first},{number % 5},{'ab'[number % 2]}" for number in range(60)]
    path.write_text("\n".join(["age,weight,label", *rows]) + "\n")
    return path


def test_a_changed_value_of_a_table_is_refused(tmp_path):
    table, folder = write_table(tmp_path / "patients.csv"), tmp_path / "run"
    broken_off(folder, data=str(table))
    write_table(table, "2.0")
    refused(folder, "the values of patients.csv have changed", data=str(table))
    write_table(table)
    assert run(folder, data=str(table), resume=True).summary["status"] == "finished"
    write_table(table, "2.0")  # nor does a finished run pass for one on the new data
    refused(folder, "the values of patients.csv have changed", data=str(table))


def test_a_changed_array_of_a_file_is_refused(tmp_path):
    path, folder = tmp_path / "samples.npz", tmp_path / "run"
    x = np.random.RandomState(0).normal(size=(60, 2)).astype(np.float32)
    np.savez(path, x=x, y=np.arange(60) % 3)
    run(folder, data=str(path))
    x[7, 1] += 1e-3
    np.savez(path, x=x, y=np.arange(60) % 3)
    refused(folder, "the values of samples.npz have changed", data=str(path))


@pytest.mark.parametrize("lazy", ["true", "false"])
def test_a_changed_image_of_the_same_size_is_refused(tmp_path, lazy):
    folder = tmp_path / "photos"
    for number in range(12):
        place = folder / "ab"[number % 2] / f"{number}.bmp"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(place)
    spec, out = f"folder:path={folder},lazy={lazy}", tmp_path / "run"
    run(out, data=spec, model="linear", clients=2)
    changed = folder / "a" / "0.bmp"
    before = changed.stat()
    Image.fromarray(np.full((8, 8), 200, np.uint8)).save(changed)
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a copy that keeps the time
    assert changed.stat().st_size == before.st_size
    assert load(spec).train.features.take(np.array([0])).max() == 200  # the decoded pixels are not the old ones
    refused(out, "the values of photos have changed", data=spec, model="linear", clients=2)


def test_changed_samples_in_memory_are_refused(tmp_path):
    run(tmp_path, data=toy_data())
    changed = toy_data()
    changed.train.features.array[3, 0] += 1e-4
    refused(tmp_path, "the values of toy have changed", data=changed)
    tested = toy_data()
    tested.test.features.array[3, 0] += 1e-4
    refused(tmp_path, "the values of toy have changed", data=tested)


def test_samples_that_a_program_changed_after_reading_a_file_are_not_those_of_the_file(tmp_path):
    table = write_table(tmp_path / "patients.csv")
    run(tmp_path / "run", data=load(str(table)))
    changed: Dataset = load(str(table))
    changed.train.features.array[0, 0] += 1
    refused(tmp_path / "run", "the values of patients have changed", data=changed)


def test_changed_public_samples_are_refused(tmp_path):
    public = tmp_path / "public.npz"
    x = np.random.RandomState(0).normal(size=(20, 2)).astype(np.float32)
    np.savez(public, x=x, y=np.arange(20) % 2)
    settings = {"public": str(public), "method": "rhfl", "model": "linear"}
    run(tmp_path / "run", **settings)
    np.savez(public, x=x + 1, y=np.arange(20) % 2)
    refused(tmp_path / "run", "the values of public.npz have changed", **settings)


def test_the_hash_of_a_scene_knows_nothing_of_features(tmp_path):
    """Scenes are published with their hashes, which stay."""
    before = fedwinnow.Scene.make(str(write_table(tmp_path / "t.csv")), clients=2).hash
    assert fedwinnow.Scene.make(str(write_table(tmp_path / "t.csv", "2.0")), clients=2).hash == before


def test_data_above_a_gigabyte_is_sampled_and_says_so(tmp_path, monkeypatch):
    paths = [tmp_path / f"{number}" for number in range(3)]
    for path in paths:
        path.write_bytes(bytes(5000))
    assert content_hash.contents_of_files("x", paths).sampled is False
    monkeypatch.setattr(content_hash, "LARGEST", 10_000)
    monkeypatch.setattr(content_hash, "PIECE", 64)
    before = content_hash.contents_of_files("x", paths)
    assert before.sampled is True
    paths[2].write_bytes(bytes(4999) + b"1")  # the last piece is always looked at
    assert content_hash.contents_of_files("x", paths).hash != before.hash
    paths[2].write_bytes(bytes(5001))
    assert content_hash.contents_of_files("x", paths).hash != before.hash
    monkeypatch.setattr(content_hash, "MOST_FILES", 2)
    assert content_hash.contents_of_files("x", paths).sampled is True
    array = np.zeros((400, 20))
    first = content_hash.contents_of_arrays("x", [array])
    assert first.sampled is True
    array[399, 3] = 1
    assert content_hash.contents_of_arrays("x", [array]).hash != first.hash


def test_a_file_is_read_again_when_it_was_written_again(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"one")
    before = content_hash.hash_of_file(path)
    path.write_bytes(b"two")  # perhaps before the clock of the disk has ticked
    assert content_hash.hash_of_file(path) != before
    monkeypatch.setattr(content_hash, "RECENT", -(10**18))  # as if it had lain there for long
    first = content_hash.hash_of_file(path)
    monkeypatch.setattr(content_hash.hashlib, "sha256", None)
    assert content_hash.hash_of_file(path) == first  # known: nothing is read


def test_arrays_of_every_kind_have_a_hash():
    kinds = [np.arange(6).reshape(2, 3), np.array(["a", "bc"]), np.zeros((0, 3)), np.array(3.0), np.array([None, "a"])]
    assert len({content_hash.contents_of_arrays("x", [array]).hash for array in kinds}) == len(kinds)
    turned = np.asfortranarray(kinds[0])
    assert content_hash.contents_of_arrays("x", [turned]) == content_hash.contents_of_arrays("x", [kinds[0]])


# --- the source of the package -------------------------------------------------------------------------------------


def another_source(monkeypatch) -> None:
    monkeypatch.setattr(files, "package_source", lambda: "0" * 64)


def test_the_source_is_the_same_for_every_copy(tmp_path, monkeypatch):
    import shutil

    copy = tmp_path / "elsewhere"
    shutil.copytree(files.ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    now = files.package_source()
    monkeypatch.setattr(files, "ROOT", copy)
    assert files.package_source.__wrapped__() == now
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "x.pyc").write_bytes(b"")
    assert files.package_source.__wrapped__() == now
    (copy / "methods" / "fedavg.py").write_bytes((copy / "methods" / "fedavg.py").read_bytes() + b"\n")
    assert files.package_source.__wrapped__() != now


def test_an_unfinished_run_of_another_source_is_refused_and_a_finished_one_stays(tmp_path, monkeypatch):
    broken_off(tmp_path / "broken")
    whole = run(tmp_path / "whole").summary
    another_source(monkeypatch)
    refused(tmp_path / "broken", "the source of fedwinnow has changed since this run was begun, and it is not finished")
    assert run(tmp_path / "whole", resume=True).summary == whole
    refused(tmp_path / "whole", "the source of fedwinnow has changed", rounds=4)
    assert "ANOTHER VERSION" in report_of(tmp_path / "whole").read_text()
    assert run(tmp_path / "broken", redo="stale").summary["status"] == "finished"
    assert "ANOTHER VERSION" not in report_of(tmp_path / "broken").read_text()


def test_folders_from_before_this_was_noted(tmp_path):
    broken_off(tmp_path / "broken")
    whole = run(tmp_path / "whole").summary
    for name in ("broken", "whole"):
        (tmp_path / name / "identity.json").unlink()
    refused(tmp_path / "broken", "was begun by an older version")
    assert run(tmp_path / "whole", resume=True).summary == whole


# --- starting anew -------------------------------------------------------------------------------------------------


def test_redo_removes_what_a_run_makes_and_nothing_else(tmp_path):
    method = tmp_path / "remembering.py"
    method.write_text(REMEMBERING)
    folder = tmp_path / "run"
    run(folder, method=str(method))
    made = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    foreign = {"notes.txt", "my/summary.json", "scene.png"}

    def put(names):
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("mine")

    before = comparable(folder)
    put(foreign)
    assert any(name.startswith("clients/") for name in made)
    run(folder, method=str(method), rounds=1, redo=True)
    after = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert foreign <= after
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 1  # not continued: 3 rounds were played
    run(folder, method=str(method), redo=True)
    assert {name: content for name, content in comparable(folder).items() if name not in foreign} == before
    within = {"clients/mine.safetensors", "server/notes.txt"}
    put(within)
    RunFolder(folder).clear()
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert left == foreign | within | {".lock"}


def test_redo_never_removes_a_run_with_other_settings(tmp_path):
    """Except from a program with redo=True, where the cell of a notebook was changed on purpose."""
    run(tmp_path)
    before = comparable(tmp_path)
    for other in ({"epochs": 2}, {"method": "fedprox"}, {"seed": 5}, {"noise": "constant:rate=0.3"}):
        with pytest.raises(UsageError, match="another config"):
            run(tmp_path, redo="stale", **other)
        for redo in ("all", "stale"):
            experiment = Experiment(**{"data": toy_data(), **stages.TINY, "rounds": 3, **other})
            with pytest.raises(UsageError, match="another config"):
                play(experiment, tmp_path, Execution(redo=redo))
    assert comparable(tmp_path) == before


def test_redo_of_what_is_not_stale_leaves_it(tmp_path):
    run(tmp_path)
    before = (tmp_path / "summary.json").stat().st_mtime_ns
    run(tmp_path, redo="stale", resume=True)
    assert (tmp_path / "summary.json").stat().st_mtime_ns == before
    with pytest.raises(UsageError, match="redo='everything' was given"):
        run(tmp_path, redo="everything")


def test_a_run_that_was_being_cleared_is_not_taken_for_a_whole_one(tmp_path):
    run(tmp_path)
    for name in ("summary.json", "identity.json"):  # the first that go
        (tmp_path / name).unlink()
    with pytest.raises(StaleError, match="redo=True"):
        run(tmp_path, resume=True)
    assert run(tmp_path, redo=True).summary["status"] == "finished"


# --- audits --------------------------------------------------------------------------------------------------------


def test_an_audit_is_not_continued_on_other_data(tmp_path):
    from fedwinnow.auditing.audit import perform, settings_for
    from fedwinnow.experiment.play import Execution

    table = write_table(tmp_path / "patients.csv")

    def settings():
        return settings_for(str(table), clients=2, rounds=2, epochs=1)

    with pytest.raises(KeyboardInterrupt):
        perform(settings(), tmp_path / "audit", Execution(), (At(1, interrupt),))
    write_table(table, "2.0")
    with pytest.raises(StaleError, match="the values of patients have changed"):
        perform(settings(), tmp_path / "audit", Execution())
    assert perform(settings(), tmp_path / "audit", Execution(redo="stale")).counts()


def test_the_model_of_a_run_does_not_judge_other_data(tmp_path):
    from fedwinnow.auditing.audit_from_python import audit

    table = write_table(tmp_path / "patients.csv")
    run(tmp_path / "run", data=str(table))
    write_table(table, "2.0")
    with pytest.raises(StaleError, match=r"the values of patients\.csv have changed"):
        audit(run=tmp_path / "run")


# --- tables and figures --------------------------------------------------------------------------------------------


def test_tables_and_figures_mark_runs_of_another_source(tmp_path, monkeypatch):
    for method in ("fedavg", "fedprox"):
        for seed in (0, 1):
            write_run(tmp_path / "runs" / f"{method}-{seed}", method, seed, 0.5)
    assert "†" not in str(fedwinnow.table(tmp_path / "runs"))
    (tmp_path / "runs" / "fedprox-1" / "identity.json").unlink()
    table = fedwinnow.table(tmp_path / "runs")
    assert "† 1 of 4 runs were made by another version of the source." in str(table)
    assert "| FedProx † |" in str(table)
    assert "| FedAvg |" in str(table)
    table.save(tmp_path / "t.tex")
    assert r"FedProx $\dagger$" in (tmp_path / "t.tex").read_text()
    table.save(tmp_path / "t.csv")
    rows = [line.split(",") for line in (tmp_path / "t.csv").read_text().splitlines()]
    assert {(row[0], row[-1]) for row in rows[1:]} == {("fedavg", "0"), ("fedprox", "1")}
    another_source(monkeypatch)
    assert "4 of 4 runs were made by another version" in str(fedwinnow.table(tmp_path / "runs"))


def test_a_figure_says_so_too(tmp_path, monkeypatch):
    from fedwinnow.study.figures.gallery import draw

    run(tmp_path / "run")
    assert "another version" not in draw("curves", [tmp_path], tmp_path / "now.svg").read_text()
    another_source(monkeypatch)
    assert (
        "1 of 1 runs were made by another version of the source"
        in draw("curves", [tmp_path], tmp_path / "a.svg").read_text()
    )


def test_a_table_marks_runs_of_a_method_that_was_changed_since(tmp_path):
    method = write_method(tmp_path / "my_method.py")
    run(tmp_path / "run", method=str(method))
    assert "†" not in str(fedwinnow.table(tmp_path))
    write_method(method, OLDEST)
    assert "† 1 of 1 runs were made before my_method.py was changed." in str(fedwinnow.table(tmp_path))


@dataclass(frozen=True)
class Loaded(fedwinnow.Method):
    """A method of a test file."""

    name: ClassVar[str] = "loaded"


def test_a_method_that_was_given_as_an_object_is_known_by_its_file():
    assert next(iter(code_of_class(Loaded))).endswith("test_identity.py")
