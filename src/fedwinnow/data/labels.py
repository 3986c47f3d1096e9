"""From the texts of labels to class names and class numbers; all sources use this."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from decimal import Decimal

import numpy as np

from fedwinnow.data.dataset import Dataset, Labels
from fedwinnow.errors import FedwinnowWarning

# A Decimal holds numbers of this length exactly; anything longer is a text.
NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{0,8})?([eE][+-]?[0-9]{1,2})?")


def number_of(text: str) -> Decimal | None:
    """The number a label stands for, or None for a text."""
    return Decimal(text) if NUMBER.fullmatch(text) else None


def number_text(number: Decimal) -> str:
    """The number as a text that is the same for 1.0 and 1, so that they are one class."""
    return str(int(number)) if number == number.to_integral_value() else format(number.normalize(), "f")


def class_names_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The distinct labels in order: by value where all are numbers, else by text."""
    distinct = set(texts)
    numbers = {number for text in distinct if (number := number_of(text)) is not None}
    if all(number_of(text) is not None for text in distinct):
        return tuple(number_text(number) for number in sorted(numbers))
    return tuple(sorted(distinct))


def class_numbers(texts: Sequence[str], class_names: Sequence[str]) -> Labels:
    """The class of each label text; -1 where no class has this name."""
    places = {name: place for place, name in enumerate(class_names)}
    numeric = all(number_of(name) is not None for name in class_names)
    lookup = {}
    for text in set(texts):
        number = number_of(text) if numeric else None
        lookup[text] = places.get(text if number is None else number_text(number), -1)
    return np.fromiter((lookup[text] for text in texts), dtype=np.int64, count=len(texts))


def name_some(class_names: Sequence[str], limit: int = 10) -> str:
    """Class names for an error message, shortened if there are many."""
    more = f", ... ({len(class_names)} in all)" if len(class_names) > limit else ""
    return ", ".join(class_names[:limit]) + more


def warn_of_alike_classes(dataset: Dataset) -> None:
    """Warn of classes that may be one class written in two ways."""
    counts = np.bincount(dataset.train.labels, minlength=dataset.classes)
    warn_of_look_alikes(dataset.name, "classes", dataset.class_names, counts.tolist())


def warn_of_look_alikes(data: str, what: str, names: Sequence[str], counts: Sequence[int]) -> None:
    """Warn of names that may mean the same; they stay different, because only the user can know."""
    alike: dict[str, list[str]] = {}
    for name, count in zip(names, counts, strict=True):
        plain = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        alike.setdefault(plain, []).append(f"'{name}' (n={count})")
    if several := [" and ".join(group) for group in alike.values() if len(group) > 1]:
        warnings.warn(
            f"{data}: these {what} differ only in capitals, spaces or the form of a letter, and count as different "
            f"{what}: {name_some(several)}. Write them alike in the data if they are the same.",
            FedwinnowWarning,
            stacklevel=3,
        )
