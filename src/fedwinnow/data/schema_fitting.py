"""How the columns of a table are to become numbers, found out from its rows."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from fedwinnow.data.cell_values import (
    GONE,
    UNKNOWN,
    Numbers,
    finite,
    looks_like_number,
    merged_truths,
    numbers_and_unit,
    parts_of_dates,
    positions_of,
)
from fedwinnow.data.column import Column, Part
from fedwinnow.data.dates import why_no_dates
from fedwinnow.data.free_text import opened, vectors_of
from fedwinnow.data.label_kinds import refuse_no_classes
from fedwinnow.data.labels import class_names_of, name_some
from fedwinnow.data.left_out import empty_columns, tells_who
from fedwinnow.data.number_forms import why_no_numbers
from fedwinnow.data.schema import TableSchema
from fedwinnow.data.table_reading import TextTable, is_missing
from fedwinnow.errors import DataError, FedwinnowWarning

LOOKED_AT = 1000  # different cells that tell whether a column may be nearly one of numbers
INSIST = (
    "Choose another column with label=..., or group its values; if they are classes after all, write classes=any into "
    "the data source."
)


@dataclass(frozen=True)
class Wishes:
    """What the user says of columns, where fitting would decide otherwise."""

    max_categories: int = 100
    any_labels: bool = False  # take labels that do not look like classes
    keep: tuple[str, ...] = ()  # columns that are no ids, although every row has a different value
    ordered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # column -> its categories in order
    notes: tuple[str, ...] = ()  # columns of free text
    encoder: str = "words"  # for them


AS_FOUND = Wishes()


def fit(table: TextTable, features: Sequence[str], label: str, wishes: Wishes = AS_FOUND) -> TableSchema:
    """The schema of a table, from its rows."""
    given = table.filled(label, "label")
    class_names = class_names_of(given)
    if len(class_names) < 2:
        raise DataError(
            f"{table.path}: the label column '{label}' has the value '{class_names[0]:.60}' in every row; "
            "a classifier needs at least two classes."
        )
    if not wishes.any_labels:
        refuse_no_classes(f"{table.path}: the label column '{label}'", Counter(given), INSIST)
    empty = empty_columns(table, features)
    columns = tuple(column for name in features if name not in empty for column in fit_column(table, name, wishes))
    if features and not columns and len(empty) == len(features):
        raise DataError(
            f"{table.path}: no column is left to learn from: {name_some(features)} have no value in any row."
        )
    if features and not columns:
        raise DataError(
            f"{table.path}: no column is left to learn from: {name_some(features)} look like ids. If they are not, "
            f"keep={'|'.join(features[:2])} trains on them."
        )
    return TableSchema(columns, class_names)


def fit_column(table: TextTable, name: str, wishes: Wishes) -> list[Column]:
    """How a column becomes numbers: none for an id, several for a date, else one."""
    if name in wishes.notes:
        return [fit_text(table, name, wishes.encoder)]
    if order := wishes.ordered.get(name) or table.orders.get(name):
        return [fit_ordered(table, name, order)]
    found = numbers_and_unit(table, name)
    named = name in table.named and found is not None
    if found is not None and not named:
        values, unit = found
        whole = bool((values == np.floor(values)).all())
        column = replace(fit_numeric(name, finite(table, name, values)), unit=unit)
        return [] if whole and tells_who(table, name, "whole number", wishes.keep) else [column]
    dates = None if named else parts_of_dates(table, name)
    if dates is not None:
        return fit_dates(name, dates)
    counts = Counter(table.column(name))
    reason = "" if named else why_texts(table, counts)
    # Numbers with a slip among them are no ids, although they are no numbers either.
    numbers = sum(count for cell, count in counts.items() if looks_like_number(cell))
    if (named or 2 * numbers < len(table)) and not reason and tells_who(table, name, "text", wishes.keep):
        return []
    return [fit_categorical(table, name, counts, wishes, reason)]


def why_texts(table: TextTable, counts: Counter[str]) -> str:
    """What makes a column one of texts although it looks like numbers or dates; empty for other texts."""
    looked_at = [cell for cell in islice(counts, LOOKED_AT) if not is_missing(cell)]
    if 2 * sum(cell[:1] in "+-.," or cell[:1].isdigit() for cell in looked_at) < len(looked_at):
        return ""
    present = Counter({cell: count for cell, count in counts.items() if not is_missing(cell)})
    return why_no_numbers(present) or ("" if table.dates == "text" else why_no_dates(list(present)))


def fit_numeric(name: str, values: Numbers, part: Part = "") -> Column:
    """A column of numbers, or a part of dates."""
    gone = np.isnan(values)
    mean, std = centre_and_spread(values[~gone])
    return Column(name, "numeric", bool(gone.any()) and part in ("", "day"), mean=mean, std=std, part=part)


def fit_dates(name: str, parts: Mapping[Part, Numbers]) -> list[Column]:
    """The parts of dates that differ between rows; the first one stays in any case, and marks missing dates."""
    first = next(iter(parts))
    different = [
        part for part, values in parts.items() if part == first or len(np.unique(values[~np.isnan(values)])) > 1
    ]
    found = [fit_numeric(name, parts[part], part) for part in different]
    return [replace(found[0], missing=bool(np.isnan(parts[first]).any())), *found[1:]]


def fit_ordered(table: TextTable, name: str, order: tuple[str, ...]) -> Column:
    """Categories in an order, as their position."""
    column = Column(name, "ordered", False, categories=order)
    positions = positions_of(column, table.column(name))
    if len(bad := np.flatnonzero(positions == UNKNOWN)):
        row = int(bad[0])
        raise DataError(
            f"{table.place(row)}: column '{name}' has '{table.column(name)[row]:.60}', which is not in its order: "
            f"{' < '.join(order)}. Add it to the order, or correct the cell."
        )
    known = positions[positions >= 0]
    mean, std = centre_and_spread(known.astype(np.float64))
    return replace(column, missing=bool((positions == GONE).any()), mean=mean, std=std)


def fit_text(table: TextTable, name: str, encoder: str) -> Column:
    """A column of free text, all numbers of which have one scale."""
    cells = table.column(name)
    vectors = vectors_of(cells, encoder)
    mean, std = centre_and_spread(vectors.astype(np.float64).reshape(-1))
    found = opened(encoder)
    gone = any(is_missing(cell) for cell in set(cells))
    return Column(name, "text", gone, mean, std, size=found.width, encoder=encoder, hash=found.hash)


def fit_categorical(table: TextTable, name: str, counts: Counter[str], wishes: Wishes, reason: str) -> Column:
    """One column per category; why it is none of numbers or dates is said, if it looks like that."""
    categories = merged_truths({cell: count for cell, count in counts.items() if not is_missing(cell)})
    if len(categories) > wishes.max_categories and name in table.named:
        raise DataError(
            f"{table.path}: column '{name}' has {len(categories)} categories, more than max_categories="
            f"{wishes.max_categories}. Leave it out with ignore={name}, or give it as numbers or texts instead of as "
            "categories."
        )
    if len(categories) > wishes.max_categories:
        if reason:
            raise DataError(f"{table.path}: column '{name}' {reason}, or leave it out with ignore={name}")
        cells = table.column(name)
        row = next((row for row, cell in enumerate(cells) if not looks_like_number(cell)), 0)
        raise DataError(
            f"{table.path}: column '{name}' has {len(categories)} different texts, more than max_categories="
            f"{wishes.max_categories}. If it is free text, notes={name} lets an encoder read it; if it is the id of a "
            f"row, write id={name}; else leave it out with ignore={name}, or correct it if it should be numeric (its "
            f"first value that is not a number is '{cells[row]:.60}', {table.place(row)})."
        )
    if reason:
        warnings.warn(
            f"{table.path}: column '{name}' {reason}. Until then every different text is a value of its own.",
            FedwinnowWarning,
            stacklevel=2,
        )
    return Column(name, "categorical", any(map(is_missing, counts)), categories=categories)


def centre_and_spread(values: Numbers) -> tuple[float, float]:
    """Mean and standard deviation; the values are scaled first, so that squares cannot overflow."""
    scale = float(np.abs(values).max()) or 1.0
    scaled = values / scale
    mean, std = float(scaled.mean()), float(scaled.std())
    # A constant column becomes zeros; dividing by its standard deviation would only enlarge rounding errors.
    return mean * scale, std * scale if std > 1e-12 and std * scale > 0 else 1.0
