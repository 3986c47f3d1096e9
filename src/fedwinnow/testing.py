"""One tester for all methods, ours and yours: derive from `MethodTester`, name the method, and pytest does the rest.


class TestMine(MethodTester):
    method = "./my_method.py"
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedwinnow.api import run
from fedwinnow.backends.make_backend import Serial
from fedwinnow.data.dataset import Dataset, Resident, Samples
from fedwinnow.errors import RunError
from fedwinnow.experiment.play import Watcher
from fedwinnow.experiment.result import Result
from fedwinnow.federation.method import find_method

CHANGING = {"seconds", "evaluation_seconds", "memory_mb"}  # what no two runs share
PLAYED: dict[
    type, Result
] = {}  # not a fixture of the class: pytest has two ways to write one, and no version knows both


def toy_data(samples: int = 120, classes: int = 3, *, spread: float = 0.7, seed: int = 0) -> Dataset:
    """Blobs on a circle: easy enough to learn in a few rounds, small enough to train in milliseconds."""
    generator = np.random.RandomState(seed)
    labels = np.arange(samples + 60) % classes
    angle = 2 * np.pi * labels / classes
    rows = 2 * np.stack([np.cos(angle), np.sin(angle)], axis=1) + spread * generator.normal(size=(len(labels), 2))
    features = rows.astype(np.float32)

    def part(where: slice) -> Samples:
        return Samples(Resident(features[where]), labels[where], np.arange(len(labels))[where])

    names = tuple(f"class {number}" for number in range(classes))
    return Dataset("toy", "rows", names, part(slice(0, samples)), part(slice(samples, None)))


def comparable(folder: Path) -> dict[str, Any]:
    """Everything a run leaves that must not depend on when, where or in how many pieces it ran."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or name in (".lock", "environment.json", "report.html"):
            continue
        if name == "rounds.jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{key: value for key, value in row.items() if key not in CHANGING} for row in rows]
        elif name == "summary.json":
            summary = json.loads(path.read_text())
            summary["cost"] = {k: v for k, v in summary["cost"].items() if k not in ("seconds", "peak_memory_mb")}
            found[name] = summary
        else:
            found[name] = path.read_bytes()
    return found


class MethodTester:
    """What every method must stand."""

    method: ClassVar[Any] = ""
    settings: ClassVar[dict[str, Any]] = {}  # settings that the method needs, for example {"trusted": 0.2}
    rounds: ClassVar[int] = 4

    def play(self, folder: Path, **changes: Any) -> Result:
        """A small run of the method."""
        settings: dict[str, Any] = {
            "data": toy_data(),
            "clients": 6,
            "participation": 0.5,
            "rounds": self.rounds,
            "epochs": 1,
            "batch_size": 8,
            "optimizer": "sgd:lr=0.1",
            "noise": "uniform:share=0.5,low=0.3,high=0.5",
            "method": self.method,
            **self.settings,
        }
        return run(out=folder, **(settings | changes))

    @pytest.fixture
    def played(self, tmp_path_factory: pytest.TempPathFactory) -> Result:
        """The usual run, made once for all tests of the class, which only look at it."""
        if type(self) not in PLAYED:
            PLAYED[type(self)] = self.play(tmp_path_factory.mktemp("played"))
        return PLAYED[type(self)]

    def test_it_runs_and_leaves_a_whole_folder(self, played: Result) -> None:
        assert played.summary["status"] == "finished"
        assert len(played.rounds) == self.rounds
        assert all(row["stage"] for row in played.rounds)
        for name in ("config.toml", "scene.npz", "scene.json", "clients.csv", "ledger.json", "state.safetensors"):
            assert (played.folder / name).stat().st_size > 0

    def test_the_seed_decides(self, played: Result, tmp_path: Path) -> None:
        assert comparable(self.play(tmp_path / "again").folder) == comparable(played.folder)
        other = self.play(tmp_path / "other", seed=1)
        assert (other.folder / "state.safetensors").read_bytes() != (played.folder / "state.safetensors").read_bytes()

    def test_nobody_is_sent_what_others_just_answered(
        self, played: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usual = Serial.exchange
        monkeypatch.setattr(Serial, "exchange", lambda backend, tasks: usual(backend, list(tasks)))
        at_once = self.play(tmp_path)
        assert comparable(at_once.folder) == comparable(played.folder)

    def test_resumed_midway_equals_uninterrupted(self, played: Result, tmp_path: Path) -> None:
        class Interrupt(BaseException):
            pass

        class Stop(Watcher):
            def round(self, row: dict[str, Any]) -> None:
                if row["round"] == 2:
                    raise Interrupt

        with pytest.raises(Interrupt):
            self.play(tmp_path, watchers=(Stop(),))
        resumed = self.play(tmp_path, resume=True)
        assert comparable(resumed.folder) == comparable(played.folder)

    def test_only_declared_keys_leave_a_site(self, played: Result) -> None:
        ledger = json.loads((played.folder / "ledger.json").read_text())
        exposes = find_method(self.method).exposes
        sent = {key for site in ledger["sites"].values() for key in site}
        assert sent
        assert sent <= exposes.keys()
        assert set(exposes.values()) <= {"model", "client", "sample"}

    def test_verdicts_are_probabilities_and_classes(self, played: Result) -> None:
        detection = played.summary["detection"]
        assert 0 <= detection["samples"]["auroc"] <= 1

    def test_one_class_per_client(self, tmp_path: Path) -> None:
        assert self.play(tmp_path, partition="dirichlet:alpha=0").summary["status"] == "finished"

    def test_one_sample_clients(self, tmp_path: Path) -> None:
        data = toy_data(samples=12)
        assert self.play(tmp_path, data=data, clients=12, noise="none").summary["status"] == "finished"

    def test_nothing_is_clean(self, tmp_path: Path) -> None:
        if "truth" in find_method(self.method).needs:
            # The oracle has nothing left to train on, and says so.
            with pytest.raises(RunError, match="no client"):
                self.play(tmp_path, noise="constant:rate=1")
        else:
            assert self.play(tmp_path, noise="constant:rate=1").summary["status"] == "finished"

    def test_all_losses_equal(self, tmp_path: Path) -> None:
        data = toy_data(spread=0.0)
        assert self.play(tmp_path, data=data, noise="none").summary["status"] == "finished"

    def test_a_loss_that_is_not_a_number_names_the_client(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=r"client 0.*round 1"):
            self.play(tmp_path, clients=1, participation=1.0, optimizer="sgd:lr=1e30")

    def test_the_model_is_made_of_numbers(self, played: Result) -> None:
        state = load_file(played.folder / "state.safetensors")
        assert any(name.startswith("model.") for name in state)
        assert all(bool(torch.isfinite(value.double()).all()) for name, value in state.items() if "model." in name)
