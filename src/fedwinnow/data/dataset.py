"""What every data source returns: a data set with features as they are stored, labels, names and ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.column import Column
from fedwinnow.data.content_hash import Contents, contents_of_arrays, contents_of_files
from fedwinnow.errors import DataError

if TYPE_CHECKING:
    import torch

Kind = Literal["images", "rows", "tokens"]
Labels = NDArray[np.int64]
Rows = NDArray[np.int64]


class Features(Protocol):
    """The features of samples: uint8 images (height, width, channels), float32 rows or int32 token ids."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8, float32 or int32, as they are stored."""

    def __len__(self) -> int: ...

    def take(self, rows: Rows) -> NDArray[Any]:
        """The samples at these rows, as one array."""

    def stream(self, batches: Iterable[Rows]) -> Iterator[NDArray[Any]]:
        """The samples batch by batch; a lazy source decodes the next batch while this one is used."""

    def subset(self, rows: Rows) -> Features:
        """The features of these rows only; the others cannot be reached from it."""


@dataclass(frozen=True, eq=False)
class Resident:
    """Features that are in memory (or mapped from one file), as an array whose first axis counts samples."""

    array: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def take(self, rows: Rows) -> NDArray[Any]:
        return np.asarray(self.array[rows])

    def stream(self, batches: Iterable[Rows]) -> Iterator[NDArray[Any]]:
        for rows in batches:
            yield self.take(rows)

    def subset(self, rows: Rows) -> Resident:
        return Resident(self.take(rows))


@dataclass(frozen=True, eq=False)
class FieldRows(Resident):
    """Rows of a table that know which numbers belong to which field of the table."""

    columns: tuple[Column, ...]

    def subset(self, rows: Rows) -> FieldRows:
        return FieldRows(self.take(rows), self.columns)


@dataclass(frozen=True, eq=False)
class Texts:
    """The texts behind token ids, for encoders that read texts; the strings are shared by all subsets."""

    texts: Sequence[str]
    rows: Rows | None = None  # None: all, in their order

    def __len__(self) -> int:
        return len(self.texts) if self.rows is None else len(self.rows)

    def take(self, rows: Rows) -> list[str]:
        """The texts at these rows."""
        places = rows if self.rows is None else self.rows[rows]
        return [self.texts[place] for place in places.tolist()]

    def subset(self, rows: Rows) -> Texts:
        """The texts of these rows only."""
        return Texts(self.texts, np.asarray(rows if self.rows is None else self.rows[rows]))


