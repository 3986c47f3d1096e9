"""Tests run offline, with a cache of their own, and never touch the user's files."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does; it says nothing about the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# A shell starts what it puts in the background deaf to Ctrl-C; programs that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """A cache folder for the whole test session."""
    monkeypatch.setenv("FEDWINNOW_OFFLINE", "1")
    monkeypatch.setenv("FEDWINNOW_CACHE", os.fspath(tmp_path_factory.getbasetemp() / "cache"))
