"""Texts as token ids: a word's id is a hash of the word, so that sites need no common vocabulary."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WORD = re.compile(r"\w+")
PADDING = 0  # the token id that fills up a short text


def token_ids(texts: Sequence[str], length: int, vocabulary: int) -> NDArray[np.int32]:
    """One row of `length` ids per text, in 1..vocabulary-1, cut or filled up with 0.

    A text without a word becomes one token, so that no sample consists of padding only.
    """
    ids = np.full((len(texts), length), PADDING, dtype=np.int32)
    known: dict[str, int] = {}
    for row, text in enumerate(texts):
        words = WORD.findall(text.lower())[:length] or [""]
        for word in words:
            if word not in known:
                known[word] = 1 + zlib.crc32(word.encode("utf-8", errors="replace")) % (vocabulary - 1)
        ids[row, : len(words)] = [known[word] for word in words]
    return ids
