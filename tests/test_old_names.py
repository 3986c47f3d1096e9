"""Names of version 0.1 that users wrote down still work, and each is warned of once."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedwinnow
from fedwinnow import catalogue
from fedwinnow.cli import dispatch
from fedwinnow.errors import FedwinnowWarning, UsageError
from fedwinnow.federation.method import Verdict, find_method
from fedwinnow.old_names import MODULES, new_module, warn_of_old_name
from fedwinnow.testing import toy_data

AUDIT = {"rounds": 2, "epochs": 1, "clients": 3, "seed": 0}


@pytest.fixture(autouse=True)
def nothing_said_yet() -> Iterator[None]:
    warn_of_old_name.cache_clear()
    yield
    warn_of_old_name.cache_clear()


def test_the_command_judgements(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(FedwinnowWarning, match="fedwinnow judgements is now fedwinnow judges") as told:
        assert dispatch(["judgements"]) == 0
    old = capsys.readouterr().out
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dispatch(["judges"]) == 0
    assert capsys.readouterr().out == old


@pytest.mark.parametrize("flag", [["--judgement", "final"], ["--judgement=final"]])
def test_the_flag_judgement(flag: list[str], tmp_path: Path) -> None:
    words = ["audit", "--data", "digits:train=60", "--clients", "2", "--rounds", "1", "--out", str(tmp_path), "--quiet"]
    with pytest.warns(FedwinnowWarning, match="--judgement is now --judge") as told:
        assert dispatch([*words, *flag]) == 0
    assert len([one for one in told if "is now" in str(one.message)]) == 1
    assert '"judge": "final' in (tmp_path / "audit.json").read_text()


def test_an_old_flag_counts_only_where_the_new_one_exists() -> None:
    with pytest.raises(UsageError, match="unknown flag '--judgement'"):
        dispatch(["run", "--judgement", "mean"])


def test_the_keyword_in_python() -> None:
    with pytest.warns(FedwinnowWarning, match="judgement is now judge"):
        old = fedwinnow.audit(data=toy_data(), judgement="final", **AUDIT)  # type: ignore[call-overload]
    new = fedwinnow.audit(data=toy_data(), judge="final", **AUDIT)  # type: ignore[call-overload]
    assert (old.score == new.score).all()
    assert old.facts["judge"].startswith("final")


def auroc(method: str, folder: Path) -> float:
    settings = {"clients": 3, "rounds": 2, "epochs": 1, "noise": "constant:rate=0.3"}
    run = fedwinnow.run(data=toy_data(), method=method, out=folder, **settings)  # type: ignore[arg-type]
    return float(run.summary["detection"]["samples"]["auroc"])


OLD_METHOD = """
from fedwinnow.{module} import {base}
from fedwinnow.federation.method import Verdict


class Mine({base}):
    \"\"\"Doubts what its base believes.\"\"\"

    name = "mine"

    def judge(self, client, got):
        found = super().judge(client, got)
        return Verdict(1 - found.p_wrong, found.suggested)
"""


@pytest.mark.parametrize(("module", "base"), [("federation.method", "Method"), ("methods.fedgr", "FedGr")])
def test_a_third_partys_method_that_defines_judge(module: str, base: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OLD_METHOD.format(module=module, base=base))
    with pytest.warns(FedwinnowWarning, match="Mine.judge is now verdict") as told:
        theirs = auroc(str(file), tmp_path / "theirs")
    assert len([one for one in told if "is now" in str(one.message)]) == 1
    name = "fedavg" if base == "Method" else "fedgr"
    assert theirs == pytest.approx(1 - auroc(name, tmp_path / "ours"))


OLD_TRAINING = """
from fedwinnow.federation.method import Method


class Mine(Method):
    \"\"\"Makes every step twice.\"\"\"

    name = "mine"

    def train(self, client, got):
        def twice(step, model):
            def both():
                step()
                step()

            return both

        self.load(client, got)
        client.fit(lambda rows, x, y: self.objective(client, rows, x, y, got), {keyword}=twice)
        return self.reply(client)
"""


def test_a_third_partys_method_that_wraps_the_step_by_the_old_name(tmp_path: Path) -> None:
    def weights(keyword: str) -> dict[str, torch.Tensor]:
        file = tmp_path / f"{keyword}.py"
        file.write_text(OLD_TRAINING.format(keyword=keyword))
        auroc(str(file), tmp_path / keyword)
        return load_file(tmp_path / keyword / "state.safetensors")

    with pytest.warns(FedwinnowWarning, match="around= of fit is now wrap_step=") as told:
        old = weights("around")
    assert len([one for one in told if "is now" in str(one.message)]) == 1
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* is now ")
        new = weights("wrap_step")
    assert all(torch.equal(new[key], value) for key, value in old.items())


def test_who_asks_a_method_by_the_old_name_gets_its_verdict() -> None:
    method = find_method("fedgr")
    assert type(method).judge is type(method).verdict  # type: ignore[attr-defined]


def test_an_installed_judge_of_the_old_group(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    point = EntryPoint("theirs", "fedwinnow.auditing.judges:Final", "fedwinnow.judgements")
    monkeypatch.setattr(catalogue, "entry_points", lambda group: [point] if group == "fedwinnow.judgements" else [])
    catalogue.entries.cache_clear()
    try:
        with pytest.warns(FedwinnowWarning, match="fedwinnow.judgements is now fedwinnow.judges"):
            assert "theirs" in catalogue.entries("judges")
    finally:
        catalogue.entries.cache_clear()


def test_old_modules_are_the_new_ones() -> None:
    """In a process of its own, so that nothing was imported before."""
    program = """
import warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from fedwinnow.parts.losses import CrossEntropy as old
    from fedwinnow.parts import two_gaussians
    from fedwinnow.parts.sample_losses import sample_losses
    from fedwinnow.trackers.tracker import Tracker
    import fedwinnow.federation.payload
from fedwinnow.mathematics.losses import CrossEntropy as new
import fedwinnow.mathematics.losses as module
assert old is new
assert module.__name__ == module.__spec__.name == "fedwinnow.mathematics.losses"
print(sorted(str(one.message).split(" is now")[0] for one in told))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(
        [
            "fedwinnow.federation.payload",
            "fedwinnow.parts",
            "fedwinnow.parts.losses",
            "fedwinnow.parts.sample_losses",
            "fedwinnow.trackers",
            "fedwinnow.trackers.tracker",
        ]
    )


@pytest.mark.parametrize("old", [old for old in MODULES if not old.endswith("flower_app")])
def test_every_old_module_leads_somewhere(old: str) -> None:
    new = new_module(old)
    assert new is not None
    assert catalogue.importlib.import_module(new) is not None


def test_a_verdict_is_still_a_verdict() -> None:
    assert Verdict(torch.zeros(1), torch.zeros(1, dtype=torch.long)).p_wrong.tolist() == [0]


def test_a_module_that_is_gone_has_no_new_name() -> None:
    """Nobody is sent to a place where nothing is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="fedwinnow.parts.average_mixtures")
        with pytest.raises(ModuleNotFoundError, match=r"fedwinnow\.parts\.average_mixtures"):
            catalogue.importlib.import_module("fedwinnow.parts.average_mixtures")
