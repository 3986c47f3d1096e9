"""Samples that no client holds and that are not used for measuring: trusted ones for the server, public ones for all.

They are taken from the test part, so that the scene (who holds what, which labels are wrong) is the same with and
without them; the rest of the test part measures. Public samples may also come from other data of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from fedwinnow import catalogue
from fedwinnow.all_settings import is_number
from fedwinnow.data.content_hash import Contents
from fedwinnow.data.dataset import Dataset, Features, InputStep
from fedwinnow.data.groups import group_numbers, whole_groups_near
from fedwinnow.data.load import load
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.encoding import Encoding
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.host import Setup, Sites, new_model
from fedwinnow.federation.method import Method
from fedwinnow.federation.server_samples import NOBODY, ServerSamples
from fedwinnow.mathematics.optimizers import Optimizer
from fedwinnow.models.model import Shape
from fedwinnow.randomness import Integers, uniforms


@dataclass(frozen=True, eq=False)
class SetAside:
    """The trusted and public samples, and the rest of the test part."""

    test: Features | None
    test_labels: Integers | None
    trusted: Features | None = None
    trusted_labels: Integers | None = None
    public: Features | None = None  # never with labels
    public_contents: Contents | None = None  # of public samples that come from other data
    facts: dict[str, Any] = field(default_factory=dict)  # how many, and where from; the same in a resumed run
    test_sites: NDArray[np.str_] | None = None  # the site of each test row, where the data says it


def set_aside(
    method: Method,
    dataset: Dataset,
    experiment: Experiment,
    encoding: Encoding | None = None,
    images: Dataset | None = None,
) -> SetAside:
    """Set trusted and public samples aside as the settings ask; refuse a method that needs more.

    With an encoder, `images` is the data before it was encoded, of which random views may be asked for.
    """
    refuse_lacking(method, experiment)

    def part(rows: Integers) -> Features:
        assert dataset.test is not None
        found = dataset.test.features.subset(rows)
        if encoding is None or images is None or images.test is None:
            return found
        return encoding.with_views(found, images.test.features.subset(rows))

    test = dataset.test
    if test is None:
        labels, rows = np.zeros(0, np.int64), np.zeros(0, np.int64)
    else:
        labels, rows = (test.labels if test.true is None else test.true), np.arange(len(test))
    facts: dict[str, Any] = {"trusted": None, "public": None}
    groups = None if test is None else test.groups
    chosen, rest = drawn("trusted", experiment.trusted, rows, experiment.seed, groups)
    trusted = None
    if test is not None and len(chosen):
        trusted = part(chosen)
        known = test.true is not None or dataset.labels_trusted
        facts["trusted"] = {"samples": len(chosen), "labels": "true" if known else "given"}
    public, contents, rest = take_public(dataset, experiment, rest, facts, part, encoding)
    return SetAside(
        test=None if test is None else test.features.subset(rest),
        test_labels=None if test is None else labels[rest],
        trusted=trusted,
        trusted_labels=labels[chosen],
        public=public,
        public_contents=contents,
        facts=facts,
        test_sites=None if test is None or test.sites is None else test.sites[rest],
    )


def refuse_lacking(method: Method, experiment: Experiment) -> None:
    """Refuse a method that needs samples which the settings do not give, and name the missing flag."""
    if "trusted_data" in method.needed() and experiment.trusted == 0:
        raise UsageError(
            f"method '{method}' needs trusted samples on the server; add --trusted 0.2 (a share of the test part) or "
            f"--trusted 200 (200 of its samples)."
        )
    if "public_data" in method.needed() and amount(experiment.public) == 0:
        raise UsageError(
            f"method '{method}' needs public samples, which have no labels; add --public 0.2 (a share of the test "
            f"part), --public 200 (200 of its samples) or --public NAME (other data of the same shape)."
        )


def amount(public: Any) -> float | None:
    """The share or number of public samples; None if they come from other data."""
    if public is None:
        return 0.0
    return float(public) if is_number(public) else None


def drawn(
    flag: str, wanted: float, rows: Integers, seed: int, groups: NDArray[Any] | None = None
) -> tuple[Integers, Integers]:
    """Draw a share of the rows (below 1) or a number of them; returns them and the rest, both ascending.

    `groups` has one value per row of the test part; groups stay whole, so the number is met as nearly as they allow.
    """
    if wanted == 0:
        return rows[:0], rows
    number = int(wanted * len(rows) + 1e-9) if wanted < 1 else int(wanted)
    if not len(rows):
        raise UsageError(
            f"--{flag} takes its samples from the test part, but there is none; add --test 0.2 to a run, or give data "
            "that has one."
        )
    if not 1 <= number < len(rows):
        raise UsageError(
            f"--{flag} {wanted:g} was given, which is {number} of {len(rows)} test samples; allowed: at least one of "
            f"them, and one must be left to measure on."
        )
    if groups is not None:
        return drawn_groups(flag, number, rows, seed, group_numbers(groups[rows]))
    order = rows[np.argsort(uniforms(seed, flag, 0, rows), kind="stable")]
    return np.sort(order[:number]), np.sort(order[number:])


def drawn_groups(flag: str, number: int, rows: Integers, seed: int, group: Integers) -> tuple[Integers, Integers]:
    """About this number of rows in whole groups, and the rest."""
    count = int(group.max()) + 1
    luck = uniforms(seed, f"{flag} groups", 0, np.arange(count))
    taken = whole_groups_near(group, np.zeros(count, np.int64), np.array([float(number)]), luck)
    if not 0 < taken.sum() < len(rows):
        raise UsageError(
            f"--{flag}: {number} of {len(rows)} test samples cannot be taken in whole groups, of which the test part "
            f"has {count}; allowed: a larger or smaller part."
        )
    return rows[taken], rows[~taken]


def measuring_rows(
    trusted: float, public: Any, samples: int, seed: int, groups: NDArray[Any] | None = None
) -> Integers:
    """The rows of the test part that measure: those that are neither trusted nor public."""
    _, rest = drawn("trusted", trusted, np.arange(samples), seed, groups)
    wanted = amount(public)
    return rest if wanted is None else drawn("public", wanted, rest, seed, groups)[1]


def take_public(
    dataset: Dataset,
    experiment: Experiment,
    rows: Integers,
    facts: dict[str, Any],
    part: Callable[[Integers], Features],
    encoding: Encoding | None = None,
) -> tuple[Features | None, Contents | None, Integers]:
    """The public samples, their contents if they come from other data, and the rest of the test part."""
    wanted = amount(experiment.public)
    if wanted is None:
        other = load(experiment.public)
        other_encoded = other if encoding is None else encoding.encoded(other)
        refuse_other_kind(dataset, other_encoded)
        facts["public"] = {"samples": len(other.train), "source": other.source, "fingerprint": other.fingerprint()}
        return other_encoded.train.features, other.known_contents(), rows
    groups = None if dataset.test is None else dataset.test.groups
    chosen, rest = drawn("public", wanted, rows, experiment.seed, groups)
    if not len(chosen) or dataset.test is None:
        return None, None, rest
    facts["public"] = {"samples": len(chosen), "source": "test part"}
    return part(chosen), None, rest


def refuse_other_kind(dataset: Dataset, other: Dataset) -> None:
    """Refuse public data of another shape than the run's data, or that is the run's data."""
    own, public = Shape.of(dataset), Shape.of(other)
    if (own.kind, own.sample_shape, own.vocabulary) != (public.kind, public.sample_shape, public.vocabulary):
        raise DataError(
            f"--public {other.source}: its samples are {public.kind} of the shape {public.sample_shape}, those of "
            f"{dataset.name} are {own.kind} of the shape {own.sample_shape}; the same model must take both."
        )
    if other.name == dataset.name:
        raise UsageError(
            f"--public {other.source} is the data of the run itself, test part included; give a share or a number of "
            f"its test part, for example --public 0.2."
        )


def bench_of(
    purpose: Literal["trusted", "public"], aside: SetAside, sites: Sites, setup: Setup
) -> ServerSamples | None:
    """The server's trusted or public samples, with a model to try on them; None if there are none."""
    features = aside.trusted if purpose == "trusted" else aside.public
    if features is None:
        return None
    labels = aside.trusted_labels if purpose == "trusted" else None
    known = torch.full((len(features),), NOBODY) if labels is None else torch.from_numpy(labels)
    model = new_model(sites.shape, setup)
    return ServerSamples(
        id=NOBODY,
        round=0,
        rounds=setup.settings.rounds,
        features=features,
        given=known.to(model.device),
        classes=sites.shape.classes,
        model=model,
        training=setup.settings,
        optimizer=cast(Optimizer, catalogue.make("optimizers", setup.settings.optimizer)),
        input_step=InputStep(sites.shape.kind, sites.mean, sites.std, setup.device),
        generator=torch.Generator(),
        purpose=purpose,
        seed=setup.settings.seed,
    )
