"""Data that a program hands over: pairs of arrays, data sets of torch and of Hugging Face, data frames.

What belongs to a package is known by its interface, so that no package is imported to know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.arrays import as_bytes, from_arrays
from fedwinnow.data.data_frames import from_frame
from fedwinnow.data.dataset import Dataset
from fedwinnow.data.frame_cells import is_frame
from fedwinnow.data.load import with_columns
from fedwinnow.data.pace import Pace
from fedwinnow.data.source import Source
from fedwinnow.data.sources.huggingface import HuggingFace
from fedwinnow.errors import DataError, UsageError

ALLOWED = (
    "a name or a path (`fedwinnow data` lists the names), a pair (x, y) of arrays, a data frame with label=, a torch "
    "Dataset, a data set of Hugging Face, a pair of a training and a test part, or a Dataset of fedwinnow"
)
TOLD_EVERY = 100  # samples of a torch data set that are read between two reports
ROLES = ("label", "site", "group")


def understood_data(data: Any, *, label: Any = None, site: Any = None, group: Any = None) -> Any:
    """What a program gave as data: names, paths and sources as they are, everything else as a Dataset.

    `label`, `site` and `group` name columns of a table; beside arrays, `site` and `group` have a value per sample.
    """
    roles = {name: value for name, value in zip(ROLES, (label, site, group), strict=True) if value is not None}
    if data is None or isinstance(data, str | Path | Source) or (isinstance(data, dict) and "kind" in data):
        return with_columns(data, **roles)
    if isinstance(data, Dataset):
        if roles:
            raise UsageError(f"{next(iter(roles))}= was given beside a Dataset, which has its own; leave it out.")
        return data
    if (pair := both_parts(data)) is not None:
        if splits_in(pair[0]) is not None:
            return from_splits({"train": pair[0], "test": pair[1]}, roles)
        return from_torch(*pair, roles) if is_torch(pair[0], "Dataset") else from_frame(*pair, **roles)
    if isinstance(data, tuple):
        return from_tuple(data, roles)
    if is_frame(data):
        return from_frame(data, **roles)
    if (splits := splits_in(data)) is not None:
        return from_splits(splits, roles)
    if is_torch(data, "Dataset"):
        return from_torch(data, None, roles)
    raise UsageError(f"{hint(data)}allowed as data: {ALLOWED}.")


def hint(data: Any) -> str:
    """What was given, and for some things what to give instead."""
    given = f"an object of the type {type(data).__name__} was given; "
    if type(data).__name__ == "Scene":
        return f"{given}give it as scene=, which has its own data. "
    if hasattr(data, "to_pandas"):
        return f"{given}give data.to_pandas(). "
    if is_torch(data, "DataLoader"):
        return f"{given}give its data set: loader.dataset. "
    if isinstance(data, list):
        return f"{given}give a tuple: (x, y). "
    if isinstance(data, np.ndarray) or hasattr(data, "detach"):
        return f"{given}samples need labels: (x, y). "
    return given


def both_parts(data: Any) -> tuple[Any, Any] | None:
    """A training and a test part, both of torch, both of Hugging Face or both frames; None for anything else."""
    named = isinstance(data, Mapping) and set(data) == {"train", "test"}
    parts = [data["train"], data["test"]] if named else data
    if not isinstance(parts, tuple | list) or len(parts) != 2:
        return None
    if all(is_torch(part, "Dataset") for part in parts) or all(splits_in(part) is not None for part in parts):
        return parts[0], parts[1]
    frames = all(map(is_frame, parts))
    return (parts[0], parts[1]) if frames and list(parts[0].columns) == list(parts[1].columns) else None


# --- pairs of arrays -----------------------------------------------------------------------------------------------


def from_tuple(data: tuple[Any, ...], roles: Mapping[str, Any]) -> Dataset:
    """(x, y), (x, y, x_test, y_test) or ((x, y), (x_test, y_test)); a frame with labels beside it."""
    if len(data) == 2 and all(isinstance(part, tuple) and len(part) == 2 for part in data):
        data = (*data[0], *data[1])
    if len(data) not in (2, 4):
        raise UsageError(
            f"a tuple of {len(data)} was given as data; allowed: (x, y), or with a test part (x, y, x_test, y_test)."
        )
    if is_frame(data[0]):
        if len(data) == 4 or "label" in roles:
            raise UsageError(
                "a frame was given within a tuple; allowed: (frame, labels), the frame with label=, or (training, "
                "test) with label=, two frames with the same columns."
            )
        return from_frame(data[0], **{**roles, "label": data[1]})
    if "label" in roles:
        raise UsageError("label= was given beside (x, y), which has the labels; leave it out.")
    test = {} if len(data) == 2 else {"x_test": data[2], "y_test": data[3]}
    return from_arrays(data[0], data[1], sites=roles.get("site"), groups=roles.get("group"), **test)


# --- Hugging Face --------------------------------------------------------------------------------------------------


def splits_in(data: Any) -> Mapping[str, Any] | None:
    """The splits of a data set of Hugging Face; None for anything else."""
    if hasattr(data, "features") and hasattr(data, "column_names") and not isinstance(data, Mapping):
        return {"train": data}
    if isinstance(data, Mapping) and data and all(hasattr(split, "features") for split in data.values()):
        return data
    return None


def from_splits(splits: Mapping[str, Any], roles: Mapping[str, Any]) -> Dataset:
    """A data set of Hugging Face, or several splits of one, of which `train` is trained on and `test` measured."""
    for name, split in splits.items():
        if not hasattr(split, "__len__"):
            raise UsageError(
                f"the split '{name}' is a stream, whose length is not known; load it whole: load_dataset(..., "
                "streaming=False)."
            )
    for role, value in roles.items():
        if not isinstance(value, str):
            raise UsageError(f"{role}= has a value per sample; beside a data set of Hugging Face it names a column.")
    return HuggingFace(dataset="the data set", **roles).convert(splits)


# --- torch ---------------------------------------------------------------------------------------------------------


def is_torch(data: Any, name: str) -> bool:
    """Whether this object is of a class of torch.utils.data with this name, or of one that derives from it."""
    return any(kind.__name__ == name and kind.__module__.startswith("torch.utils.data") for kind in type(data).__mro__)


def from_torch(data: Any, test: Any, roles: Mapping[str, Any]) -> Dataset:
    """A data set of torch with items (x, y), read once from beginning to end, and one with the test part."""
    if "label" in roles:
        raise UsageError("label= was given beside a torch Dataset, whose items have the labels; leave it out.")
    samples, labels = items_of(data)
    images = samples.ndim == 4
    beside = None if test is None else items_of(test)
    if beside is not None and beside[0].shape[1:] != samples.shape[1:]:
        raise DataError(
            f"items of the torch Dataset with the test part have the shape {beside[0].shape[1:]}, those of the other "
            f"{samples.shape[1:]}; they must be alike. Resize images in the data set."
        )
    every = labels if beside is None else np.concatenate([labels, beside[1]])
    numbers, names = named_classes(every, classes_in(data))
    return from_arrays(
        samples,
        numbers[: len(labels)],
        class_names=names,
        sites=roles.get("site"),
        groups=roles.get("group"),
        name=type(data).__name__,
        kind="images" if images else "auto",
        x_test=None if beside is None else beside[0],
        y_test=None if beside is None else numbers[len(labels) :],
    )


def items_of(data: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The samples and the labels of a data set of torch."""
    if is_torch(data, "IterableDataset") or not hasattr(data, "__len__"):
        raise UsageError(
            "a torch Dataset without a length was given; allowed: one with __len__ and __getitem__. Read it into "
            "arrays first: (x, y)."
        )
    if len(data) == 0:
        raise DataError("the torch Dataset has no samples.")
    first, _ = item_of(data, 0)
    shape, kind = first.shape, first.dtype
    samples, labels, pace = np.empty((len(data), *shape), kind), [], Pace(len(data), "samples", "read")
    for place in range(len(data)):
        sample, label = item_of(data, place)
        if sample.shape != shape or (sample.dtype != kind and kind == np.uint8):
            raise DataError(
                f"item {place} of the torch Dataset is {described(sample)}, item 0 is {described(first)}; they must be "
                "alike. Resize images in the data set."
            )
        samples[place] = sample
        labels.append(label)
        if (place + 1) % TOLD_EVERY == 0:
            pace.reach(place + 1)
    if samples.ndim == 4 and samples.dtype != np.uint8:
        samples = as_bytes("the torch Dataset", samples, ordered=True)
    return samples, np.asarray(labels)


