"""Centralised: all samples in one place. Not federated: a reference, and the counterpart in memorisation studies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedwinnow.federation.method import Method


@dataclass(frozen=True)
class Centralised(Method):
    """NOT FEDERATED: one site holds the samples of all sites, with the given labels."""

    name: ClassVar[str] = "centralised"
    needs: ClassVar[tuple[str, ...]] = ("pooled_data",)
    citation: ClassVar[str] = "the centralised counterpart in FedGR's memorisation study"
