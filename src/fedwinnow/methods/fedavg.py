"""FedAvg: every client trains the global model on its own samples, and the server averages the results.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedwinnow.federation.method import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """Local training on the given labels, then an average weighted by the number of samples."""

    name: ClassVar[str] = "fedavg"
    citation: ClassVar[str] = "McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017"
