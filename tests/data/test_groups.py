"""Groups (patients) in every source, and splits that keep them whole."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.groups import commonest_labels, draw_groups, whole_groups_near
from fedwinnow.data.load import load, with_test_part
from fedwinnow.data.sources.huggingface import HuggingFace
from fedwinnow.encoders.feature_folder import write_features
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError


def patients_csv(path: Path, patients: int = 30) -> Path:
    lines = ["id,patient,age,label"]
    row = 0
    for patient in range(patients):
        for _ in range(patient % 4 + 1):
            row += 1
            lines.append(f"r{row},p{patient},{row % 17},{'ab'[patient % 2]}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_table_has_groups_and_they_are_no_feature(tmp_path):
    path = patients_csv(tmp_path / "t.csv")
    plain = load(f"csv:path={path},label=label,id=id,ignore=patient")
    dataset = load(f"csv:path={path},label=label,id=id,group=patient")
    assert dataset.train.groups is not None
    assert dataset.train.groups[:4].tolist() == ["p0", "p1", "p1", "p2"]
    assert dataset.sample_shape == plain.sample_shape == (1,)
    assert plain.train.groups is None
    assert dataset.fingerprint() != plain.fingerprint()
    assert dataset.roles["group"] == "patient"
    assert load("".join(["csv:path=", str(path), ",label=label,id=id,ignore=patient"])).fingerprint() == (
        plain.fingerprint()
    )


def test_a_missing_group_and_a_missing_column_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("patient,age,label\np1,1,a\n,2,b\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"row 2 \(line 3\): the group \(column 'patient'\) is missing"):
        load(f"csv:path={path},label=label,group=patient")
    with pytest.raises(DataError, match="patientt"):
        load(f"csv:path={path},label=label,group=patientt")
    with pytest.raises(UsageError, match="two roles"):
        load(f"csv:path={path},label=label,group=patient,site=patient")


def test_groups_in_parquet_images_npz_features_and_hugging_face(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"patient": [7, 7, 8], "age": [1.0, 2.0, 3.0], "label": ["a", "b", "a"]})
    parquet.write_table(table, tmp_path / "t.parquet")
    assert load(f"parquet:path={tmp_path / 't.parquet'},label=label,group=patient").train.groups.tolist() == [
        "7",
        "7",
        "8",
    ]

    for number in range(3):
        Image.new("L", (4, 4), number).save(tmp_path / f"{number}.png")
    listed = tmp_path / "images.csv"
    listed.write_text("file,patient,label\n0.png,p,a\n1.png,p,b\n2.png,q,a\n", encoding="utf-8")
    assert load(f"csv:path={listed},label=label,image=file,group=patient").train.groups.tolist() == ["p", "p", "q"]

    x, y, group = np.zeros((3, 2)), np.array([0, 1, 0]), np.array([5, 5, 6])
    np.savez(tmp_path / "a.npz", x=x, y=y, group=group)
    np.savez(tmp_path / "b.npz", x=x, y=y, patient=group)
    assert load(tmp_path / "a.npz").train.groups.tolist() == [5, 5, 6]
    assert load(f"npz:path={tmp_path / 'b.npz'},group=patient").train.groups.tolist() == [5, 5, 6]
    assert load(tmp_path / "b.npz").train.groups is None
    with pytest.raises(DataError, match="no array 'person', which group=person names"):
        load(f"npz:path={tmp_path / 'b.npz'},group=person")

    write_features(load(tmp_path / "a.npz"), "rows", tmp_path / "features")
    assert load(tmp_path / "features").train.groups.tolist() == [5, 5, 6]

    class Split(dict):
        features: ClassVar[dict[str, object]] = {
            "age": type("Value", (), {"dtype": "float32"})(),
            "patient": type("Value", (), {"dtype": "int64"})(),
            "label": type("ClassLabel", (), {"names": ["a", "b"]})(),
        }

    split = Split(age=[1.0, 2.0, 3.0], patient=[4, 4, 9], label=[0, 1, 0])
    found = HuggingFace(dataset="x/y", group="patient").convert({"train": split})
    assert found.train.groups.tolist() == [4, 4, 9]
    assert found.sample_shape == (1,)  # the group is no feature
    with pytest.raises(DataError, match="person"):
        HuggingFace(dataset="x/y", group="person").convert({"train": split})


def test_groups_from_python_are_checked():
    x, y = np.zeros((3, 2)), [0, 1, 0]
    assert from_arrays(x, y, groups=["p", "p", "q"]).train.groups.tolist() == ["p", "p", "q"]
    with pytest.raises(DataError, match="3 samples but 2 entries in groups"):
        from_arrays(x, y, groups=["p", "q"])
    with pytest.raises(DataError, match="groups have the type float64"):
        from_arrays(x, y, groups=[0.5, 1.5, 2.5])


def test_whole_groups_by_hand():
    """Sizes 4, 2, 3 in this order of luck, 5 wanted: middles 2, 5, 7.5, so only the first (4) is taken; 6 take two."""
    group = np.array([0] * 4 + [1] * 2 + [2] * 3)
    luck, kind = np.array([0.1, 0.2, 0.3]), np.zeros(3, np.int64)
    assert whole_groups_near(group, kind, np.array([5.0]), luck).sum() == 4
    assert whole_groups_near(group, kind, np.array([6.0]), luck).sum() == 6
    two = whole_groups_near(group, np.array([0, 1, 1]), np.array([0.0, 3.0]), luck)
    assert two.tolist() == [False] * 4 + [True] * 2 + [False] * 3  # middles within the second kind: 1 and 3.5


def test_the_commonest_label_by_hand():
    assert commonest_labels(np.array([0, 0, 0, 1, 1]), np.array([2, 2, 0, 1, 0]), 3).tolist() == [2, 0]


@pytest.mark.parametrize("seed", range(5))
def test_the_test_part_has_whole_groups_and_every_class_stays(tmp_path, seed):
    dataset = load(f"csv:path={patients_csv(tmp_path / 't.csv', 60)},label=label,id=id,group=patient")
    split = with_test_part(dataset, 0.25, seed)
    assert split.test is not None
    assert not set(split.train.groups.tolist()) & set(split.test.groups.tolist())
    assert 0.18 < len(split.test) / len(dataset.train) < 0.32
    assert set(split.train.labels.tolist()) == {0, 1} == set(split.test.labels.tolist())


def test_a_class_of_one_group_stays_in_training():
    labels = np.array([0] * 6 + [1] * 4)
    groups = np.array([0, 0, 1, 1, 2, 2, 9, 9, 9, 9])
    drawn = draw_groups(groups, labels, np.array([2, 4]), 0, "test part")
    assert not (drawn >= 6).any()
    assert len(drawn) == 2


def test_groups_too_large_for_the_share_are_refused():
    dataset = from_arrays(np.zeros((8, 1)), [0, 1] * 4, groups=[0] * 4 + [1] * 4)
    with pytest.raises(DataError, match="part of a group"):
        with_test_part(dataset, 0.13, 0)


def test_a_group_in_both_files_is_told(tmp_path):
    train, test = tmp_path / "a.csv", tmp_path / "b.csv"
    train.write_text("p,age,label\nx,1,a\ny,2,b\n", encoding="utf-8")
    test.write_text("p,age,label\nx,3,a\nz,4,b\n", encoding="utf-8")
    with pytest.warns(FedwinnowWarning, match="1 group has samples in the training and in the test part, 'x'"):
        load(f"csv:path={train},test_path={test},label=label,group=p")
    test.write_text("age,label\n3,a\n4,b\n", encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(f"csv:path={train},test_path={test},label=label,group=p").test.groups is None


def test_new_samples_need_no_group(tmp_path):
    from fedwinnow.data.input_form import InputForm
    from fedwinnow.data.load import load_new

    dataset = load(f"csv:path={patients_csv(tmp_path / 't.csv')},label=label,id=id,group=patient")
    new = tmp_path / "new.csv"
    new.write_text("age\n3\n4\n", encoding="utf-8")
    assert len(load_new(new, InputForm.of(dataset))) == 2


def test_a_smaller_subset_keeps_its_groups(tmp_path):
    dataset = load(f"csv:path={patients_csv(tmp_path / 't.csv')},label=label,id=id,group=patient,train=20")
    lines = (tmp_path / "t.csv").read_text().splitlines()[1:]
    known = {line.split(",")[0]: line.split(",")[1] for line in lines}
    found = zip(dataset.train.ids.tolist(), dataset.train.groups.tolist(), strict=True)
    assert all(known[name] == group for name, group in found)
    assert len(dataset.train) == 20
