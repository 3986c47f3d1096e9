"""Tests run offline, with a cache of their own, and never touch the user's files."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """A cache folder for the whole test session."""
    monkeypatch.setenv("FEDWINNOW_OFFLINE", "1")
    monkeypatch.setenv("FEDWINNOW_CACHE", os.fspath(tmp_path_factory.getbasetemp() / "cache"))
