"""feddiv: its equations by hand, and the shared tester."""

from __future__ import annotations

from typing import ClassVar

from fedwinnow.testing import MethodTester


class TestFeddiv(MethodTester):
    method: ClassVar[str] = "feddiv"
    rounds: ClassVar[int] = 8


class TestFeddivCode(MethodTester):
    method: ClassVar[str] = "feddiv:preset=code"
    rounds: ClassVar[int] = 8
