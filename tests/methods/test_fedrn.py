"""fedrn: its equations by hand, and the shared tester."""

from __future__ import annotations

from typing import ClassVar

from fedwinnow.testing import MethodTester


class TestFedrn(MethodTester):
    method: ClassVar[str] = "fedrn"
    rounds: ClassVar[int] = 8


class TestFedrnCode(MethodTester):
    method: ClassVar[str] = "fedrn:preset=code"
    rounds: ClassVar[int] = 8
