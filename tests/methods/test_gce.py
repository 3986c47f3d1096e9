"""gce through the shared tester."""

from __future__ import annotations

from typing import ClassVar

from fedwinnow.testing import MethodTester


class TestGce(MethodTester):
    method: ClassVar[str] = "gce"
