"""What a data source is: a part whose `load` returns a Dataset."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedwinnow.options import Part, option

if TYPE_CHECKING:
    from fedwinnow.data.dataset import Dataset
    from fedwinnow.data.input_form import InputForm
    from fedwinnow.data.new_samples import NewSamples


@dataclass(frozen=True)
class Source(Part):
    """Base of every data source."""

    imbalance: float = option(
        1.0, "Thin the training classes out by equal ratios; the last becomes this many times rarer.", at_least=1
    )
    train: int | None = option(None, "Keep only this many training samples, in the same shares of classes.", at_least=1)
    test: int | None = option(None, "Keep only this many test samples, in the same shares of classes.", at_least=1)

    @abstractmethod
    def load(self) -> Dataset:
        """Read the data; every problem is a DataError that names file and row."""

    def load_new(self, form: InputForm) -> NewSamples | None:
        """Read samples for a trained model, with or without labels; None from a source that is always read whole."""
        return None

    def missing(self) -> list[str]:
        """One line per published file that is not on this machine; no data is read, so that `doctor` is quick."""
        return []
