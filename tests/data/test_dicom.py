"""DICOM: values, windows, frames, compressed files, groups; and what identifies a person stays in the files."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from damaging import spoken
from dicom_material import PLANTED, SECRETS, bleeding, hounsfield, scans, slice_file
from fedwinnow import catalogue
from fedwinnow.auditing.audit_folder import Previews
from fedwinnow.data.dicom_pixels import DicomView, pixels_of, view_text, windowed
from fedwinnow.data.load import load
from fedwinnow.encoders.feature_cache import keys_of
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError

pydicom = pytest.importorskip("pydicom", reason="the extra `dicom` is not installed")

RAMP = np.arange(-1000, 3096, 256).reshape(4, 4)  # Hounsfield units


def image(path: Path, window: str = "file", frame: str | None = None) -> list:
    return pixels_of(path, DicomView.read(view_text(window, frame))).tolist()


def quiet(spec: str | dict):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedwinnowWarning)
        return load(spec)


# --- values --------------------------------------------------------------------------------------------------------


def test_a_window_is_the_formula_of_the_standard(tmp_path):
    """PS3.3 C.11.2.1.2.1: ((x - (c - 0.5)) / (w - 1) + 0.5) * 255, with slope and intercept applied first."""
    path = slice_file(tmp_path / "a.dcm", hounsfield(np.array([[-1000, 0, 1], [40, 79, 80]])))
    by_hand = [[0, 0, 3], [129, 255, 255]]  # 1: ((1-39.5)/79+0.5)*255 = 3.2; 40: 129.1; 79: 255
    assert image(path, "brain") == image(path, "40/80") == [[[value] for value in row] for row in by_hand]


def test_slope_and_intercept_are_applied(tmp_path):
    stored = np.array([[0, 10, 20]], np.uint16)
    path = slice_file(tmp_path / "a.dcm", stored, RescaleSlope="2", RescaleIntercept="5")
    other = slice_file(tmp_path / "b.dcm", np.array([[5, 25, 45]], np.int16), RescaleSlope="1", RescaleIntercept="0")
    assert image(path, "20/50") == image(other, "20/50") != image(path, "30/50")
    bare = slice_file(tmp_path / "c.dcm", np.array([[5, 25, 45]], np.int16), RescaleSlope=None, RescaleIntercept=None)
    assert image(bare, "20/50") == image(path, "20/50")


def test_several_windows_are_channels(tmp_path):
    path = slice_file(tmp_path / "a.dcm", hounsfield(RAMP))
    three = np.array(image(path, "brain+subdural+600/2800"))
    assert three.shape == (4, 4, 3)
    for place, window in enumerate(("brain", "subdural", "bone")):
        assert three[:, :, place].tolist() == np.array(image(path, window))[:, :, 0].tolist()


def test_white_and_black_are_exchanged_in_monochrome1(tmp_path):
    path = slice_file(tmp_path / "a.dcm", hounsfield(RAMP))
    negative = slice_file(tmp_path / "b.dcm", hounsfield(RAMP), PhotometricInterpretation="MONOCHROME1")
    assert (255 - np.array(image(path, "bone"))).tolist() == image(negative, "bone")


def test_the_window_of_the_file_is_used_where_none_is_asked_for(tmp_path):
    path = slice_file(tmp_path / "a.dcm", hounsfield(RAMP), WindowCenter=["80", "600"], WindowWidth=["200", "2800"])
    assert image(path) == image(path, "subdural")
    without = slice_file(tmp_path / "b.dcm", hounsfield(RAMP))
    spread = np.array(image(without))
    assert (spread.min(), spread.max()) == (0, 255)  # the whole range
    flat = slice_file(tmp_path / "c.dcm", hounsfield(np.zeros((2, 2))))
    assert image(flat) == [[[0], [0]], [[0], [0]]]
    sigmoid = slice_file(
        tmp_path / "d.dcm", hounsfield(RAMP), WindowCenter="80", WindowWidth="200", VOILUTFunction="SIGMOID"
    )
    assert image(sigmoid) == windowed(RAMP.astype(float), 80, 200, "SIGMOID")[..., None].tolist()


def lut(first: int, bits: int, table, descriptor: int | None = None):
    from pydicom.dataset import Dataset
    from pydicom.sequence import Sequence

    item = Dataset()
    item.add_new(
        "LUTDescriptor", "US" if first >= 0 else "SS", [len(table) if descriptor is None else descriptor, first, bits]
    )
    item.add_new("LUTData", "US", list(table))
    return Sequence([item])


def test_a_table_of_grey_values_in_the_file_is_its_window(tmp_path):
    table = [0, 0, 1000, 2000, 4095]
    tags = {"RescaleIntercept": "-10", "WindowCenter": "1", "WindowWidth": "2"}
    path = slice_file(
        tmp_path / "a.dcm", np.array([[0, 8, 9, 10, 11, 99]], np.uint16), VOILUTSequence=lut(-3, 12, table), **tags
    )
    # after rescaling -10, -2, -1, 0, 1, 89; the table begins at -3, and its ends hold beyond it
    by_hand = [0, 0, round(1000 / 4095 * 255), round(2000 / 4095 * 255), 255, 255]
    assert np.array(image(path)).reshape(-1).tolist() == by_hand
    assert image(path, "brain") != image(path)
    eight = lut(0, 8, np.arange(256)[::-1])
    path = slice_file(
        tmp_path / "b.dcm",
        np.array([[0, 1, 255, 5000]], np.uint16),
        VOILUTSequence=eight,
        RescaleIntercept="0",
    )
    assert np.array(image(path)).reshape(-1).tolist() == [255, 254, 0, 0]
    for wrong in (lut(0, 12, [1, 2], 5), lut(0, 3, [1, 2])):
        path = slice_file(tmp_path / "c.dcm", np.array([[0, 1]], np.uint16), VOILUTSequence=wrong)
        with pytest.raises(DataError, match=r"c\.dcm: not a readable DICOM file"):
            image(path)


def test_what_only_fills_the_image_is_black_and_no_grey_value(tmp_path):
    stored = np.array([[-2000, -5, 0, 5]], np.int16)
    tags = {"RescaleSlope": None, "RescaleIntercept": None}

    def grey(**more) -> list[int]:
        return np.array(image(slice_file(tmp_path / "a.dcm", stored, **tags, **more))).reshape(-1).tolist()

    assert grey() == [0, 254, 254, 255]
    assert grey(PixelPaddingValue=-2000) == [0, 0, 128, 255]
    assert grey(PixelPaddingValue=-2000, PhotometricInterpretation="MONOCHROME1") == [0, 255, 127, 0]
    assert grey(PixelPaddingValue=-2000, PixelPaddingRangeLimit=-5) == [0, 0, 0, 255]
    assert grey(PixelPaddingValue=-5, PixelPaddingRangeLimit=-2000) == [0, 0, 0, 255]
    white = {
        "PixelPaddingValue": -2000,
        "PhotometricInterpretation": "MONOCHROME1",
        "WindowCenter": "0",
        "WindowWidth": "11",
    }
    assert grey(**white)[0] == 0
    assert grey(PixelPaddingValue=-2000, PixelPaddingRangeLimit=2000) == [0, 0, 0, 0]


@pytest.mark.parametrize("implicit", [False, True])
def test_signed_and_sixteen_bit_values(tmp_path, implicit):
    """Also where 12 bits are stored in 16, and where the kind of a tag follows from that of the pixels."""
    from pydicom.uid import ImplicitVRLittleEndian

    def values(stored, **tags) -> list[int]:
        path = slice_file(tmp_path / "a.dcm", stored, RescaleIntercept="0", WindowCenter="0", WindowWidth="256", **tags)
        if implicit:
            content = pydicom.dcmread(path)
            content.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
            content.save_as(path, implicit_vr=True, little_endian=True)
        return np.array(image(path)).reshape(-1).tolist()

    seen = [0, 118, 128, 138, 255]
    assert values(np.array([[-30000, -10, 0, 10, 30000]], np.int16)) == seen
    assert values(np.array([[-30000, -10, 0, 10, 30000]], np.int16), PixelPaddingValue=-30000) == seen
    twelve = (np.array([[-2000, -10, 0, 10, 2000]]) & 0x0FFF).astype(np.uint16)
    assert values(twelve, BitsStored=12, HighBit=11, PixelRepresentation=1) == seen
    above = slice_file(tmp_path / "b.dcm", np.array([[0, 65535]], np.uint16), RescaleIntercept="0")
    assert image(above) == [[[0], [255]]]


def test_one_of_several_frames(tmp_path):
    stored = hounsfield(np.arange(60).reshape(5, 3, 4))
    path = slice_file(tmp_path / "a.dcm", stored, NumberOfFrames=5)
    singles = [slice_file(tmp_path / f"{place}.dcm", stored[place]) for place in range(5)]
    for frame, place in (("first", 0), ("middle", 2), ("last", 4), ("1", 0), ("4", 3)):
        assert image(path, "brain", frame) == image(singles[place], "brain")
    with pytest.raises(DataError, match=r"a\.dcm: has 5 frames; choose one with frame=, a number from 1 to 5"):
        image(path, "brain")
    with pytest.raises(DataError, match="has 5 frames, but frame=6 was asked for"):
        image(path, "brain", "6")


def test_a_frame_may_have_its_own_slope_and_window(tmp_path):
    from pydicom.dataset import Dataset
    from pydicom.sequence import Sequence

    def group(slope: str, centre: str) -> Dataset:
        values, window, whole = Dataset(), Dataset(), Dataset()
        values.RescaleSlope, values.RescaleIntercept, values.RescaleType = slope, "0", "HU"
        window.WindowCenter, window.WindowWidth = centre, "50"
        whole.PixelValueTransformationSequence, whole.FrameVOILUTSequence = Sequence([values]), Sequence([window])
        return whole

    stored = np.array([[[0, 10, 20]], [[0, 10, 20]]], np.uint16)
    groups = Sequence([group("1", "10"), group("2", "20")])
    path = slice_file(tmp_path / "a.dcm", stored, NumberOfFrames=2, PerFrameFunctionalGroupsSequence=groups)
    assert image(path, frame="1")[0] == windowed(np.array([[0.0], [10], [20]]), 10, 50).tolist()
    assert image(path, frame="2")[0] == windowed(np.array([[0.0], [20], [40]]), 20, 50).tolist()


def test_coloured_files(tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    tags = {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0}
    tags |= {"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7}
    path = slice_file(tmp_path / "a.dcm", colours, **tags)
    assert image(path) == colours.tolist()
    with pytest.raises(DataError, match="a window has no meaning"):
        image(path, "brain")


@pytest.mark.parametrize(
    "wrong", ["brian", "brain+", "40/0", "40/80/1", "", "1e9/1", "+".join(["brain"] * 17), "brain;frame=1"]
)
def test_an_unknown_window_is_refused(tmp_path, wrong):
    with pytest.raises(UsageError, match="window"):
        load({"kind": "dicom", "path": tmp_path, "labels": tmp_path / "l.csv", "window": wrong})


@pytest.mark.parametrize("wrong", ["0", "-1", "1.5", "all", ""])
def test_an_unknown_frame_is_refused(tmp_path, wrong):
    with pytest.raises(UsageError, match="frame="):
        load({"kind": "dicom", "path": tmp_path, "labels": tmp_path / "l.csv", "frame": wrong})


# --- compressed files ----------------------------------------------------------------------------------------------


def test_files_that_are_compressed_without_loss(tmp_path):
    from pydicom.uid import DeflatedExplicitVRLittleEndian, ImplicitVRLittleEndian, RLELossless

    plain = image(slice_file(tmp_path / "a.dcm", hounsfield(RAMP)), "bone")
    for number, syntax in enumerate((RLELossless, DeflatedExplicitVRLittleEndian, ImplicitVRLittleEndian)):
        content = pydicom.dcmread(tmp_path / "a.dcm")
        if syntax is RLELossless:
            content.compress(syntax)
        else:
            content.file_meta.TransferSyntaxUID = syntax
            content = content if syntax is not ImplicitVRLittleEndian else pydicom.dcmread(tmp_path / "a.dcm")
            content.file_meta.TransferSyntaxUID = syntax
        content.save_as(tmp_path / f"{number}.dcm", implicit_vr=syntax is ImplicitVRLittleEndian, little_endian=True)
        assert image(tmp_path / f"{number}.dcm", "bone") == plain


@pytest.mark.parametrize("form", ["JPEG", "JPEG2000"])
def test_files_that_pillow_decodes(tmp_path, form):
    if form == "JPEG2000" and not features.check("jpg_2000"):
        pytest.skip("this Pillow reads no JPEG 2000")
    from pydicom.encaps import encapsulate
    from pydicom.uid import JPEG2000Lossless, JPEGBaseline8Bit

    grey = np.tile(np.arange(0, 256, 16, dtype=np.uint8), (16, 1))
    stream = io.BytesIO()
    Image.fromarray(grey).save(stream, form, **({"quality": 98} if form == "JPEG" else {"irreversible": False}))
    path = slice_file(tmp_path / "a.dcm", grey, RescaleIntercept="0")
    content = pydicom.dcmread(path)
    content.PixelData = encapsulate([stream.getvalue()])
    content["PixelData"].VR = "OB"
    content.file_meta.TransferSyntaxUID = JPEGBaseline8Bit if form == "JPEG" else JPEG2000Lossless
    content.save_as(path)
    found = np.array(image(path, "127.5/255"))[:, :, 0]
    assert np.abs(found.astype(int) - np.array(windowed(grey.astype(float), 127.5, 255))).max() <= 4


def test_a_compression_that_nothing_reads_is_named(tmp_path):
    from pydicom.encaps import encapsulate
    from pydicom.uid import JPEGLSLossless

    path = slice_file(tmp_path / "a.dcm", hounsfield(RAMP))
    content = pydicom.dcmread(path)
    content.PixelData = encapsulate([b"\xff\xd8" * 40])
    content["PixelData"].VR = "OB"
    content.file_meta.TransferSyntaxUID = JPEGLSLossless
    content.save_as(path)
    with pytest.raises(DataError, match=r"JPEG-LS Lossless|cannot be read"):
        image(path, "brain")


# --- the data set --------------------------------------------------------------------------------------------------


def test_a_folder_of_slices_with_labels(tmp_path):
    folder = scans(tmp_path, 12)
    spec = f"dicom:path={folder},labels={tmp_path / 'labels.csv'},window=brain+subdural,site=site"
    with pytest.warns(FedwinnowWarning, match=r"identify people: .*PatientName \(12 files\)") as told:
        dataset = load(spec)
    assert not any(secret in str(one.message) for one in told for secret in SECRETS)
    assert (dataset.kind, dataset.sample_shape, dataset.class_names) == ("images", (16, 16, 2), ("a", "b"))
    assert dataset.train.ids.tolist() == [f"{number:03}" for number in range(12)]
    assert dataset.train.labels.tolist() == [0, 0, 1, 1] * 3
    assert dataset.train.groups.tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert dataset.train.sites.tolist()[2:6] == ["north", "north", "south", "south"]
    assert dataset.roles == {"view": "brain+subdural"}
    by_study = quiet(f"{spec},group=study")
    assert by_study.train.groups.tolist() == dataset.train.groups.tolist()
    assert quiet(f"{spec},group=none").train.groups is None
    one = dataset.train.features.take(np.array([5]))[0]
    assert one.tolist() == image(folder / "005.dcm", "brain+subdural")


def test_slices_are_found_by_path_name_and_uid(tmp_path):
    a = slice_file(tmp_path / "x" / "deep" / "one.dcm", bleeding(0, 0))
    slice_file(tmp_path / "x" / "two", bleeding(1, 1))  # no ending
    c = slice_file(tmp_path / "x" / "three.IMA", bleeding(1, 2))
    uid = pydicom.dcmread(c).SOPInstanceUID
    (tmp_path / "x" / "notes.txt").write_text("not a scan")
    (tmp_path / "x" / "DICOMDIR").write_text("not a scan either")
    (tmp_path / "l.csv").write_text(f"id,label\ndeep/one.dcm,a\ntwo,b\n{uid},b\n")
    dataset = quiet(f"dicom:path={tmp_path / 'x'},labels={tmp_path / 'l.csv'},window=brain")
    assert dataset.train.features.take(np.array([0]))[0].tolist() == image(a, "brain")
    assert dataset.train.features.take(np.array([2]))[0].tolist() == image(c, "brain")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "id,label\n000,a\n999,b\n",
            r"l\.csv, row 2 \(line 3\): no file below .* is named '999' \(1 of 2 rows have none\)",
        ),
        ("id,label\n000,a\n000,b\n", r"row 2 \(line 3\): the id '000' .* was given before"),
        ("id,label\n000,a\n000.dcm,b\n", r"row 2 \(line 3\): the file .*000\.dcm has a row already"),
        ("id,label\n000,a\n001,a\n", "a classifier needs at least two classes"),
        ("file,label\n000,a\n001,b\n", "unknown column 'id'"),
        ("id,label\n000,a\nsame,b\n", r"row 2 .* names 2 files"),
        ("id,label\n000,a\nbroken,b\n", r"row 2 \(line 3\): .*broken\.dcm: not a DICOM file"),
    ],
)
def test_a_row_without_its_file_is_named(tmp_path, text, words):
    folder = scans(tmp_path, 4)
    for place in ("p", "q"):
        slice_file(folder / place / "same.dcm", bleeding(0, 0))
    (folder / "broken.dcm").write_bytes(b"nothing")
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        quiet(f"dicom:path={folder},labels={tmp_path / 'l.csv'}")


def test_zeros_that_a_spreadsheet_took_away_are_said(tmp_path):
    folder = scans(tmp_path, 4)
    (tmp_path / "l.csv").write_text("id,label\n0,a\n1,b\n2,a\n3,b\n")
    with pytest.raises(DataError, match=r"is named '0'.* '000' is there: a spreadsheet has taken the zeros"):
        quiet(f"dicom:path={folder},labels={tmp_path / 'l.csv'}")


def test_only_what_is_there(tmp_path):
    folder = scans(tmp_path, 4)
    (tmp_path / "l.csv").write_text("id,label\n000,a\n001,b\n999,b\n")
    with pytest.warns(FedwinnowWarning, match="1 of 3 rows of l.csv have no file and are left out"):
        assert len(load(f"dicom:path={folder},labels={tmp_path / 'l.csv'},partial=true").train) == 2


def test_labels_are_needed_to_train(tmp_path):
    with pytest.raises(UsageError, match="labels= is missing"):
        load(f"dicom:path={scans(tmp_path, 4)}")


def test_sizes_and_windows_change_the_keys_of_cached_pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDWINNOW_CACHE", str(tmp_path / "cache"))
    base = f"dicom:path={scans(tmp_path, 6)},labels={tmp_path / 'labels.csv'},lazy=true"
    keys = [tuple(keys_of(quiet(f"{base}{more}").train.features)) for more in ("", ",window=bone", ",size=8")]
    assert len({key for one in keys for key in one}) == 18
    kept = base.replace(",lazy=true", "")
    bone = quiet(f"{kept},window=bone").train.features.take(np.arange(6))
    assert (quiet(f"{kept},window=brain").train.features.take(np.arange(6)) != bone).any()
    assert (quiet(f"{kept},window=bone").train.features.take(np.arange(6)) == bone).all()


def test_files_without_a_patient_are_grouped_by_study(tmp_path):
    for number in range(4):
        slice_file(tmp_path / "x" / f"{number}.dcm", bleeding(number % 2, number), number // 2, PatientID="")
    (tmp_path / "l.csv").write_text("id,label\n0,a\n1,b\n2,a\n3,b\n")
    with pytest.warns(FedwinnowWarning, match="4 files name no patient; their study is their group"):
        dataset = load(f"dicom:path={tmp_path / 'x'},labels={tmp_path / 'l.csv'}")
    assert dataset.train.groups.tolist() == [1, 1, 2, 2]


# --- what identifies a person --------------------------------------------------------------------------------------


def everything_written(*folders: Path) -> dict[Path, bytes]:
    """The content of every file, with that of archives unpacked; names count too."""
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            content = str(path.relative_to(folder)).encode()
            if path.is_file():
                content += path.read_bytes()
                if zipfile.is_zipfile(path):
                    with zipfile.ZipFile(path) as archive:
                        content += b"".join(archive.read(name) for name in archive.namelist())
            found[path] = content
    return found


@pytest.mark.parametrize("named", ["by number", "after the patient"])
def test_nothing_that_identifies_a_person_is_written(tmp_path, monkeypatch, named):
    monkeypatch.setenv("FEDWINNOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    scans(tmp_path, 24)
    if named == "after the patient":  # folders and files, and so the ids in the table
        rows = Path("labels.csv").read_text().splitlines()
        for row, line in enumerate(rows[1:], start=1):
            number = line.partition(",")[0]
            place = Path("scans", f"Mustermann_Erika {number}", f"KH-4711-GEHEIM-{int(number) // 2}.dcm")
            place.parent.mkdir()
            Path("scans", f"{number}.dcm").rename(place)
            rows[row] = place.relative_to("scans").as_posix() + line[len(number) :]
        Path("labels.csv").write_text("\n".join(rows) + "\n")
    data = "--data dicom:path=scans,labels=labels.csv,window=brain+subdural+bone,site=site,lazy=true"
    small = "--rounds 1 --epochs 1 --model linear"
    out = tmp_path / "out"
    for words in (
        f"scene make {data} --partition column --out out/scene",
        f"run {data} --partition column {small} --method fedfixer --out out/run",
        f"audit {data} --site site {small} --encoder none --out out/audit",
        "predict out/run --data dicom:path=scans --out out/predicted.csv",
        "export out/run --format torch --out out/export",
        f"sweep {data} --partition column {small} --methods fedavg --seeds 0 --out out/sweep",
    ):
        code, said = spoken(words)
        assert code == 0, said
        assert not any(secret in said for secret in SECRETS), said
    found = everything_written(out, tmp_path / "cache")
    assert len(found) > 40
    assert any(path.suffix == ".html" for path in found)
    assert any("audit.csv" in path.name for path in found)
    leaks = {
        str(path): secret
        for path, content in found.items()
        for secret in SECRETS
        for form in (secret.encode(), secret.lower().encode(), secret.encode("utf-32-le"), secret.encode("utf-16-le"))
        if form in content
    }
    assert leaks == {}
    head, first = (out / "audit" / "north" / "audit.csv").read_text().splitlines()[:2]
    assert int(first.split(",")[head.split(",").index("group")]) in range(1, 13)


def test_the_search_would_find_a_leak(tmp_path):
    """Guards the test above: ids in arrays of texts, and in archives, are seen."""
    np.savez_compressed(tmp_path / "a.npz", id=np.array([SECRETS[0]]))
    (content,) = everything_written(tmp_path).values()
    assert SECRETS[0].encode("utf-32-le") in content


def test_a_name_in_a_path_does_not_become_an_id(tmp_path):
    for number in range(4):
        slice_file(tmp_path / "x" / f"MUSTERMANN_ERIKA_{number}.dcm", bleeding(number % 2, number))
    rows = "".join(f"MUSTERMANN_ERIKA_{number},{'ab'[number % 2]},KH-4711-GEHEIM-0\n" for number in range(4))
    (tmp_path / "l.csv").write_text("id,label,who\n" + rows)
    spec = f"dicom:path={tmp_path / 'x'},labels={tmp_path / 'l.csv'}"
    with pytest.warns(FedwinnowWarning, match="samples are named by their row instead"):
        dataset = load(f"{spec},group=who")
    assert dataset.train.ids.tolist() == ["row 1", "row 2", "row 3", "row 4"]
    assert dataset.train.groups.tolist() == [1, 1, 1, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(f"{spec},deidentified=true").train.ids.tolist()[0] == "MUSTERMANN_ERIKA_0"


@pytest.mark.parametrize("place", ["Mustermann, Erika", "kh 4711 geheim 0", "study/ACC99887766", "export_gabler"])
def test_a_folder_or_a_table_named_after_a_patient_is_refused(tmp_path, monkeypatch, place):
    root = tmp_path / place
    scans(root, 4)
    monkeypatch.chdir(root)
    (tmp_path / "plain.csv").write_bytes(Path("labels.csv").read_bytes())
    source = {"kind": "dicom", "path": root, "labels": tmp_path / "plain.csv"}
    for path in (root / "scans", root, Path()):
        with pytest.raises(DataError, match="dicom: path= contains a name or an id of a patient") as caught:
            quiet(source | {"path": path})
        assert not any(secret in str(caught.value) for secret in SECRETS)
    with pytest.raises(DataError, match="dicom: labels= contains"):
        quiet(source | {"path": Path("scans"), "labels": root / "labels.csv"})
    assert len(quiet(source | {"path": Path("scans")}).train) == 4
    assert len(quiet(source | {"deidentified": True}).train) == 4


def test_an_id_without_its_separators_is_found(tmp_path):
    for number in range(2):
        slice_file(tmp_path / "x" / f"KH4711{number}.dcm", bleeding(number, number), PatientID=f"KH-47-11{number}")
    (tmp_path / "l.csv").write_text("id,label\nKH47110,a\nKH47111,b\n")
    dataset = quiet(f"dicom:path={tmp_path / 'x'},labels={tmp_path / 'l.csv'}")
    assert dataset.train.ids.tolist() == ["row 1", "row 2"]


def test_errors_do_not_quote_the_file(tmp_path):
    path = slice_file(tmp_path / "a.dcm", hounsfield(RAMP))
    content = bytearray(path.read_bytes())
    content[content.index(b"RescaleSlope") if b"RescaleSlope" in content else 200] ^= 0xFF
    path.write_bytes(bytes(content[:-20]))
    with pytest.raises(DataError, match=r"a\.dcm") as caught:
        image(path, "brain")
    assert not any(secret in str(caught.value) for secret in SECRETS)


def test_pictures_with_letters_in_them_are_said(tmp_path):
    folder = scans(tmp_path, 4, BurnedInAnnotation="YES")
    with pytest.warns(FedwinnowWarning, match="4 files say that letters are drawn into their pictures"):
        load(f"dicom:path={folder},labels={tmp_path / 'labels.csv'}")
    assert set(PLANTED) <= set(pydicom.datadict.keyword_dict)


def test_windows_are_shown_beside_each_other_and_without_any_text(tmp_path):
    dataset = quiet(f"dicom:path={scans(tmp_path, 4)},labels={tmp_path / 'labels.csv'},window=brain+bone")
    content, ending = Previews.of(dataset).picture(0)
    with Image.open(io.BytesIO(content)) as shown:
        assert (shown.size, shown.mode, ending) == ((32, 16), "L", "png")
        assert not shown.info


# --- a trained model, corrections, the published set ---------------------------------------------------------------


def test_new_files_are_seen_as_in_the_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scans(tmp_path, 16)
    run = "run --quiet --data dicom:path=scans,labels=labels.csv,window=brain --clients 2 --rounds 1 --epochs 1"
    assert spoken(f"{run} --model linear --out run")[0] == 0
    assert spoken("predict run --data dicom:path=scans --out a.csv")[0] == 0
    assert spoken("predict run --data dicom:path=scans,labels=labels.csv,window=brain --out b.csv")[0] == 0
    first, second = (
        [line.split(",")[1:] for line in Path(name).read_text().splitlines()] for name in ("a.csv", "b.csv")
    )
    assert len(first) == 17
    assert [row[-2:] for row in first] == [row[-2:] for row in second]
    code, said = spoken("predict run --data dicom:path=scans,window=bone --out c.csv")
    assert (code, "the model was trained with 'brain'" in said) == (2, True)


def audited(folder: Path, ids: list[str], source: str) -> None:
    """The folder of a site with samples of class a whose suggested label b was accepted."""
    folder.mkdir()
    head = "site,id,given,suggested,p_wrong,decision\n"
    (folder / "audit.csv").write_text(head + "".join(f"north,{name},a,b,0.9,accept\n" for name in ids))
    facts = {"format": 2, "site": "north", "class_names": ["a", "b"], "counts": {}, "pictures": {}, "texts": {}}
    facts |= {"compared": {}, "data": {"name": "s", "kind": "images", "source": source}}
    (folder / "site.json").write_text(json.dumps(facts))


@pytest.mark.parametrize("name", ["001", "row 2"])
def test_corrected_labels_go_into_the_table(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    scans(tmp_path, 6)
    audited(tmp_path / "site", [name], "dicom:path=scans,labels=labels.csv")
    before = Path("labels.csv").read_text()
    code, said = spoken("apply site --out new.csv")
    assert code == 0, said
    assert Path("labels.csv").read_text() == before
    assert Path("new.csv").read_text().splitlines()[2] == "001,b,north,a,review"
    assert quiet("dicom:path=scans,labels=new.csv").train.labels.tolist() == [0, 1, 1, 1, 0, 0]
    assert spoken("apply site --in-place")[0] == 0
    assert Path("labels.csv").read_text() == Path("new.csv").read_text()
    assert spoken("apply --undo labels.csv --in-place")[0] == 0
    assert Path("labels.csv").read_text() == before


TYPES = ["epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural"]


def published(root: Path, samples: int) -> None:
    """A small copy of the published set: slices with one type each."""
    rows = ["ID,Label"]
    for number in range(samples):
        slice_file(
            root / "stage_2_train" / f"ID_{number:09x}.dcm", bleeding(number % 5, number), number // 3, planted=False
        )
        rows += [f"ID_{number:09x}_{kind},{int(place == number % 5)}" for place, kind in enumerate(TYPES)]
        rows.append(f"ID_{number:09x}_any,1")
    (root / "stage_2_train.csv").write_text("\n".join(rows) + "\n")


def test_the_published_slices_are_read_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDWINNOW_DATA", str(tmp_path))
    root = tmp_path / "rsna-intracranial-hemorrhage-detection"
    published(root, 10)
    assert catalogue.make("data", "ich").missing() == []
    dataset = load("ich:size=16")
    assert (dataset.sample_shape, dataset.class_names, dataset.train.groups) == ((16, 16, 3), tuple(TYPES), None)
    one = root / "stage_2_train" / f"ID_{7:09x}.dcm"
    assert dataset.train.features.take(np.array([7]))[0].tolist() == image(one, "brain+subdural+bone")
    other = load("ich:size=16,window=stroke,group=patient")
    assert other.sample_shape == (16, 16, 1)
    assert other.train.groups.tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    with pytest.raises(UsageError, match="unknown window 'brian'"):
        load("ich:window=brian")
    (root / "images").mkdir()
    Image.new("L", (16, 16)).save(root / "images" / f"ID_{0:09x}.png")
    with pytest.raises(UsageError, match=r"window=stroke was given, which is for DICOM files"):
        load("ich:partial=true,window=stroke")


@pytest.mark.parametrize("model", ["", pytest.param("--model resnet18", marks=pytest.mark.slow)], ids=["small", "own"])
def test_the_config_of_fednoro_runs_on_dicom_files(tmp_path, monkeypatch, model):
    """The shipped config as it is, except for the lengths of its stages and the size of the images."""
    monkeypatch.setenv("FEDWINNOW_DATA", str(tmp_path))
    monkeypatch.setenv("FEDWINNOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    published(tmp_path / "ich", 300)
    short = "--method fednoro:warm_up=2,ramp=1 --rounds 4 --epochs 1 --data ich:size=16"
    code, said = spoken(f"run --quiet --config fednoro/ich {short} {model or '--model linear'} --out run")
    assert (code, said) == (0, "")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["last"]["balanced_accuracy"] > 0.3 or model  # of five classes
    assert len(list((tmp_path / "run").rglob("*.safetensors"))) > 0


def test_a_folder_given_as_pictures_is_said_to_be_dicom(tmp_path):
    folder = scans(tmp_path, 2)
    for path in (folder, tmp_path):
        with pytest.raises(DataError, match=r"There are DICOM files in it, which dicom:path=FOLDER,labels=TABLE reads"):
            load(f"folder:path={path}")
