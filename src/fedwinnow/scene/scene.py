"""The scene: who holds which sample, which labels are wrong, and the share of wrong labels of each site."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwinnow import catalogue
from fedwinnow.all_settings import SceneSettings, SiteSettings
from fedwinnow.data.dataset import Dataset, Features
from fedwinnow.data.labels import warn_of_look_alikes
from fedwinnow.data.source_files import read_npz
from fedwinnow.errors import DataError, UsageError, speaks_python
from fedwinnow.files import FORMAT, Form, Maybe, check_format, demand, json_of, replacing, text_of, write_text
from fedwinnow.options import Part
from fedwinnow.randomness import Floats, Integers
from fedwinnow.scene.holdings import Holdings
from fedwinnow.scene.noise import Ground, make_noise
from fedwinnow.scene.partition import TOGETHER, Partition, Population, deal, warn_of_shared_groups

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class DataReference:
    """Which data a scene belongs to; the data itself is not in it."""

    source: str  # the spec that loads it; empty for arrays in memory
    name: str
    kind: str
    class_names: tuple[str, ...]
    samples: int
    fingerprint: str
    source_hash: str
    test_share: float  # the share that was split off as the test part; 0 where the data has its own test part

    @classmethod
    def of(cls, dataset: Dataset, test_share: float) -> DataReference:
        """The reference to a data set."""
        return cls(
            source=dataset.source,
            name=dataset.name,
            kind=dataset.kind,
            class_names=dataset.class_names,
            samples=len(dataset.train),
            fingerprint=dataset.fingerprint(),
            source_hash=dataset.source_hash,
            test_share=test_share,
        )


@dataclass(frozen=True, eq=False, slots=True)
class SceneSite:
    """What one client may see of its samples; the true labels cannot be reached from here."""

    number: int
    name: str
    features: Features
    given: Integers
    ids: NDArray[Any]
    class_names: tuple[str, ...]
    groups: NDArray[Any] | None = None  # which samples belong together, where the data says it

    def __len__(self) -> int:
        return len(self.given)


@dataclass(frozen=True, eq=False)
class Scene:
    """A frozen scene. Only the evaluation may use it, because it has the true labels; the sites do not."""

    data: DataReference
    seed: int
    partition: str
    noise: str
    definition: str
    holdings: Holdings
    given: Integers  # per holding
    true: Integers | None  # per holding; None where the truth is unknown
    nominal: Floats  # per client; NaN where the noise has no rate
    kinds: tuple[str, ...]
    site_names: tuple[str, ...]
    _dataset: list[Dataset] = field(default_factory=list, repr=False)  # filled when first needed

    @classmethod
    @speaks_python
    def make(
        cls,
        data: Any = SceneSettings.data,
        *,
        clients: int = SceneSettings.clients,
        partition: str | dict[str, Any] | Part = SceneSettings.partition,
        noise: str | dict[str, Any] | Part | None = SceneSettings.noise,
        seed: int = SiteSettings.seed,
        test: float = SceneSettings.test,
        label: Any = None,
        site: Any = None,
        group: Any = None,
    ) -> Scene:
        """Make a scene; everything in it follows from these arguments.

        Without a noise, the labels stay as they are: trusted labels count as true, others as given. `data` is whatever
        `fedwinnow.run` takes; `label`, `site` and `group` name its columns, and with `site` the sites are those of the
        data.
        """
        from fedwinnow.data.load import load, with_test_part

        roles = {"label": label, "site": site, "group": group}
        if not isinstance(data, str | Path | Dataset | Part) or any(role is not None for role in roles.values()):
            from fedwinnow.data.from_program import understood_data

            data = understood_data(data, **roles)
        partition = "column" if site is not None and partition == SceneSettings.partition else partition
        # A program may have changed the arrays of its data set since they were read, so they are hashed again.
        loaded = dataclasses.replace(data, contents=None) if isinstance(data, Dataset) else load(data)
        dataset, rule = with_test_part(loaded, test, seed), catalogue.make("partitions", partition)
        if not isinstance(rule, Partition):
            raise UsageError(f"{partition} is not a partition.")
        mistakes = make_noise(noise or ("none" if dataset.labels_trusted else "given"))
        labels = dataset.train.labels if dataset.train.true is None else dataset.train.true
        groups = dataset.train.groups
        holdings = deal(rule, Population(labels, dataset.classes, clients, seed, dataset.train.sites), groups)
        names = site_names(rule, dataset, holdings.clients)
        if groups is not None and rule.by_data:
            warn_of_shared_groups(dataset.name, holdings, groups, names)
        ground = Ground(dataset, holdings, labels[holdings.rows], seed)
        noisy = mistakes.apply(ground)
        return cls(
            data=DataReference.of(dataset, test if loaded.test is None else 0.0),
            seed=seed,
            partition=str(rule),
            noise=str(mistakes),
            definition=f"Partition: {rule.describe()}. Noise: {mistakes.describe()}."
            + (f" {TOGETHER}" if groups is not None and not rule.by_data else ""),
            holdings=holdings,
            given=noisy.given,
            true=ground.true if noisy.truth_known else None,
            nominal=noisy.nominal,
            kinds=noisy.kinds,
            site_names=names,
            _dataset=[dataset],
        )

    @speaks_python
    def plot(self, name: Literal["partition", "rates", "transitions"] = "partition") -> Figure:
        """A picture of the scene as a figure of matplotlib: who holds what, how wrong, or what labels became.

        Needs the extra `figures`.
        """
        from fedwinnow.notebook import figure_of

        made: Figure = figure_of(name, self)
        return made

    def _repr_html_(self) -> str:
        """A small table for notebooks: what each site holds, and how much of it is wrong."""
        from fedwinnow.notebook import html_table, percent

        columns = (self.site_names, self.holdings.sizes.tolist(), self.kinds, self.nominal, self.realised)
        rows = [
            (name, size, kind, percent(nominal), percent(realised))
            for name, size, kind, nominal, realised in zip(*columns, strict=True)
        ]
        caption = f"{self.data.name}: {self.partition}, {self.noise}; {percent(self.realised_rate)} of the labels wrong"
        return html_table(("site", "samples", "kind", "nominal", "realised"), rows, caption)

    # --- what is in it ---------------------------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        return self.holdings.clients

    @property
    def classes(self) -> int:
        return len(self.data.class_names)

    @property
    def dataset(self) -> Dataset:
        """The data; it is loaded at first use, and checked to be the data that the scene was made from."""
        if not self._dataset:
            from fedwinnow.data.load import load, with_test_part

            if not self.data.source:
                raise DataError(
                    f"this scene was made from data in memory ({self.data.name}), which cannot be loaded again. "
                    "Give it the same data: scene.attach(dataset)."
                )
            self.attach(with_test_part(load(self.data.source), self.data.test_share, self.seed))
        return self._dataset[0]

    def attach(self, dataset: Dataset) -> None:
        """Give the scene its data, for data in memory, which cannot be loaded again."""
        if dataset.fingerprint() != self.data.fingerprint:
            raise DataError(
                f"this scene was made from other data: {self.data.name} with {self.data.samples} training samples, "
                f"fingerprint {self.data.fingerprint[:12]}; given: {dataset.name} with {len(dataset.train)}, "
                f"{dataset.fingerprint()[:12]}. Use the same data, or make the scene anew."
            )
        if self.data.source_hash and dataset.source_hash and self.data.source_hash != dataset.source_hash:
            raise DataError(
                f"{self.data.source}: the file has changed since the scene was made (its labels and ids are the same, "
                f"its content is not). Restore the file, or make the scene anew."
            )
        self._dataset[:] = [dataset]

    def site(self, client: int) -> SceneSite:
        """What one client holds, without the truth."""
        if not 0 <= client < self.clients:
            raise UsageError(f"client {client} was asked for; allowed: 0 to {self.clients - 1}.")
        mine = self.holdings.of(client)
        rows = self.holdings.rows[mine]
        return SceneSite(
            number=client,
            name=self.site_names[client],
            features=self.dataset.train.features.subset(rows),
            given=self.given[mine].copy(),
            ids=self.dataset.train.ids[rows],
            class_names=self.data.class_names,
            groups=None if self.dataset.train.groups is None else self.dataset.train.groups[rows],
        )

    @cached_property
    def wrong(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None:
        """Per holding: whether the given label is wrong; None where the truth is unknown."""
        return None if self.true is None else self.given != self.true

    @cached_property
    def realised(self) -> Floats:
        """The share of wrong labels of every client, counted; NaN where it is unknown or the client is empty."""
        if self.wrong is None:
            return np.full(self.clients, np.nan)
        wrong = np.bincount(self.holdings.client, weights=self.wrong, minlength=self.clients)
        sizes = self.holdings.sizes
        return np.where(sizes > 0, wrong / np.maximum(sizes, 1), np.nan)

    @property
    def realised_rate(self) -> float:
        """The share of wrong labels overall."""
        return math.nan if self.wrong is None or not len(self.wrong) else float(self.wrong.mean())

    @property
    def nominal_rate(self) -> float:
        """The rate that the noise aimed at overall: the clients' rates weighted by their sizes."""
        sizes = self.holdings.sizes
        return float((self.nominal * sizes).sum() / sizes.sum()) if sizes.sum() else math.nan

    def counts(self, labels: str = "given") -> Integers:
        """How many samples of each class (column) every client (row) holds, by `given` or by `true` labels."""
        chosen = self.true if labels == "true" else self.given
        if chosen is None:
            raise DataError("the true labels of this scene are unknown.")
        flat = (self.holdings.client * self.classes + chosen)[chosen >= 0]  # -1: a label that only its site knows
        return np.bincount(flat, minlength=self.clients * self.classes).reshape(self.clients, self.classes)

    def transitions(self, client: int | None = None) -> Integers:
        """How often each true class (row) was given each label (column), for one client or overall."""
        if self.true is None:
            raise DataError("the true labels of this scene are unknown, so it has no transition matrix.")
        mine = slice(None) if client is None else self.holdings.of(client)
        flat = self.true[mine] * self.classes + self.given[mine]
        return np.bincount(flat, minlength=self.classes**2).reshape(self.classes, self.classes)

    @cached_property
    def hash(self) -> str:
        """A hash of the content, the same on every machine: the data, who holds what, given and true labels."""
        digest = hashlib.sha256(self.data.fingerprint.encode())
        arrays = [self.holdings.rows, self.holdings.offsets, self.given]
        for values in arrays if self.true is None else [*arrays, self.true]:
            digest.update(len(values).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(values, "<i8").data)
        return digest.hexdigest()

    # --- files -----------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write scene.npz, scene.csv and scene.json into a folder; each file is whole or absent."""
        save_description(self, Path(folder))
        save_arrays(self, Path(folder))

    @classmethod
    @speaks_python
    def load(cls, folder: str | Path) -> Scene:
        """Read a scene that was saved."""
        return load_scene(Path(folder))


