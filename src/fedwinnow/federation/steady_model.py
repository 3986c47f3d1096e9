"""Who answers: the global model, or, where a method is asked to be `steady`, an average that follows it.

Training goes on from the global model in any case. The average is what is tested, what judges labels, and, after the
last round, what the run keeps as its model; the global one is then kept beside it, in case the run goes on.
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
    """Before a round: a run that had ended goes on from its global model."""
    server.weights |= {key: server.state.pop(LAST + key) for key in server.weights if LAST + key in server.state}


def follow(server: Server, steady: float) -> None:
    """After a round: at first the mean of the global models so far, then it follows them slowly."""
    since = int(server.state[SINCE]) if SINCE in server.state else 0
    kept = min(steady, 1 - 1 / (server.round - since))
    for key, value in server.weights.items():
        before = server.state.get(STEADY + key, value)  # a further model may come later than the first
        averaged = torch.lerp(value, before, kept) if value.is_floating_point() else value
        server.state[STEADY + key] = averaged.clone()
    if server.round == server.rounds:  # what is kept of the run is what was tested
        server.state |= {LAST + key: value for key, value in server.weights.items()}
        server.weights = {key: server.state[STEADY + key].clone() for key in server.weights}


def answering(server: Server, steady: float) -> Server:
    """The server as it is tested and as it asks for judges: with the average in place of the global model."""
    if steady == 0:
        return server
    return replace(server, weights={key: server.state[STEADY + key] for key in server.weights})


def answering_models(method: Method, server: Server) -> Sequence[Payload]:
    """The models that are tested; refused where a method keeps them in a place that no average reaches."""
    found = method.models(answering(server, method.steady))
    if method.steady and type(method).models is not Method.models:
        nothing = {key: torch.full_like(value, torch.nan) for key, value in floating(server.weights).items()}
        without = method.models(replace(server, weights=server.weights | nothing))
        if any(not value.isnan().all() for model in without for value in floating(model).values()):
            raise UsageError(
                f"{method.name}: steady={method.steady:g} was given, but this method answers with a model that is not "
                f"in server.weights, which alone is averaged; allowed: 0. Keep every model that answers in "
                f"server.weights, each with a prefix of its own."
            )
    return found


def floating(payload: Payload) -> Payload:
    """Without counters."""
    return {key: value for key, value in payload.items() if value.is_floating_point()}
