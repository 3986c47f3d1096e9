"""A plugin for pytest: it makes sure that a copy of the project is tested, and notes the first test that fails."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

NOT_THE_COPY = 9  # the exit code of pytest where another package than that of the copy would be imported


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test an installed package in place of the copy."""
    wanted = Path(os.environ["FAULT_COPY"], "src", "fedwinnow", "__init__.py").resolve()
    found = importlib.util.find_spec("fedwinnow")
    if found is None or found.origin is None or Path(found.origin).resolve() != wanted:
        pytest.exit(f"fedwinnow is imported from {found and found.origin}, not from {wanted}", NOT_THE_COPY)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that fails, or whose fixtures fail."""
    if report.failed:
        with Path(os.environ["FAULT_NOTES"]).open("a", encoding="utf-8") as stream:
            stream.write(report.nodeid.replace("\n", " ") + "\n")
