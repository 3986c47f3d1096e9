"""logit_adjustment through the shared tester."""

from __future__ import annotations

from typing import ClassVar

from fedwinnow.testing import MethodTester


class TestLogitAdjustment(MethodTester):
    method: ClassVar[str] = "logit_adjustment"
