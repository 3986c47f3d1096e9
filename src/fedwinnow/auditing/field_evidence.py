"""Which fields of a table speak against a label: how the score changes if a field were typical of the given class."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedwinnow.data.column import Column
from fedwinnow.data.dataset import FieldRows
from fedwinnow.data.dates import as_date
from fedwinnow.federation.client import Client
from fedwinnow.federation.client import score as logits_of
from fedwinnow.mathematics.payload import Payload
from fedwinnow.randomness import Floats

EXPLAINED = 500  # samples of a site whose fields are looked at, the most suspicious first


def field_evidence(client: Client, score: Tensor, worst: Tensor, prior: Tensor | None = None) -> Payload:
    """`against`: how much each field (column) adds to the log-odds against the label of the worst samples (rows).

    `typical` is what is typical of the given class at this site, in the numbers that the model sees. Nothing is
    returned for samples that are no rows of a table. The client has the judging model; `prior` is added to its logits.
    """
    features = client.features
    if not isinstance(features, FieldRows) or not len(client):
        return {}
    rows, given = torch.from_numpy(features.array.copy()), client.given.cpu()
    chosen = worst[:EXPLAINED]
    typical = typical_rows(rows, given, score, features.columns, client.classes)[given[chosen]]
    mine = rows[chosen]
    before = log_odds_against(client, mine, given[chosen], prior)
    fields = fields_of(features.columns)
    against = torch.zeros(len(chosen), len(fields))
    for place, (_, field) in enumerate(fields):
        changed = mine.clone()
        changed[:, field] = typical[:, field]
        against[:, place] = before - log_odds_against(client, changed, given[chosen], prior)
    return {"typical": typical, "against": against}


def log_odds_against(client: Client, rows: Tensor, given: Tensor, prior: Tensor | None) -> Tensor:
    """The log-odds that the model gives against the labels of these rows."""
    logits = logits_of(client.model, iter([rows]), client.plain, client.classes).cpu().double()
    if prior is not None:
        logits = logits + prior
    own = logits.gather(1, given[:, None])[:, 0]
    others = logits.scatter(1, given[:, None], -math.inf).logsumexp(1)
    return (others - own).float()


def typical_rows(rows: Tensor, given: Tensor, score: Tensor, columns: tuple[Column, ...], classes: int) -> Tensor:
    """Per class the typical value of every field, among the half of its samples whose labels look right."""
    typical = torch.zeros(classes, rows.shape[1])
    for label in range(classes):
        mine = (given == label).nonzero()[:, 0]
        if not len(mine):
            continue
        calm = rows[mine[score[mine].argsort()[: max(1, len(mine) // 2)]]]
        for column, field in zip(columns, blocks(columns), strict=True):
            typical[label, field] = typical_value(calm[:, field], column)
    return typical


def typical_value(values: Tensor, column: Column) -> Tensor:
    """The median of numbers and positions, or the commonest category; missing, if that is the commonest."""
    if column.kind == "text":
        return values.median(0).values
    if column.kind == "categorical":
        found = torch.zeros(values.shape[1])
        if values.sum() > 0:
            found[values.sum(0).argmax()] = 1.0
        return found
    known = values[values[:, 1] == 0] if column.missing else values
    if column.missing and 2 * len(known) < len(values):
        return torch.tensor([0.0, 1.0])
    middle = known[:, 0].median() if len(known) else torch.tensor(0.0)
    return torch.cat([middle[None], torch.zeros(values.shape[1] - 1)])


def blocks(columns: tuple[Column, ...]) -> list[slice]:
    """Where the numbers of every column of the schema are."""
    found, start = [], 0
    for column in columns:
        found.append(slice(start, start + column.width))
        start += column.width
    return found


def fields_of(columns: tuple[Column, ...]) -> list[tuple[Column, slice]]:
    """The fields of the table, and where their numbers are: the parts of a date are one field, named by the first."""
    found: list[tuple[Column, slice]] = []
    for column, block in zip(columns, blocks(columns), strict=True):
        if found and column.part and found[-1][0].name == column.name:
            found[-1] = (found[-1][0], slice(found[-1][1].start, block.stop))
        else:
            found.append((column, block))
    return found


def in_words(against: Floats, typical: Floats, columns: tuple[Column, ...]) -> dict[str, tuple[float, str]]:
    """By field: how much it speaks against the label, and what is typical of the given class."""
    fields = zip(against.tolist(), fields_of(columns), strict=True)
    return {column.name: (round(change, 4), shown_value(typical[part], column)) for change, (column, part) in fields}


def shown_value(values: Floats, column: Column) -> str:
    """The value of a field in the words of the table."""
    if column.kind == "text":
        return ""  # there is no typical text
    if column.kind != "categorical":
        if column.missing and float(values[1]) > 0:
            return "missing"
        # The model sees float32: digits far below the spread of the column are rounding errors.
        value = round(float(values[0]) * column.std + column.mean, 4 - math.floor(math.log10(column.std)))
        return in_own_words(value, column)
    place = int(values.argmax())
    if not float(values.sum()):
        return "none of the known values"
    return column.categories[place] if place < len(column.categories) else "missing"


def in_own_words(value: float, column: Column) -> str:
    """A number as the table has it: a date, an ordered category, or the number itself."""
    if column.kind == "ordered":
        return column.categories[min(max(round(value), 0), len(column.categories) - 1)]
    if column.part == "day":
        return as_date(value)
    if column.part == "hour":
        minutes = round(value * 60) % 1440
        return f"{minutes // 60:02}:{minutes % 60:02}"
    return f"{value + 0.0:.6g}"
