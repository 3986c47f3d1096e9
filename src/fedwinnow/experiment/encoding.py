"""The frozen encoder of a run: data as rows for a head, scaled by sums over sites, and what the folder keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwinnow.all_settings import SiteSettings
from fedwinnow.data.dataset import Dataset, Features
from fedwinnow.data.source_files import read_npz
from fedwinnow.encoders.elsewhere import as_here, example_of, has_files, named
from fedwinnow.encoders.encoded import Encoded
from fedwinnow.encoders.encoded_views import ViewKind
from fedwinnow.encoders.encoder import Encoder, ImageEncoder, views_in
from fedwinnow.encoders.head_input import Scaling, Sums, needs_sums, pieces_of
from fedwinnow.encoders.make_encoder import DataEncoder
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.encoder_sums import rounding_of, summed_in_simulation
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.federation.ledger import Ledger
from fedwinnow.federation.method import Method
from fedwinnow.federation.view_kinds import view_kind
from fedwinnow.files import Form, json_of
from fedwinnow.models.model import Shape
from fedwinnow.scene.holdings import Holdings

USUAL_VIEWS = 4  # as the advice has it
HEAD = "linear"  # the model with an encoder when the user names none
FILE, ARRAYS = "encoder.json", "encoder.npz"
SUMS = "encoder_sums"  # the key in the ledger
FORMAT = 1
LARGEST_READY = 2**29  # bytes of the samples that are measured; 10,000 images of `lite` have a tenth of it
FORM: Form = {"format": int, "encoder": str, "hash": str, "width": int, "kind": str, "scale": str, "sites": int}


@dataclass(frozen=True, eq=False)
class Encoding:
    """An encoder and the scaling that was fitted for a run."""

    data_encoder: DataEncoder
    scaling: Scaling
    told: tuple[int, ...]  # the sites that gave sums
    kinds: tuple[ViewKind, ...] = ()  # of the random views that samples for training have besides

    def encoded(self, dataset: Dataset) -> Dataset:
        """Data as the run's model takes it; its training samples have views."""
        return self.data_encoder.encoded(dataset, self.scaling, self.kinds)

    def with_views(self, rows: Features, images: Features) -> Features:
        """Rows of these images as the run's model takes them, with views."""
        return self.data_encoder.with_views(rows, images, self.scaling, self.kinds)

    def rows(self, features: Features) -> Encoded:
        """Stored samples as the run's model takes them."""
        return self.data_encoder.rows(features, getattr(features, "texts", None)).scaled(self.scaling)

    def facts(self) -> dict[str, Any]:
        """What a run notes of its encoder."""
        return {
            "encoder": str(self.data_encoder.encoder),
            "hash": self.data_encoder.opened.hash,
            "width": self.data_encoder.opened.width,
            "kind": self.data_encoder.kind,
            "scale": self.scaling.scale,
        }


def kept_ready(features: Features) -> Features:
    """Encoded samples that are measured in every round, cast and scaled once, unless they are too many."""
    if not isinstance(features, Encoded) or 4 * len(features) * features.shape[0] > LARGEST_READY:
        return features
    return features.subset(np.arange(len(features)))


def encoding_of(
    spec: Any, dataset: Dataset, trained: Holdings, settings: SiteSettings, kinds: tuple[ViewKind, ...] = ()
) -> Encoding:
    """The encoder of a run, with a scaling from the sums of those sites that have enough training samples."""
    least_count = settings.least_count
    data_encoder = DataEncoder.for_data(spec, dataset)
    features = data_encoder.features(dataset.train)
    told: dict[int, Sums] = {}
    for site in range(trained.clients) if needs_sums(data_encoder.scale) else ():
        found = sums_of(features, data_encoder, trained.rows[trained.of(site)]).told(data_encoder.scale, least_count)
        if found is not None:
            told[site] = found
    scaling = scaling_of(data_encoder, told, settings)
    return Encoding(data_encoder, scaling, tuple(told), kinds)


def scaling_of(data_encoder: DataEncoder, told: dict[int, Sums], settings: SiteSettings) -> Scaling:
    """The scaling from the sums of sites; with --secure-sums from their secure sum."""
    scale, width = data_encoder.scale, data_encoder.opened.width
    if not settings.secure_sums or not needs_sums(scale):
        return Scaling.fitted(scale, told.values(), width)
    total = summed_in_simulation(told, scale, width, settings.seed, settings.secure_threshold)
    return Scaling.fitted(scale, [total], width, rounding=rounding_of(len(told)))


