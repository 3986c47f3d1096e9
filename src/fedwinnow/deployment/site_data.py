"""The data of a site: its own, or some clients of a frozen scene that several machines simulate together."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedwinnow.all_settings import SiteSettings
from fedwinnow.data.content_hash import Contents
from fedwinnow.data.dataset import Dataset, Features
from fedwinnow.data.load import load
from fedwinnow.deployment.agreed_audit import AgreedAudit, audit_in, judged_here, part_in, refuse_other_groups
from fedwinnow.deployment.agreed_encoder import agreed_encoder, agreed_scaling, own_sums
from fedwinnow.deployment.agreement import experiment_of
from fedwinnow.deployment.error_codes import for_others
from fedwinnow.deployment.foreign_text import one_line
from fedwinnow.device import choose_device
from fedwinnow.encoders.make_encoder import DataEncoder
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.encoding import views_asked
from fedwinnow.experiment.prepare import Mask, Stage, prepare, restricted, setup_of
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Host, Sites
from fedwinnow.federation.ledger import usual_least_count
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import find_method
from fedwinnow.models.model import Shape
from fedwinnow.scene.holdings import Holdings
from fedwinnow.scene.scene import Scene
from fedwinnow.setting import check_setting

MOST_OF_CLASS = 200  # letters
MOST_SITES = 1_000_000


@dataclasses.dataclass
class SceneShare:
    """Some clients of a scene."""

    folder: Path
    numbers: tuple[int, ...]
    device: str | None = None
    least_count: int = 0  # this site's own; where the coordinator's is larger, that one holds
    simulated: bool = True
    judged: Mask | None = None  # in an audit, per holding: what the models of the last host judge
    encoder: Any = None  # names the files of the run's encoder on this machine

    def __post_init__(self) -> None:
        self.folder = self.folder.parent if self.folder.suffix == ".npz" else self.folder
        self.scene = Scene.load(self.folder)
        if not self.numbers:
            self.numbers = tuple(range(self.scene.clients))
        if strange := [number for number in self.numbers if number not in range(self.scene.clients)]:
            raise UsageError(
                f"--clients {strange[0]} was given; the scene has the clients 0 to {self.scene.clients - 1}."
            )

    @property
    def samples(self) -> int:
        """How many samples the scene has."""
        return len(self.scene.given)

    def introduction(self, task: dict[str, Any] | None, least_count: int = 0) -> dict[str, Any]:
        """Which clients are here, and of which scene; refused if the coordinator has no scene."""
        if task is not None:
            raise for_others(
                UsageError("the coordinator has --data, this site --scene. Join with --data, or serve with --scene."),
                "scene",
            )
        return {"clients": list(self.numbers), "scene": self.scene.hash}

    def clients(self, run: dict[str, Any], number: int | None) -> tuple[int, ...]:
        """The clients of --clients, or all of the scene."""
        return self.numbers

    def host(self, run: dict[str, Any], number: int | None, memory: Memory) -> Host:
        """The host that a simulation on one machine would have."""
        if run.get("scene") != self.scene.hash:
            raise for_others(
                DataError(
                    f"this site has the scene {self.scene.hash[:12]}, the coordinator {str(run.get('scene'))[:12]}. "
                    f"Copy the coordinator's scene folder."
                ),
                "scene",
            )
        encoder = self.agree_on_encoder(run)
        experiment = with_floor(experiment_of(run, scene=self.folder), self.least_count)
        if encoder is not None:
            experiment = dataclasses.replace(experiment, encoder=encoder.encoder)
        stage: Stage = prepare(experiment, self.scene)
        audit = audit_in(run)
        if audit is not None:
            part = part_in(stage, audit)
            stage, self.judged = part.stage, part.judged
        device = choose_device(self.device, mixed_precision=stage.experiment.mixed_precision)
        setup = setup_of(stage.experiment, str(device), "" if audit is None else audit.judge)
        return Host(stage.sites, stage.judged, stage.parts, stage.method, setup, memory)

    def agree_on_audit(self, agreed: AgreedAudit) -> None:
        """Nothing to agree on: every machine has the whole scene, with its groups."""

    def agree_on_encoder(self, run: dict[str, Any]) -> DataEncoder | None:
        """The encoder of a run, with the weights of the coordinator; None if the run has none."""
        spec = experiment_of(run).encoder
        return agreed_encoder(spec, {**run, "task": None}, self.scene.dataset, self.encoder)

    def shape_of_model(self, run: dict[str, Any]) -> Shape:
        """The shape of what the model is shown."""
        encoder = self.agree_on_encoder(run)
        return Shape.of(self.scene.dataset) if encoder is None else encoder.head_shape

    def sums(self, run: dict[str, Any]) -> Tensor | None:
        """Nobody asks a simulation for sums: every machine has the whole scene."""
        raise for_others(UsageError("the coordinator asked for sums, which a simulation does not need."), "question")

    def contents(self) -> Contents:
        """The hash of the scene's data."""
        return self.scene.dataset.known_contents()

    def name_of(self, client: int, name: str) -> str:
        """Sites have the names that the scene gives them."""
        return self.scene.site_names[client]

    def class_names(self, run: dict[str, Any]) -> tuple[str, ...]:
        """The classes of the scene."""
        return self.scene.data.class_names

    @property
    def dataset(self) -> Dataset:
        """The data of the scene."""
        return self.scene.dataset