def site_names(rule: Partition, dataset: Dataset, clients: int) -> tuple[str, ...]:
    """The names of the sites: from the data if the partition is by its site column, else numbers."""
    sites = dataset.train.sites
    if rule.name == "column" and sites is not None:
        found, counts = np.unique(sites, return_counts=True)
        warn_of_look_alikes(dataset.name, "sites", found.tolist(), counts.tolist())
        return tuple(found.tolist())
    width = len(str(clients - 1))
    return tuple(f"client-{number:0{width}d}" for number in range(clients))


FORM: Form = {
    "hash": str,
    "definition": str,
    "data": {
        **dict.fromkeys(("source", "name", "kind", "fingerprint", "source_hash"), str),
        "class_names": [str],
        "samples": int,
        "test_share": float,
    },
    "seed": int,
    "partition": str,
    "noise": str,
    "clients?": [{"site": str, "kind": str, "nominal": Maybe(float)}],  # in a table of its own since format 2
}
TABLE = "scene.csv"
COLUMNS = ("site", "samples", "kind", "nominal", "realised")


def describe_scene(scene: Scene) -> dict[str, Any]:
    """Everything about a scene but its arrays; an unknown number is null."""
    clients = [
        {**dict(zip(COLUMNS, line, strict=True)), "nominal": or_null(line[3]), "realised": or_null(line[4])}
        for line in lines_of_clients(scene)
    ]
    return {**describe_whole(scene), "clients": clients}


