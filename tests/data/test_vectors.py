"""Vectors from elsewhere: bags in HDF5 files, and Parquet and .npz files with ids."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from damaging import spoken
from fedwinnow.data.load import load
from fedwinnow.data.pace import watched
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError

h5py = pytest.importorskip("h5py", reason="the extra `h5` is not installed")
pyarrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
parquet = pytest.importorskip("pyarrow.parquet")


def bag(path: Path, values, name: str = "features", **how) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as content:
        content.create_dataset(name, data=np.asarray(values), **how)
    return path


def slides(root: Path, count: int = 12) -> str:
    """Slides whose vectors lie around 0 or around 3, by class."""
    dice = np.random.default_rng(0)
    rows = ["id,label,patient,site"]
    for place in range(count):
        bag(root / "slides" / f"s{place}.h5", dice.normal(3 * (place % 2), 1, (5 + place, 4)).astype(np.float16))
        rows.append(f"s{place},{'ab'[place % 2]},p{place // 2},{'north' if place < count // 2 else 'south'}")
    (root / "labels.csv").write_text("\n".join(rows) + "\n")
    return f"h5:path={root / 'slides'},labels={root / 'labels.csv'}"


def vectors_of(dataset) -> np.ndarray:
    return dataset.train.features.take(np.arange(len(dataset.train)))


# --- HDF5 ----------------------------------------------------------------------------------------------------------


def test_a_sample_is_the_mean_of_its_bag(tmp_path):
    dataset = load(f"{slides(tmp_path)},group=patient,site=site")
    with h5py.File(tmp_path / "slides" / "s3.h5") as content:
        by_hand = content["features"][...].astype(np.float64).mean(axis=0)
    assert vectors_of(dataset)[3] == pytest.approx(by_hand, abs=1e-6)
    assert (dataset.kind, dataset.sample_shape, dataset.class_names) == ("rows", (4,), ("a", "b"))
    assert dataset.train.ids.tolist()[:2] == ["s0", "s1"]
    assert dataset.train.groups.tolist()[:3] == ["p0", "p0", "p1"]
    assert set(dataset.train.sites.tolist()) == {"north", "south"}


def test_the_mean_of_a_long_bag_is_added_up_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("fedwinnow.data.bags.BLOCK", 64)
    values = np.arange(4000.0).reshape(1000, 4)
    bag(tmp_path / "x" / "a.h5", values)
    bag(tmp_path / "x" / "b.h5", values[None] + 1)  # a further axis of length 1
    bag(tmp_path / "x" / "c.h5", values[0])  # a single vector
    (tmp_path / "l.csv").write_text("id,label\na,x\nb,y\nc,x\n")
    found = vectors_of(load(f"h5:path={tmp_path / 'x'},labels={tmp_path / 'l.csv'}"))
    assert found.tolist() == [[1998, 1999, 2000, 2001], [1999, 2000, 2001, 2002], [0, 1, 2, 3]]


def test_the_array_is_found_or_named(tmp_path):
    (tmp_path / "l.csv").write_text("id,label\na,x\nb,y\n")
    for name in "ab":
        with h5py.File(tmp_path / f"{name}.h5", "w") as content:
            content["coords"] = np.zeros((3, 2), np.int64)
            content["deep/uni"] = np.full((3, 5), 2.0)
            content["conch"] = np.full((3, 4), 7.0)
    spec = f"h5:path={tmp_path},labels={tmp_path / 'l.csv'}"
    assert vectors_of(load(spec))[0].tolist() == [7] * 4
    assert vectors_of(load(f"{spec},key=deep/uni"))[0].tolist() == [2] * 5
    with pytest.raises(DataError, match=r"row 1 \(line 2\): .*a\.h5: unknown array 'conh'. Did you mean 'conch'"):
        load(f"{spec},key=conh")
    with h5py.File(tmp_path / "b.h5", "a") as content:
        content["uni"] = np.zeros((3, 5))
    with pytest.raises(DataError, match=r"row 2 \(line 3\): .*which array has the vectors\? Name it with key="):
        load(spec)


def test_what_a_file_points_to_is_not_read(tmp_path):
    secret = bag(tmp_path / "secret.h5", np.ones((3, 4)))
    (tmp_path / "x").mkdir()
    with h5py.File(tmp_path / "x" / "a.h5", "w") as content:
        content["features"] = h5py.ExternalLink(str(secret), "features")
    layout = h5py.VirtualLayout((3, 4), np.float64)
    layout[:] = h5py.VirtualSource(str(secret), "features", (3, 4))
    with h5py.File(tmp_path / "x" / "b.h5", "w") as content:
        content.create_virtual_dataset("features", layout)
    (tmp_path / "raw").write_bytes(b"\0" * 96)
    with h5py.File(tmp_path / "x" / "c.h5", "w") as content:
        content.create_dataset("features", (3, 4), np.float64, external=str(tmp_path / "raw"))
    for name, words in (("a", "which array"), ("b", "in other files"), ("c", "in other files")):
        bag(tmp_path / "x" / "z.h5", np.ones((3, 4)))
        (tmp_path / "l.csv").write_text(f"id,label\n{name},x\nz,y\n")
        with pytest.raises(DataError, match=words):
            load(f"h5:path={tmp_path / 'x'},labels={tmp_path / 'l.csv'}")
        with pytest.raises(DataError, match=r"unknown array|in other files"):
            load(f"h5:path={tmp_path / 'x'},labels={tmp_path / 'l.csv'},key=features")


def test_a_file_of_another_model_is_named(tmp_path):
    spec = slides(tmp_path)
    bag(tmp_path / "slides" / "s4.h5", np.ones((2, 9)))
    with pytest.raises(DataError, match=r"row 5 \(line 6\): .*s4\.h5: vectors of 9 numbers; .* have 4"):
        load(spec)
    bag(tmp_path / "slides" / "s4.h5", [[1, 2, 3, np.nan]])
    with pytest.raises(DataError, match=r"row 5 \(line 6\): .*s4\.h5, vector 1 of 'features': a number is missing"):
        load(spec)


def test_an_audit_of_slides_a_model_and_corrected_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDWINNOW_CACHE", str(tmp_path / "cache"))
    slides(tmp_path, 40)
    data = "h5:path=slides,labels=labels.csv,group=patient,site=site"
    small = "--rounds 2 --epochs 1 --model linear --encoder rows --quiet"
    for words in (
        f"audit --data {data} --site site {small} --out audit",
        f"run --data {data} --partition column {small} --out run",
        "predict run --data h5:path=slides --out all.csv",
        "predict run --data h5:path=slides,labels=labels.csv --out some.csv",
    ):
        code, said = spoken(words)
        assert code == 0, (words, said)
    assert len(Path("all.csv").read_text().splitlines()) == len(Path("some.csv").read_text().splitlines()) == 41
    assert "s3.h5" in Path("all.csv").read_text()


def test_reading_tells_how_far_it_is(tmp_path):
    told = []
    with watched(told.append):
        load(slides(tmp_path))
    files = [now for now in told if now.things == "files"]
    assert [(now.done, now.total) for now in files] == [(place, 12) for place in range(1, 13)]
    assert files[5].seconds > 0 == files[-1].seconds


# --- Parquet and .npz ----------------------------------------------------------------------------------------------

VALUES = np.arange(12.0).reshape(4, 3)
IDS = ["d", "c", "b", "a"]


def written(root: Path, kind: str) -> Path:
    """The same vectors in every form."""
    path = root / f"e.{'npz' if kind.startswith('npz') else 'parquet'}"
    if kind == "npz":
        np.savez(path, x=VALUES, id=np.array(IDS))
    elif kind == "npz, other names":
        np.savez(path, embeddings=VALUES.astype(np.float16), ids=np.array(IDS))
    elif kind == "a column each":
        parquet.write_table(pyarrow.table({"id": IDS} | {f"f{n}": VALUES[:, n] for n in range(3)}), path)
    else:
        vectors = pyarrow.array(VALUES.tolist(), pyarrow.list_(pyarrow.float32(), 3 if kind == "fixed" else -1))
        parquet.write_table(pyarrow.table({"id": IDS, "v": vectors, "label": list("xyxy")}), path, row_group_size=2)
    return path


@pytest.mark.parametrize("kind", ["npz", "npz, other names", "a column each", "lists", "fixed"])
def test_vectors_are_joined_to_labels_by_id(tmp_path, kind):
    path = written(tmp_path, kind)
    (tmp_path / "l.csv").write_text("id,label\na,x\nb,y\nc,x\nd,y\n")
    dataset = load(f"embeddings:path={path},labels={tmp_path / 'l.csv'}")
    assert dataset.train.ids.tolist() == ["a", "b", "c", "d"]
    assert vectors_of(dataset).tolist() == VALUES[::-1].tolist()
    assert dataset.train.labels.tolist() == [0, 1, 0, 1]
    (tmp_path / "l.csv").write_text("id,label\na,x\nb,y\ne,y\n")
    with pytest.raises(DataError, match=r"row 3 \(line 4\): .* has no vector with the id 'e' \(1 of 3 rows"):
        load(f"embeddings:path={path},labels={tmp_path / 'l.csv'}")
    with pytest.warns(FedwinnowWarning, match=r"1 of 3 rows of l\.csv have no vector and are left out"):
        assert len(load(f"embeddings:path={path},labels={tmp_path / 'l.csv'},partial=true").train) == 2


def test_zeros_that_a_spreadsheet_took_away_are_said(tmp_path):
    np.savez(tmp_path / "v.npz", x=np.eye(3), id=np.array(["001", "002", "3"]))
    (tmp_path / "l.csv").write_text("id,label\n1,x\n2,y\n3,x\n")
    with pytest.raises(
        DataError, match=r"no vector with the id '1' \(2 of 3 rows have none\)\. '001' is there: a spread"
    ):
        load(f"embeddings:path={tmp_path / 'v.npz'},labels={tmp_path / 'l.csv'}")


def test_a_parquet_file_may_have_the_labels_itself(tmp_path, monkeypatch):
    monkeypatch.setattr("fedwinnow.data.sources.embeddings.PIECE", 3)
    dataset = load(f"embeddings:path={written(tmp_path, 'lists')}")
    assert (dataset.train.ids.tolist(), dataset.train.labels.tolist()) == (IDS, [0, 1, 0, 1])
    assert vectors_of(dataset).tolist() == VALUES.tolist()
    np.savez(tmp_path / "e.npz", x=VALUES, id=np.array(IDS))
    with pytest.raises(UsageError, match="labels= is missing"):
        load(f"embeddings:path={tmp_path / 'e.npz'}")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": IDS, "v": [[1.0], [2.0], [3.0, 4.0], [5.0]]}, "row 3: a vector of 2 numbers; those above have 1"),
        ({"id": IDS, "v": [[1.0], None, [3.0], [5.0]]}, "row 2: the vector is missing"),
        ({"id": IDS, "v": [[1.0], [None], [3.0], [5.0]]}, "row 2: a number of the vector is missing"),
        ({"id": IDS, "v": [[1.0], [2.0], [3.0], [float("nan")]]}, "row 4: a number of the vector is missing, inf"),
        ({"id": IDS, "v": [["1"], ["2"], ["3"], ["4"]]}, "hold values of the type string; needed: numbers"),
        ({"id": IDS, "f": ["1", "2", "3", "4"]}, "no column of lists and no column of numbers"),
        ({"id": list("aabc"), "v": [[1.0]] * 4}, "row 2.*the id 'a'"),
        ({"name": IDS, "v": [[1.0]] * 4}, "unknown column 'id'"),
        ({"id": IDS, "v": [[1.0]] * 4, "w": [[1.0]] * 4}, "which column has the vectors: v, w"),
    ],
)
def test_a_vector_that_is_none_is_named(tmp_path, columns, words):
    parquet.write_table(pyarrow.table(columns), tmp_path / "e.parquet")
    (tmp_path / "l.csv").write_text("id,label\na,x\nb,y\nc,x\nd,y\n")
    with pytest.raises(DataError, match=words):
        load(f"embeddings:path={tmp_path / 'e.parquet'},labels={tmp_path / 'l.csv'}")


def test_a_parquet_file_that_would_fill_the_memory_is_refused(tmp_path):
    """Ten thousand million cells in a file of some kilobytes."""
    group = pyarrow.table({"id": pyarrow.nulls(10**6, pyarrow.int8()), "label": pyarrow.nulls(10**6, pyarrow.int8())})
    with parquet.ParquetWriter(tmp_path / "e.parquet", group.schema) as writer:
        for _ in range(260):
            writer.write_table(group)
    with pytest.raises(DataError, match=r"rows of 2 columns, .* would come out of a file of"):
        load(f"parquet:path={tmp_path / 'e.parquet'},label=label")


def test_new_vectors_of_another_width_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "npz")
    Path("l.csv").write_text("id,label\na,x\nb,y\nc,x\nd,y\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = "--clients 2 --test 0 --rounds 1 --model linear --quiet --out r"
        code, said = spoken(f"run --data embeddings:path=e.npz,labels=l.csv {small}")
    assert code == 0, said
    assert spoken("predict r --data embeddings:path=e.npz --out a.csv")[0] == 0
    np.savez("f.npz", x=VALUES[:, :2], id=np.array(IDS))
    code, said = spoken("predict r --data embeddings:path=f.npz --out b.csv")
    assert code == 3
    assert "a sample has the shape (2,)" in said
    assert not Path("b.csv").exists()
