"""The option `steady`: a running average of the global models answers in place of the last one.

Training always goes on from the global model. The average is tested, judges labels, and is saved as the run's model
after the last round; the global model is saved beside it, in case the run is continued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fedwinnow.errors import UsageError
from fedwinnow.federation.method import Method
from fedwinnow.federation.server import SINCE, STEADY, Server
from fedwinnow.mathematics.payload import Payload

LAST = "last."  # the global model of a run that has ended, in the server's memory


def start(server: Server) -> None:
    """Before the first round: the average is the initial model."""
    server.state |= {STEADY + key: value.clone() for key, value in server.weights.items()}


def go_on(server: Server) -> None:
    """Before a round: a run that had ended continues from its global model."""
    server.weights |= {key: server.state.pop(LAST + key) for key in server.weights if LAST + key in server.state}


def follow(server: Server, steady: float) -> None:
    """After a round: update the average, which is at first the plain mean of the global models so far."""
    since = int(server.state[SINCE]) if SINCE in server.state else 0
    kept = min(steady, 1 - 1 / (server.round - since))
    for key, value in server.weights.items():
        before = server.state.get(STEADY + key, value)  # a method may add a model in a later round
        averaged = torch.lerp(value, before, kept) if value.is_floating_point() else value
        server.state[STEADY + key] = averaged.clone()
    if server.round == server.rounds:  # save what was tested
        server.state |= {LAST + key: value for key, value in server.weights.items()}
        server.weights = {key: server.state[STEADY + key].clone() for key in server.weights}


def answering(server: Server, steady: float) -> Server:
    """The server for testing and judging: with the average in place of the global model."""
    if steady == 0:
        return server
    return replace(server, weights={key: server.state[STEADY + key] for key in server.weights})


def answering_models(method: Method, server: Server) -> Sequence[Payload]:
    """The models that are tested; an error if a method with `steady` keeps one outside `server.weights`."""
    found = method.models(answering(server, method.steady))
    if method.steady and type(method).models is not Method.models:
        nothing = {key: torch.full_like(value, torch.nan) for key, value in floating(server.weights).items()}
        without = method.models(replace(server, weights=server.weights | nothing))
        if any(not value.isnan().all() for model in without for value in floating(model).values()):
            raise UsageError(
                f"{method.name}: steady={method.steady:g} was given, but this method answers with a model that is not "
                f"in server.weights, and only these are averaged; allowed: 0. Keep every model that answers in "
                f"server.weights, under its own prefix."
            )
    return found


def floating(payload: Payload) -> Payload:
    """The floating-point tensors, that is all but counters."""
    return {key: value for key, value in payload.items() if value.is_floating_point()}
