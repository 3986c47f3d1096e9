"""What tests of data begin with: folders of their own for published files, and a table in a file."""

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


@pytest.fixture
def write(tmp_path: Path):
    """Writes a table for a test; its path comes back."""

    def writer(text: str | bytes, name: str = "table.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return writer
