"""Messages speak of keywords to a program, and of flags to the command line."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import fedwinnow
import stages
from fedwinnow import all_settings
from fedwinnow.cli import main
from fedwinnow.errors import FedwinnowError, FedwinnowWarning, UsageError
from fedwinnow.experiment.settings import Experiment
from fedwinnow.python_words import COMMAND, in_python, keywords
from fedwinnow.setting import settings_in
from fedwinnow.testing import toy_data
from remembering import At, interrupt

SOURCE = Path(fedwinnow.__file__).parent
FLAG = re.compile(r"--([a-z][a-z-]+)")
SMALL = {"data": toy_data(), "clients": 4, "rounds": 1, "epochs": 1, "model": "linear"}


def flags_in(text: str) -> list[str]:
    """The flags of a message that are keywords, outside of commands."""
    return [name for name in FLAG.findall(COMMAND.sub("", text)) if name in keywords()]


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("--rounds -1 was given; allowed: 0 or more.", "rounds=-1 was given; allowed: 0 or more."),
        ("--batch-size 0.5 was given", "batch_size=0.5 was given"),
        ("--data my file.csv was given", "data=my file.csv was given"),
        ("--scene none was given", "scene=None was given"),
        ("--out runs/a b: it is a file.", "out=runs/a b: it is a file."),
        ("--out runs/a holds another run", "out=runs/a holds another run"),
        ("Add --resume to continue it, or --redo.", "Add resume=True to continue it, or redo=True."),
        ("Play it with --redo stale again", "Play it with redo='stale' again"),
        ("--mixed-precision was given, and", "mixed_precision=True was given, and"),
        (
            "Give --rounds 80 or more, or a larger --participation.",
            "Give rounds=80 or more, or a larger participation=.",
        ),
        ("a smaller --batch-size or --model, fewer --jobs", "a smaller batch_size= or model=, fewer jobs="),
        ("--site and --clients exclude each other", "site= and clients= exclude each other"),
        ("Give --site COLUMN for a table", "Give site=COLUMN for a table"),
        ("--backend processes: no room", "backend=processes: no room"),
        ("add --public 0.2 (a share)", "add public=0.2 (a share)"),
        ("as the run had, --start runs/x.", "as the run had, start=runs/x."),
        ("Look first: fedwinnow review a.b --anchor 30", "Look first: fedwinnow review a.b --anchor 30"),
        ("`fedwinnow run --rounds 3` or --rounds 3", "`fedwinnow run --rounds 3` or rounds=3"),
        ("fedwinnow gain x --seed 1, then --seed 2", "fedwinnow gain x --seed 1, then seed=2"),
        ("docker run --shm-size=2g), or use --backend serial.", "docker run --shm-size=2g), or use backend=serial."),
        ("the program said --verbose and --rounding", "the program said --verbose and --rounding"),
    ],
)
def test_a_message_in_both_languages(text, python):
    assert in_python(text) == python
    assert in_python(python) == python  # a message that passes two doors is not changed again


def messages() -> list[tuple[str, str]]:
    """Every text in the source that has a flag, with a word for what is computed, by file."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] in ("commands", "deployment", "cli.py", "flags.py", "python_words.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "some" for part in node.values]
                found.append((path.name, "".join(map(str, parts))))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append((path.name, node.value))
    return [(name, text) for name, text in found if FLAG.search(text)]


def test_no_message_of_the_source_keeps_a_flag():
    assert len(messages()) > 150
    assert [(name, text) for name, text in messages() if flags_in(in_python(text))] == []


WRONG = object()
BAD = {"eval_every": 0, "clip": -1, "batch_norm": "no", "views": "no", "model": 3, "method": 3, "optimizer": 3}
BAD |= {"data": 3, "partition": 3, "noise": 3, "encoder": 3, "public": -1, "start": "nowhere", "scene": "nowhere"}
BAD |= {"drop_last": "perhaps", "mixed_precision": "perhaps", "backend": "no", "device": "no", "redo": "no"}


NAMES = [*settings_in(Experiment), *settings_in(all_settings.ExecutionSettings), "out", "track"]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "resume"])  # of which any value is a yes or a no
def test_every_setting_answers_a_wrong_value_in_python(name, tmp_path):
    if name in ("out", "track"):
        value = {"out": tmp_path / "file" / "below", "track": "nothing"}[name]
        (tmp_path / "file").touch()
    else:
        value = BAD.get(name, -1 if name != "seed" else "x")
    given = {**SMALL, "out": tmp_path / "run", name: value}
    if name == "scene":
        given = {"scene": "nowhere"}
    with pytest.raises(FedwinnowError) as caught:
        fedwinnow.run(**given)
    assert flags_in(str(caught.value)) == []
    if name not in ("start", "scene", "partition", "noise", "optimizer", "method", "model", "track", "encoder", "data"):
        assert f"{name}" in str(caught.value)


