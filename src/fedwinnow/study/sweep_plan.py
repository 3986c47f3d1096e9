"""The runs of a sweep: methods x scenes x seeds, each with its own folder."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from fedwinnow.errors import UsageError, unknown
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.summary import plain
from fedwinnow.files import FIRST, FORMAT, check_format, demand, json_of
from fedwinnow.options import Part
from fedwinnow.study.current_code import Present

State = Literal["new", "broken", "finished", "stale"]
Settings = dict[str, Any]
Book = dict[str, dict[str, str]]  # by a run's folder within the sweep
SETTINGS = tuple(field.name for field in dataclasses.fields(Experiment))
PATIENCE = 60.0  # seconds to wait for another process that writes sweep.json
BOOK = "sweep.json"  # the settings of every folder, so that a finished run is recognised without making its scene


@dataclass(frozen=True)
class Variant:
    """A row or a column of a sweep: its name and its settings."""

    name: str
    settings: Settings

    @property
    def folder(self) -> str:
        """The name as a part of a path; a few digits of a hash replace letters that a path cannot have."""
        words = re.sub(r"[^A-Za-z0-9.=]+", "-", self.name).strip("-.")[:80]
        return words if words == self.name else f"{words}-{sha256(self.name.encode()).hexdigest()[:6]}"


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    row: str
    scene: str
    seed: int
    folder: Path
    settings: Settings

    @property
    def experiment(self) -> Experiment:
        """The settings as an experiment; a value out of range is refused."""
        return Experiment(**self.settings)

    @property
    def request(self) -> dict[str, str]:
        """The settings as texts, to compare with those of an earlier sweep."""
        return {key: in_words(value) for key, value in sorted(self.settings.items())}

    def state(self) -> State:
        """Whether the folder holds a finished run, a part of one or nothing; `Plan.state` also knows stale runs."""
        if not (self.folder / "config.toml").exists():
            return "new"
        played = self.rounds_finished()
        return "finished" if played is not None and played >= self.experiment.rounds else "broken"

    def rounds_finished(self) -> int | None:
        """The rounds of the run in the folder; None if the run is not finished."""
        try:
            summary = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
            return int(summary["rounds"]) if summary["status"] == "finished" else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep, paired: with the same seed every row has the same scene and the same first weights."""

    out: Path
    jobs: tuple[Job, ...]
    present: Present = field(default_factory=Present, compare=False, repr=False)

    def state(self, job: Job) -> State:
        """The state of a job; stale: its run was made with other code or data than there is now."""
        state = job.state()
        return "stale" if state != "new" and self.why_stale(job) is not None else state

    def why_stale(self, job: Job) -> str | None:
        """What has changed since a job's run was made; None if nothing has."""
        return self.present.reason(job.folder, job.experiment)

    def check(self) -> None:
        """Refuse unknown names and folders with other runs, before anything is played."""
        from fedwinnow import catalogue
        from fedwinnow.data.dataset import Dataset
        from fedwinnow.data.load import understood
        from fedwinnow.federation.method import find_method
        from fedwinnow.scene.noise import make_noise

        for job in self.jobs:
            experiment = job.experiment
            find_method(experiment.method)
            if not isinstance(experiment.data, Dataset):
                catalogue.make("data", understood(experiment.data))
            catalogue.make("partitions", experiment.partition)
            catalogue.make("optimizers", experiment.optimizer)
            if experiment.noise is not None:
                make_noise(experiment.noise)
        book = self.book()
        for job in self.jobs:
            refuse_longer(job)
            asked = book.get(self.place(job))
            if asked is not None and job.state() != "new":
                refuse_other_request(job, asked)

    def place(self, job: Job) -> str:
        """A job's folder within the sweep."""
        return job.folder.relative_to(self.out).as_posix()

    def book(self) -> Book:
        """The settings of earlier sweeps into this folder."""
        return read_book(self.out).get("runs", {})

    def write_book(self) -> None:
        """Add the settings of this sweep to those of earlier ones."""
        from fedwinnow.experiment.run_folder import RunFolder
        from fedwinnow.files import write_text

        with RunFolder(self.out).locked(patience=PATIENCE):  # several processes may share a sweep
            write_text(self.out / BOOK, json.dumps(self.longer_book(), indent=1) + "\n")

    def longer_book(self) -> dict[str, Any]:
        """The content of sweep.json with the runs of this sweep."""
        before = read_book(self.out)
        runs = before.get("runs", {}) | {self.place(job): job.request for job in self.jobs}
        names = before.get("names", {}) | {self.place(job): {"row": job.row, "scene": job.scene} for job in self.jobs}
        return {"format": FORMAT, "runs": runs, "names": names}


