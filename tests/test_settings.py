"""A setting is declared once: everything that users meet derives from the declaration, and nothing repeats it."""

from __future__ import annotations

import ast
import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import fedwinnow
from fedwinnow.all_settings import SiteSettings
from fedwinnow.api import RunKeywords
from fedwinnow.auditing.audit_from_python import AuditKeywords
from fedwinnow.commands.audit import Audit
from fedwinnow.commands.run import Run
from fedwinnow.commands.serve import Serve
from fedwinnow.commands.sweep import Sweep
from fedwinnow.errors import UsageError
from fedwinnow.experiment.play import Execution
from fedwinnow.experiment.run_settings import RunSettings
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Setup
from fedwinnow.setting import changed, check_settings, setting, settings_in, taken, written_type
from fedwinnow.study.study_from_python import SweepKeywords

SOURCE = Path(fedwinnow.__file__).parent
SETTINGS = settings_in(RunSettings)
EVERY_CLASS = (RunKeywords, SweepKeywords, AuditKeywords, Run, Sweep, Audit, Serve)

# Flags of other commands that share a name with a setting of a run and mean something else.
OTHERS = {
    "Apply": {"data", "out"},
    "AuditAsked": {"out"},
    "Certificates": {"out"},
    "Demo": {"out", "rounds"},
    "Detection": {"seed"},
    "Encode": {"data", "encoder", "out"},
    "Export": {"out"},
    "Evaluate": {"data", "out", "seed"},
    "Figure": {"out"},
    "Join": {"data", "scene", "clients", "encoder", "least_count", "out"},  # the site's own
    "PaperTable": {"test"},
    "Predict": {"data", "encoder", "out"},
    "Printed": {"out"},
    "SceneDraw": {"out"},
    "SceneExport": {"out"},
    "SceneImport": {"out"},
    "SceneMake": {"out"},
    "Schema": {"data", "out"},
    "TableOfRuns": {"out", "test"},
}


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path.relative_to(SOURCE).as_posix(), node


def defaults_of(node: ast.AST) -> dict[str, ast.expr]:
    """The fields of a class, or the parameters of a function, that have a default here."""
    if isinstance(node, ast.ClassDef):
        lines = [line for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)]
        return {ast.unparse(line.target): line.value for line in lines if line.value is not None}
    if isinstance(node, ast.FunctionDef):
        given = [*node.args.posonlyargs, *node.args.args]
        last = given[len(given) - len(node.args.defaults) :]
        pairs = [*zip(last, node.args.defaults, strict=True)]
        pairs += [(one, value) for one, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value]
        return {one.arg: value for one, value in pairs}
    return {}


def calls(value: ast.expr, name: str) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == name


def test_every_setting_is_declared_in_one_file() -> None:
    """Declared: a field made with `setting`, or a flag of a command with a default that it does not borrow."""
    places: dict[str, set[str]] = {name: set() for name in SETTINGS}
    for file, node in nodes():
        for name, value in defaults_of(node).items() if isinstance(node, ast.ClassDef) else ():
            flag = file.startswith("commands/") and not calls(value, "same")
            if name in places and (flag or calls(value, "setting")) and name not in OTHERS.get(node.name, ()):
                places[name].add(file)
    assert {name: files for name, files in places.items() if len(files) != 1} == {}
    assert {file for files in places.values() for file in files} == {"all_settings.py", "experiment/run_settings.py"}


def test_no_class_and_no_function_repeats_defaults() -> None:
    """One value may be the same by chance; two of a run's defaults side by side are a second declaration."""
    usual = {name: one.default for name, one in SETTINGS.items() if one.default is not None}
    for file, node in nodes():
        written = {name: value for name, value in defaults_of(node).items() if isinstance(value, ast.Constant)}
        repeated = {name for name, value in written.items() if name in usual and value.value == usual[name]}
        assert len(repeated) < 2, f"{file}, line {getattr(node, 'lineno', 0)}: {repeated}"


def test_what_is_excepted_above_is_there() -> None:
    there = {node.name: defaults_of(node).keys() for _, node in nodes() if isinstance(node, ast.ClassDef)}
    assert {name for name, flags in OTHERS.items() if not flags <= there[name]} == set()


def test_every_sentence_stands_in_one_place() -> None:
    """The options of parts have sentences too, which may be the same."""
    texts: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        options = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "option"]
        left_out = {id(inner) for node in options for inner in ast.walk(node)}
        texts.update(
            " ".join(node.value.split())
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out
        )
    found = {name: texts[one.metadata["help"]] for name, one in SETTINGS.items()}
    assert {name: count for name, count in found.items() if count != 1} == {}


def test_python_and_the_command_line_inherit_the_settings() -> None:
    """No class has a setting of its own making under the name of a setting of a run: at most another default."""
    for declared in EVERY_CLASS:
        for name, one in settings_in(declared).items():
            if name in SETTINGS and name != "out":
                assert one.metadata.keys() == SETTINGS[name].metadata.keys()
                assert {**one.metadata, "help": ""} == {**SETTINGS[name].metadata, "help": ""}, f"{declared}: {name}"


def test_hosts_hold_the_declaration_itself() -> None:
    assert {field.name for field in dataclasses.fields(Setup)} & SETTINGS.keys() == {"model", "device"}
    assert issubclass(Experiment, SiteSettings)
    at_sites = Experiment(rounds=3, optimizer={"kind": "sgd", "lr": 0.1}, least_count=2).at_sites()
    assert type(at_sites) is SiteSettings
    assert (at_sites.rounds, at_sites.least_count, type(at_sites.optimizer)) == (3, 2, str)
    json.dumps(dataclasses.asdict(at_sites))


