"""A data set from arrays that are already in memory: NumPy, lists, or torch tensors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedwinnow.data.dataset import Dataset, Kind, Labels, Resident, Samples
from fedwinnow.data.images import channel_statistics
from fedwinnow.data.label_kinds import refuse_no_classes
from fedwinnow.data.labels import class_names_of, class_numbers, name_some, warn_of_alike_classes
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError, unknown

INSIST = (
    "If they are classes after all, write names instead of numbers ('class 7'), or give class_names= (in an .npz file "
    "the array class_names)."
)

CHANNELS = (1, 2, 3, 4)
NEAR = 1e-5  # how far beyond 0 and 1 a float may lie by rounding
ROUGH = 1e-3  # more than this part of a level is lost by rounding, and said
BLOCK = 1024  # images that are turned into bytes at once

AskedKind = Literal["auto", "images", "rows", "tokens"]


def from_arrays(
    x: Any,
    y: Any,
    *,
    x_test: Any = None,
    y_test: Any = None,
    ids: Any = None,
    sites: Any = None,
    true: Any = None,
    groups: Any = None,
    class_names: Any = None,
    name: str = "arrays",
    kind: AskedKind = "auto",
    vocabulary: int | None = None,
) -> Dataset:
    """A data set from samples `x` and labels `y`; large arrays are used as they are, without a copy.

    Images are uint8, (n, height, width) or (n, height, width, channels), or floats from 0 to 1, where the channels may
    also be the second axis; floats are kept as bytes, in 256 levels. Rows are numbers, (n, columns), and become
    float32. Token ids are whole numbers, (n, length), and need `kind="tokens"`. Labels are whole numbers or texts; with
    `class_names`, whole numbers are positions in it. `groups` says which samples belong together (a patient): they
    stay in one part, at one site where sites are dealt out, and in one fold.
    """
    if (x_test is None) != (y_test is None):
        raise DataError(f"{name}: x_test and y_test go together; only one of them was given.")
    array, given = to_array(name, "x", x), to_array(name, "y", y)
    found = kind_of(name, array, kind)
    if vocabulary is not None and found != "tokens":
        raise UsageError(f"{name}: vocabulary={vocabulary} was given, but x holds {found}; allowed: with kind=tokens.")
    names = names_of(name, given, class_names)
    if class_names is None:
        values, counts = np.unique(whole(name, "y", given), return_counts=True)
        known = dict(zip(texts_of(name, "y", values), counts.tolist(), strict=True))
        refuse_no_classes(f"{name}: y", known, INSIST)
    indexed = class_names is not None
    train = Samples(
        features=Resident(features_of(f"{name}: x", array, found)),
        labels=labels_of(name, "y", given, names, len(array), indexed),
        ids=np.arange(len(array)) if ids is None else ids_of(name, ids, len(array)),
        true=None if true is None else labels_of(name, "true", true, names, len(array), indexed),
        sites=None if sites is None else sites_of(name, sites, len(array)),
        groups=None if groups is None else groups_of(name, groups, len(array)),
    )
    test = None if x_test is None else test_part(name, x_test, y_test, train, found, names, indexed)
    mean, std = channel_statistics(train.features) if found == "images" else ((), ())
    size = vocabulary_of(name, train, test, vocabulary) if found == "tokens" else 0
    dataset = Dataset(name, found, names, train, test, labels_trusted=False, mean=mean, std=std, vocabulary=size)
    warn_of_alike_classes(dataset)
    return dataset


def test_part(name: str, x: Any, y: Any, train: Samples, kind: Kind, names: Sequence[str], indexed: bool) -> Samples:
    """The test samples, which must have the shape of the training samples."""
    array = to_array(name, "x_test", x)
    features = Resident(features_of(f"{name}: x_test", array, kind))
    if features.shape != train.features.shape:
        raise DataError(
            f"{name}: a sample of x_test has the shape {features.shape}, one of x {train.features.shape}; "
            "they must be the same."
        )
    return Samples(features, labels_of(name, "y_test", y, names, len(array), indexed), np.arange(len(array)))


def to_array(name: str, what: str, values: Any) -> NDArray[Any]:
    """A tensor, list or array as an array of plain numbers or texts."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as problem:
        raise DataError(f"{name}: {what} is not an array: {problem}.") from None
    if array.dtype.kind not in "biufU":
        raise DataError(
            f"{name}: {what} has the type {array.dtype}; allowed: whole numbers, floating point numbers and texts."
        )
    if array.ndim == 0:
        raise DataError(f"{name}: {what} is a single value; an array with one entry per sample is needed.")
    return array


# --- features ------------------------------------------------------------------------------------------------------


