"""AG News from small files in the official format."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from fedwinnow.catalogue import make
from fedwinnow.data import published_files
from fedwinnow.data.source import Source
from fedwinnow.errors import DataError

TRAIN = '"1","Peace talks","The talks."\n"2","Cup","won"\n"3","Oil","a, b"\n"4","Chip","\\new ""fast"" chip"\n'
TEST = '"4","Chip","again"\n'


def source(spec: str) -> Source:
    part = make("data", spec)
    assert isinstance(part, Source)
    return part


@pytest.fixture
def folder(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(published_files, "verify", lambda file, path: None)
    folder = data_folder / "ag_news_csv"
    folder.mkdir()
    (folder / "train.csv").write_text(TRAIN)
    (folder / "test.csv").write_text(TEST)
    return folder


def test_texts_become_tokens(folder: Path) -> None:
    assert source("agnews").missing() == []
    dataset = source("agnews:length=5,vocabulary=1000").load()
    tokens = dataset.train.features.take([0, 1, 2, 3])  # type: ignore[arg-type]

    def token(word: str) -> int:
        return 1 + zlib.crc32(word.encode()) % 999

    assert tokens.dtype.name == "int32"
    assert tokens[0].tolist() == [token("peace"), token("talks"), token("the"), token("talks"), 0]
    assert tokens[3].tolist() == [token(word) for word in ("chip", "new", "fast", "chip")] + [0]
    assert dataset.train.labels.tolist() == [0, 1, 2, 3]
    assert dataset.class_names == ("World", "Sports", "Business", "Sci/Tech")
    assert dataset.vocabulary == 1000
    assert dataset.test is not None
    assert dataset.test.labels.tolist() == [3]


@pytest.mark.parametrize("row", ['"5","a","b"', '"1","a"', "text"])
def test_row_that_does_not_fit(folder: Path, row: str) -> None:
    (folder / "train.csv").write_text(TRAIN + row + "\n")
    with pytest.raises(DataError, match=r"train\.csv, line 5: .* needed: 1 to 4,title,text"):
        source("agnews").load()


def test_changed_file_is_refused(data_folder: Path) -> None:
    (data_folder / "agnews").mkdir()
    (data_folder / "agnews" / "train.csv").write_text(TRAIN)
    with pytest.raises(DataError, match="md5 checksum"):
        source("agnews").load()
