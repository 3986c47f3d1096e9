"""Replies of one client that something has gone wrong with, in many ways, for tests of what the coordinator accepts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fedwinnow import catalogue
from fedwinnow.backends.make_backend import Serial
from fedwinnow.federation import rounds
from fedwinnow.federation.host import Answer, Task
from fedwinnow.federation.method import find_method
from fedwinnow.testing import toy_data

BAD = 1  # the client
NEEDS = {"trusted_data": {"trusted": 0.2}, "public_data": {"public": 0.2}}
SMALL = {
    "data": toy_data(samples=64),
    "clients": 4,
    "participation": 1.0,
    "epochs": 1,
    "batch_size": 8,
    "rounds": 6,
    "optimizer": "sgd:lr=0.1",
    "noise": "uniform:share=0.5,low=0.3,high=0.5",
}
# What reaches the questions of every method within six rounds, and options whose replies differ from the usual ones.
FURTHER = [
    "fedcorr:passes=2",
    "feddiv:passes=2,filter=degraded,variance_weighting=moment",
    "feddiv:passes=0,preset=code",
    "fednoro:warm_up=1,indicator=lid,preset=code",
    "fednoro:warm_up=2",
    "fedelc:warm_up=2",
    "fedelc:preset=masked,warm_up=1",
    "fedes:s1=2,stage2=both",
    "fedes:estimator=shapley,s1=1",
    "fedgr:warm_up=1",
    "fedrn:warm_up=2,preset=code",
    "fedsir:refresh_every=1,min_class=1,merge_class=1",
    "rhfl:preset=code",
    "rofl:preset=code",
    "fair:quality=local",
    "fair:weigh=learned,steps=3",
    "winnow:warm_up=1",
    "winnow:warm_up=1,filter=relative",
    "fedavg:steady=0.5",
    "fedavg:aggregate=krum",
    "fedavg:aggregate=geometric_median",
]
# Methods that pool all samples have no site that could misbehave.
METHODS = [name for name in sorted(catalogue.entries("methods")) if name != "centralised"] + FURTHER

Way = Callable[[Tensor], Any]
VALUES: dict[str, Way] = {
    "nan": lambda value: filled(value, float("nan")),
    "inf": lambda value: filled(value, float("inf")),
    "all 3e38": lambda value: filled(value, 3e38),
    "all -3e38": lambda value: filled(value, -3e38),
    "one 3e38": lambda value: one_changed(value, 3e38),
    "one -1e30": lambda value: one_changed(value, -1e30),
    "one 1e10": lambda value: one_changed(value, 1e10),
    "all 1e18": lambda value: filled(value, 1e18),
    "all -1": lambda value: filled(value, -1),
    "zeros": lambda value: filled(value, 0),
    "all 0.5": lambda value: filled(value, 0.5),
    "a million times": lambda value: value * 10**6 if value.dtype != torch.bool else ~value,
    "a thousand times": lambda value: value * 1000 if value.dtype != torch.bool else value,
    "negative": lambda value: -value if value.dtype != torch.bool else ~value,
    "float64": lambda value: value.double(),
    "float16": lambda value: value.half(),
    "bfloat16": lambda value: value.bfloat16(),
    "float8": lambda value: value.float().to(torch.float8_e4m3fn),
    "int64": lambda value: value.long(),
    "bool": lambda value: value.bool(),
    "complex": lambda value: value.to(torch.complex64),
    "too short": lambda value: value.reshape(-1)[1:],
    "empty": lambda value: value.reshape(-1)[:0],
    "one more axis": lambda value: value.unsqueeze(0),
    "twice": lambda value: torch.cat([value.reshape(-1)] * 2),
    "transposed": lambda value: value.t() if value.dim() == 2 else value.reshape(-1, 1),
    "one number": lambda value: torch.tensor(3.0),
    "a list": lambda value: value.tolist(),
    "nothing": lambda value: None,
    "a text": lambda value: "\x1b[31m" * 3,
}
REPLIES: dict[str, Callable[[dict[str, Any], str], Any]] = {
    "key missing": lambda reply, key: {name: value for name, value in reply.items() if name != key},
    "key renamed": lambda reply, key: {"x" + name if name == key else name: value for name, value in reply.items()},
    "key that is no text": lambda reply, key: reply | {3: torch.zeros(1)},
    "further key": lambda reply, key: reply | {"labels": torch.zeros(3)},
    "no reply": lambda reply, key: None,
    "empty reply": lambda reply, key: {},
    "a tensor": lambda reply, key: reply[key],
}
HOW = (*VALUES, *REPLIES)


def filled(value: Tensor, number: float) -> Tensor:
    """The same shape full of one number, in a type that can hold it."""
    kind = value.dtype if value.is_floating_point() else torch.float64
    exact = float(number).is_integer() and abs(number) < 2**62 and not value.is_floating_point()
    return (
        torch.full_like(value, int(number), dtype=torch.int64) if exact else torch.full(value.shape, number, dtype=kind)
    )


def one_changed(value: Tensor, number: float) -> Tensor:
    """One entry changed."""
    changed = value.clone() if value.is_floating_point() else value.double()
    if changed.numel():
        changed.view(-1)[changed.numel() // 2] = number
    return changed


def mutated(reply: dict[str, Any], how: str, key: str) -> Any:
    """A reply that is wrong in this way, in this key."""
    return reply | {key: VALUES[how](reply[key])} if how in VALUES else REPLIES[how](reply, key)


class Mutations:
    """One client's replies to the method are wrong, each in another way; counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.luck = random.Random(seed)
        self.done: list[str] = []
        usual, mutations = Serial.exchange, self

        def exchange(backend: Serial, tasks: Iterator[Task]) -> Iterator[Answer]:
            asked: list[Task] = []

            def passing() -> Iterator[Task]:
                for task in tasks:
                    asked.append(task)
                    yield task

            for answer in usual(backend, passing()):
                if answer.client == BAD and answer.error is None and not asked[-1].measures:
                    answer.reply = mutations.one(answer.reply, asked[-1].ask)
                yield answer

        monkeypatch.setattr(Serial, "exchange", exchange)
        monkeypatch.setattr(rounds, "MOST_VIOLATIONS", 10**9)  # so that it may go on

    def one(self, reply: dict[str, Any], ask: str) -> Any:
        """The next wrong reply."""
        how, key = self.luck.choice(HOW), self.luck.choice(sorted(reply))
        self.done.append(f"{ask}, {key}: {how}")
        return mutated(reply, how, key)


def settings_of(method: str) -> dict[str, Any]:
    """The settings of a small run of this method."""
    needs = find_method(method).needed()
    found = SMALL | {"method": method, "model": "mlp:hidden=6"}
    for need in needs:
        found |= NEEDS.get(need, {})
    return found
