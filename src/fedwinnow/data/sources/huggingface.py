"""Data sets of the Hugging Face Hub, through the package `datasets`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.dataset import Dataset, Samples, Texts
from fedwinnow.data.images import ImageFrame, decode, is_grey
from fedwinnow.data.source import Source
from fedwinnow.data.tokens import token_ids
from fedwinnow.errors import DataError, UsageError, missing_extra, unknown
from fedwinnow.options import option


@dataclass(frozen=True)
class HuggingFace(Source):
    """A data set of the Hugging Face Hub or its local cache (needs the extra `huggingface`).

    An image column is used first, then a text column, then all columns of numbers.
    """

    name: ClassVar[str] = "huggingface"

    dataset: str = option(..., "The name on the Hub, for example owner/name, or a folder.", names_file=True)
    config: str | None = option(None, "Which configuration, where the data set has several.")
    split: str = option("train", "The split to train on.")
    test_split: str | None = option("test", "The split to test on, used where the data set has it.")
    label: str | None = option(None, "The column with the labels; without it the only column of classes.")
    image: str | None = option(None, "The column with the images; without it the first such column.")
    text: str | None = option(None, "The column with the texts; without it the first such column.")
    group: str | None = option(
        None, "The column that says which samples belong together (a patient): they stay in one part, site and fold."
    )
    site: str | None = option(None, "The column that says which site holds the sample.")
    size: int | None = option(
        None, "Height and width of the images; without it that of the first.", at_least=1, at_most=10000
    )
    length: int = option(128, "How many words of a text are kept.", at_least=1, at_most=100000)
    vocabulary: int = option(30000, "How many token ids words are hashed to.", at_least=2, at_most=10000000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image is not None and self.text is not None:
            raise UsageError(f"{self.name}: image={self.image} and text={self.text} exclude each other; choose one.")

    def load(self) -> Dataset:
        """Fetch the splits and turn their columns into arrays."""
        try:
            import datasets
        except ImportError:
            raise missing_extra("huggingface", "loading from the Hugging Face Hub") from None
        try:
            splits = datasets.load_dataset(self.dataset, self.config)
        except Exception as problem:  # errors of the package, of the network and of the file formats
            raise DataError(f"{self.dataset} cannot be loaded: {problem}") from None
        return self.convert(splits)

    def convert(self, splits: Mapping[str, Any]) -> Dataset:
        """The data set from splits that have `features` and return a column by its name."""
        if self.split not in splits:
            raise DataError(f"{self.dataset}: {unknown('split', self.split, splits)}")
        training = splits[self.split]
        features = dict(training.features)
        for column in (self.group, self.site):
            if column is not None and features.pop(column, None) is None:
                raise DataError(f"{self.dataset}: {unknown('column', column, features)}")
        roles = find_roles(self.dataset, features, self.label, self.image, self.text)
        frame = frame_of(self.dataset, training[roles.image], self.size) if roles.image is not None else None
        test = splits.get(self.test_split) if self.test_split and self.test_split != self.split else None
        dataset = from_arrays(
            self.features(training, roles, frame),
            list(training[roles.label]),
            x_test=None if test is None else self.features(test, roles, frame),
            y_test=None if test is None else list(test[roles.label]),
            groups=None if self.group is None else list(training[self.group]),
            sites=None if self.site is None else list(training[self.site]),
            class_names=roles.class_names,
            name=self.dataset,
            kind="tokens" if roles.text is not None else "auto",
            vocabulary=self.vocabulary if roles.text is not None else None,
        )
        if roles.text is not None:
            dataset = replace(
                dataset,
                train=with_texts(dataset.train, training[roles.text]),
                test=None if dataset.test is None or test is None else with_texts(dataset.test, test[roles.text]),
            )
        return replace(
            dataset, name=self.dataset.rpartition("/")[2], hashed_words=roles.text is not None, roles=named(roles)
        )

    def features(self, split: Any, roles: Roles, frame: ImageFrame | None) -> Any:
        """The samples of one split as an array."""
        if roles.image is not None and frame is not None:
            return np.stack([decode(image, frame) for image in present(self.dataset, split[roles.image])])
        if roles.text is not None:
            return token_ids(as_texts(split[roles.text]), self.length, self.vocabulary)
        return np.stack([np.asarray(list(split[name]), dtype=np.float64) for name in roles.numbers], axis=1)


def as_texts(column: Iterable[Any]) -> list[str]:
    """The texts of a column; a missing one is empty."""
    return [str(text or "") for text in column]


def with_texts(samples: Samples, column: Iterable[Any]) -> Samples:
    """The samples with the texts that their token ids were made of."""
    return replace(samples, texts=Texts(as_texts(column)))


@dataclass(frozen=True)
class Roles:
    """What each column is used for."""

    label: str
    class_names: tuple[str, ...] | None
    image: str | None = None
    text: str | None = None
    numbers: tuple[str, ...] = ()


def named(roles: Roles) -> dict[str, str]:
    """The columns of one role each, by role."""
    found = {"label": roles.label, "image": roles.image, "text": roles.text}
    return {role: column for role, column in found.items() if column is not None}


def find_roles(
    where: str, features: Mapping[str, Any], label: str | None, image: str | None, text: str | None
) -> Roles:
    """The roles that the user named; the others follow from the types of the columns."""
    for asked in (label, image, text):
        if asked is not None and asked not in features:
            raise DataError(f"{where}: {unknown('column', asked, features)}")
    if label is None:
        classes = [name for name, feature in features.items() if type(feature).__name__ == "ClassLabel"]
        if len(classes) != 1:
            found = ", ".join(classes) or "none"
            raise DataError(
                f"{where}: one column of classes is needed, found: {found}. Choose with label=; the columns are "
                f"{', '.join(features)}."
            )
        label = classes[0]
    names = getattr(features[label], "names", None)
    class_names = tuple(names) if names else None
    others = {name: feature for name, feature in features.items() if name != label}
    if image is None and text is None:
        image = next((name for name, feature in others.items() if type(feature).__name__ == "Image"), None)
    if image is not None:
        return Roles(label, class_names, image=image)
    if text is None:
        text = next((name for name, feature in others.items() if dtype_of(feature).endswith("string")), None)
    if text is not None:
        return Roles(label, class_names, text=text)
    numbers = tuple(name for name, feature in others.items() if dtype_of(feature).startswith(("int", "uint", "float")))
    if not numbers:
        raise DataError(f"{where}: no column of images, texts or numbers among {', '.join(features)}.")
    return Roles(label, class_names, numbers=numbers)


def dtype_of(feature: Any) -> str:
    """The type of a column of values; an empty text for other columns."""
    return str(getattr(feature, "dtype", "")) if type(feature).__name__ == "Value" else ""


def frame_of(where: str, images: Iterable[Any], size: int | None) -> ImageFrame:
    """The size of the first image; one channel if all images are grey."""
    first = next(present(where, images), None)
    if first is None:
        raise DataError(f"{where}: the split to train on has no sample.")
    height, width = (first.height, first.width) if size is None else (size, size)
    return ImageFrame(height, width, 1 if all(is_grey(image.mode) for image in present(where, images)) else 3)


def present(where: str, images: Iterable[Any]) -> Iterator[Any]:
    """The images of a column; a missing image is refused."""
    for row, image in enumerate(images):
        if image is None:
            raise DataError(f"{where}: row {row + 1} (index {row}) has no image; every sample needs one.")
        yield image