def in_words(value: Any) -> str:
    """A setting as a text that is the same in every process, so without the address of an object."""
    if isinstance(value, list | tuple):
        return ", ".join(map(in_words, value))
    known = value is None or isinstance(value, bool | int | float | str | Path | dict | Part)
    return str(value) if known else str(plain(value))


def read_book(out: Path) -> dict[str, Book]:
    """The content of sweep.json: by folder the settings of a run, and the names of its row and scene."""
    path = out / BOOK
    if not path.exists():
        return {}
    content = json_of(path)
    check_format(path, content.pop("format", FIRST))
    demand(str(path), content, {"runs": {"*": {"*": str}}, "names?": {"*": {"row": str, "scene": str}}})
    return {name: content[name] for name in ("runs", "names") if name in content}


def refuse_longer(job: Job) -> None:
    """Refuse a finished run with more rounds than the sweep has: it cannot be cut."""
    played = job.rounds_finished()
    if played is not None and played > job.experiment.rounds:
        raise UsageError(
            f"{job.folder} holds a finished run of {played} rounds, but the sweep has {job.experiment.rounds} rounds; "
            f"allowed: {played} or more, or another --out."
        )


def refuse_other_request(job: Job, asked: Mapping[str, str]) -> None:
    """Refuse a folder that holds a run with other settings."""
    now = job.request
    differing = [key for key in now if key != "rounds" and asked.get(key, now[key]) != now[key]]
    if differing:
        words = "; ".join(f"{key} ({asked[key]} there, {now[key]} now)" for key in differing)
        raise UsageError(f"{job.folder} holds a run with other settings: {words}. Choose another --out.")


def make_plan(
    out: Path, rows: Sequence[Variant], scenes: Sequence[Variant], seeds: Sequence[int], base: Settings
) -> Plan:
    """Every row on every scene with every seed; a row's settings override a scene's, and these the common ones."""
    given = {
        "method": [row.name for row in rows],
        "scene": [scene.name for scene in scenes],
        "seed": list(map(str, seeds)),
    }
    for what, names in given.items():
        if not names:
            raise UsageError(f"the sweep has no {what}; allowed: one or more.")
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"the sweep has the {what} '{twice[0]}' twice; leave one out, or give it another name.")
    jobs = []
    for seed in seeds:
        for scene in scenes:
            for row in rows:
                settings = {**base, **scene.settings, **row.settings, "seed": int(seed)}
                for key in settings:
                    if key not in SETTINGS:
                        raise unknown("setting", key, SETTINGS)
                folder = out / scene.folder / row.folder / f"seed-{seed}"
                jobs.append(Job(row.name, scene.name, int(seed), folder, settings))
    return Plan(out, tuple(jobs))


def variants(given: Sequence[str | Mapping[str, Any]], key: str, what: str) -> list[Variant]:
    """Rows or scenes from specs or from tables of settings; a table may have the key `name`."""
    found = []
    for one in given:
        if isinstance(one, str):
            found.append(Variant(one, {key: one}))
            continue
        if not isinstance(one, Mapping) or not one:
            raise UsageError(f"{one!r} was given as a {what}; allowed: a text, or a table of settings.")
        settings = {str(name).replace("-", "_"): value for name, value in one.items() if name != "name"}
        name = str(one.get("name") or ", ".join(map(in_words, settings.values())))
        found.append(Variant(name, settings))
    return found
