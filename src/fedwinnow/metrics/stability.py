"""How far local training carries the clients away from the global model."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedwinnow.metrics.number_or_none import Figure, Values, mean_of, number


def training_stability(local: Iterable[Values], start: Values) -> Figure:
    """The mean over the clients of a round of the squared distance from the global weights that they started from.

    Weights are flat vectors of trainable parameters before aggregation; the clients' may come one at a time. One
    client without a finite distance leaves the figure undefined.
    """
    start = np.asarray(start, np.float64)
    distances = []
    for weights in local:
        step = np.asarray(weights, np.float64) - start
        distances.append(number(float(step @ step)))
    return None if None in distances else mean_of(distances)
