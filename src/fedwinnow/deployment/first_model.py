"""What a site checks before it trains: the first model is its own, and the inputs are of the usual size."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from fedwinnow.deployment.error_codes import REFUSED, for_others
from fedwinnow.deployment.exposure_limit import Declined
from fedwinnow.encoders.encoded_views import without_views
from fedwinnow.errors import DataError
from fedwinnow.experiment.play import further_models
from fedwinnow.federation.host import Host
from fedwinnow.mathematics.payload import Payload

SEVERAL = 256  # samples whose size is looked at
OF_A_MODEL = ("weights", "counters")  # the ends of the keys under which a model travels


class FirstModel:
    """The models that the seed gives: the one of the run, and the second of methods that train two."""

    def __init__(self, host: Host) -> None:
        """Before the host has answered anything, because its model is a scratch that is overwritten."""
        assert not host.method.own_models  # then no model is sent
        self.known: list[Payload] = [host.model.payload()]
        self.fresh = further_models(host.sites.shape, dataclasses.replace(host.setup, device="cpu"))

    def refuse_other(self, got: Payload) -> None:
        """Refuse models that are not made from the seed, bit for bit."""
        for key, value in got.items():
            end = key.rpartition(".")[2]
            if end in OF_A_MODEL and not self.is_known(end, value):
                raise for_others(
                    DataError(
                        f"the first model ('{key}') is not the one that this site makes from the agreed seed. Either "
                        f"other versions of packages are installed at the coordinator, or it sends a model that it "
                        f"has chosen. Nothing was computed."
                    ),
                    "model",
                )

    def is_known(self, end: str, value: torch.Tensor) -> bool:
        """Whether this is part of one of the models."""
        if len(self.known) == 1 and not same(self.known[0].get(end), value):
            self.known.append(self.fresh(1))
        return any(same(model.get(end), value) for model in self.known)


def same(ours: torch.Tensor | None, theirs: torch.Tensor) -> bool:
    """Whether two tensors are equal, bit for bit."""
    return ours is not None and ours.dtype == theirs.dtype and torch.equal(ours.cpu(), theirs.cpu())


def refuse_large_inputs(host: Host, most: float | None) -> None:
    """Refuse a scaling that makes the inputs of the model large, which does what a larger learning rate would do."""
    size = size_of_inputs(host)
    if size is not None and (most is None or not size <= most):
        allowed = "does not name input_size" if most is None else f"allows at most {most:g} (input_size)"
        raise for_others(
            Declined(
                f"the samples of this site become inputs of the size {size:.3g} (the root of their mean square) by the "
                f"coordinator's scaling or schema; the policy {allowed}. Nothing was computed. Look at the units of "
                f"the columns first: about 1 is usual."
            ),
            REFUSED,
        )


def size_of_inputs(host: Host) -> float | None:
    """The root of the mean square of the inputs of a model, over some samples; None for tokens or no samples."""
    features = without_views(host.sites.features)
    if host.input_step.kind == "tokens" or not len(features):
        return None
    rows = np.unique(np.linspace(0, len(features) - 1, min(SEVERAL, len(features))).astype(np.int64))
    inputs = host.input_step(torch.from_numpy(np.array(features.take(rows)))).double()
    return float(inputs.square().mean().sqrt())