def lines_of_clients(scene: Scene) -> Iterator[tuple[str, int, str, float, float]]:
    """A line of the table for every client."""
    sizes, nominal, realised = (values.tolist() for values in (scene.holdings.sizes, scene.nominal, scene.realised))
    return zip(scene.site_names, sizes, scene.kinds, nominal, realised, strict=True)


def describe_whole(scene: Scene) -> dict[str, Any]:
    """What is true of a scene as a whole."""
    return {
        "format": FORMAT,
        "hash": scene.hash,
        "definition": scene.definition,
        "data": dataclasses.asdict(scene.data),
        "seed": scene.seed,
        "partition": scene.partition,
        "noise": scene.noise,
        "nominal_rate": or_null(scene.nominal_rate),
        "realised_rate": or_null(scene.realised_rate),
        "transitions": None if scene.true is None else scene.transitions().tolist(),
    }


def or_null(number: float) -> float | None:
    """The number, or None for NaN, which JSON does not have."""
    return None if math.isnan(number) else float(number)


def save_description(scene: Scene, folder: Path) -> None:
    """Write scene.csv, with a line per client, and scene.json; both have nothing about single samples."""
    try:
        with replacing(folder / TABLE) as stream:
            text = io.TextIOWrapper(stream, "utf-8", newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(
                (name, size, kind, *("" if math.isnan(rate) else repr(rate) for rate in rates))
                for name, size, kind, *rates in lines_of_clients(scene)
            )
            text.detach()  # writes what is left; `stream` is closed by who opened it
        write_text(folder / "scene.json", json.dumps(describe_whole(scene), indent=1) + "\n")
    except OSError as problem:
        raise DataError(f"{folder}: the scene cannot be written: {problem.strerror or problem}") from None


def save_arrays(scene: Scene, folder: Path) -> None:
    """Write scene.npz, which has the true labels."""
    arrays = {"rows": scene.holdings.rows, "offsets": scene.holdings.offsets, "given": scene.given}
    if scene.true is not None:
        arrays["true"] = scene.true
    try:
        with replacing(folder / "scene.npz") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
        raise DataError(f"{folder}: the scene cannot be written: {reason}") from None


def load_scene(folder: Path) -> Scene:
    """Read the files back and check that they belong together."""
    if not (folder / "scene.json").is_file():
        raise DataError(
            f"{folder}: not the folder of a scene (it has no scene.json). Make one: fedwinnow scene make --out {folder}"
        )
    text = json_of(folder / "scene.json")
    check_format(folder / "scene.json", text.get("format"))
    demand(str(folder / "scene.json"), text, FORM)
    arrays = read_arrays(folder / "scene.npz", ("rows", "offsets", "given"), ("true",))
    try:
        reference = {**text["data"], "class_names": tuple(text["data"]["class_names"])}
        names, kinds, nominal = read_clients(folder / TABLE, text.get("clients"))
        scene = Scene(
            data=DataReference(**reference),
            seed=int(text["seed"]),
            partition=str(text["partition"]),
            noise=str(text["noise"]),
            definition=str(text["definition"]),
            holdings=Holdings(arrays["rows"], arrays["offsets"]),
            given=arrays["given"],
            true=arrays.get("true"),
            nominal=nominal,
            kinds=kinds,
            site_names=names,
        )
        same = text["hash"] == scene.hash and len(scene.nominal) == scene.clients
        same = same and int(scene.given.max(initial=0)) < scene.classes
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise DataError(f"{folder / 'scene.json'}: not a scene of ours ({problem!r}).") from None
    if not same:
        raise DataError(f"{folder}: scene.npz and scene.json do not belong together (their hashes differ).")
    return scene


def read_clients(path: Path, listed: list[dict[str, Any]] | None) -> tuple[tuple[str, ...], tuple[str, ...], Floats]:
    """The name, the kind and the nominal rate of each client; older scenes have a list of them in scene.json."""
    if listed is not None:
        rates = [math.nan if client["nominal"] is None else client["nominal"] for client in listed]
        names, kinds = ([str(client[key]) for client in listed] for key in ("site", "kind"))
        return tuple(names), tuple(kinds), np.array(rates, np.float64)
    try:
        with io.StringIO(text_of(path), newline="") as text:
            reader = csv.reader(text)
            if (head := tuple(next(reader, ()))) != COLUMNS:
                raise ValueError(f"its columns are {', '.join(head) or 'missing'}; allowed: {', '.join(COLUMNS)}")
            lines = [(site, kind, float(rate or "nan")) for site, _, kind, rate, _ in reader]
    except (ValueError, csv.Error) as problem:
        raise DataError(f"{path}: not the table of a scene ({problem}).") from None
    nominal = np.array([rate for _, _, rate in lines], np.float64)
    return tuple(site for site, _, _ in lines), tuple(sys.intern(kind) for _, kind, _ in lines), nominal


def read_arrays(path: Path, needed: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, NDArray[np.int64]]:
    """Arrays of whole numbers from an npz file."""
    arrays = read_npz(path, (*needed, *optional))
    if missing := [name for name in needed if name not in arrays]:
        raise DataError(f"{path}: the array '{missing[0]}' is missing; needed: {', '.join(needed)}.")
    for name, values in arrays.items():
        if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
            raise DataError(
                f"{path}: '{name}' is {values.dtype} of shape {values.shape}; allowed: one row of integers."
            )
    return {name: values.astype(np.int64) for name, values in arrays.items()}


def export_scene(scene: Scene, path: Path) -> None:
    """Write the arrays `client`, `given` and, where known, `true`, aligned with the training rows."""
    if scene.holdings.overlap():
        raise DataError("in this scene several clients hold the same sample, so a row can have more than one client.")
    columns = {"client": np.full(scene.data.samples, -1), "given": np.full(scene.data.samples, -1)}
    columns["client"][scene.holdings.rows] = scene.holdings.client
    columns["given"][scene.holdings.rows] = scene.given
    if scene.true is not None:
        columns["true"] = np.full(scene.data.samples, -1)
        columns["true"][scene.holdings.rows] = scene.true
    with replacing(path) as stream:
        if path.suffix == ".csv":
            table = np.stack(list(columns.values()), axis=1)
            np.savetxt(stream, table, fmt="%d", delimiter=",", header=",".join(columns), comments="")
        else:
            np.savez_compressed(stream, allow_pickle=False, **columns)


def import_scene(dataset: Dataset, path: Path, *, seed: int, test_share: float) -> Scene:
    """A scene made elsewhere: arrays `client` (-1: no client) and `given`, aligned with the training rows."""
    arrays = read_arrays(path, ("client", "given"), ("true",))
    count = len(dataset.train)
    for name, values in arrays.items():
        if len(values) != count:
            raise DataError(f"{path}: '{name}' has {len(values)} values, but the data has {count} training rows.")
    client, held = arrays["client"], arrays["client"] >= 0
    if not held.any():
        raise DataError(f"{path}: no sample has a client (all are below 0).")
    for name in arrays.keys() - {"client"}:
        outside = np.flatnonzero(held & ((arrays[name] < 0) | (arrays[name] >= dataset.classes)))
        if len(outside):
            raise DataError(
                f"{path}: row {outside[0]} of '{name}' is {arrays[name][outside[0]]}; "
                f"allowed: 0 to {dataset.classes - 1}."
            )
    holdings = Holdings.from_clients(client, int(client.max()) + 1)
    if (holdings.sizes == 0).any():
        raise DataError(
            f"{path}: client {int(np.argmin(holdings.sizes))} holds nothing; number the clients 0, 1, 2, ..."
        )
    names = tuple(f"client-{number}" for number in range(holdings.clients))
    if dataset.train.groups is not None:
        warn_of_shared_groups(dataset.name, holdings, dataset.train.groups, names)
    truth = arrays.get("true")
    if truth is None and (dataset.labels_trusted or dataset.train.true is not None):
        truth = dataset.train.labels if dataset.train.true is None else dataset.train.true
    return Scene(
        data=DataReference.of(dataset, test_share),
        seed=seed,
        partition="imported",
        noise="imported",
        definition=f"Made elsewhere and imported from {path.name}.",
        holdings=holdings,
        given=arrays["given"][holdings.rows],
        true=None if truth is None else truth[holdings.rows],
        nominal=np.full(holdings.clients, np.nan),
        kinds=("imported",) * holdings.clients,
        site_names=names,
        _dataset=[dataset],
    )
