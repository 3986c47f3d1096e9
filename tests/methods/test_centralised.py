"""centralised through the shared tester."""

from __future__ import annotations

from typing import ClassVar

from fedwinnow.testing import MethodTester


class TestCentralised(MethodTester):
    method: ClassVar[str] = "centralised"