# A new setting is written into the text of one file; the process that imports this text shows what it touches.
ADDED = """
import contextlib, inspect, io, json, sys, types
from pathlib import Path
import fedwinnow

text = (Path(fedwinnow.__file__).parent / "all_settings.py").read_text(encoding="utf-8")
line = '    patience_of_all: int = setting(7, "A setting that is new.", at_least=1, since="9.9")\\n'
place = "    seed: int = setting("
assert text.count(place) == 1
module = sys.modules["fedwinnow.all_settings"] = types.ModuleType("fedwinnow.all_settings")
exec(compile(text.replace(place, line + place), "all_settings.py", "exec"), module.__dict__)

from fedwinnow.cli import main

def command(*words):
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as complained:
        with contextlib.suppress(SystemExit):
            main(list(words))
    return " ".join((said.getvalue() + complained.getvalue()).replace("│", " ").split())

found = {"help": {name: command(name, "--help") for name in ("run", "sweep", "serve")}}
assert not {"torch", "scipy"} & sys.modules.keys()
found["refused"] = command("run", "--patience-of-all", "0")
Path("own.toml").write_text("patience_of_all = 0\\n")
found["toml"] = command("run", "--config", "own.toml")
words = ["--data", "digits:train=60", "--model", "linear", "--clients", "2", "--rounds", "1", "--epochs", "1"]
Path("own.toml").write_text("patience-of-all = 8\\n")
command("run", *words, "--config", "own.toml", "--out", "from-file")
found["run folder"] = Path("from-file/config.toml").read_text()
for function in (fedwinnow.run, fedwinnow.sweep, fedwinnow.audit):
    parameter = inspect.signature(function).parameters["patience_of_all"]
    found[function.__name__] = [parameter.annotation, parameter.default, " ".join(function.__doc__.split())]
from fedwinnow.experiment.run_folder import ADDED
found["older folders"] = ADDED["patience_of_all"]
from fedwinnow.experiment.settings import Experiment
found["site"] = Experiment(patience_of_all=9).at_sites().patience_of_all
print(json.dumps(found))
"""


def test_a_new_setting_touches_one_file(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-c", ADDED], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout)
    for name in ("run", "sweep", "serve"):
        assert "--patience-of-all INT A setting that is new. (default: 7)" in found["help"][name]
    for said in (found["refused"], found["toml"]):
        assert "error: --patience-of-all 0 was given; allowed: 1 or more." in said
    assert "\npatience_of_all = 8\nseed = 0\n" in found["run folder"]
    for name in ("run", "sweep", "audit"):
        kind, default, text = found[name]
        assert (kind, default) == ("int", 7)
        assert "patience_of_all=7 A setting that is new." in text
    assert found["older folders"] == 7
    assert found["site"] == 9


# --- the parts of the machinery ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Few:
    share: float = setting(0.5, "A share.", above=0, at_most=1)
    count: int = setting(3, "A count.", at_least=1)
    part: Any = setting(None, "A part.")
    limit: float | None = setting(None, "A limit.", above=0)
    word: Literal["one", "two"] = setting("one", "A word.")

    def __post_init__(self) -> None:
        check_settings(self)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"share": 0.0}, "--share 0.0 was given; allowed: above 0 and at most 1."),
        ({"count": 0}, "--count 0 was given; allowed: 1 or more."),
        ({"count": 1.5}, "--count=1.5 was given; allowed: a whole number."),
        ({"limit": -1.0}, "--limit -1.0 was given; allowed: above 0, or none."),
        ({"word": "three"}, "unknown value of --word: 'three'"),
    ],
)
def test_a_wrong_value_is_refused_in_the_words_of_the_declaration(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        Few(**wrong)
    assert said in str(refused.value)


def test_another_default_keeps_bounds_and_order() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    @changed(count=7, limit=(0.5, "Another limit."))
    class Others(Few):
        """With other defaults."""

    assert list(settings_in(Others)) == list(settings_in(Few))
    assert (Others().count, Others().limit, Few().count) == (7, 0.5, 3)
    assert settings_in(Others)["limit"].metadata["help"] == "Another limit."
    assert settings_in(Others)["count"].metadata["help"] == "A count."
    with pytest.raises(UsageError, match="--count 0 was given; allowed: 1 or more"):
        Others(count=0)
    assert taken(Few, Others(share=0.25)) == Few(share=0.25, count=7, limit=0.5)


def test_what_is_no_setting_is_not_taken_over() -> None:
    """The judge of an audit is a setting of the audit; what the sites keep in mind is not one of the execution."""
    assert taken(Execution, AuditKeywords(judge="final", backend="processes")) == Execution(backend="processes")


@pytest.mark.parametrize(
    ("hint", "default", "expected"),
    [
        (Any, "x", str),
        (Any, None, str | None),
        (int, 3, int),
        (int, None, int | None),
        (str | Path | None, None, Path | None),
        (bool | Literal["all", "stale"] | None, None, Literal["all", "stale"] | None),
    ],
)
def test_the_type_that_a_command_line_writes(hint: Any, default: Any, expected: Any) -> None:
    assert written_type(hint, default) == expected
