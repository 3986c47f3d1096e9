"""sce through the shared tester."""

from __future__ import annotations

from typing import ClassVar

from fedwinnow.testing import MethodTester


class TestSce(MethodTester):
    method: ClassVar[str] = "sce"
