"""Parquet files are understood as CSV files are."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedwinnow.data.load import load
from fedwinnow.errors import DataError, UsageError

COLUMNS = {"age": [1.25, None, 3.0], "sex": ["m", None, "f"], "smokes": [True, False, True], "label": [0, 1, 1]}


@pytest.fixture
def write(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def writer(columns: dict) -> Path:
        parquet.write_table(pyarrow.table(columns), tmp_path / "table.parquet")
        return tmp_path / "table.parquet"

    return writer


def test_the_same_as_a_csv_file(write, tmp_path):
    (tmp_path / "table.csv").write_text("age,sex,smokes,label\n1.25,m,true,0\n,,false,1\n3.0,f,true,1\n")
    parquet, csv = load(write(COLUMNS)), load(tmp_path / "table.csv")
    every = np.arange(3)
    assert parquet.train.features.take(every).tolist() == csv.train.features.take(every).tolist()
    assert parquet.fingerprint() == csv.fingerprint()


def test_columns_no_cell_can_show(write):
    path = write(COLUMNS | {"scores": [[1], [2], [3]]})
    with pytest.raises(DataError, match=r"column 'scores' holds values of the type list.*ignore=scores"):
        load(path)
    assert len(load(f"parquet:path={path},label=label,ignore=scores").train) == 3


def test_what_is_wrong_is_said(write, tmp_path):
    with pytest.raises(DataError, match=r"row 2: the label .* is missing"):
        load(write({"age": [1, 2], "label": ["a", None]}))
    with pytest.raises(DataError, match="has no rows"):
        load(write({"age": [], "label": []}))
    (tmp_path / "table.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        load(tmp_path / "table.parquet")


def test_without_the_extra(tmp_path, monkeypatch):
    (tmp_path / "table.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[parquet\]"):
        load(tmp_path / "table.parquet")
