"""From settings to a stage: the scene, each site's training samples, the samples for measuring, and the method."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.content_hash import Contents, contents_of_arrays
from fedwinnow.data.dataset import Dataset, Features
from fedwinnow.data.groups import group_numbers, whole_groups_near
from fedwinnow.data.input_form import InputForm
from fedwinnow.encoders.encoded_views import without_views
from fedwinnow.encoders.make_encoder import find_encoder
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.encoding import HEAD, Encoding, encoding_of, kept_ready, refuse_views, views_asked
from fedwinnow.experiment.private_plan import planned
from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.trusted_and_public import SetAside, set_aside
from fedwinnow.federation.host import Setup, Sites
from fedwinnow.federation.ledger import refuse_values_per_sample
from fedwinnow.federation.method import Method, find_method
from fedwinnow.federation.privacy_rules import refuse_sums, refuse_unaccounted
from fedwinnow.mathematics.privacy import find_privacy
from fedwinnow.models.make_model import in_turn, model_for
from fedwinnow.models.model import Shape
from fedwinnow.options import Part
from fedwinnow.randomness import Integers, uniforms
from fedwinnow.scene.holdings import Holdings, rank_within
from fedwinnow.scene.scene import Scene

Mask = np.ndarray[Any, np.dtype[np.bool_]]  # per holding


@dataclass(frozen=True, eq=False)
class Stage:
    """Everything that a run needs before its first round."""

    experiment: Experiment  # with the method and the model resolved
    scene: Scene
    method: Method
    sites: Sites  # the training samples of every site
    places: Integers  # where each training sample is in the scene
    judged: Sites  # every sample of every site
    site_names: tuple[str, ...]
    parts: dict[str, Features]  # "test", and by request "validation" and "public"; public samples have no labels
    labels: dict[str, Integers]
    aside: SetAside
    simulated: bool = True  # False for real sites, whose samples are not here and must not be asked about
    encoding: Encoding | None = None  # the frozen encoder behind the features, if there is one
    left_out: Contents | None = None  # which samples were kept out of training by request, for the run's identity

    def __post_init__(self) -> None:
        if self.encoding is not None:
            encoder = self.encoding.data_encoder
            refuse_views(self.method, self.experiment.views, encoder.encoder, encoder.kind)
        elif self.experiment.views != "none":
            self.sites.shape.need_images(f"--views {self.experiment.views}")
        if self.method.mixes:
            self.sites.shape.need_numbers(self.method.name, self.method.mixes)
        if self.simulated:  # a real site decides itself which values of single samples it sends
            refuse_values_per_sample(self.method.name, self.method.exposed(), self.experiment.least_count)

    @property
    def available(self) -> tuple[int, ...]:
        """The sites that take part: those with at least `least_count` training samples, and at least one."""
        found: list[int] = np.flatnonzero(self.sites.holdings.sizes >= max(1, self.experiment.least_count)).tolist()
        return tuple(found)

    @property
    def absent(self) -> tuple[str, ...]:
        """The sites with too few samples to take part; a real site does not tell how many it has."""
        sizes, least = self.sites.holdings.sizes, self.experiment.least_count
        few = (sizes > 0) & (sizes < least) if self.simulated else sizes == 0
        return tuple(self.site_names[number] for number in np.flatnonzero(few))


def prepare(experiment: Experiment, scene: Scene | None = None, left_out: Mask | None = None) -> Stage:
    """Build the stage of an experiment; `scene` replaces the scene of the settings.

    Holdings that `left_out` marks are not trained on; they are still judged.
    """
    method = find_method(experiment.method)
    if experiment.privacy is not None:  # before the long work
        refuse_unaccounted(method, find_privacy(experiment.privacy), experiment)
    scene = make_scene(experiment) if scene is None else scene
    held_out = hold_out(scene, experiment.validation, experiment.seed)
    encoding, dataset = encoded_data(experiment, method, scene, held_out)
    shape = Shape.of(dataset)
    judged = Sites(dataset.train.features, scene.holdings, scene.given, shape, dataset.mean, dataset.std)
    keep = ~held_out & allowed_by(method, scene)
    if left_out is not None:
        keep &= ~left_out
    holdings = restricted(scene.holdings, keep)
    sites = dataclasses.replace(judged, holdings=holdings, given=scene.given if keep.all() else scene.given[keep])
    names, places = scene.site_names, np.flatnonzero(keep)
    if "pooled_data" in method.needs:
        order = np.argsort(holdings.rows, kind="stable")
        sites, names, places = pooled(sites, order), ("everybody",), places[order]
    aside = set_aside(method, dataset, experiment, encoding, scene.dataset)
    parts, labels = scored_parts(aside, scene, dataset, held_out)
    parts = {name: kept_ready(features) for name, features in parts.items()}
    resolved = dataclasses.replace(experiment, method=method, model=models_of(experiment, method, shape))
    if encoding is not None:
        resolved = dataclasses.replace(resolved, encoder=str(encoding.data_encoder.encoder))
    if experiment.privacy is not None:
        resolved = planned(resolved, method, sites.holdings.sizes.tolist())
    chosen = None if left_out is None else contents_of_arrays("the verdicts", [left_out])
    return Stage(
        resolved,
        scene,
        method,
        sites,
        places,
        judged,
        names,
        parts,
        labels,
        aside,
        encoding=encoding,
        left_out=chosen,
    )


def encoded_data(
    experiment: Experiment, method: Method, scene: Scene, held_out: np.ndarray[Any, np.dtype[np.bool_]]
) -> tuple[Encoding | None, Dataset]:
    """The data as the model sees it: that of the scene, or with an encoder rows in its place.

    All training samples of the sites count for the scaling, whatever the method trains on, so that methods compare.
    """
    if experiment.encoder is None:
        return None, scene.dataset
    encoder = find_encoder(experiment.encoder)
    refuse_views(method, experiment.views, encoder, encoder.kind_of(scene.dataset))  # before the long work
    if experiment.privacy is not None:
        refuse_sums(find_privacy(experiment.privacy), encoder)
    trained = restricted(scene.holdings, ~held_out)
    kinds = views_asked(method, experiment.views)
    encoding = encoding_of(experiment.encoder, scene.dataset, trained, experiment, kinds)
    return encoding, encoding.encoded(scene.dataset)


def input_form(stage: Stage) -> InputForm:
    """How new samples become the input of the trained model."""
    form = InputForm.of(stage.scene.dataset)
    if stage.encoding is not None:
        return form  # the encoder takes the samples as they are
    return dataclasses.replace(form, mean=stage.sites.mean, std=stage.sites.std)


def models_of(experiment: Experiment, method: Method, shape: Shape) -> Any:
    """The model, or several models that the clients share out in turn if every client has its own."""
    usual = model_for(shape) if experiment.encoder is None else HEAD
    models = in_turn(experiment.model or usual)
    if len(models) == 1:
        return models[0]
    if not method.own_models:
        raise UsageError(
            f"--model {experiment.model} was given, but method '{method.name}' averages models, so there can be only "
            f"one; allowed: one model, or a method in which every client has its own, such as rhfl."
        )
    return "+".join(map(str, models)) if all(isinstance(model, str | Part) for model in models) else models


def setup_of(experiment: Experiment, device: str, judge: Any = "") -> Setup:
    """The settings that are the same for every host of the run."""
    first, *others = in_turn(experiment.model)
    by_hand = experiment.encoder is not None or experiment.privacy is not None
    return Setup(first, experiment.at_sites(), device, judge, tuple(others), fast_heads=by_hand)


def make_scene(experiment: Experiment) -> Scene:
    """The saved scene of the settings, or a new one."""
    if experiment.scene is not None:
        return scene_of(experiment.scene)
    return Scene.make(
        experiment.data,
        clients=experiment.clients,
        partition=experiment.partition,
        noise=experiment.noise,
        seed=experiment.seed,
        test=experiment.test,
    )


def scene_of(given: Any) -> Scene:
    """A scene that a program made, or the one in a folder."""
    return given if isinstance(given, Scene) else Scene.load(Path(given))


def hold_out(scene: Scene, share: float, seed: int) -> Mask:
    """Which holdings are kept for validation, a share of every client's samples; they keep their given labels."""
    if not share:
        return np.zeros(len(scene.given), bool)
    client, position = scene.holdings.client, scene.holdings.position
    if scene.dataset.train.groups is not None:
        return hold_out_groups(scene, scene.dataset.train.groups, share, seed)
    rank = rank_within(client, uniforms(seed, "validation", client, position))
    return np.asarray(rank < np.floor(share * scene.holdings.sizes[client] + 1e-9))


