"""Training a model of texts on the rows of its token table that a site uses; all others stay as they are.

A token that no sample has gets a gradient of 0, so an optimiser without decay leaves its row alone. While a site
trains, the table is therefore the rows of its own tokens, and a step costs what these cost. The trained weights are the
same, bit for bit. The whole table is sent all the same: with secure sums, the numbers of the rows would tell the
words that a site has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedwinnow.mathematics.payload import FlatModel, Slot

NAME = "token_table"  # the attribute in which a module names the one layer that takes its token ids
LINE = (
    64  # torch computes the end of a vector otherwise; the end begins at the same weight if this divides the difference
)
WORTH = 2  # the rows must be fewer than the table's by this factor


def table_of(model: FlatModel) -> Slot | None:
    """Where the table of token vectors lies; None where the model has none, or state besides what is trained."""
    name = getattr(model.module, NAME, None)
    if name is None or model.device.type != "cpu" or model.trainable != len(model.weights) or len(model.counters):
        return None
    if getattr(model.module.get_submodule(name), "padding_idx", None) not in (None, 0):
        return None  # padding would get another number
    return next((slot for slot in model.slots if slot.name == f"{name}.weight"), None)


def rows_of(tokens: Tensor, table: Slot) -> Tensor | None:
    """The rows that these tokens use, in ascending order and filled up to a length that moves no bit.

    None where they are too many to be worth it, or where a token has no row.
    """
    size = table.shape[0]
    if not tokens.numel() or int(tokens.min()) < 0 or int(tokens.max()) >= size:
        return None
    used = torch.zeros(size, dtype=torch.bool)
    used[tokens.flatten().long()] = True
    used[0] = True  # padding, which keeps its number
    count = int(used.sum())
    if WORTH * (count + LINE) > size:
        return None
    unused = (~used).nonzero().flatten()[: (size - count) % LINE]
    used[unused] = True
    return used.nonzero().flatten()


@contextmanager
def only_rows(model: FlatModel, table: Slot, rows: Tensor) -> Iterator[Tensor]:
    """Let the model have these rows of its table alone; gives the new number of every token.

    In the end the rows are put back into the whole table, with everything else that was trained.
    """
    weights, gradient, trainable, slots = model.weights, model.gradient, model.trainable, model.slots
    left_out = table.stop - table.start - len(rows) * table.shape[1]
    whole = table.view(weights)
    model.slots = [shortened(slot, table, len(rows), left_out) for slot in slots]
    model.weights = torch.cat([weights[: table.start], whole[rows].flatten(), weights[table.stop :]])
    model.trainable = trainable - left_out
    model.gradient = torch.zeros(model.trainable)
    bind(model)
    numbers = torch.zeros(table.shape[0], dtype=torch.int64)
    numbers[rows] = torch.arange(len(rows))
    try:
        yield numbers
    finally:
        short, model.weights, model.gradient = model.weights, weights, gradient
        model.trainable, model.slots = trainable, slots
        with torch.no_grad():
            whole[rows] = short[table.start : table.stop - left_out].view(len(rows), -1)
            weights[: table.start] = short[: table.start]
            weights[table.stop :] = short[table.stop - left_out :]
        bind(model)


def shortened(slot: Slot, table: Slot, rows: int, left_out: int) -> Slot:
    """Where a tensor lies when the table has fewer rows."""
    if slot.start < table.start:
        return slot
    start = slot.start if slot is table else slot.start - left_out
    shape = (rows, *slot.shape[1:]) if slot is table else slot.shape
    return Slot(slot.name, start, slot.stop - left_out, shape, slot.channels_last)


def bind(model: FlatModel) -> None:
    """Make the module's parameters views of the vectors as they are now."""
    for slot, parameter in zip(model.slots, model.parameters, strict=True):
        assert isinstance(parameter, nn.Parameter)
        parameter.data = slot.view(model.weights)
        parameter.grad = slot.view(model.gradient)
