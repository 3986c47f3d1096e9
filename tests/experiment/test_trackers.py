"""Trackers: what each is told, that nothing leaves without asking, and that a missing library is said plainly."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fedwinnow
from fedwinnow.errors import UsageError
from fedwinnow.experiment.play import Watcher
from fedwinnow.experiment.trackers import tracker
from fedwinnow.experiment.trackers.tracker import Tracker, make_trackers, numbers_in
from fedwinnow.testing import toy_data

SETTINGS: dict[str, Any] = {"clients": 4, "rounds": 2, "epochs": 1}


class Calls:
    """Stands in for a library or a part of one, and remembers every call."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def named(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(positional, keywords) for called, positional, keywords in self.made if called == name]

    def recorder(self, name: str, result: Any = None) -> Any:
        def record(*positional: Any, **keywords: Any) -> Any:
            self.made.append((name, positional, keywords))
            return result

        return record


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls, module, run = Calls(), types.ModuleType("wandb"), types.SimpleNamespace()
    run.log, run.finish = calls.recorder("log"), calls.recorder("finish")
    run.summary = types.SimpleNamespace(update=calls.recorder("summary"))
    module.init = calls.recorder("init", run)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return calls


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls, module = Calls(), types.ModuleType("mlflow")
    started = types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))
    for name in ("set_tracking_uri", "set_experiment", "log_params", "log_metrics", "end_run"):
        setattr(module, name, calls.recorder(name))
    module.start_run = calls.recorder("start_run", started)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return calls


def test_wandb_stays_offline_unless_asked(wandb: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = fedwinnow.run(data=toy_data(), out=tmp_path / "a", track="wandb", **SETTINGS)
    (_, first) = wandb.named("init")[0]
    assert first["mode"] == "offline"
    assert first["config"]["method.kind"] == "fedavg"
    assert [keywords["step"] for _, keywords in wandb.named("log")] == [1, 2]
    assert wandb.named("log")[1][0][0]["accuracy"] == result.rounds[1]["accuracy"]
    assert wandb.named("summary")[0][0][0]["last.accuracy"] == result.summary["last"]["accuracy"]
    assert wandb.named("finish") == [((), {"exit_code": 0})]
    monkeypatch.setenv("WANDB_MODE", "online")
    fedwinnow.run(data=toy_data(), out=tmp_path / "b", track=["wandb"], **SETTINGS)
    (_, second) = wandb.named("init")[1]
    assert second["mode"] == "online"
    assert second["id"] != first["id"]


def test_mlflow_keeps_its_store_in_the_run_folder(mlflow: Calls, tmp_path: Path) -> None:
    fedwinnow.run(data=toy_data(), out=tmp_path, track="mlflow", **SETTINGS)
    (uri,) = mlflow.named("set_tracking_uri")[0][0]
    assert uri == (tmp_path / "mlruns").resolve().as_uri()
    assert [keywords.get("step") for _, keywords in mlflow.named("log_metrics")] == [1, 2, None]
    assert mlflow.named("end_run") == [(("FINISHED",), {})]
    fedwinnow.run(data=toy_data(), out=tmp_path, track="mlflow", resume=True, **(SETTINGS | {"rounds": 3}))
    assert mlflow.named("start_run")[1] == ((), {"run_id": "abc"})


def test_a_run_that_stops_is_closed_with_its_status(mlflow: Calls, tmp_path: Path) -> None:
    class Stop(Watcher):
        def round(self, row: dict[str, Any]) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedwinnow.run(data=toy_data(), out=tmp_path, track="mlflow", watchers=(Stop(),), **SETTINGS)
    assert mlflow.named("end_run") == [(("KILLED",), {})]


def test_a_tracker_that_never_began_is_not_ended(wandb: Calls, tmp_path: Path) -> None:
    class Impatient(Watcher):
        def started(self, stage: Any, done: int, rounds: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedwinnow.run(data=toy_data(), out=tmp_path, track="wandb", watchers=(Impatient(),), **SETTINGS)
    assert wandb.made == []


def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = fedwinnow.run(data=toy_data(), out=tmp_path, track="tensorboard", **SETTINGS)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    written = [(event.step, event.value) for event in events.Scalars("accuracy")]
    assert written == [(row["round"], pytest.approx(row["accuracy"])) for row in result.rounds]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_library_is_an_error_before_the_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torch.utils.tensorboard", "wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf"pip install '\.\[{name}\]'"):
        fedwinnow.run(data=toy_data(), out=tmp_path / "run", track=name, **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_guessed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'tensorboard'"):
        make_trackers("tensorbord", tmp_path)


def test_no_names_give_no_trackers(tmp_path: Path) -> None:
    assert make_trackers(None, tmp_path) == ()
    assert make_trackers("", tmp_path) == ()


class Printed(Tracker):
    """A third party's tracker."""

    lines: ClassVar[list[str]] = []

    def open(self, config: dict[str, Any], done: int) -> None:
        self.lines.append(f"open {done}")

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.lines.append(f"log {step}")

    def close(self, numbers: dict[str, float], status: str) -> None:
        self.lines.append(status)


def installed(monkeypatch: pytest.MonkeyPatch, name: str, thing: Any) -> None:
    point = types.SimpleNamespace(name=name, value="elsewhere:thing", load=lambda: thing)
    monkeypatch.setattr(tracker, "entry_points", lambda group: [point] if group == "fedwinnow.trackers" else [])


def test_installed_trackers_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "printed", Printed)
    fedwinnow.run(data=toy_data(), out=tmp_path, track="printed", **SETTINGS)
    assert Printed.lines == ["open 0", "log 1", "log 2", "finished"]


def test_an_installed_thing_that_is_no_tracker_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "odd", print)
    with pytest.raises(UsageError, match="does not derive from Tracker"):
        make_trackers("odd", tmp_path)


def test_only_numbers_are_logged() -> None:
    row = {"round": 3, "stage": "train", "accuracy": 0.5, "top5": None, "participants": [1, 2], "deep": {"loss": 1}}
    assert numbers_in(row) == {"round": 3.0, "accuracy": 0.5, "deep.loss": 1.0}
