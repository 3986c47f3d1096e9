"""Looking for published files, checking them and fetching them."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedwinnow.data import published_files
from fedwinnow.data.published_files import PublishedFile
from fedwinnow.errors import DataError

CONTENT = b"some published bytes"
MD5 = "md5:" + hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


def file_at(url: str | None = None, checksum: str | None = MD5, size: int | None = len(CONTENT)) -> PublishedFile:
    return PublishedFile("set.bin", url, "The Publisher", checksum, size, ("set", "set-1"))


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Keep the output of the tests clean."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A server that publishes set.bin."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "set.bin").write_bytes(CONTENT)
    service = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=service.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{service.server_port}"
    service.shutdown()
    service.server_close()


def test_user_folders_come_before_the_cache(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = tmp_path / "second"
    monkeypatch.setenv("FEDWINNOW_DATA", f"{data_folder}{os.pathsep}{second}")
    assert published_files.data_folders() == [data_folder, second, tmp_path / "cache" / "data"]
    expected = []
    for folder in (tmp_path / "cache" / "data", second, data_folder):
        (folder / "set-1").mkdir(parents=True)
        (folder / "set-1" / "set.bin").write_bytes(CONTENT)
        expected.append(folder / "set-1" / "set.bin")
        assert file_at().fetch() == expected[-1]


def test_any_form_in_a_user_folder_comes_before_the_cache(data_folder: Path, tmp_path: Path) -> None:
    forms = [PublishedFile("set", None, "The Publisher"), PublishedFile("set.bin", None, "The Publisher")]
    (tmp_path / "cache" / "data" / "set").mkdir(parents=True)
    assert published_files.find_first(forms) == (forms[0], tmp_path / "cache" / "data" / "set")
    (data_folder / "set.bin").write_bytes(CONTENT)
    assert published_files.find_first(forms) == (forms[1], data_folder / "set.bin")


def test_cache_is_the_users_own_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDWINNOW_CACHE", raising=False)
    monkeypatch.delenv("FEDWINNOW_DATA", raising=False)
    assert "fedwinnow" in str(published_files.cache_folder())
    assert published_files.data_folders() == [published_files.cache_folder() / "data"]


def test_missing_file_says_what_whence_and_where(data_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        file_at("http://127.0.0.1:9/set.bin").fetch()
    message = str(caught.value)
    for part in ("set.bin is missing", "FEDWINNOW_OFFLINE", "The Publisher", "http://127.0.0.1:9/set.bin"):
        assert part in message
    for folder in (data_folder / "set", data_folder / "set-1", tmp_path / "cache" / "data" / "set"):
        assert str(folder) in message


def test_file_that_needs_a_registration_is_never_downloaded(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWINNOW_OFFLINE", "0")
    with pytest.raises(DataError, match="does not allow programs to download it"):
        file_at(None).fetch()


def test_wrong_size_and_wrong_checksum_are_refused(data_folder: Path) -> None:
    path = data_folder / "set" / "set.bin"
    path.parent.mkdir()
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match=r"set\.bin has 19 bytes, the published file has 20"):
        file_at().fetch()
    path.write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(DataError, match="md5 checksum"):
        file_at().fetch()
    assert file_at(checksum=None).fetch() == path


def test_checksum_is_computed_once_and_again_after_a_change(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = data_folder / "set" / "set.bin"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    read: list[Path] = []
    true_digest = published_files.digest
    monkeypatch.setattr(published_files, "digest", lambda path, kind: read.append(path) or true_digest(path, kind))
    file_at().fetch()
    file_at().fetch()
    assert read == [path]
    path.write_bytes(CONTENT[:-1] + b"!")
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="checksum"):
        file_at().fetch()


def test_cache_that_cannot_be_written_does_no_harm(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data_folder / "set").mkdir()
    (data_folder / "set" / "set.bin").write_bytes(CONTENT)
    monkeypatch.setenv("FEDWINNOW_CACHE", str(data_folder / "set" / "set.bin" / "below-a-file"))
    assert file_at().fetch() == data_folder / "set" / "set.bin"


def test_download_goes_to_the_cache(
    data_folder: Path,
    tmp_path: Path,
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FEDWINNOW_OFFLINE", "0")
    file = file_at(f"{server}/set.bin")
    assert "downloaded at first use" in published_files.missing_line(file)
    path = file.fetch()
    assert path == tmp_path / "cache" / "data" / "set" / "set.bin"
    assert path.read_bytes() == CONTENT
    captured = capsys.readouterr()
    assert "downloading set.bin" in captured.err
    assert captured.out == ""
    monkeypatch.setenv("FEDWINNOW_OFFLINE", "1")
    assert file.fetch() == path


@pytest.mark.parametrize("url", ["{server}/other.bin", "http://127.0.0.1:9/set.bin"])
def test_failed_download_leaves_nothing(
    data_folder: Path, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("FEDWINNOW_OFFLINE", "")
    with pytest.raises(DataError, match=r"set\.bin is missing and the download failed \([^)<]*\)\. Get it"):
        file_at(url.format(server=server)).fetch()
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_download_with_wrong_checksum_leaves_nothing(
    data_folder: Path, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDWINNOW_OFFLINE", "")
    with pytest.raises(DataError, match="wrong checksum"):
        file_at(f"{server}/set.bin", checksum="md5:" + "0" * 32).fetch()
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
