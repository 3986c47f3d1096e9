"""fedgr: its equations by hand, and the shared tester."""

from __future__ import annotations

from typing import ClassVar

from fedwinnow.testing import MethodTester


class TestFedGr(MethodTester):
    method: ClassVar[str] = "fedgr:warm_up=4"
    rounds: ClassVar[int] = 8


class TestFedGrCode(MethodTester):
    method: ClassVar[str] = "fedgr:preset=code,warm_up=4"
    rounds: ClassVar[int] = 8
