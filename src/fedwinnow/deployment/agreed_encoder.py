"""An encoder over a network: every site has the same weights, and tells sums for the scaling before the first round."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwinnow.data.dataset import Dataset
from fedwinnow.deployment.error_codes import for_others
from fedwinnow.deployment.foreign_text import one_line
from fedwinnow.encoders.elsewhere import as_here, example_of, named, needs_files
from fedwinnow.encoders.encoder import Encoder, Scale
from fedwinnow.encoders.head_input import Scaling, Sums, needs_sums
from fedwinnow.encoders.make_encoder import DataEncoder
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.encoding import Encoding, sums_of
from fedwinnow.models.model import Shape

SLACK = 1e-6  # by which sums may miss what sums of squares must be, relative
LARGEST_MEAN = 1e6  # of the values of an encoder; larger ones would leave nothing of those of the other sites


def encoder_in(encoding: Encoding | None, *, scaled: bool) -> dict[str, Any]:
    """What a site is told of the encoder: the hash of its weights and settings, and the scaling once it is known."""
    if encoding is None:
        return {}
    facts: dict[str, Any] = {"hash": encoding.data_encoder.opened.hash}
    if scaled:
        facts |= {"mean": packed(encoding.scaling.mean), "factor": packed(encoding.scaling.factor)}
    return {"encoder": facts}


def packed(values: NDArray[np.float32]) -> str:
    """Numbers as a text, exactly."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def unpacked(text: Any, width: int) -> NDArray[np.float32]:
    """The numbers of a text; an error if it is not so many finite numbers."""
    try:
        found = np.frombuffer(base64.b64decode(str(text), validate=True), "<f4").astype(np.float32)
    except ValueError:
        found = np.zeros(0, np.float32)
    if found.shape != (width,) or not np.isfinite(found).all():
        raise for_others(DataError("the coordinator sent a scaling that does not fit the encoder."), "encoder")
    return found


# --- at a site -----------------------------------------------------------------------------------------------------


def encoder_here(spec: Any, own: Any) -> Encoder | None:
    """The encoder that the coordinator named, with the files that this site names for itself; None if it named none."""
    if spec is None:
        if own is None:
            return None
        raise for_others(
            UsageError(f"--encoder {own} was given, but the coordinator's run has no encoder. Leave it out."), "encoder"
        )
    if own is None and needs_files(spec):
        name = named(spec)[0]
        raise for_others(
            UsageError(
                f"the coordinator's encoder is {one_line(spec, 80)}, whose files every machine names for itself. Give "
                f"yours: --encoder {example_of(name)}."
            ),
            "encoder",
        )
    try:
        return as_here(spec, own)
    except UsageError as problem:
        raise for_others(problem, "encoder") from None


def agreed_encoder(spec: Any, run: dict[str, Any], dataset: Dataset, own: Any = None) -> DataEncoder | None:
    """The encoder of a run, opened here; refused if its weights or settings are not those of the coordinator."""
    encoder, task = encoder_here(spec, own), run.get("task")
    if encoder is None:
        return None
    kind = encoder.kind_of(dataset)
    if task is None:
        found = DataEncoder.for_data(encoder, dataset)
    else:
        shape = Shape.from_table(task["shape"])
        found = DataEncoder.for_kind(encoder, kind, shape, tuple(task["mean"]), tuple(task["std"]))
    told = run.get("encoder")
    theirs = told.get("hash") if isinstance(told, dict) else None
    if theirs != found.opened.hash:
        raise for_others(
            DataError(
                f"the encoder {one_line(encoder, 200)} has the hash {found.opened.hash[:12]} here and "
                f"{one_line(str(theirs)[:12], 12)} at the coordinator: other weights or settings. Both "
                f"machines need the same: install the same package, or copy the coordinator's files (--encoder names "
                f"them)."
            ),
            "encoder",
        )
    return found


def agreed_scaling(run: dict[str, Any], data_encoder: DataEncoder) -> Scaling:
    """The scaling that the coordinator has made of all sums."""
    told, width = run["encoder"], data_encoder.opened.width
    return Scaling(data_encoder.scale, unpacked(told.get("mean"), width), unpacked(told.get("factor"), width))


def own_sums(dataset: Dataset, data_encoder: DataEncoder, least_count: int) -> Tensor | None:
    """The sums of this site in one row: how many samples, and the sums of every column; None if there are too few."""
    features = data_encoder.features(dataset.train)
    told = sums_of(features, data_encoder, np.arange(len(features))).told(data_encoder.scale, least_count)
    if told is None:
        return None
    columns = [told.first] if data_encoder.scale == "idf_l2" else [told.first, told.second]
    return torch.from_numpy(np.concatenate([np.array([float(told.count)]), *columns]))


# --- at the coordinator --------------------------------------------------------------------------------------------


def sums_from(value: Tensor | None, scale: Scale, width: int, samples: int) -> Sums | str:
    """The sums that a site sent, or why they cannot be."""
    size = 1 + width * (1 if scale == "idf_l2" else 2)
    if value is None or tuple(value.shape) != (size,) or value.dtype != torch.float64:
        return f"they are not the {size} numbers that the encoder needs"
    numbers = value.numpy()
    if not np.isfinite(numbers).all():
        return "they are not finite"
    first, second = numbers[1 : 1 + width], numbers[1 + width :]
    if numbers[0] != samples:
        return f"they are of {numbers[0]:g} samples, but the site stated {samples}"
    if (np.abs(first) > LARGEST_MEAN * samples).any() or (np.abs(second) > LARGEST_MEAN**2 * samples).any():
        return f"they are sums of values above {LARGEST_MEAN:g}"
    if scale == "idf_l2":
        possible = bool(((first >= 0) & (first <= samples)).all())
        return Sums(samples, first, np.zeros(width)) if possible else "a count is below 0 or above the samples"
    if (first * first > samples * second * (1 + SLACK) + SLACK).any():
        return "no values have such sums and sums of squares"
    return Sums(samples, first, second)


def fitted(early: Encoding, sums: dict[str, Sums], site_names: tuple[str, ...]) -> Encoding:
    """The encoder with the scaling from the sums of these sites, added in the order of their names."""
    scale, width = early.data_encoder.scale, early.data_encoder.opened.width
    ordered = [name for name in site_names if name in sums]
    scaling = Scaling.fitted(scale, [sums[name] for name in ordered], width)
    return Encoding(early.data_encoder, scaling, tuple(site_names.index(name) for name in ordered))


def early_encoding(spec: Any, own: Dataset) -> Encoding | None:
    """The encoder before any site has told its sums; None if there is none."""
    if spec is None:
        return None
    data_encoder = DataEncoder.for_data(spec, own)
    return Encoding(data_encoder, Scaling.plain(data_encoder.opened.width, data_encoder.scale), ())


def asks_sums(encoding: Encoding | None) -> bool:
    """Whether the sites must be asked."""
    return encoding is not None and needs_sums(encoding.data_encoder.scale)
