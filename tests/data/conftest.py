"""Folders of their own for every test that looks for published files."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty FEDWINNOW_DATA, an empty cache beside it, and no downloads."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDWINNOW_DATA", str(folder))
    monkeypatch.setenv("FEDWINNOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDWINNOW_OFFLINE", "1")
    return folder
