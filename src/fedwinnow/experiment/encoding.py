"""The frozen encoder of a run: data as rows for a head, scaled by sums over sites, and what the folder keeps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedwinnow.data.dataset import Dataset
from fedwinnow.data.source_files import read_npz
from fedwinnow.encoders.encoded import Encoded
from fedwinnow.encoders.make_encoder import DataEncoder
from fedwinnow.encoders.scaling import Scaling, Sums, pieces_of
from fedwinnow.errors import DataError, UsageError
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.federation.method import Method
from fedwinnow.files import json_of
from fedwinnow.scene.holdings import Holdings

HEAD = "linear"  # the model with an encoder when the user names none
FILE, ARRAYS = "encoder.json", "encoder.npz"
FORMAT = 1


@dataclass(frozen=True, eq=False)
class Encoding:
    """An encoder and the scaling that was fitted for a run."""

    data_encoder: DataEncoder
    scaling: Scaling
    sites: int  # how many sites gave sums

    def encoded(self, dataset: Dataset) -> Dataset:
        """Data as the run's model takes it."""
        return self.data_encoder.encoded(dataset, self.scaling)

    def facts(self) -> dict[str, Any]:
        """What a run notes of its encoder."""
        return {
            "encoder": str(self.data_encoder.encoder),
            "hash": self.data_encoder.opened.hash,
            "width": self.data_encoder.opened.width,
            "kind": self.data_encoder.kind,
            "scale": self.scaling.scale,
        }


def encoding_of(spec: Any, dataset: Dataset, trained: Holdings, least_count: int) -> Encoding:
    """The encoder of a run, with a scaling from the sums of those sites that have enough training samples."""
    data_encoder = DataEncoder.for_data(spec, dataset)
    features = data_encoder.features(dataset.train)
    sums = [sums_of(features, data_encoder, trained.rows[trained.of(site)]) for site in range(trained.clients)]
    told = [one for site in sums if (one := site.told(data_encoder.scale, least_count)) is not None]
    return Encoding(data_encoder, Scaling.fitted(data_encoder.scale, told, data_encoder.opened.width), len(told))


def sums_of(features: Encoded, data_encoder: DataEncoder, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Sums:
    """The sums of one site, from its rows alone."""
    if data_encoder.scale in ("l2", "none"):
        return Sums(0, np.zeros(0), np.zeros(0))
    return Sums.of(map(features.raw, pieces_of(rows)), data_encoder.opened.width, data_encoder.scale)


def refuse_views(method: Method, views: str) -> None:
    """Refuse random views of images where the model sees the rows of an encoder."""
    if views != "none":
        raise UsageError(
            f"--views {views} was given with --encoder, which sees every image once and unchanged; leave one of "
            f"the two out."
        )
    if method.needs_views:
        raise UsageError(
            f"method '{method.name}' compares random views of an image, and the features of an encoder have none; "
            f"leave --encoder out, or choose another method."
        )


# --- in the run folder ---------------------------------------------------------------------------------------------


def write_encoding(folder: RunFolder, encoding: Encoding) -> None:
    """Write what is needed to encode further samples in the same way."""
    folder.write_arrays(ARRAYS, mean=encoding.scaling.mean, factor=encoding.scaling.factor)
    folder.write_json(FILE, {"format": FORMAT, **encoding.facts(), "sites": encoding.sites})


def saved_encoding(folder: Path, dataset: Dataset) -> Encoding | None:
    """The encoder of a finished run, for other samples (`encoded`); None if the run has none."""
    if not (folder / FILE).exists():
        return None
    facts = json_of(
        folder / FILE, {"format": int, "encoder": str, "hash": str, "width": int, "scale": str, "sites": int}
    )
    if facts["format"] != FORMAT:
        raise DataError(f"{folder / FILE}: the format is {facts['format']}; this version reads {FORMAT}.")
    arrays = read_npz(folder / ARRAYS, ("mean", "factor"))
    data_encoder = DataEncoder.for_data(facts["encoder"], dataset)
    if data_encoder.opened.hash != facts["hash"]:
        raise DataError(
            f"{folder}: this run was made with an encoder whose hash is {facts['hash'][:12]}, now it is "
            f"{data_encoder.opened.hash[:12]}: its weights or settings have changed. Restore the weights."
        )
    if any(name not in arrays or arrays[name].shape != (facts["width"],) for name in ("mean", "factor")):
        raise DataError(f"{folder / ARRAYS}: not the scaling that was written here. Restore the file.")
    scaling = Scaling(facts["scale"], arrays["mean"].astype(np.float32), arrays["factor"].astype(np.float32))
    return Encoding(data_encoder, scaling, facts["sites"])
