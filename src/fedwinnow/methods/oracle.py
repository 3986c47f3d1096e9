"""Oracle: FedAvg on the truly clean samples. It cheats: an upper reference, not a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedwinnow.federation.method import Method


@dataclass(frozen=True)
class Oracle(Method):
    """CHEATS: FedAvg in which every site trains on its truly clean samples only."""

    name: ClassVar[str] = "oracle"
    needs: ClassVar[tuple[str, ...]] = ("truth",)
    citation: ClassVar[str] = "the upper reference of FedRN's tables"