def item_of(data: Any, place: int) -> tuple[NDArray[Any], Any]:
    """One sample as an array, images with their channels at the end, and its label."""
    item = data[place]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"item {place} of the torch Dataset is a {type(item).__name__}; allowed: a pair (x, y).")
    x, y = item
    tensor = hasattr(x, "detach")
    if type(x).__module__.startswith("PIL."):
        x = x if x.mode in ("L", "RGB", "RGBA") else x.convert("RGB")
    sample = np.asarray(x.detach().cpu() if tensor else x)
    if tensor and sample.dtype == np.int64 and sample.ndim == 1:
        raise DataError(
            "the samples of the torch Dataset are rows of int64, which may be numbers or token ids. Give floats for "
            "numbers; for token ids fedwinnow.data.arrays.from_arrays(x, y, kind='tokens')."
        )
    if sample.dtype.kind not in "biuf" or sample.ndim not in (1, 2, 3):
        raise DataError(
            f"item {place} of the torch Dataset has {described(sample)} as its sample; allowed: a tensor or an array "
            "of numbers (rows, or images as torch has them: channels, height, width), or an image of PIL."
        )
    if sample.ndim == 2:
        sample = sample[..., None]
    elif sample.ndim == 3 and tensor:
        sample = sample.transpose(1, 2, 0)  # torch has the channels first
    label = y.item() if hasattr(y, "item") and getattr(y, "size", 1) is not None and np.ndim(y) == 0 else y
    if not isinstance(label, int | str | float | np.integer):
        raise DataError(
            f"item {place} of the torch Dataset has the label {label!r:.60}; allowed: one class, as a whole number or "
            "a text."
        )
    return sample, label


def classes_in(data: Any) -> Any:
    """The names of the classes of a data set of torch, also of a part of one."""
    names = getattr(data, "classes", None)
    return classes_in(data.dataset) if names is None and is_torch(data, "Subset") else names


def described(sample: NDArray[Any]) -> str:
    """A sample in words."""
    return f"an array of the shape {sample.shape} and the type {sample.dtype}"


def named_classes(labels: NDArray[Any], names: Any) -> tuple[NDArray[Any], list[str] | None]:
    """Labels and the names of those classes that they use, where the data set names its classes."""
    usable = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    if not usable or labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= len(names):
        return labels, None
    used, numbers = np.unique(labels, return_inverse=True)
    return numbers.reshape(-1), [names[number] for number in used.tolist()]
