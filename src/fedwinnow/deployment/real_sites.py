"""The stage of a run with real sites: the coordinator knows how many samples each has, but has none of them."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.dataset import Dataset, Rows
from fedwinnow.errors import RunError, UsageError
from fedwinnow.experiment.encoding import Encoding, views_asked
from fedwinnow.experiment.prepare import Stage, models_of, scored_parts
from fedwinnow.experiment.private_plan import planned
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.trusted_and_public import set_aside
from fedwinnow.federation.host import Sites
from fedwinnow.federation.method import Method, find_method
from fedwinnow.federation.privacy_rules import refuse_sums, refuse_unaccounted
from fedwinnow.mathematics.privacy import find_privacy
from fedwinnow.models.model import Shape
from fedwinnow.scene.holdings import Holdings
from fedwinnow.scene.scene import DataReference, Scene

UNKNOWN = -1  # in place of a label that only its site knows


@dataclass(frozen=True)
class RemoteSamples:
    """Samples at the sites: only their number and shape are known here."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    count: int

    def __len__(self) -> int:
        return self.count

    def take(self, rows: Rows) -> NDArray[Any]:
        raise RunError("the coordinator has no sample of a site.")

    def stream(self, batches: Iterable[Rows]) -> Iterator[NDArray[Any]]:
        raise RunError("the coordinator has no sample of a site.")

    def subset(self, rows: Rows) -> RemoteSamples:
        return dataclasses.replace(self, count=len(rows))


def task_data(dataset: Dataset) -> Dataset:
    """The coordinator's own data, with all samples in the test part: they define the task and measure the model."""
    return dataset if dataset.test is not None else dataclasses.replace(dataset, test=dataset.train)


def real_stage(
    experiment: Experiment, own: Dataset, samples: dict[str, int], encoding: Encoding | None = None
) -> Stage:
    """The stage; `samples` has the number of samples of each site, by its name."""
    method = find_method(experiment.method)
    refuse_unsuitable(method, experiment)
    refuse_unaccounted(method, find_privacy(experiment.privacy), experiment)
    names = tuple(sorted(samples))
    scene = scene_of(own, names, np.array([samples[name] for name in names]))
    images, own = own, own if encoding is None else encoding.encoded(own)
    shape = Shape.of(own)
    total = len(scene.given)
    features = RemoteSamples(tuple(own.train.features.shape), own.train.features.dtype, total)
    sites = Sites(features, scene.holdings, scene.given, shape, own.mean, own.std)
    if encoding is not None:  # the samples of the coordinator have views only where it trains on them
        encoding = dataclasses.replace(encoding, kinds=views_asked(method, experiment.views))
    aside = set_aside(method, own, experiment, encoding, images)
    parts, labels = scored_parts(aside, scene, own, np.zeros(total, bool))
    resolved = dataclasses.replace(experiment, method=method, model=models_of(experiment, method, shape))
    if encoding is not None:
        refuse_sums(find_privacy(experiment.privacy), encoding.data_encoder.encoder)
        resolved = dataclasses.replace(resolved, encoder=str(encoding.data_encoder.encoder))
    resolved = planned(resolved, method, [samples[name] for name in names], simulated=False)
    places = np.arange(total)
    return Stage(
        resolved,
        scene,
        method,
        sites,
        places,
        sites,
        names,
        parts,
        labels,
        aside,
        simulated=False,
        encoding=encoding,
    )


def scene_of(own: Dataset, names: tuple[str, ...], sizes: NDArray[np.int64]) -> Scene:
    """A scene with the number of samples of each site and unknown labels."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    total = int(offsets[-1])
    reference = DataReference(
        source=own.source,
        name=own.name,
        kind=own.kind,
        class_names=own.class_names,
        samples=total,
        fingerprint=hashlib.sha256("\n".join((*own.class_names, "", *names)).encode()).hexdigest(),
        source_hash="",
        test_share=0.0,
    )
    return Scene(
        data=reference,
        seed=0,
        partition="sites",
        noise="given",
        definition="Partition: every site has its own samples. Noise: labels as the sites have them.",
        holdings=Holdings(np.arange(total), offsets),
        given=np.full(total, UNKNOWN, np.int64),
        true=None,
        nominal=np.full(len(names), math.nan),
        kinds=("unknown",) * len(names),
        site_names=names,
        _dataset=[own],
    )


def refuse_unsuitable(method: Method, experiment: Experiment) -> None:
    """Refuse methods and settings that need the sites' samples."""
    reasons = {
        "pooled_data": "pools the data of all sites",
        "truth": "needs the true labels",
        "public_data": "needs public samples at every site",
    }
    for need in method.needed():
        if need in reasons:
            raise UsageError(f"method '{method.name}' {reasons[need]}, which real sites do not offer. Choose another.")
    if experiment.validation or experiment.memorisation_every or experiment.public is not None:
        raise UsageError(
            "--validation, --memorisation-every and --public look at the sites' samples; allowed with --scene only."
        )
