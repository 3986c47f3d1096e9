"""Classes that look alike stay apart, and the user is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedwinnow.data.arrays import from_arrays
from fedwinnow.data.load import load
from fedwinnow.errors import FedwinnowWarning


def test_a_table_with_one_class_in_two_ways(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,label\n1,ill\n2,Ill \n3,ill\n4,well\n", encoding="utf-8")
    with pytest.warns(FedwinnowWarning, match=r"t: these classes .*: 'Ill' \(n=1\) and 'ill' \(n=2\)\.") as told:
        dataset = load(tmp_path / "t.csv")
    assert dataset.class_names == ("Ill", "ill", "well")
    assert len(told) == 1
    assert "well" not in str(told[0].message)


@pytest.mark.parametrize(
    ("one", "other"), [("ill", "ill "), ("very  ill", "very ill"), ("caf\u00e9", "cafe\u0301"), ("STRASSE", "straße")]
)
def test_arrays_with_one_class_in_two_ways(one: str, other: str) -> None:
    with pytest.warns(FedwinnowWarning, match=r"\(n=1\) and .*\(n=1\)"):
        dataset = from_arrays(np.eye(3), [one, other, "well"])
    assert dataset.classes == 3


def test_folders_with_one_class_in_two_ways(tmp_path: Path) -> None:
    for name in ("ill", "i l l", "i  l l"):  # a disk may take Ill and ill for one folder
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / name / "a.png")
    with pytest.warns(FedwinnowWarning, match=r"'i  l l' \(n=1\) and 'i l l' \(n=1\)"):
        assert load(tmp_path).classes == 3


def test_classes_that_differ_need_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    from_arrays(np.eye(3), ["ill", "well", "i ll"])
    assert not recwarn.list
