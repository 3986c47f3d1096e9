"""fedcorr: its equations by hand, and the shared tester."""

from __future__ import annotations

from typing import ClassVar

from fedwinnow.testing import MethodTester


class TestFedcorr(MethodTester):
    method: ClassVar[str] = "fedcorr"
    rounds: ClassVar[int] = 8


class TestFedcorrCode(MethodTester):
    method: ClassVar[str] = "fedcorr:preset=code"
    rounds: ClassVar[int] = 8