def kind_of(name: str, array: NDArray[Any], asked: AskedKind) -> Kind:
    """The kind of the samples: the given one, or with auto the one that fits their type and shape."""
    if array.dtype.kind == "U":
        raise DataError(f"{name}: x holds texts; allowed: numbers. Use a CSV file with text=... for texts.")
    if len(array) == 0 or 0 in array.shape:
        raise DataError(f"{name}: x has the shape {array.shape}, so there is no sample in it.")
    if asked not in get_args(AskedKind):
        raise unknown("kind of samples", asked, get_args(AskedKind))
    if asked != "auto":
        return asked
    if array.ndim == 2:
        return "rows"
    if array.ndim in (3, 4):
        return "images"
    raise DataError(
        f"{name}: x has the shape {array.shape} and the type {array.dtype}; allowed: images (n, height, width) or "
        "(n, height, width, channels), uint8 from 0 to 255 or floats from 0 to 1, or rows of numbers (n, columns)."
    )


def features_of(where: str, array: NDArray[Any], kind: Kind) -> NDArray[Any]:
    """The array as features are stored: uint8, float32 or int32."""
    if len(array) == 0:
        raise DataError(f"{where} has no sample.")
    if kind == "images":
        return image_features(where, array)
    if array.ndim != 2:
        raise DataError(f"{where} has the shape {array.shape}; {kind} need two axes: samples and columns.")
    return row_features(where, array) if kind == "rows" else token_features(where, array)


def image_features(where: str, array: NDArray[Any]) -> NDArray[np.uint8]:
    """Images as bytes, with an axis of channels at the end."""
    if array.ndim not in (3, 4):
        raise DataError(
            f"{where} has the type {array.dtype} and the shape {array.shape}; images are uint8 (0 to 255) or floats "
            "(0 to 1), (n, height, width) or (n, height, width, channels)."
        )
    if array.dtype != np.uint8:
        array = as_bytes(where, array)
    if array.ndim == 3:
        return array[..., None]
    if array.shape[3] > 4 and array.shape[1] <= 4:
        raise DataError(
            f"{where} has the shape {array.shape}: the channels are the second axis, but must be the last. "
            "Use x.transpose(0, 2, 3, 1)."
        )
    return array


def as_bytes(where: str, array: NDArray[Any], *, ordered: bool = False) -> NDArray[np.uint8]:
    """Floats from 0 to 1, or whole numbers from 0 to 255, as bytes with the channels at the end.

    `ordered` says that the channels are at the end already; else it must show in the shape of floats.
    """
    low, high = array.min(), array.max()
    if array.dtype.kind in "biu":
        if not 0 <= low <= high <= 255:
            raise DataError(f"{where} has whole numbers from {low} to {high}; allowed: 0 to 255, the values of pixels.")
        return array.astype(np.uint8)
    if not (low >= -NEAR and high <= 1 + NEAR):  # written so that NaN is refused
        raise DataError(
            f"{where} has floating-point numbers from {low:g} to {high:g}; allowed for images: 0 to 1, so that the "
            "trained model takes new images by the same rule. Divide pixels from 0 to 255 by 255; undo a normalisation "
            "(a run normalises each channel itself); or scale a known range: (x - lowest) / (highest - lowest)."
        )
    if array.ndim == 4 and not ordered:
        array = channels_last(where, array)
    stored = np.empty(array.shape, np.uint8)
    worst = 0.0
    for start in range(0, len(array), BLOCK):
        levels = np.clip(array[start : start + BLOCK].astype(np.float64) * 255, 0, 255)
        stored[start : start + BLOCK] = rounded = np.rint(levels)
        worst = max(worst, float(np.abs(levels - rounded).max(initial=0.0)))
    if worst > ROUGH:
        warnings.warn(
            f"{where}: floating-point images are kept in 256 levels, as bytes, so their values were rounded to "
            "multiples of 1/255.",
            FedwinnowWarning,
            stacklevel=2,
        )
    return stored


def channels_last(where: str, array: NDArray[Any]) -> NDArray[Any]:
    """Floating-point images with their channels at the end, if it is clear which axis has them."""
    second, last = (array.shape[axis] in CHANNELS for axis in (1, 3))
    if second and last:
        raise DataError(
            f"{where} has the shape {array.shape}: either the second axis or the last could be the channels. Give the "
            "images as bytes, with the channels last: (255 * x).round().astype('uint8')."
        )
    if not second and not last:
        raise DataError(
            f"{where} has the shape {array.shape}: images have 1 to 4 channels, as the second axis or as the last."
        )
    return array if last else array.transpose(0, 2, 3, 1)


def row_features(where: str, array: NDArray[Any]) -> NDArray[np.float32]:
    """Rows of finite numbers."""
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where} has the type {array.dtype}; rows need numbers.")
    with np.errstate(over="ignore", invalid="ignore"):
        rows = np.ascontiguousarray(array, dtype=np.float32)
    finite = np.isfinite(rows)
    if not finite.all():
        row, column = map(int, np.argwhere(~finite)[0])
        raise DataError(
            f"{where}, row {row + 1} (index {row}), column {column + 1}: the value is {array[row, column]}; allowed: "
            "finite numbers that float32 can hold. Fill in missing values first."
        )
    return rows


def token_features(where: str, array: NDArray[Any]) -> NDArray[np.int32]:
    """Token ids, 0 for padding."""
    if array.dtype.kind not in "iu":
        raise DataError(f"{where} has the type {array.dtype}; token ids are whole numbers.")
    outside = (array < 0) | (array >= np.iinfo(np.int32).max)
    if outside.any():
        row, column = map(int, np.argwhere(outside)[0])
        raise DataError(
            f"{where}, row {row + 1} (index {row}): the token id {array[row, column]}; allowed: 0 (padding) and up."
        )
    return array.astype(np.int32)