@dataclasses.dataclass
class OwnData:
    """The data of a real site, which stays there."""

    dataset: Dataset
    device: str | None = None
    least_count: int = 0  # this site's own; where the coordinator's is larger, that one holds
    simulated: bool = False
    judged: Mask | None = None  # in an audit, per holding: what the models of the last host judge
    encoder: Any = None  # names the files of the run's encoder on this machine

    @property
    def samples(self) -> int:
        """How many samples are here."""
        return len(self.dataset.train)

    def introduction(self, task: dict[str, Any] | None, least_count: int = 0) -> dict[str, Any]:
        """The number of samples, or that there are too few; the data is compared with the task first."""
        if task is None:
            raise for_others(
                UsageError("the coordinator has --scene, this site --data. Join with --scene, or serve with --data."),
                "scene",
            )
        self.labels(task)
        samples = len(self.dataset.train)
        return {"few": True} if samples < max(least_count, self.least_count) else {"samples": samples}

    def clients(self, run: dict[str, Any], number: int | None) -> tuple[int, ...]:
        """This site is one client."""
        return () if number is None else (int(number),)

    def host(self, run: dict[str, Any], number: int | None, memory: Memory) -> Host:
        """A host with the samples of this site only."""
        task, (client, clients) = run["task"], place_in(run, number)
        experiment = with_floor(experiment_of(run), self.least_count)
        method = find_method(experiment.method)
        given, encoder = self.labels(task), self.agree_on_encoder(run)
        offsets = np.zeros(clients + 1, np.int64)
        offsets[client + 1 :] = len(given)
        holdings = Holdings(np.arange(len(given)), offsets)
        if encoder is None:
            features: Features = self.dataset.train.features
            shape, mean, std = Shape.from_table(task["shape"]), tuple(task["mean"]), tuple(task["std"])
        else:
            scaling, images = agreed_scaling(run, encoder), self.dataset.train.features
            rows = encoder.features(self.dataset.train).scaled(scaling)
            features = encoder.with_views(rows, images, scaling, views_asked(method, experiment.views))
            shape, mean, std = encoder.head_shape, (), ()
        judged = sites = Sites(features, holdings, given, shape, mean, std)
        audit = audit_in(run)
        if audit is not None:
            refuse_other_groups(self.dataset, audit)
            self.judged = judged_here(self.dataset, audit, experiment.seed, client)
            if audit.fold is not None:
                keep = ~self.judged
                sites = dataclasses.replace(judged, holdings=restricted(holdings, keep), given=given[keep])
        device = choose_device(self.device, mixed_precision=experiment.mixed_precision)
        setup = setup_of(experiment, str(device), "" if audit is None else audit.judge)
        setup = dataclasses.replace(setup, earnest=True)
        return Host(sites, judged, {}, method, setup, memory)

    def agree_on_audit(self, agreed: AgreedAudit) -> None:
        """Refuse an audit by groups where the data here is read without them."""
        refuse_other_groups(self.dataset, agreed)

    def agree_on_encoder(self, run: dict[str, Any]) -> DataEncoder | None:
        """The encoder of a run, with the weights of the coordinator; None if the run has none."""
        return agreed_encoder(experiment_of(run).encoder, run, self.dataset, self.encoder)

    def shape_of_model(self, run: dict[str, Any]) -> Shape:
        """The shape of what the model is shown, by the coordinator's task."""
        encoder = self.agree_on_encoder(run)
        return Shape.from_table(run["task"]["shape"]) if encoder is None else encoder.head_shape

    def sums(self, run: dict[str, Any]) -> Tensor | None:
        """The sums of the encoder's columns; None if there are too few samples."""
        encoder = self.agree_on_encoder(run)
        if encoder is None:
            raise for_others(
                UsageError("the coordinator asked for the sums of an encoder, but the run has none."), "question"
            )
        return own_sums(self.dataset, encoder, max(experiment_of(run).least_count, self.least_count))

    def labels(self, task: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The labels as numbers of the coordinator's classes; an error if the data does not fit the task.

        The coordinator is not told the name of an unknown class: if the site chose the wrong column as the label, the
        name may be anything from its table.
        """
        ours, theirs = self.dataset.class_names, [str(name) for name in task["class_names"]]
        if odd := [name for name in theirs if name not in ours and name != one_line(name, MOST_OF_CLASS)]:
            raise for_others(
                DataError(
                    f"the coordinator has the class {one_line(odd[0], 80)!r}; allowed: at most {MOST_OF_CLASS} "
                    f"letters, without control characters or blanks at the ends."
                ),
                "classes",
            )
        if strange := [name for name in ours if name not in theirs]:
            raise for_others(
                DataError(
                    f"the data here has the class {strange[0]!r}, which is not among the coordinator's: "
                    f"{', '.join(theirs)}. Correct the labels, or agree on the classes."
                ),
                "classes",
            )
        own, agreed = Shape.of(self.dataset), Shape.from_table(task["shape"])
        if (own.kind, own.sample_shape, own.vocabulary) != (agreed.kind, agreed.sample_shape, agreed.vocabulary):
            raise for_others(
                DataError(
                    f"the samples here are {own.kind} of the shape {own.sample_shape}, the coordinator's are "
                    f"{agreed.kind} of the shape {agreed.sample_shape}. For tables, use the coordinator's schema "
                    f"(schema=FILE)."
                ),
                "samples",
            )
        number = np.array([theirs.index(name) for name in ours], np.int64)
        return number[self.dataset.train.labels]

    def contents(self) -> Contents:
        """The hash of the data."""
        return self.dataset.known_contents()

    def name_of(self, client: int, name: str) -> str:
        """A real site has its own name."""
        return name

    def class_names(self, run: dict[str, Any]) -> tuple[str, ...]:
        """The classes of the task."""
        return tuple(run["task"]["class_names"])


def place_in(run: dict[str, Any], number: int | None) -> tuple[int, int]:
    """Which site of how many this one is; refused before room is made for all of them."""
    clients = run.get("clients")
    if type(clients) is not int or type(number) is not int or not 0 <= number < clients <= MOST_SITES:
        raise for_others(
            DataError(
                f"the coordinator says that this is site {one_line(number, 40)} of {one_line(clients, 40)}; allowed: "
                f"numbers from 0, and at most {MOST_SITES:,} sites."
            ),
            "message",
        )
    return number, clients


def with_floor(experiment: Experiment, least_count: int) -> Experiment:
    """The settings with the larger of the coordinator's and the site's least count."""
    return dataclasses.replace(experiment, least_count=max(experiment.least_count, least_count))


def holding_of(
    data: str | None,
    scene: Path | None,
    clients: str | None,
    device: str | None,
    least_count: int | None = None,
    encoder: str | None = None,
) -> OwnData | SceneShare:
    """Read and check the data of this site, before it connects."""
    least_count = usual_least_count(simulated=scene is not None) if least_count is None else least_count
    check_setting(SiteSettings, "least_count", least_count)
    if (data is None) == (scene is None):
        raise UsageError("give --data or --scene, one of them.")
    if scene is not None:
        return SceneShare(scene, numbers_in(clients), device, least_count, encoder=encoder)
    if clients is not None:
        raise UsageError(f"--clients {clients} was given with --data; allowed: with --scene.")
    return OwnData(load(data or ""), device, least_count, encoder=encoder)


def numbers_in(text: str | None) -> tuple[int, ...]:
    """The numbers in a text such as 0-2,5; empty for None."""
    numbers: list[int] = []
    for piece in text.split(",") if text else []:
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", piece)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise UsageError(f"--clients {text} was given; allowed: numbers and ranges such as 0-49 or 0,2,5-9.")
        numbers += range(int(found[1]), int(found[2] or found[1]) + 1)
    return tuple(sorted(set(numbers)))
