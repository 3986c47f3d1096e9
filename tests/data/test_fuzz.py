"""Malformed input of every kind: it loads or it is refused with a message of ours, and nothing else happens."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedwinnow.data.load import load
from fedwinnow.errors import FedwinnowError

# What is not UTF-8 is said; here that is expected, in hundreds of cases.
pytestmark = pytest.mark.filterwarnings("ignore::fedwinnow.errors.FedwinnowWarning")

CELLS = [
    *("", "NA", "nan", "-nan", "inf", "-inf", "1e999", "-1e308", "1e-320", "9" * 400, "-0", "0x1F", "1_000", "1,5"),
    *('"', '""', '"a', 'a"b', "'", "\\", "\t", ";", "\r", "\n", "\x0b", "\u2028", "\ufeff", "\U0001f600", "٣", " "),
    *("a" * 5000, "=1+1", "None", "true", "../..", "/dev/null", "~", "%s", "{0}", "é", "e\u0301"),
]
BYTES = [b"\x00", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xff\xfe", b"\r", b'"', b",,,", b"\x1a"]
OPTIONS = [{}, {"id": "name"}, {"site": "name"}, {"true": "label2"}, {"text": "name"}, {"image": "name"}]


def settle(spec) -> str:
    """Load, and say how it ended; an error that is not ours comes through, so that the test fails."""
    try:
        dataset = load(spec)
    except FedwinnowError as problem:
        return f"refused: {problem}" if str(problem).strip() else "refused without a word"
    assert len(dataset.train) > 0
    assert len(dataset.fingerprint()) == 64
    features = dataset.train.features.take(np.arange(len(dataset.train)))
    assert np.isfinite(features).all()
    return "loaded"


def faults_of(ends: list[str]) -> list[str]:
    """What is wrong with the ways in which the cases ended.

    They must be neither all harmless nor all refused for the same reason, or the mutations would test nothing.
    """
    faults = {
        "a refusal without a word": "refused without a word" in ends,
        "hardly a case was loaded": ends.count("loaded") < 5,
        "hardly two refusals differ": len({end[-40:] for end in ends}) <= 10,
    }
    return [fault for fault, found in faults.items() if found]


# --- CSV -----------------------------------------------------------------------------------------------------------


def good_csv() -> list[list[str]]:
    body = [[f"n{row}", str(row * 1.5), "mf"[row % 2], str(row % 3), str(row % 3)] for row in range(9)]
    return [["name", "age", "sex", "label", "label2"], *body]


def mutated_csv(case: int) -> bytes:
    dice = random.Random(case)
    rows = good_csv()
    for _ in range(dice.randint(1, 3)):
        row = dice.choice(rows)
        kind = dice.randrange(7)
        if kind == 0 and row:
            row[dice.randrange(len(row))] = dice.choice(CELLS)
        elif kind == 1 and row:
            row.pop(dice.randrange(len(row)))
        elif kind == 2:
            row.append(dice.choice(CELLS))
        elif kind == 3:
            rows[:] = rows[: dice.randrange(1, len(rows) + 1)]
        elif kind == 4:
            rows.insert(dice.randrange(len(rows) + 1), [])
        elif kind == 5:
            for each in rows:
                each[-1:] = [dice.choice(CELLS)]
        else:
            rows.append(list(row))
    delimiter, end = dice.choice([",", ",", ";", "\t"]), dice.choice(["\n", "\r\n", "\r"])
    content = end.join(delimiter.join(row) for row in rows).encode()
    damage = dice.randrange(6)
    place = dice.randrange(len(content) + 1)
    if damage == 0:
        return content[:place]
    if damage == 1:
        return content[:place] + dice.choice(BYTES) + content[place:]
    if damage == 2:
        return bytes(dice.randrange(256) for _ in range(place))
    return content


def test_malformed_csv(tmp_path: Path):
    ends = []
    for case in range(300):
        path = tmp_path / f"{case}.csv"
        path.write_bytes(mutated_csv(case))
        ends.append(settle({"kind": "csv", "path": path, "label": "label", **OPTIONS[case % len(OPTIONS)]}))
    assert faults_of(ends) == []


# --- npz -----------------------------------------------------------------------------------------------------------


def strange_array(dice: random.Random) -> np.ndarray:
    """An array of any type and shape."""
    shape = tuple(dice.choice([0, 1, 2, 6, 6, 6]) for _ in range(dice.randrange(6)))
    types = ["?", "i1", "u1", "i8", "u8", ">i4", "f2", "f4", ">f8", "c16", "U3", "S3", "M8[s]", "m8[s]", "V4"]
    array = np.zeros(shape, dtype=dice.choice(types))
    if array.size and array.dtype.kind in "iuf":
        extremes = [np.nan, np.inf, 1e300, 0.5] if array.dtype.kind == "f" else [np.iinfo(array.dtype).max, -1, 7]
        value = dice.choice(extremes)
        if not (array.dtype.kind == "u" and value == -1):
            with np.errstate(over="ignore"):
                array.flat[dice.randrange(array.size)] = value
    return array


def mutated_npz(case: int) -> bytes:
    dice = random.Random(case)
    arrays = {
        "x": np.arange(12.0).reshape(6, 2),
        "y": np.array([0, 1, 2] * 2),
        "x_test": np.ones((2, 2)),
        "y_test": np.array([0, 1]),
        "id": np.array(list("abcdef")),
        "site": np.array(list("nnnsss")),
        "true": np.array([0, 1, 2] * 2),
        "class_names": np.array(["p", "q", "r"]),
    }
    for _ in range(dice.randint(1, 2)):
        key = dice.choice(list(arrays))
        if dice.random() < 0.3:
            del arrays[key]
        else:
            arrays[key] = strange_array(dice)
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays) if case % 2 else np.savez(stream, **arrays)
    content = bytearray(stream.getvalue())
    damage = dice.randrange(6)
    if damage == 0:
        return bytes(content[: dice.randrange(len(content))])
    if damage == 1:
        for _ in range(dice.randint(1, 20)):
            content[dice.randrange(len(content))] = dice.randrange(256)
    return bytes(content)


def test_malformed_npz(tmp_path: Path):
    ends = []
    for case in range(300):
        path = tmp_path / f"{case}.npz"
        path.write_bytes(mutated_npz(case))
        kind = ["auto", "auto", "rows", "tokens", "images"][case % 5]
        ends.append(settle(f"npz:path={path},kind={kind}"))
    assert faults_of(ends) == []


@pytest.mark.parametrize("case", range(40))
def test_damaged_headers_inside_an_archive(tmp_path: Path, case):
    dice = random.Random(case)
    inner = io.BytesIO()
    np.save(inner, np.arange(12.0).reshape(6, 2))
    content = bytearray(inner.getvalue())
    for _ in range(dice.randint(1, 6)):
        content[dice.randrange(128)] = dice.choice(b"(){}[]',:0129<f8O|\x00\xff\n ")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", bytes(content))
        labels = io.BytesIO()
        np.save(labels, np.array([0, 1] * 3))
        archive.writestr("y.npy", labels.getvalue())
    end = settle(tmp_path / "a.npz")
    assert end == "loaded" or end.startswith("refused: ")


# --- specs ---------------------------------------------------------------------------------------------------------


def strange_spec(case: int) -> str:
    dice = random.Random(case)
    text = "csv:path=good.csv,label=label,ignore=name|sex,max_categories=5"
    for _ in range(dice.randint(1, 3)):
        place = dice.randrange(len(text) + 1)
        kind = dice.randrange(3)
        if kind == 0:
            text = text[:place] + dice.choice([*"\"',:=|~-\\\0 \n", *CELLS]) + text[place:]
        elif kind == 1:
            text = text[:place] + text[place + dice.randrange(12) :]
        else:
            text += dice.choice(
                [
                    ",train=5",
                    ",lazy=true",
                    ",site=name",
                    ",train=0",
                    ",train=1e99",
                    ",size=-1",
                    ",lazy=x",
                    ",id=",
                    ",=",
                    ",test_path=",
                    ",label=a",
                ]
            )
    return text


def test_malformed_specs(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "good.csv"
    path.write_text("\n".join(",".join(row) for row in good_csv()))
    ends = [settle(strange_spec(case)) for case in range(300)]
    assert faults_of(ends) == []
    assert list(tmp_path.iterdir()) == [path]


def test_the_unchanged_file_loads(tmp_path: Path):
    path = tmp_path / "good.csv"
    path.write_text("\n".join(",".join(row) for row in good_csv()))
    assert settle(path) == "loaded"
