"""Oracle: FedAvg on the truly clean samples. It cheats, and says so: an upper reference, not a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedwinnow.federation.method import Method


@dataclass(frozen=True)
class Oracle(Method):
    """CHEATS: the evaluation side hands every site only its truly clean samples; then FedAvg."""

    name: ClassVar[str] = "oracle"
    needs: ClassVar[tuple[str, ...]] = ("truth",)
    citation: ClassVar[str] = "the upper reference of FedRN's tables"
