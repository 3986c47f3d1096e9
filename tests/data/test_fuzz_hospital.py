"""Malformed files in the formats of hospitals: exit code 2 or 3, the file is named, and nothing is written."""

from __future__ import annotations

import io
import random
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from damaging import spoken
from dicom_material import bleeding, hounsfield, slice_file

pydicom = pytest.importorskip("pydicom", reason="the extra `dicom` is not installed")
h5py = pytest.importorskip("h5py", reason="the extra `h5` is not installed")
openpyxl = pytest.importorskip("openpyxl", reason="the extra `excel` is not installed")
pyarrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

# Wrong encodings and columns that look like ids are said; here that is expected, in hundreds of cases.
pytestmark = pytest.mark.filterwarnings("ignore::fedwinnow.errors.FedwinnowWarning")

LABELS = "id,label\n" + "".join(f"{name},{'xy'[place % 2]}\n" for place, name in enumerate("abcdef"))
BAD = "c"  # the sample whose file is damaged; it is named in row 3

# Damage tells whether the file cannot be read for certain; a case is the data, and the same.
Damage = Callable[[random.Random, Path], bool]
Case = tuple[str, bool]


def broken_bytes(dice: random.Random, path: Path) -> None:
    """Any file: cut short, bytes changed, pieces lost or doubled, something else altogether."""
    content = bytearray(path.read_bytes())
    kind = dice.randrange(6)
    place = dice.randrange(len(content))
    if kind == 0:
        content = content[:place]
    elif kind == 1:
        for _ in range(dice.randint(1, 30)):
            content[dice.randrange(len(content))] = dice.randrange(256)
    elif kind == 2:
        del content[place : place + dice.randint(1, 200)]
    elif kind == 3:
        content[place:place] = content[place : place + dice.randint(1, 200)]
    elif kind == 4:
        content = bytearray(
            dice.choice([b"", b"\0" * 500, b"id;label\n1;2\n", b"%PDF-1.4\n", b"PK\x05\x06" + b"\0" * 18])
        )
    else:
        content = bytearray(dice.randbytes(dice.randint(1, 2000)))
    path.write_bytes(bytes(content))


# --- DICOM ---------------------------------------------------------------------------------------------------------

SYNTAXES = [
    "1.2.840.10008.1.2.5",
    "1.2.840.10008.1.2.4.50",
    "1.2.840.10008.1.2.4.90",
    "1.2.840.10008.1.2.4.80",
    "1.2.3",
]
SHAPES = [
    {"Rows": 17},
    {"Columns": 60000},
    {"Rows": 65535, "Columns": 65535},
    {"Rows": None},
    {"SamplesPerPixel": 2},
    {"BitsAllocated": 12},
    {"BitsAllocated": 32, "BitsStored": 32, "HighBit": 31},
    {"NumberOfFrames": 10**6},
    {"NumberOfFrames": -1},
    {"PixelData": b""},
    {"PixelData": b"\0" * 7},
    {"PixelData": None},
    {"PhotometricInterpretation": "PALETTE COLOR"},
    {"PhotometricInterpretation": "RGB"},
    {"PixelRepresentation": 7},
]


SURELY = SHAPES[:4] + SHAPES[7:12]


def broken_dicom(dice: random.Random, path: Path) -> bool:
    """Wrong transfer syntaxes, shapes and texts in place of numbers."""
    kind = dice.randrange(5)
    if kind == 0:
        good = b"1.2.840.10008.1.2.1\0"
        path.write_bytes(path.read_bytes().replace(good, dice.choice(SYNTAXES).encode().ljust(20, b"\0")[:20], 1))
    elif kind == 1:
        shape = dice.choice(SHAPES)
        slice_file(path, bleeding(0, 0), planted=False, **shape)
        return shape in SURELY
    elif kind == 2:
        slice_file(path, bleeding(0, 0), planted=False, RescaleSlope="12345678", WindowCenter="12345679")
        number = dice.choice([b"12345678", b"12345679"])
        text = dice.choice([b"eightier", b"nan     ", b"inf     ", b"1e999   ", b"1\\\\2\\\\3  ", b"        "])
        path.write_bytes(path.read_bytes().replace(number, text[:8], 1))
    elif kind == 3:  # claims to be compressed, with pieces of a stream
        content = pydicom.dcmread(path)
        content.file_meta.TransferSyntaxUID = dice.choice([pydicom.uid.RLELossless, pydicom.uid.JPEGBaseline8Bit])
        pieces = [dice.randbytes(dice.randint(1, 300)) for _ in range(dice.randint(1, 3))]
        content.PixelData = pydicom.encaps.encapsulate(pieces)
        content["PixelData"].VR = "OB"
        content.save_as(path)
    else:
        broken_bytes(dice, path)
    return False


