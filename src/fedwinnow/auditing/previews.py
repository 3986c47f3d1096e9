"""What a person sees of a sample: a small picture, or its cells as text. Previews never leave the site."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow import catalogue
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.sources.table_source import TableSource
from fedwinnow.data.table_reading import TextTable

LARGEST_SIDE = 256  # pixels
LOSSLESS_SIDE = 64  # pixels; smaller pictures are saved without loss
LONGEST_CELL = 400  # letters
MOST_CELLS = 40


@dataclass(frozen=True, eq=False)
class Previews:
    """The previews of a data set's training part."""

    dataset: Dataset
    table: TextTable | None  # if the samples came from a table
    columns: tuple[str, ...]
    lines: dict[str, int]  # id -> row of the table

    @classmethod
    def of(cls, dataset: Dataset, table: TextTable | None = None, columns: tuple[str, ...] = ()) -> Previews:
        """The previews, with the table that the data was read from if there is one."""
        lines = {str(name): row for row, name in enumerate(dataset.train.ids)} if table is not None else {}
        if table is None and dataset.kind != "images" and dataset.source:
            source = catalogue.make("data", dataset.source)
            if isinstance(source, TableSource):
                table = source.read(source.path)
                columns = (source.text,) if source.text is not None else tuple(source.feature_names(table))
                ids = range(1, len(table) + 1) if source.id is None else table.column(source.id)
                lines = {str(name): row for row, name in enumerate(ids)}
        return cls(dataset, table, columns, lines)

    @property
    def pictures(self) -> bool:
        """Whether samples are pictures."""
        return self.dataset.kind == "images"

    def picture(self, row: int) -> tuple[bytes, str]:
        """A small picture as the content of a file, and the ending of its name."""
        return encoded(self.dataset.train.features.take(np.array([row]))[0])

    def texts(self, row: int) -> dict[str, str]:
        """The sample's cells by the names of their columns."""
        if self.table is not None:
            place = self.lines[str(self.dataset.train.ids[row])]
            return {name: cut(self.table.columns[name][place]) for name in self.columns[:MOST_CELLS]}
        values = self.dataset.train.features.take(np.array([row]))[0].reshape(-1)[:MOST_CELLS]
        return {f"column {number}": f"{value:.6g}" for number, value in enumerate(values.tolist(), start=1)}


def encoded(pixels: NDArray[Any]) -> tuple[bytes, str]:
    """Pixels as a PNG where they are few, else as a JPEG."""
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    stream = io.BytesIO()
    if max(image.size) <= LOSSLESS_SIDE:
        image.save(stream, "PNG", optimize=True)
        return stream.getvalue(), "png"
    image.save(stream, "JPEG", quality=88)
    return stream.getvalue(), "jpg"


def cut(text: str) -> str:
    """The text, shortened to fit on a page."""
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"
