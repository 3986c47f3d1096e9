"""oracle through the shared tester."""

from __future__ import annotations

from typing import ClassVar

from fedwinnow.testing import MethodTester


class TestOracle(MethodTester):
    method: ClassVar[str] = "oracle"
