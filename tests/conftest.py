"""Tests run offline, with a cache of their own, and never touch the user's files."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does; it says nothing about the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# A shell starts what it puts in the background deaf to Ctrl-C; programs that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--slow-report", help="write the outcome of every test to this file (`make slow`)")


def pytest_terminal_summary(terminalreporter, config):
    """The report of `make slow`: which source was tested, and how every test ended."""
    path = config.getoption("--slow-report")
    if not path:
        return
    from fedwinnow import files

    lines = [
        "# The last run of the slow tests",
        "",
        f"`make slow`, of the source with the hash `{files.package_source()[:16]}`.",
        "",
        "| test | outcome | seconds |",
        "|---|---|---:|",
    ]
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in sorted(terminalreporter.stats.get(outcome, ()), key=lambda one: one.nodeid):
            lines.append(f"| `{report.nodeid}` | {outcome} | {getattr(report, 'duration', 0.0):.0f} |")
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """A cache folder for the whole test session."""
    monkeypatch.setenv("FEDWINNOW_OFFLINE", "1")
    monkeypatch.setenv("FEDWINNOW_CACHE", os.fspath(tmp_path_factory.getbasetemp() / "cache"))
