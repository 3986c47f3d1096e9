"""One client and one server, small enough to work out on paper what a method must do with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwinnow import catalogue
from fedwinnow.all_settings import Training
from fedwinnow.data.dataset import InputStep, Resident
from fedwinnow.federation.client import Client
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.server import Server
from fedwinnow.mathematics.optimizers import Optimizer
from fedwinnow.mathematics.payload import FlatModel
from fedwinnow.models.make_model import make_model
from fedwinnow.models.model import Shape


def one_client(
    rows: Any, labels: list[int], *, classes: int = 2, model: str = "linear", lr: float = 0.1, **training: Any
) -> Client:
    """A client with these rows and labels; one epoch over one batch, plain SGD, unless told otherwise."""
    features = np.asarray(rows, dtype=np.float32)
    optimizer = catalogue.make("optimizers", f"sgd:lr={lr},momentum={training.pop('momentum', 0)}")
    assert isinstance(optimizer, Optimizer)

    def made() -> FlatModel:
        return FlatModel(make_model(model, Shape("rows", features.shape[1:], classes)))

    return Client(
        id=0,
        round=1,
        rounds=10,
        features=Resident(features),
        given=torch.tensor(labels),
        classes=classes,
        model=made(),
        spare=made,
        training=Training(**({"epochs": 1, "batch_size": 100} | training)),
        optimizer=optimizer,
        input_step=InputStep("rows", (), ()),
        generator=torch.Generator().manual_seed(0),
    )


def identity(size: int = 2, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """The weights of a linear model whose logits are its input times `scale`."""
    return {"weights": torch.cat([(scale * torch.eye(size)).flatten(), torch.zeros(size)])}


def one_server(folder: Path, *, clients: int = 4, rounds: int = 10, participation: float = 0.5, **more: Any) -> Server:
    """A server of so many clients, before the first round."""
    model = FlatModel(make_model("linear", Shape("rows", (2,), 2)))
    return Server(
        clients=clients,
        available=tuple(range(clients)),
        participation=participation,
        rounds=rounds,
        seed=0,
        classes=2,
        weights=identity(),
        model=model,
        vault=Memory(folder),
        **more,
    )


def conversation(method: Any, server: Server, answer: Any) -> list[tuple[str, list[int]]]:
    """Play one round with clients that answer `answer(ask, client, sent)`; who was asked what is returned."""
    asked = []
    talk = method.exchanges(server)
    replies = None
    while True:
        try:
            exchange = next(talk) if replies is None else talk.send(replies)
        except StopIteration:
            server.settle()
            return asked
        asked.append((exchange.ask, list(exchange.clients)))
        server.answered = list(exchange.clients)
        sent = [(client, exchange.send(client)) for client in exchange.clients]
        replies = iter([(client, answer(exchange.ask, client, payload)) for client, payload in sent])
