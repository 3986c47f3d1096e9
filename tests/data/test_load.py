"""From specs and paths to data sets, and what the catalogue says of the sources."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedwinnow import catalogue
from fedwinnow.data.load import load
from fedwinnow.data.sources.csv import Csv
from fedwinnow.errors import DataError, UsageError

TEXT = "age,label\n" + "".join(f"{number},{number % 2}\n" for number in range(40))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(TEXT)
    return path


def test_every_way_to_say_it_gives_the_same(table):
    given = [table, str(table), f"csv:path={table},label=label", {"kind": "csv", "path": str(table), "label": "label"}]
    loaded = [load(spec) for spec in [*given, Csv(path=table, label="label")]]
    assert len({dataset.fingerprint() for dataset in loaded}) == 1
    assert {dataset.source for dataset in loaded} == {f"csv:path={table},label=label"}
    assert {dataset.source_hash for dataset in loaded} == {hashlib.sha256(TEXT.encode()).hexdigest()}


def test_the_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    known, digits = load_digits(), load("digits").train
    np.testing.assert_array_equal(digits.features.take(np.arange(1797))[..., 0], np.rint(known.images * 255 / 16))
    np.testing.assert_array_equal(digits.labels, known.target)


def test_the_source_loads_it_again(tmp_path):
    path = tmp_path / "a, b.csv"
    path.write_text(TEXT)
    first = load({"kind": "csv", "path": path, "label": "label", "train": 10})
    assert len(first.train) == 10
    assert np.bincount(first.train.labels).tolist() == [5, 5]
    again = load(first.source)
    assert again.fingerprint() == first.fingerprint()
    assert again.source == first.source


def test_tabs_and_capital_endings(tmp_path):
    for name in ("t.tsv", "T.CSV"):
        (tmp_path / name).write_text(TEXT.replace(",", "\t"))
        assert len(load(tmp_path / name).train) == 40


def test_a_source_comes_before_a_folder_of_the_same_name(tmp_path, monkeypatch):
    (tmp_path / "csv").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="needs path"):
        load("csv")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nowhere.csv", "there is no file"),
        ("nowhere.npz", "there is no file"),
        (Path("nowhere"), "not a folder and not a file that ends in"),
    ],
)
def test_paths_that_lead_nowhere(spec, words):
    with pytest.raises(DataError, match=words):
        load(spec)


def test_a_file_of_unknown_kind(tmp_path):
    (tmp_path / "a.ods").write_bytes(b"")
    with pytest.raises(DataError, match=r"\.csv, \.tsv, \.xlsx, \.npz, \.parquet"):
        load(str(tmp_path / "a.ods"))


@pytest.mark.parametrize("spec", ["cvs", "csv:path", "csv:path=~nobody-of-this-name/a.csv,label=x", "", ":", 3, None])
def test_wrong_use(spec):
    with pytest.raises(UsageError):
        load(spec)


def test_a_test_subset_needs_a_test_part(table):
    with pytest.raises(UsageError, match="no test part"):
        load(f"csv:path={table},label=label,test=5")


@pytest.mark.parametrize("name", ["csv", "folder", "npz", "parquet", "huggingface"])
def test_the_catalogue_knows_every_option_without_importing(name):
    entry = catalogue.entries("data")[name]
    assert entry.summary
    fields = [option.name for option in entry.options]
    assert {"train", "test"} <= set(fields)
    assert fields == [field.name for field in dataclasses.fields(entry.load())]


def test_loading_a_table_needs_no_torch(table):
    code = (
        "import sys; from fedwinnow.data.load import load; load(sys.argv[1]);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'sklearn', 'scipy', 'pyarrow')))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(table)], check=False).returncode == 0
