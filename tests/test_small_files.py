"""Files that are not what they seem: pipes, archives that unpack to more than there is room for, half letters."""

from __future__ import annotations

import os
import zipfile

import numpy as np
import pytest

from damaging import OLD
from fedwinnow import files
from fedwinnow.auditing.decisions import check_reviewer
from fedwinnow.auditing.reviewing.review_queue import ReviewQueue
from fedwinnow.auditing.reviewing.review_server import as_json
from fedwinnow.data import source_files
from fedwinnow.data.source_files import read_npz
from fedwinnow.errors import DataError, UsageError
from remembering import command


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with a name")
def test_a_pipe_as_config_is_refused_without_waiting(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert command(f"run --config {tmp_path}/pipe") == 2
    assert "it is a device or a pipe; allowed: a TOML file" in capsys.readouterr().err
    assert command(f"run --config {tmp_path}") == 2


def test_an_archive_that_unpacks_to_far_more_than_it_is_is_refused_unread(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(2_000_000), y=np.zeros(3, int))
    monkeypatch.setattr(source_files, "ALWAYS_ALLOWED", 1_000_000)
    with pytest.raises(DataError, match=r"array 'x': 0.016 GB would come out of a file of .*allowed: 0.001 GB, or 100"):
        read_npz(tmp_path / "bomb.npz")
    assert list(read_npz(tmp_path / "bomb.npz", ("y",))) == ["y"]  # what is not asked for is not unpacked
    np.savez(tmp_path / "plain.npz", x=np.zeros(2_000_000))
    assert len(read_npz(tmp_path / "plain.npz")["x"]) == 2_000_000


def test_an_array_that_says_it_is_larger_than_it_is_is_refused(tmp_path):
    header = np.lib.format.magic(1, 0)
    text = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117) + "\n"
    with zipfile.ZipFile(tmp_path / "liar.npz", "w") as archive:
        archive.writestr("x.npy", header + len(text).to_bytes(2, "little") + text.encode())
    with pytest.raises(DataError, match="would come out of a file"):
        read_npz(tmp_path / "liar.npz")


def test_a_device_that_is_not_there_is_wrong_use_of_a_sweep_too(tmp_path, capsys):
    words = f"sweep --quiet --data digits:train=100 --rounds 1 --seeds 0 --out {tmp_path}/sweep"
    assert command(f"{words} --device -1") == 2
    assert "'-1' was given as --device" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_half_a_letter_is_answered():
    assert as_json({"error": "'\ud800' is no class"}) == b'{"error": "\'\\ud800\' is no class"}'
    with pytest.raises(UsageError, match="allowed: a name"):
        check_reviewer("anna\udcff")


def test_what_a_killed_review_left_is_swept_and_nothing_else(tmp_path):
    for name in ("site.json", "audit.csv"):
        (tmp_path / name).write_bytes((OLD / "audit" / "north" / name).read_bytes())
    left = tmp_path / ".decisions.csv.0123456789abcdef"
    others = [
        tmp_path / name for name in (".audit.csv.0123456789abcdef", ".decisions.csv.bak", "notes.0123456789abcdef")
    ]
    for path in (left, *others):
        path.write_text("half")
    ReviewQueue(tmp_path, "anna")
    assert not left.exists()
    assert all(path.exists() for path in others)


def test_what_a_killed_audit_left_is_swept_without_what_a_review_is_writing(tmp_path):
    left = tmp_path / ".audit.csv.0123456789abcdef"
    busy = tmp_path / ".decisions.csv.0123456789abcdef"  # of a review that is just saving
    for path in (left, busy):
        path.write_text("half")
    files.sweep(tmp_path, "audit.csv", "site.json", "report.html")
    assert not left.exists()
    assert busy.exists()
