"""mixup through the shared tester."""

from __future__ import annotations

from typing import ClassVar

from fedwinnow.testing import MethodTester


class TestMixup(MethodTester):
    method: ClassVar[str] = "mixup"
