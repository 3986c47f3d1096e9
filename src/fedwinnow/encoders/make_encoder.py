"""From what a user wrote to encoded data: the encoder, its weights, the cache, and the features of every part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedwinnow.catalogue import entries, make
from fedwinnow.data.dataset import Dataset, Features, Samples, Texts
from fedwinnow.encoders.encoded import Encoded
from fedwinnow.encoders.encoded_views import ImageViews, Viewed, ViewKind
from fedwinnow.encoders.encoder import Encoder, OpenEncoder, Scale, views_in
from fedwinnow.encoders.feature_cache import FeatureCache
from fedwinnow.encoders.head_input import Scaling
from fedwinnow.errors import UsageError
from fedwinnow.models.make_model import is_own
from fedwinnow.models.model import Shape

USUAL_FUNCTION = "build"  # in a user's file


def find_encoder(spec: Any) -> Encoder:
    """The encoder of a spec, a table with `kind`, a user's file, or the encoder itself."""
    spec = normalised(spec)
    if not isinstance(spec, str | dict | Encoder):
        raise UsageError(
            f"{spec!r} was given as encoder; allowed: a text like name:key=value or file.py:function, a table with a "
            f"kind, or an encoder (see `fedwinnow encoders`)."
        )
    if spec == "auto":
        raise UsageError(
            "--encoder auto was given; it is allowed in an audit on one machine, where samples of all sites can be "
            "looked at. Name an encoder (see `fedwinnow encoders`)."
        )
    part = make("encoders", spec)
    if not isinstance(part, Encoder):
        raise UsageError(f"'{part.name}' is not an encoder.")
    return part


def normalised(spec: Any) -> Any:
    """The spec, in which a user's file is an option of the encoder `own`."""
    if isinstance(spec, dict) and isinstance(spec.get("kind"), str) and is_own(spec["kind"]):
        return {**spec, **own_parts(spec["kind"])}
    if isinstance(spec, str) and is_own(spec) and spec.partition(":")[0].strip() not in entries("encoders"):
        return own_parts(spec)
    return spec


def own_parts(spec: str) -> dict[str, Any]:
    """`./my_encoder.py:build` as a table."""
    file, _, function = spec.strip().rpartition(".py")
    return {"kind": "own", "path": f"{file}.py", "function": function.removeprefix(":") or USUAL_FUNCTION}


@dataclass(frozen=True, eq=False)
class DataEncoder:
    """An open encoder for one data set and others of the same kind."""

    encoder: Encoder
    opened: OpenEncoder
    kind: str  # of images, texts, rows and tokens: what the encoder reads
    shape: Shape  # of the data before it is encoded

    @classmethod
    def for_data(cls, spec: Any, dataset: Dataset) -> DataEncoder:
        """The encoder for this data, with its weights; an error if it does not fit."""
        return cls.for_kind(spec, find_encoder(spec).kind_of(dataset), Shape.of(dataset), dataset.mean, dataset.std)

    @classmethod
    def for_kind(
        cls, spec: Any, kind: str, shape: Shape, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> DataEncoder:
        """The encoder for samples of a kind that it is known to take."""
        encoder = find_encoder(spec)
        if kind != "images" and views_in(encoder):
            raise UsageError(
                f"--encoder {encoder} was given, but the samples are {kind}, and only images have random views; leave "
                f"views={views_in(encoder)} out."
            )
        return cls(encoder, encoder.open(shape, mean, std), kind, shape)

    @property
    def scale(self) -> Scale:
        """How its rows are scaled for a head."""
        found: Scale = self.encoder.scale
        return found

    @property
    def head_shape(self) -> Shape:
        """The shape of what a head sees."""
        return Shape("rows", (self.opened.width,), self.shape.classes)

    def features(self, samples: Samples) -> Encoded:
        """The samples as rows of the encoder, not scaled."""
        return self.rows(samples.features, samples.texts)

    def rows(self, features: Features, texts: Texts | None) -> Encoded:
        """Stored samples, or the texts behind them, as rows of the encoder, not scaled."""
        stored = texts if self.kind == "texts" else features
        if stored is None:
            raise UsageError(f"encoder '{self.encoder.name}' needs texts, and these samples have none.")
        shape = () if self.kind == "texts" else tuple(features.shape)
        return FeatureCache(self.opened, str(self.encoder), self.kind, shape).encoded(stored)

    def with_views(self, rows: Features, images: Features, scaling: Scaling, kinds: Sequence[ViewKind]) -> Features:
        """The rows of these images, together with those of their views of these kinds, if the encoder gives any."""
        count, found = views_in(self.encoder), {}
        if not kinds or not count:
            return rows
        for kind in kinds:
            views, shape = ImageViews(images, kind, count), tuple(images.shape)
            about = f"{self.kind}, views {kind.name} {kind.fingerprint(shape)}"
            cache = FeatureCache(self.opened, str(self.encoder), about, shape)
            found[kind.name] = cache.encoded(views, keys=views.keys()).scaled(scaling)
        return Viewed(rows, found, count)

    def encoded(self, dataset: Dataset, scaling: Scaling | None = None, kinds: Sequence[ViewKind] = ()) -> Dataset:
        """The data set with rows for a head in the place of its samples; labels, ids and sites stay.

        Training samples have views of these kinds besides; test samples are only scored, and have none.
        """
        self.encoder.kind_of(dataset)
        used = Scaling.plain(self.opened.width) if scaling is None else scaling

        def part(samples: Samples, kinds: Sequence[ViewKind] = ()) -> Samples:
            rows = self.features(samples).scaled(used)
            return replace(samples, features=self.with_views(rows, samples.features, used, kinds), texts=None)

        return replace(
            dataset,
            kind="rows",
            train=part(dataset.train, kinds),
            test=None if dataset.test is None else part(dataset.test),
            mean=(),
            std=(),
            vocabulary=0,
            contents=dataset.known_contents(),
        )