def dicom_case(folder: Path, dice: random.Random) -> Case:
    for place, name in enumerate("abcdef"):
        slice_file(folder / "x" / f"{name}.dcm", bleeding(place % 2, place), place, planted=False)
    surely = broken_dicom(dice, folder / "x" / f"{BAD}.dcm")
    options = dice.choice(["", ",window=brain+bone", ",lazy=true"])
    return f"dicom:path=x,labels=labels.csv,deidentified=true{options}", surely and "lazy" not in options


# --- HDF5 ----------------------------------------------------------------------------------------------------------


def broken_h5(dice: random.Random, path: Path) -> bool:
    """Wrong types, shapes and sizes, links, texts in place of numbers."""
    arrays = [
        np.zeros((0, 4)),
        np.zeros((4, 0)),
        np.zeros((2, 3, 4)),
        np.float64(7),
        np.full((3, 4), np.nan),
        np.full((3, 4), np.inf),
        np.full((3, 4), 1e300),
        np.zeros((3, 5)),
        np.array([b"one", b"two"]),
        np.zeros((3, 4), complex),
        np.zeros(3, dtype=[("a", float)]),
        np.zeros((3, 4), bool),
    ]
    kind = dice.randrange(5)
    if kind == 0:
        broken_bytes(dice, path)
        return False
    with h5py.File(path, "w") as content:
        if kind == 1:  # a bomb: nothing is stored, and everything is stated
            shape = dice.choice([(10**9, 1024), (10**6, 10**6), (2**40, 4), (10**9, 1)])
            content.create_dataset("features", shape, "f8", chunks=(1, shape[1]), compression="gzip")
        elif kind == 2:
            content["features"] = dice.choice(
                [h5py.SoftLink("/nowhere"), h5py.SoftLink("/features"), h5py.ExternalLink("/etc/passwd", "/")]
            )
        elif kind == 3:
            content.create_dataset("features", data=["texts", "only"], dtype=h5py.string_dtype())
            content.create_group("more")
        else:
            content["features"] = dice.choice(arrays)
    return True


def h5_case(folder: Path, dice: random.Random) -> Case:
    (folder / "x").mkdir()
    for place, name in enumerate("abcdef"):
        with h5py.File(folder / "x" / f"{name}.h5", "w") as content:
            content.create_dataset("features", data=np.full((3, 4), place, np.float32), compression="gzip")
    surely = broken_h5(dice, folder / "x" / f"{BAD}.h5")
    return "h5:path=x,labels=labels.csv" + dice.choice(["", ",key=features"]), surely


# --- Parquet and .npz of vectors -------------------------------------------------------------------------------------


def vectors_case(folder: Path, dice: random.Random) -> Case:
    surely = False
    ids, values = list("abcdef"), [[float(place), 1.0] for place in range(6)]
    strange = [None, [], [1.0], [1.0, None], [1.0, 2.0, 3.0], [float("nan"), 0.0], [float("inf"), 0.0], [1e300, 0.0]]
    if dice.random() < 0.5:
        path = folder / "v.parquet"
        if dice.random() < 0.5:
            values[2], surely = dice.choice(strange), True
        columns = {"id": ids, "v": values}
        if dice.random() < 0.2:
            surely = True
            columns = {"id": ids, "v": dice.choice([ids, [[name] for name in ids], [{"a": 1}] * 6, [b"x"] * 6])}
        parquet.write_table(pyarrow.table(columns), path)
    else:
        path = folder / "v.npz"
        shape = dice.choice([(6, 2), (6, 2), (5, 2), (6,), (6, 0), (6, 2, 2), ()])
        array = np.zeros(shape, dice.choice(["f4", "f8", "f2", "U3", "c8", "i8", "S2", "M8[s]"]))
        if array.size and array.dtype.kind == "f":
            array.flat[dice.randrange(array.size)] = dice.choice([np.nan, np.inf, 1.0])
        named = dice.choice([np.array(ids), np.array(ids), np.array(ids[:4]), np.array(["a"] * 6), np.arange(6)])
        np.savez(path, x=array, id=named)
    if dice.random() < 0.4:
        broken_bytes(dice, path)
    return f"embeddings:path={path.name},labels=labels.csv", surely


