"""Centralised: all samples in one place. Not federated: the upper reference, and the twin of memorisation studies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedwinnow.federation.method import Method


@dataclass(frozen=True)
class Centralised(Method):
    """NOT FEDERATED: one site holds the samples of all, with the labels as given."""

    name: ClassVar[str] = "centralised"
    needs: ClassVar[tuple[str, ...]] = ("pooled_data",)
    citation: ClassVar[str] = "the twin of FedGR's memorisation study"
