"""Tests run offline, with a cache of their own, and never touch the user's files."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does; it says nothing about the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """A cache folder for the whole test session."""
    monkeypatch.setenv("FEDWINNOW_OFFLINE", "1")
    monkeypatch.setenv("FEDWINNOW_CACHE", os.fspath(tmp_path_factory.getbasetemp() / "cache"))