def sums_of(features: Encoded, data_encoder: DataEncoder, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Sums:
    """The sums of one site, from its rows alone."""
    return Sums.of(map(features.raw, pieces_of(rows)), data_encoder.opened.width, data_encoder.scale)


def book_sums(ledger: Ledger, encoding: Encoding, site_names: Sequence[str]) -> None:
    """Note what sites have told before the first round: sums of values and squares per column, or counts."""
    per_column = 1 if encoding.scaling.scale == "idf_l2" else 2
    sent = torch.zeros(1 + per_column * len(encoding.scaling.mean), dtype=torch.float64)
    for site in encoding.told:
        ledger.record(site_names[site], {SUMS: sent})


def book_encoder_sums(ledger: Ledger, encoding: Encoding, site_names: Sequence[str]) -> None:
    """Note that sites have told these sums masked before the first round."""
    per_column = 1 if encoding.scaling.scale == "idf_l2" else 2
    sent = torch.zeros(2 + per_column * len(encoding.scaling.mean), dtype=torch.int64)
    for site in encoding.told:
        ledger.record(site_names[site], {"masked": sent})


def views_asked(method: Method, views: str) -> tuple[ViewKind, ...]:
    """The kinds of random views that a run asks for: that of `--views`, and those of its method."""
    of_run = () if views == "none" else (view_kind(views),)
    return tuple({kind.name: kind for kind in (*of_run, *method.view_kinds)}.values())


def refuse_views(method: Method, views: str, encoder: Encoder, kind: str) -> None:
    """Refuse random views of images where the encoder does not encode any."""
    if views_in(encoder) or not views_asked(method, views):
        return
    asks = (
        f"--views {views}" if views != "none" else f"method '{method.name}', which compares random views of an image,"
    )
    if kind == "images" and isinstance(encoder, ImageEncoder):
        advice = f"Let it encode some views too, with --encoder {replace(encoder, views=USUAL_VIEWS)}, or"
    else:
        advice = "Only encoders of images can encode views;"
    rest = "leave --views out" if views != "none" else "choose another method"
    raise UsageError(
        f"{asks} was given with --encoder {encoder}, which sees every sample once and unchanged. {advice} {rest}."
    )


# --- in the run folder ---------------------------------------------------------------------------------------------


def write_encoding(folder: RunFolder, encoding: Encoding) -> None:
    """Write what is needed to encode further samples in the same way."""
    folder.write_arrays(ARRAYS, mean=encoding.scaling.mean, factor=encoding.scaling.factor)
    folder.write_json(FILE, {"format": FORMAT, **encoding.facts(), "sites": len(encoding.told)})


def saved_encoding(
    folder: Path, shape: Shape, mean: tuple[float, ...] = (), std: tuple[float, ...] = (), own: Any = None
) -> Encoding | None:
    """The encoder of a finished run, for other samples of the same form; None if the run has none.

    `own` names the encoder's files where they lie elsewhere than in the run; their content must be the same.
    """
    if not (folder / FILE).exists():
        if own is not None:
            raise UsageError(f"--encoder {own} was given, but the run in {folder} has no encoder; leave it out.")
        return None
    facts = json_of(folder / FILE, FORM)
    if facts["format"] != FORMAT:
        raise DataError(f"{folder / FILE}: the format is {facts['format']}; this version reads {FORMAT}.")
    arrays = read_npz(folder / ARRAYS, ("mean", "factor"))
    advice = f" Or name its files where they lie now: --encoder {example_of(named(facts['encoder'])[0])}."
    advice = advice if own is None and has_files(facts["encoder"]) else ""
    try:
        data_encoder = DataEncoder.for_kind(as_here(facts["encoder"], own), facts["kind"], shape, mean, std)
    except (DataError, UsageError) as problem:
        raise type(problem)(f"{problem}{advice}") from None
    if data_encoder.opened.hash != facts["hash"]:
        raise DataError(
            f"{folder}: this run was made with an encoder whose hash is {facts['hash'][:12]}, and that of "
            f"{data_encoder.encoder} is {data_encoder.opened.hash[:12]}: its weights or settings have changed or are "
            f"others. Restore those of the run.{advice}"
        )
    if any(name not in arrays or arrays[name].shape != (facts["width"],) for name in ("mean", "factor")):
        raise DataError(f"{folder / ARRAYS}: not the scaling that was written here. Restore the file.")
    scaling = Scaling(facts["scale"], arrays["mean"].astype(np.float32), arrays["factor"].astype(np.float32))
    return Encoding(data_encoder, scaling, ())
