"""`fedwinnow methods`: read from source text, complete, and honest about what a method inherits or adds."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

from fedwinnow import catalogue
from fedwinnow.cli import dispatch
from fedwinnow.errors import UsageError
from fedwinnow.federation.method import Method, find_method
from fedwinnow.mathematics.optimizers import Sgd

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"
OWN = '''
from dataclasses import dataclass
from typing import ClassVar
import fedwinnow
from fedwinnow.options import option
import torch_is_not_imported_by_reading

@dataclass(frozen=True)
class Tells(fedwinnow.Method):
    """Sends losses."""

    name: ClassVar[str] = "tells"
    exposes: ClassVar[dict[str, str]] = %s
    needs: ClassVar[tuple[str, ...]] = ("trusted_data",)
    share: float = option(0.5, "A share.", symbol="s", source="Table 2")
'''


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert dispatch(["methods", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(catalogue.entries("methods")))
def test_the_text_says_what_the_class_is(name: str) -> None:
    entry, method = catalogue.find("methods", name), find_method(name)
    assert entry.facts["exposes"] == method.exposes
    assert entry.facts["needs"] == method.needs
    assert (entry.facts["forwards"], entry.facts["asks"]) == (method.forwards, method.asks)
    assert set(method.forwards) <= set(method.exposes)
    assert entry.facts["stages"] == method.stages
    assert entry.facts["citation"] == method.citation != ""
    assert [option.name for option in entry.options] == [key for key in method.values() if key not in method.unused()]


def test_the_list_marks_references(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys)
    for word in ("fedavg", "CHEATS", "NOT FEDERATED", "samples (client)"):
        assert word in text


def test_one_method_from_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(shown(capsys, "fedprox").split())
    for words in ("MLSys 2020", "stages: train", "something about the site", "symbol μ", "FedGR", "squared | norm"):
        assert words in text


def test_machines_get_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    entry = json.loads(shown(capsys, "oracle", "--json"))
    assert entry["facts"]["needs"] == ["truth"]
    assert entry["facts"]["exposes"]["weights"] == "model"
    assert {option["name"] for option in entry["options"]} == {"loss", "mixup", "aggregate", "steady"}


@pytest.mark.parametrize(
    "written",
    [
        '{"weights": "model", "counters": "model", "samples": "client", "losses": "sample"}',
        'fedwinnow.Method.exposes | {"losses": "sample"}',
        '{**fedwinnow.Method.exposes, "losses": "sample"}',
    ],
)
def test_what_an_own_file_adds_to_the_base_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str
) -> None:
    (tmp_path / "mine.py").write_text(OWN % written)
    entry = json.loads(shown(capsys, str(tmp_path / "mine.py"), "--json"))
    assert entry["facts"]["exposes"] == Method.exposes | {"losses": "sample"}
    assert "single samples" in shown(capsys, str(tmp_path / "mine.py"))


def test_exposure_that_source_text_does_not_tell_is_not_guessed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(OWN % "made_elsewhere()")
    assert "exposes" not in json.loads(shown(capsys, str(tmp_path / "mine.py"), "--json"))["facts"]
    assert "ledger.json of a run lists it" in shown(capsys, str(tmp_path / "mine.py"))


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "no such file"), ("class (", "not Python"), ("x = 1", "found: none"), (b"\xff\x00", "not Python")],
)
def test_files_without_a_method_are_explained(tmp_path: Path, text: str | bytes | None, message: str) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=message):
        dispatch(["methods", str(path)])


def test_torch_stays_out() -> None:
    code = (
        "import sys; from fedwinnow.cli import dispatch; dispatch(['methods']); dispatch(['methods', 'gce']); "
        f"dispatch(['methods', {str(EXAMPLE)!r}]); "
        "sys.exit(','.join(name for name in ('torch', 'sklearn', 'scipy') if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_installed_methods_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedwinnow.federation.method import method_in

    trim = method_in(EXAMPLE)
    point = types.SimpleNamespace(name="theirs", value="their_package:Trim", load=lambda: trim)
    monkeypatch.setattr(catalogue, "entry_points", lambda group: [point] if group == "fedwinnow.methods" else [])
    catalogue.entries.cache_clear()
    try:
        method = find_method("theirs:keep=0.25")
        assert method.values()["keep"] == 0.25
        assert catalogue.find("methods", "theirs").facts["exposes"] == Method.exposes
    finally:
        catalogue.entries.cache_clear()


@pytest.mark.parametrize("name", ["feddiv", "fednoro", "fedcorr"])
def test_a_copy_of_one_of_our_files_is_a_method_of_ones_own(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the file has a class for the paper and one that builds on it."""
    original, copy = Path(catalogue.__file__).parent / "methods" / f"{name}.py", tmp_path / "mine.py"
    copy.write_text(original.read_text(encoding="utf-8"), encoding="utf-8")
    assert find_method(f"{copy}:preset=code").values() == find_method(f"{name}:preset=code").values()
    assert name in shown(capsys, str(copy))


def test_a_part_that_is_no_method_is_told_apart() -> None:
    with pytest.raises(UsageError, match="sgd was given as the method, but is a Sgd; allowed: a method, by name"):
        find_method(Sgd())


def test_the_drive_of_a_windows_path_is_part_of_the_file() -> None:
    with pytest.raises(UsageError, match=r"--method C:\\x\\my\.py: there is no such file"):
        find_method("C:\\x\\my.py:keep=0.25")
