"""Texts as the mean of static word vectors (WordLlama), read from the files of an installed package."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedwinnow.data.content_hash import hash_of_file
from fedwinnow.encoders.encoder import Batch, Encoder, Matrix, OpenEncoder, hash_of
from fedwinnow.encoders.package_file import checked_file
from fedwinnow.errors import DataError, missing_extra
from fedwinnow.models.model import Shape
from fedwinnow.models.weight_files import read_weights
from fedwinnow.options import option

PACKAGE = "wordllama"


@dataclass(frozen=True)
class Words(Encoder):
    """The mean of a text's static word vectors: 256 numbers per text, quick, order is ignored (extra `encoders`).

    The vectors come with the package wordllama (MIT), so no internet is needed.
    """

    name: ClassVar[str] = "words"
    kinds: ClassVar[tuple[str, ...]] = ("texts",)
    package: ClassVar[str] = "wordllama"
    citation: ClassVar[str] = "D. Lee Miller: WordLlama: recycled token embeddings from large language models. 2024."
    licence: ClassVar[str] = "MIT (package); the vectors were made from token embeddings of language models"

    length: int = option(512, "How many word pieces of a text are used.", at_least=1, at_most=100000)

    def open(self, shape: Shape, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()) -> OpenEncoder:
        table_path, tokenizer_path = package_files()
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise missing_extra("encoders", "the encoder `words`") from None
        try:
            tokenizer = Tokenizer.from_str(tokenizer_path.read_text(encoding="utf-8"))
        except Exception as problem:  # the package raises plain exceptions
            raise DataError(
                f"{tokenizer_path}: not a readable tokenizer ({problem}). Install {PACKAGE} again."
            ) from None
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.length)
        (table,) = (value.float().numpy() for value in read_weights(table_path).values())

        def encode(batch: Batch) -> Matrix:
            found = np.zeros((len(batch), table.shape[1]), np.float32)
            for row, text in enumerate(tokenizer.encode_batch(list(batch), add_special_tokens=False)):
                if text.ids:
                    found[row] = table[text.ids].mean(axis=0)
            return found

        weights = [hash_of_file(table_path), hash_of_file(tokenizer_path)]
        return OpenEncoder(table.shape[1], hash_of(self.settings(), weights), encode, "numpy", batch=256)


def package_files() -> tuple[Path, Path]:
    """The table of vectors and the tokenizer in the installed package, whose code is not run."""
    plan = importlib.util.find_spec(PACKAGE)
    if plan is None or not plan.submodule_search_locations:
        raise missing_extra("encoders", "the encoder `words`")
    home = Path(plan.submodule_search_locations[0])
    tables, tokenizers = sorted(home.glob("weights/*_256.safetensors")), sorted(home.glob("tokenizers/*.json"))
    if not tables or not tokenizers:
        raise DataError(f"the package {PACKAGE} has no table of word vectors. Install it again.")
    return checked_file(PACKAGE, tables[0]), checked_file(PACKAGE, tokenizers[0])
