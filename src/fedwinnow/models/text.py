"""A bag of words with learned word vectors, for texts as token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from fedwinnow.data.tokens import PADDING
from fedwinnow.errors import DataError
from fedwinnow.models.model import Model, Shape
from fedwinnow.options import option


@dataclass(frozen=True)
class TextModel(Model):
    """The mean of the vectors of a text's tokens, then a linear layer; token 0 is padding and is left out."""

    name: ClassVar[str] = "text"
    kinds: ClassVar[tuple[str, ...]] = ("tokens",)

    width: int = option(64, "Length of the vector of a token.", at_least=1)

    def build(self, shape: Shape) -> nn.Module:
        self.check_fits(shape)
        if shape.vocabulary < 2:
            raise DataError(
                f"model 'text' was given a vocabulary of {shape.vocabulary} token ids; allowed: at least 2, "
                "padding (id 0) and a word. Set `vocabulary` of the data set to its largest token id plus one."
            )
        return BagOfTokens(shape.vocabulary, self.width, shape.classes)


class BagOfTokens(nn.Module):
    """The module of the text model."""

    token_table = "embedding"  # the one layer that takes token ids: a site trains the rows of its own tokens

    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocabulary, width, mode="mean", padding_idx=PADDING)
        self.fc = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.fc(self.embedding(tokens))
        return scores