# --- tables ----------------------------------------------------------------------------------------------------------


def excel_case(folder: Path, dice: random.Random) -> Case:
    book = openpyxl.Workbook()
    sheet = book.active
    rows = [
        ["id", "age", "sex", "label"],
        *([name, 30 + n, "mf"[n % 2], "xy"[n % 2]] for n, name in enumerate("abcdef")),
    ]
    for _ in range(dice.randint(1, 2)):
        row = dice.choice(rows)
        row[dice.randrange(len(row))] = dice.choice([None, "", "#N/A", "=1/0", "soon", 1e308, "a" * 5000, True, "b"])
    if dice.random() < 0.3:
        dice.choice(rows).append("more")
    for row in [*[["Report"]] * dice.choice([0, 0, 0, 1, 2]), *rows[: dice.choice([1, 2, 7, 7, 7])]]:
        sheet.append(row)
    if dice.random() < 0.2:
        sheet.merge_cells(dice.choice(["A1:D1", "A2:A4", "B3:C3", "XFD1:XFD9"]))
    if dice.random() < 0.2:
        sheet.row_dimensions[dice.randint(1, 9)].hidden = True
        sheet.column_dimensions[dice.choice("ABCDXZ")].hidden = True
    stream = io.BytesIO()
    book.save(stream)
    path = folder / "t.xlsx"
    path.write_bytes(stream.getvalue())
    if dice.random() < 0.3:
        broken_bytes(dice, path)
    elif dice.random() < 0.5:
        damaged_part(dice, path)
    options = dice.choice(["", "", "", ",header=2", ",header=3,footer=1", ",footer=9"])
    return f"excel:path=t.xlsx,label=label,id=id{options}", False


