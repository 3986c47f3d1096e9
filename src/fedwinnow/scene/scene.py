"""The scene: who holds which sample, which labels are wrong, and how wrong each site really is. Frozen and hashed."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwinnow import catalogue
from fedwinnow.all_settings import SceneSettings, SiteSettings
from fedwinnow.data.dataset import Dataset, Features
from fedwinnow.data.labels import warn_of_look_alikes
from fedwinnow.data.source import Source
from fedwinnow.errors import DataError, UsageError
from fedwinnow.options import Part
from fedwinnow.randomness import Floats, Integers
from fedwinnow.scene.holdings import Holdings
from fedwinnow.scene.noise import Ground, make_noise
from fedwinnow.scene.partition import Partition, Population

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class DataReference:
    """Which data a scene belongs to, without holding it."""

    source: str  # the spec that loads it, or a name for arrays that live in memory only
    name: str
    kind: str
    class_names: tuple[str, ...]
    samples: int
    fingerprint: str
    source_hash: str
    test_share: float  # what was split off as the test part; 0 where the data brought its own

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
    """What one client may see of itself: no way leads from here to the truth."""

    number: int
    name: str
    features: Features
    given: Integers
    ids: NDArray[Any]
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.given)


@dataclass(frozen=True, eq=False)
class Scene:
    """A frozen scene. It stands on the evaluation side of the wall: it knows the truth, the sites do not."""

    data: DataReference
    seed: int
    partition: str
    noise: str
    definition: str
    holdings: Holdings
    given: Integers  # per holding
    true: Integers | None  # per holding; None where the truth is unknown
    nominal: Floats  # per client; NaN where no rule says it
    kinds: tuple[str, ...]
    site_names: tuple[str, ...]
    _dataset: list[Dataset] = field(default_factory=list, repr=False)  # filled when first needed

    @classmethod
    def make(
        cls,
        data: str | Path | dict[str, Any] | Dataset | Source = SceneSettings.data,
        *,
        clients: int = SceneSettings.clients,
        partition: str | dict[str, Any] | Part = SceneSettings.partition,
        noise: str | dict[str, Any] | Part | None = SceneSettings.noise,
        seed: int = SiteSettings.seed,
        test: float = SceneSettings.test,
    ) -> Scene:
        """Make a scene; everything in it follows from these arguments.

        Without a noise the data decides: labels that may be wrong are taken as given, trusted ones as true.
        """
        from fedwinnow.data.load import load
        from fedwinnow.data.split import with_test_part

        # Of data that a program hands over, the arrays count: it may have changed them since they were read.
        loaded = dataclasses.replace(data, contents=None) if isinstance(data, Dataset) else load(data)
        dataset, rule = with_test_part(loaded, test, seed), catalogue.make("partitions", partition)
        if not isinstance(rule, Partition):
            raise UsageError(f"{partition} is not a partition.")
        mistakes = make_noise(noise or ("none" if dataset.labels_trusted else "given"))
        labels = dataset.train.labels if dataset.train.true is None else dataset.train.true
        holdings = rule.split(Population(labels, dataset.classes, clients, seed, dataset.train.sites))
        ground = Ground(dataset, holdings, labels[holdings.rows], seed)
        noisy = mistakes.apply(ground)
        return cls(
            data=DataReference.of(dataset, test if loaded.test is None else 0.0),
            seed=seed,
            partition=str(rule),
            noise=str(mistakes),
            definition=f"Partition: {rule.describe()}. Noise: {mistakes.describe()}.",
            holdings=holdings,
            given=noisy.given,
            true=ground.true if noisy.truth_known else None,
            nominal=noisy.nominal,
            kinds=noisy.kinds,
            site_names=site_names(rule, dataset, holdings.clients),
            _dataset=[dataset],
        )

    # --- what is in it ---------------------------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        return self.holdings.clients

    @property
    def classes(self) -> int:
        return len(self.data.class_names)

    @property
    def dataset(self) -> Dataset:
        """The data itself; loaded when first asked for, and checked to be the data the scene was made from."""
        if not self._dataset:
            from fedwinnow.data.load import load
            from fedwinnow.data.split import with_test_part

            if not self.data.source:
                raise DataError(
                    f"this scene was made from data in memory ({self.data.name}), which no file can give back. "
                    "Hand the same data over: scene.attach(dataset)."
                )
            self.attach(with_test_part(load(self.data.source), self.data.test_share, self.seed))
        return self._dataset[0]

    def attach(self, dataset: Dataset) -> None:
        """Give the scene its data, for data that no spec can load again."""
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
        """What the noise rule aimed at overall: the clients' rates weighted by their sizes."""
        sizes = self.holdings.sizes
        return float((self.nominal * sizes).sum() / sizes.sum()) if sizes.sum() else math.nan

    def counts(self, labels: str = "given") -> Integers:
        """How many samples of each class (column) every client (row) holds, by `given` or by `true` labels."""
        chosen = self.true if labels == "true" else self.given
        if chosen is None:
            raise DataError("the true labels of this scene are unknown.")
        flat = (self.holdings.client * self.classes + chosen)[chosen >= 0]  # below: labels that only their site knows
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
            digest.update(values.astype("<i8").tobytes())
        return digest.hexdigest()

    # --- files -----------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write scene.npz and scene.json into a folder."""
        from fedwinnow.scene.scene_files import save_scene

        save_scene(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Scene:
        """Read a scene that was saved."""
        from fedwinnow.scene.scene_files import load_scene

        return load_scene(Path(folder))


def site_names(rule: Partition, dataset: Dataset, clients: int) -> tuple[str, ...]:
    """The names of the sites: the data's own where it names them, else numbers."""
    sites = dataset.train.sites
    if rule.name == "column" and sites is not None:
        found, counts = np.unique(sites, return_counts=True)
        warn_of_look_alikes(dataset.name, "sites", found.tolist(), counts.tolist())
        return tuple(found.tolist())
    width = len(str(clients - 1))
    return tuple(f"client-{number:0{width}d}" for number in range(clients))