def hold_out_groups(scene: Scene, groups: NDArray[Any], share: float, seed: int) -> Mask:
    """The same in whole groups: of every client about this share of its samples, drawn group by group."""
    client = scene.holdings.client
    names = group_numbers(groups[scene.holdings.rows])
    group = group_numbers(client * (int(names.max(initial=0)) + 1) + names)  # a group at two sites counts at each
    owner = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    owner[group] = client
    luck = uniforms(seed, "validation groups", owner, np.arange(len(owner)))
    return whole_groups_near(group, owner, scene.holdings.sizes.astype(np.float64) * share, luck)


def allowed_by(method: Method, scene: Scene) -> Mask:
    """Which holdings a method may train on: all; for the oracle only those with right labels."""
    if "truth" not in method.needs:
        return np.ones(len(scene.given), bool)
    if scene.wrong is None:
        raise DataError(f"method '{method.name}' trains on the truly clean samples, but the truth is unknown here.")
    return ~scene.wrong


def restricted(holdings: Holdings, keep: Mask) -> Holdings:
    """The same clients with only some of their holdings."""
    if keep.all():
        return holdings
    sizes = np.bincount(holdings.client[keep], minlength=holdings.clients)
    return Holdings(holdings.rows[keep], np.concatenate([[0], np.cumsum(sizes)]))


def pooled(sites: Sites, order: Integers) -> Sites:
    """All samples at one site, in this order."""
    holdings = Holdings(sites.holdings.rows[order], np.array([0, len(order)]))
    return dataclasses.replace(sites, holdings=holdings, given=sites.given[order])


def scored_parts(
    aside: SetAside, scene: Scene, dataset: Dataset, held_out: Mask
) -> tuple[dict[str, Features], dict[str, Integers]]:
    """The samples that belong to no client, and their labels: true ones for the test, given ones for validation."""
    parts: dict[str, Features] = {}
    labels: dict[str, Integers] = {}
    if aside.test is not None and aside.test_labels is not None:
        parts["test"], labels["test"] = aside.test, aside.test_labels
    if held_out.any():
        parts["validation"] = without_views(dataset.train.features).subset(scene.holdings.rows[held_out])
        labels["validation"] = scene.given[held_out]
    if aside.public is not None:
        parts["public"] = aside.public
    return parts, labels