@dataclass(frozen=True, eq=False)
class Samples:
    """One part of a data set, the training or the test samples; all arrays have the order of the features."""

    features: Features
    labels: Labels
    ids: NDArray[Any]  # text or whole numbers, unique
    true: Labels | None = None  # where the truth is known
    sites: NDArray[np.str_] | None = None  # which site holds the sample, where the data has it
    human: dict[str, Labels] = field(default_factory=dict)  # further labels by people, by name (CIFAR-N)
    texts: Texts | None = None  # what the token ids were made of, where the source has it
    groups: NDArray[Any] | None = None  # which samples belong together (a patient), as texts or whole numbers

    def __len__(self) -> int:
        return len(self.labels)

    def arrays(self) -> list[NDArray[Any]]:
        """All arrays: features (unless they are decoded when needed), labels, ids, and the optional columns."""
        features = [self.features.array] if isinstance(self.features, Resident) else []
        columns = (self.labels, self.ids, self.true, self.sites, *(self.human[name] for name in sorted(self.human)))
        columns = (*columns, self.groups)
        return [*features, *(column for column in columns if column is not None)]

    def subset(self, rows: Rows) -> Samples:
        """These rows, in this order."""
        return Samples(
            features=self.features.subset(rows),
            labels=self.labels[rows],
            ids=self.ids[rows],
            true=None if self.true is None else self.true[rows],
            sites=None if self.sites is None else self.sites[rows],
            human={name: column[rows] for name, column in self.human.items()},
            texts=None if self.texts is None else self.texts.subset(rows),
            groups=None if self.groups is None else self.groups[rows],
        )


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set before partition and noise; it is never changed."""

    name: str
    kind: Kind
    class_names: tuple[str, ...]
    train: Samples
    test: Samples | None = None  # None until `with_test_part` has split one off
    labels_trusted: bool = True  # False where the labels are what people gave and may be wrong
    agreed_classes: bool = False  # True where the names were agreed with other sites: a class may have no sample here
    mean: tuple[float, ...] = ()  # per channel of an image, of pixel / 255; empty: not normalised
    std: tuple[float, ...] = ()
    vocabulary: int = 0  # how many token ids there are; 0 where samples are not tokens
    hashed_words: bool = False  # whether the token ids are hashes of words (`token_ids`), so that new texts can be read
    columns: tuple[Column, ...] = ()  # how the columns of a table became features; empty for other samples
    roles: dict[str, str] = field(default_factory=dict)  # which column of a table is the label, the id, the text ...
    source: str = ""  # the spec that loads it again, for example "csv:path=a.csv,label=diagnosis"
    source_hash: str = ""  # sha256 of the files it came from, where that is quick to compute
    contents: Contents | None = None  # the hash of the files that it was read from; None: its arrays are hashed

    def __post_init__(self) -> None:
        check(self)

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return self.train.features.shape

    def fingerprint(self) -> str:
        """A hash of labels, ids and names of the training part.

        Features are left out: decoding a photograph or standardising a column may differ in the last bit between
        machines, and a set that is decoded when needed would have to be read whole. `source_hash` covers them.
        """
        digest = hashlib.sha256()
        digest.update(f"{self.kind}/{self.sample_shape}/{len(self.train)}".encode())
        digest.update("\0".join(self.class_names).encode())
        digest.update(self.train.labels.astype("<i8").tobytes())
        digest.update("\0".join(map(str, self.train.ids.tolist())).encode())
        if self.train.true is not None:
            digest.update(self.train.true.astype("<i8").tobytes())
        if self.train.sites is not None:
            digest.update("\0".join(self.train.sites.tolist()).encode())
        if self.train.groups is not None:
            digest.update("\0".join(["groups", *map(str, self.train.groups.tolist())]).encode())
        return digest.hexdigest()

    def known_contents(self) -> Contents:
        """The hash of all samples with their features: of the files they came from, else of the arrays.

        Files come first, because decoding or standardising may differ between machines.
        """
        if self.contents is not None:
            return self.contents
        parts = [self.train] if self.test is None else [self.train, self.test]
        found = contents_of_arrays(self.name, [array for samples in parts for array in samples.arrays()])
        files = [path for samples in parts for path in getattr(samples.features, "paths", ())]  # decoded when needed
        if not files:
            return found
        pictures = contents_of_files(self.name, files)
        total = hashlib.sha256(f"{found.hash}{pictures.hash}".encode()).hexdigest()
        return Contents(self.name, total, found.sampled or pictures.sampled)


def check(dataset: Dataset) -> None:
    """Refuse a data set that no method could use; a source has checks of its own that name file and row."""
    if len(dataset.class_names) < 2:
        names = ", ".join(dataset.class_names) or "none"
        raise DataError(f"{dataset.name}: a classifier needs at least two classes; found: {names}.")
    if len(set(dataset.class_names)) < len(dataset.class_names):
        twice = next(name for name in dataset.class_names if dataset.class_names.count(name) > 1)
        raise DataError(f"{dataset.name}: two classes have the same name: '{twice}'.")
    for part, samples in (("training", dataset.train), ("test", dataset.test)):
        if samples is not None:
            check_samples(f"{dataset.name} ({part} part)", samples, dataset.classes)
    counts = np.bincount(dataset.train.labels, minlength=dataset.classes)
    if (counts == 0).any() and not dataset.agreed_classes:
        empty = ", ".join(dataset.class_names[place] for place in np.flatnonzero(counts == 0)[:5])
        raise DataError(
            f"{dataset.name}: no training sample has the class {empty}. Remove it from the class names or add samples."
        )


def check_samples(where: str, samples: Samples, classes: int) -> None:
    """Refuse samples whose lengths differ, with labels outside the classes, or with an id that appears twice."""
    count = len(samples.features)
    if count == 0:
        raise DataError(f"{where}: there are no samples.")
    columns: dict[str, Sized | None] = {"labels": samples.labels, "ids": samples.ids, "true": samples.true}
    columns |= {"sites": samples.sites, "texts": samples.texts, "groups": samples.groups, **samples.human}
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise DataError(f"{where}: {count} samples but {len(column)} {name}; every sample needs one.")
    for name, labels in {"label": samples.labels, "true label": samples.true, **samples.human}.items():
        if labels is not None and len(bad := np.flatnonzero((labels < 0) | (labels >= classes))):
            raise DataError(
                f"{where}: row {bad[0] + 1} (index {bad[0]}) has the {name} {labels[bad[0]]}; "
                f"allowed: 0 to {classes - 1}, a class each."
            )
    unique, first = np.unique(samples.ids, return_index=True)
    if len(unique) < count:
        second = int(np.setdiff1d(np.arange(count), first)[0])
        raise DataError(
            f"{where}: the id '{samples.ids[second]}' appears twice, again in row {second + 1} (index {second})."
        )


class InputStep:
    """Turns a batch of stored samples into a model's input on its device.

    uint8 images (n, height, width, channels) become float (n, channels, height, width) in the channels-last layout,
    which needs no copy because that is how they are stored.
    """

    def __init__(
        self, kind: str, mean: Sequence[float], std: Sequence[float], device: torch.device | str = "cpu"
    ) -> None:
        import torch

        self.kind = kind
        self.device = torch.device(device)
        centre = torch.tensor(list(mean) or [0.0], device=self.device)
        spread = torch.tensor(list(std) or [1.0], device=self.device)
        # pixel / 255 - mean, over std, as one multiplication and one addition.
        self.scale = 1.0 / (255.0 * spread)
        self.shift = -centre / spread

    def __call__(self, stored: NDArray[Any] | torch.Tensor) -> torch.Tensor:
        """The model's input for these samples."""
        import torch

        batch = torch.as_tensor(stored).to(self.device, non_blocking=True)
        if self.kind == "images":
            return torch.addcmul(self.shift, batch.float(), self.scale).permute(0, 3, 1, 2)
        return batch if self.kind == "tokens" else batch.float()
