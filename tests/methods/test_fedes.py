"""fedes: its equations by hand, and the shared tester."""

from __future__ import annotations

from typing import ClassVar

from fedwinnow.testing import MethodTester


class TestFedes(MethodTester):
    method: ClassVar[str] = "fedes"
    rounds: ClassVar[int] = 4


class TestFedesSensible(MethodTester):
    method: ClassVar[str] = "fedes:preset=sensible"
    rounds: ClassVar[int] = 4
