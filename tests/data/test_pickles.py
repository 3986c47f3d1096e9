"""The reader of pickles: plain data comes through, everything else is refused and nothing is ever run."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwinnow.data.pickles import read_pickle, read_torch
from fedwinnow.errors import DataError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.tuples(),
    max_leaves=12,
)


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch malicious-file",)


@given(value=PLAIN, protocol=st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_plain_values_come_back(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol=protocol), "here") == value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.uint8).reshape(3, 4),
        np.asfortranarray(np.arange(12, dtype=">i4").reshape(3, 4)),
        np.array([0.5, -2.0], dtype="<f4"),
        np.array(["a", "äb"]),
        np.zeros((0, 3)),
        np.array(7),
    ],
    ids=["bytes", "columns-first", "floats", "texts", "empty", "single"],
)
def test_arrays_come_back(array: np.ndarray[Any, Any], protocol: int) -> None:
    value = {"first": array, "again": array, "scalar": np.float32(2.5)}
    found = read_pickle(pickle.dumps(value, protocol=protocol), "here")
    for key in ("first", "again"):
        assert found[key].shape == array.shape
        assert found[key].dtype == array.dtype.newbyteorder("=")  # as NumPy's own reader gives it
        assert (found[key] == array).all()
    assert found["scalar"] == 2.5


def python2_pickle(pixels: bytes, labels: list[int]) -> bytes:
    """A batch as Python 2 wrote it: byte strings as strings, NumPy under its old module names."""
    shape = b"K%cM%b\x86" % (len(labels), struct.pack("<H", len(pixels) // len(labels)))
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01" + shape + kind + b"\x89T" + struct.pack("<i", len(pixels)) + pixels + b"t"
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R" + state + b"b"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels](" + numbers + b"eu."


def test_python2_batch() -> None:
    raw = python2_pickle(bytes([0, 127, 128, 255]), [3, 9])
    assert pickle.loads(raw, encoding="latin1")["labels"] == [3, 9]  # noqa: S301 - the sample is what it claims to be
    found = read_pickle(raw, "here")
    assert found["data"].tolist() == [[0, 127], [128, 255]]
    assert found["labels"] == [3, 9]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_calls_are_refused_and_not_made(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"here is refused: it wants to call (posix|nt)\.system"):
        read_pickle(pickle.dumps({"labels": Malicious()}, protocol=protocol), "here")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (collections.Counter("ab"), "collections.Counter"),
        (np.array([object], dtype=object), "array of object"),
        (np.zeros(1, dtype=[("a", "i4")]), "not of numbers or texts"),
        (np.array(["2020"], dtype="M8[Y]"), "not of numbers or texts"),
        (len, r"builtins\.len"),
    ],
)
def test_other_things_are_refused_by_name(value: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_pickle(pickle.dumps(value, protocol=4), "here")


NDARRAY, ENCODE = b"cnumpy\nndarray\n", b"c_codecs\nencode\n"
BYTES = b"cnumpy\ndtype\nU\x02u1\x85R"  # the element type u1


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"c__builtin__\neval\n(S'1'\ntR.", r"__builtin__\.eval"),
        (b"cbuiltins\ngetattr\n(NNtR.", r"builtins\.getattr"),
        (b"cnumpy\nsave\n(S'x'\nNtR.", r"numpy\.save"),
        (b"cnumpy\nndarray.tofile\n.", r"numpy\.ndarray\.tofile"),
        (b"ccopyreg\n_reconstructor\n(NNNtR.", r"copyreg\._reconstructor"),
        (NDARRAY + b")\x81.", "operation NEWOBJ"),
        (b"(inumpy\nndarray\n.", "operation INST"),
        (b"Pid\n.", "operation PERSID"),
        (b"\x82\x01.", "operation EXT1"),
        (NDARRAY + b"}U\x05buildNsb.", "changes what it calls"),
        (BYTES + b"}U\x05dtypeNsb.", "a dict where"),
        (NDARRAY + b")R(K\x01)" + BYTES + b"\x89K\x09tb.", "a int where"),
        (b"Nr\xff\xff\xff\x7f.", "stores a value at place 2147483647"),
        (b"Np2147483647\n.", "stores a value at place 2147483647"),
        (b"})" + b"\x85" * 300_000 + b"Ns.", "more than 5000 tuples"),
        (
            ENCODE + b"q\x01U\x64" + b"a" * 100 + b"U\x06latin1\x86q\x02R" + b"h\x01h\x02R" * 20 + b".",
            "again and again",
        ),
        (ENCODE + b"U\x01aU\x05utf-8\x86R.", "encodes bytes as utf-8"),
        (b"cnumpy\ndtype\nU\x05u1,u1\x85R.", "not of numbers or texts"),
    ],
)
def test_attacks_are_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_pickle(raw, "here")


@pytest.mark.parametrize(
    "shape", [b"J\xff\xff\xff\x7f\x85", b"K\x02K\x02\x86", b"J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86"]
)
def test_a_shape_needs_its_bytes(shape: bytes) -> None:
    state = b"(K\x01" + shape + BYTES + b"\x89C\x02abtb."
    with pytest.raises(DataError, match="broken or cut short"):
        read_pickle(NDARRAY + b")R" + state, "here")


@given(cut=st.integers(0, 400), flip=st.integers(0, 400), byte=st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_broken_files_are_data_errors(cut: int, flip: int, byte: int) -> None:
    raw = bytearray(pickle.dumps({"data": np.arange(8, dtype=np.uint8), "labels": [1, 2]}, protocol=2))
    with pytest.raises(DataError, match="here is"):
        read_pickle(bytes(raw[: cut % len(raw)]), "here")
    raw[flip % len(raw)] = byte
    with contextlib.suppress(DataError):  # a changed byte may still be readable, but nothing else may be raised
        read_pickle(bytes(raw), "here")


LABELS = {"clean_label": np.arange(5), "worse_label": np.array([4, 3, 2, 1, 0], dtype=np.uint8)}


@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_torch(tmp_path: Path, zipped: bool) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "labels.pt"
    torch.save(LABELS, path, _use_new_zipfile_serialization=zipped)
    found = read_torch(path)
    assert {name: column.tolist() for name, column in found.items()} == {
        "clean_label": [0, 1, 2, 3, 4],
        "worse_label": [4, 3, 2, 1, 0],
    }


@pytest.mark.parametrize("zipped", [True, False])
def test_malicious_and_truncated_files_of_torch(tmp_path: Path, zipped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "labels.pt"
    torch.save({"labels": Malicious()}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(DataError, match=r"labels\.pt is refused: it wants to call (posix|nt)\.system"):
        read_torch(path)
    torch.save(LABELS, path, _use_new_zipfile_serialization=zipped)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"labels\.pt"):
        read_torch(path)
    assert [found.name for found in tmp_path.iterdir()] == ["labels.pt"]


def test_file_that_torch_did_not_write(tmp_path: Path) -> None:
    path = tmp_path / "labels.pt"
    path.write_bytes(pickle.dumps(LABELS))
    with pytest.raises(DataError, match=r"does not begin as a file of torch\.save does"):
        read_torch(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.txt", "")
    with pytest.raises(DataError, match=r"no data\.pkl"):
        read_torch(path)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("labels/data.pkl", pickle.dumps(LABELS)[:-20])
    path.write_bytes(stream.getvalue())
    with pytest.raises(DataError, match="broken or cut short"):
        read_torch(path)
