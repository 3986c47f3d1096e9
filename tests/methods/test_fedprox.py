"""fedprox through the shared tester."""

from __future__ import annotations

from typing import ClassVar

from fedwinnow.testing import MethodTester


class TestFedprox(MethodTester):
    method: ClassVar[str] = "fedprox"