def mistakes(folder: Path) -> list:
    """What else a program may do wrong, as calls."""
    rows = np.zeros((6, 2))
    return [
        lambda: fedwinnow.run(**SMALL, out=folder / "broken"),
        lambda: fedwinnow.run(**SMALL | {"epochs": 2}, out=folder / "whole"),
        lambda: fedwinnow.run(**SMALL | {"rounds": 2}, out=folder / "whole"),
        lambda: fedwinnow.run(**SMALL | {"data": toy_data(seed=1)}, out=folder / "whole"),
        lambda: fedwinnow.run(**SMALL, backend="processes:workers=0", out=folder / "new"),
        lambda: fedwinnow.run(**SMALL, method="fair", out=folder / "new"),
        lambda: fedwinnow.run(**SMALL, method="./nowhere.py", out=folder / "new"),
        lambda: fedwinnow.run(**SMALL, views="flip", out=folder / "new"),
        lambda: fedwinnow.run(**SMALL, mixed_precision=True, out=folder / "new"),
        lambda: fedwinnow.run(**SMALL, least_count=1000, out=folder / "new"),
        lambda: fedwinnow.run(**SMALL | {"model": "linear+mlp"}, out=folder / "new"),
        lambda: fedwinnow.run(**SMALL, start=folder / "broken", out=folder / "new"),
        lambda: fedwinnow.load(folder / "broken").predict(rows),
        lambda: fedwinnow.load(folder / "whole", site="client-0").predict(rows),
        lambda: fedwinnow.load(folder / "whole").gain,
        lambda: fedwinnow.load(folder / "whole").export(folder / "whole"),
        lambda: fedwinnow.load(folder / "whole").plot("memorisation"),
        lambda: fedwinnow.load(folder / "whole").plot("curves", colum="accuracy"),
        lambda: fedwinnow.load(folder / "whole").plot("sensitivity"),
        lambda: fedwinnow.sweep(["fedavg"], jobs=0),
        lambda: fedwinnow.sweep(["fedavg"], out=None),
        lambda: fedwinnow.table(folder, show=""),
        lambda: fedwinnow.table(folder / "whole", alpha=2),
        lambda: fedwinnow.table(folder / "whole", rows=()),
        lambda: fedwinnow.table(folder / "whole", against="nobody"),
        lambda: fedwinnow.table(folder / "whole").save(folder / "table.doc"),
        lambda: fedwinnow.audit(rows, [0, 1] * 3),
        lambda: fedwinnow.audit(rows, [0, 1] * 3, clients=0),
        lambda: fedwinnow.audit(rows, [0, 1] * 3, clients=2, threshold=3),
        lambda: fedwinnow.audit(rows, [0, 1] * 3, clients=2, threshold=0.5, expected_false_alarms=0.1),
        lambda: fedwinnow.audit(run=folder / "broken"),
        lambda: fedwinnow.audit(run=folder / "whole", judge="mean"),
        lambda: fedwinnow.audit(data="digits", partition="shards"),
        lambda: fedwinnow.update_audit(folder, threshold=7),
        lambda: fedwinnow.Scene.load(folder / "nowhere"),
        lambda: fedwinnow.Scene.make("digits", noise="human"),
        lambda: Experiment(rounds=-1),
    ]


def test_whatever_a_program_does_wrong_is_answered_in_python(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fedwinnow.run(**SMALL | {"rounds": 2}, out=tmp_path / "broken", watchers=(At(1, interrupt),))
    fedwinnow.run(**SMALL, out=tmp_path / "whole")
    said = []
    for place, mistake in enumerate(mistakes(tmp_path)):
        with pytest.raises(FedwinnowError) as caught:
            mistake()
        said.append((place, str(caught.value)))
    assert [(place, text) for place, text in said if flags_in(text)] == []
    assert sum(bool(re.search(r"\b[a-z_]+=", text)) for _, text in said) > 20


def test_warnings_speak_python_too(tmp_path):
    data, groups = toy_data(), {"partition": "dirichlet:alpha=0.1", "least_count": 20}
    with pytest.warns(FedwinnowWarning, match="than least_count=20"):
        stages.run(tmp_path, data=data, **groups)


def test_a_sweep_says_in_python_why_a_run_failed(tmp_path):
    swept = fedwinnow.sweep(["fair"], **{**SMALL, "seeds": 1, "out": tmp_path})
    assert "add trusted=0.2" in swept.failed[0].message


def test_the_command_line_speaks_of_flags(tmp_path, capsys):
    for words in (["run", "--rounds", "-1"], ["scene", "show", "nowhere"]):
        with pytest.raises(SystemExit):
            main(words)
    said = capsys.readouterr().err
    assert "--rounds -1 was given" in said
    assert "fedwinnow scene make --out" in said
    with pytest.raises(UsageError, match="rounds=-1 was given"):  # and afterwards the program speaks Python again
        fedwinnow.run(rounds=-1)


def test_a_warning_outside_a_door_is_as_it_was_written():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("use --rounds", FedwinnowWarning, stacklevel=1)
    assert str(caught[0].message) == "use --rounds"
