"""Texts as hashed counts of words and pairs of words, weighted by how rare they are at all sites together."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from fedwinnow.data.tokens import WORD
from fedwinnow.encoders.encoder import Batch, Encoder, Matrix, OpenEncoder, hash_of
from fedwinnow.models.model import Shape
from fedwinnow.options import option


@dataclass(frozen=True)
class TfIdf(Encoder):
    """Counts of words and pairs of neighbours, hashed and weighted by their rarity; needs no weights and any language.

    How rare a word is comes from sums over the sites: at how many of its texts a site has it, where these are at least
    the least count.
    """

    name: ClassVar[str] = "tfidf"
    kinds: ClassVar[tuple[str, ...]] = ("texts",)

    width: int = option(4096, "How many columns words are hashed to.", at_least=16, at_most=65536)
    pairs: bool = option(True, "Count pairs of neighbouring words too.")
    scale: Literal["idf_l2", "l2", "none"] = option(  # type: ignore[assignment]  # other words than the base has
        "idf_l2", "What a head gets: counts weighted by rarity, then rows of length 8; or without the weights."
    )

    def open(self, shape: Shape, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> OpenEncoder:
        def encode(batch: Batch) -> Matrix:
            return np.stack([counts(text, self.width, self.pairs) for text in batch])

        return OpenEncoder(self.width, hash_of(self.settings(), []), encode, "numpy", batch=256)


def counts(text: str, width: int, pairs: bool) -> Matrix:
    """1 + log(count) of every column that the text has, else 0."""
    words = WORD.findall(text.lower())
    terms = words + ([f"{one} {two}" for one, two in pairwise(words)] if pairs else [])
    columns = [zlib.crc32(term.encode("utf-8", errors="replace")) % width for term in terms]
    found = np.bincount(np.array(columns, np.int64), minlength=width).astype(np.float32)
    return np.where(found > 0, 1 + np.log(np.maximum(found, 1)), 0).astype(np.float32)