def vocabulary_of(name: str, train: Samples, test: Samples | None, asked: int | None) -> int:
    """How many token ids there are: the given number, or the largest id plus one."""
    largest = max(int(part.features.take(np.arange(len(part))).max()) for part in (train, test) if part is not None)
    if asked is not None and largest >= asked:
        raise DataError(f"{name}: the largest token id is {largest}, but vocabulary={asked} allows 0 to {asked - 1}.")
    return largest + 1 if asked is None else asked


# --- labels, ids, sites --------------------------------------------------------------------------------------------


def names_of(name: str, labels: NDArray[Any], class_names: Any) -> tuple[str, ...]:
    """The given class names, or the different labels."""
    if class_names is not None:
        array = to_array(name, "class_names", class_names)
        if array.ndim != 1:
            raise DataError(f"{name}: class_names has the shape {array.shape}; allowed: a list of texts.")
        return tuple(texts_of(name, "class_names", array))
    return class_names_of(texts_of(name, "y", np.unique(whole(name, "y", labels))))


def labels_of(name: str, what: str, values: Any, names: Sequence[str], count: int, indexed: bool) -> Labels:
    """Class numbers; a whole number is a position in the names (`indexed`) or itself a name."""
    plain = whole(name, what, one_per_sample(name, what, values, count))
    if indexed and plain.dtype.kind != "U":
        inside = (plain >= 0) & (plain < len(names))
        labels = np.where(inside, plain, -1).astype(np.int64)
    else:
        values, places = np.unique(plain, return_inverse=True)
        labels = class_numbers(texts_of(name, what, values), names)[places.reshape(-1)]
    if len(bad := np.flatnonzero(labels < 0)):
        allowed = f"0 to {len(names) - 1}" if indexed and plain.dtype.kind != "U" else name_some(names)
        raise DataError(
            f"{name}: {what}, row {bad[0] + 1} (index {bad[0]}): the label {plain[bad[0]]} is not a class; "
            f"allowed: {allowed}."
        )
    return labels


def one_per_sample(name: str, what: str, given: Any, count: int) -> NDArray[Any]:
    """A column with one entry per sample; the shape (n, 1) becomes (n,)."""
    values = to_array(name, what, given)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(f"{name}: {what} has the shape {values.shape}; one value per sample is needed: ({count},).")
    if len(values) != count:
        raise DataError(f"{name}: {count} samples but {len(values)} entries in {what}; every sample needs one.")
    return values


def whole(name: str, what: str, labels: NDArray[Any]) -> NDArray[Any]:
    """Labels as whole numbers or texts; 1.0 is 1, 1.5 is refused."""
    if labels.dtype.kind == "b":
        return labels.astype(np.int64)
    if labels.dtype.kind != "f":
        return labels
    bad = np.argwhere(~np.isfinite(labels) | (labels != np.round(labels)) | (np.abs(labels) > 2.0**53))
    if len(bad):
        row = int(bad[0][0])
        raise DataError(
            f"{name}: {what}, row {row + 1} (index {row}): {labels[tuple(bad[0])]} is not a label; "
            "allowed: whole numbers or texts."
        )
    return labels.astype(np.int64)


def texts_of(name: str, what: str, values: NDArray[Any]) -> list[str]:
    """Values as texts that can be written as UTF-8."""
    try:
        texts = [str(value) for value in values.tolist()]
        "".join(texts).encode()
    except ValueError:
        raise DataError(f"{name}: {what} holds a text that is not Unicode.") from None
    return texts


def ids_of(name: str, given: Any, count: int) -> NDArray[Any]:
    """Ids, each given once."""
    ids = one_per_sample(name, "ids", given, count)
    if ids.dtype.kind not in "iuU":
        raise DataError(f"{name}: ids have the type {ids.dtype}; allowed: whole numbers and texts.")
    texts_of(name, "ids", ids)
    _, first, places = np.unique(ids, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[places.reshape(-1)] != np.arange(count))
    if len(again):
        row, before = int(again[0]), int(first[places.reshape(-1)[again[0]]])
        raise DataError(
            f"{name}: ids, row {row + 1} (index {row}): '{ids[row]}' was given before, in row {before + 1}. "
            "Give every sample a different id."
        )
    return ids


def groups_of(name: str, given: Any, count: int) -> NDArray[Any]:
    """The group of every sample, as texts or whole numbers."""
    groups = one_per_sample(name, "groups", given, count)
    if groups.dtype.kind not in "iuU":
        raise DataError(f"{name}: groups have the type {groups.dtype}; allowed: whole numbers and texts.")
    texts_of(name, "groups", groups)
    return groups


def sites_of(name: str, sites: Any, count: int) -> NDArray[np.str_]:
    """The site of every sample as text."""
    return np.array(texts_of(name, "sites", one_per_sample(name, "sites", sites, count)), dtype=np.str_)
