"""fedavg through the shared tester."""

from __future__ import annotations

from typing import ClassVar

from fedwinnow.testing import MethodTester


class TestFedavg(MethodTester):
    method: ClassVar[str] = "fedavg"