def damaged_part(dice: random.Random, path: Path) -> None:
    """One file of the archive is cut, lost, or not what it should be."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = dice.choice(list(parts))
    kind = dice.randrange(4)
    if kind == 0:
        del parts[name]
    elif kind == 1:
        parts[name] = parts[name][: dice.randrange(len(parts[name]))]
    elif kind == 2:
        entity = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
        parts[name] = b"<?xml version='1.0'?>" + entity + b"<worksheet>&b;</worksheet>"
    else:
        parts[name] = parts[name].replace(b"<v>", b"<v>x", 2)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, content in parts.items():
            archive.writestr(part, content)


CELLS = [
    *("", "30.02.2021", "99.99.9999", "1.234,5", "1,2,3", "ja", "null", '"', "high", "\0", "b", "9" * 400, "inf"),
    *("12 mg", "1.234", "1.23E+10", "Total", "01.02.21", "120/80", "1 234", "'", "\u2212", "0 " * 300, "1e999 mg"),
]
ABOVE = ["", "", "Report\r\n", "Report;2026;\r\n\r\n", "sep=;\r\n", '"open\r\n', "\r\n\r\n", "a,b,c,d,e,f\r\n"]
BELOW = ["", "", "\r\nTotal;5", "\r\nprinted;today;by;Ng;x;y;z", "\r\n;;;;\r\n;;", "\r\n42 rows\r\n"]
LAYOUTS = [
    "",
    "",
    ",header=2",
    ",header=3",
    ",header=99",
    ",footer=1",
    ",footer=9",
    ",decimal=comma",
    ",encoding=cp850",
]


def text_case(folder: Path, dice: random.Random) -> Case:
    separator, ending = dice.choice([(";", "csv"), ("\t", "tsv"), (",", "csv")])
    rows = [["id", "age", "seen", "grade", "label"]]
    rows += [[name, f"3{n},5", f"0{n + 1}.02.2021", "low", "xy"[n % 2]] for n, name in enumerate("abcdef")]
    for _ in range(dice.randint(1, 3)):
        row = dice.choice(rows)
        row[dice.randrange(len(row))] = dice.choice(CELLS)
    if dice.random() < 0.2:
        dice.choice(rows).append("more")
    text = dice.choice(ABOVE) + "\r\n".join(separator.join(row) for row in rows) + dice.choice(BELOW)
    path = folder / f"t.{ending}"
    path.write_bytes(
        text.encode(dice.choice(["utf-8", "latin-1", "cp850", "utf-16", "utf-16-le", "utf-8-sig"]), "replace")
    )
    if dice.random() < 0.3:
        broken_bytes(dice, path)
    return f"csv:path={path.name},label=label,id=id,ordered=grade:low<high{dice.choice(LAYOUTS)}", False


def labels_case(folder: Path, dice: random.Random) -> Case:
    """Good files, and a table of labels that does not fit them."""
    for place, name in enumerate("abcdef"):
        slice_file(folder / "x" / f"{name}.dcm", hounsfield(np.full((2, 2), place)), place, planted=False)
    lines = LABELS.splitlines()
    place = dice.randrange(len(lines))
    wrong = ["", "a,x", "zz,x", "a", "a,", ",x", "a,x,y", "../c,x", "/etc/passwd,x", "c.dcm,x", "\0,x"]
    lines[place] = dice.choice(wrong)
    surely = place == 0 or not (lines[place] == "" or lines[place].startswith(LABELS.splitlines()[place][0]))
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    if dice.random() < 0.3:
        broken_bytes(dice, folder / "labels.csv")
        surely = False
    return "dicom:path=x,labels=labels.csv,deidentified=true", surely


CASES = {
    "dicom": (dicom_case, 130),
    "h5": (h5_case, 110),
    "vectors": (vectors_case, 110),
    "excel": (excel_case, 100),
    "text": (text_case, 150),
    "labels": (labels_case, 50),
}
BROKEN_FILE = {
    "dicom": f"{BAD}.dcm",
    "h5": f"{BAD}.h5",
    "vectors": "v.",
    "excel": "t.xlsx",
    "text": "t.",
    "labels": "labels.csv",
}


def test_there_are_enough_cases():
    assert sum(count for _, count in CASES.values()) >= 500


@pytest.mark.parametrize("kind", CASES)
def test_malformed_files(tmp_path, monkeypatch, kind):
    make, count = CASES[kind]
    monkeypatch.setattr("fedwinnow.data.dicom_pixels.ALWAYS_ALLOWED", 10**7)
    ends: Counter[int] = Counter()
    messages = set()
    for case in range(count):
        folder = tmp_path / str(case)
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("FEDWINNOW_CACHE", str(folder / "cache"))
        (folder / "labels.csv").write_text(LABELS)
        spec, surely = make(folder, random.Random(f"{kind} {case}"))
        before = set(folder.rglob("*"))
        code, said = spoken(f"scene make --data {spec} --clients 2 --test 0 --quiet --out out")
        ends[code] += 1
        assert code in (0, 2, 3), (case, said)
        assert code or not surely, case
        if code:
            assert BROKEN_FILE[kind] in said, (case, said)
            assert kind not in ("dicom", "h5") or "row 3 (line 4)" in said, (case, said)
            assert "Traceback" not in said, (case, said)
            assert {path for path in folder.rglob("*") if path.is_file()} <= before, case
            messages.add(said.strip()[-40:])
    assert ends[2] + ends[3] > count / 4, ends
    assert len(messages) > 4, messages


def test_a_deflated_file_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedwinnow.data.dicom_pixels.ALWAYS_ALLOWED", 10**6)
    for name in "abcdef":
        slice_file(tmp_path / "x" / f"{name}.dcm", bleeding(0, 0), planted=False)
    path = tmp_path / "x" / "c.dcm"
    content = pydicom.dcmread(path)
    content.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    content.save_as(path)
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    whole = path.read_bytes()
    start = 132 + 12 + int.from_bytes(whole[140:144], "little")
    path.write_bytes(whole[:start] + packing.compress(b"\0" * 10**7) + packing.flush())
    Path("labels.csv").write_text(LABELS)
    code, said = spoken("scene make --data dicom:path=x,labels=labels.csv,deidentified=true --clients 2 --out out")
    assert code == 3
    assert "labels.csv, row 3 (line 4)" in said
    assert "would come out of" in said
    assert not Path("out").exists()
