"""Frames of pandas: what they can hold and a CSV file cannot, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedwinnow
from fedwinnow.data.data_frames import from_frame
from fedwinnow.data.frame_cells import table_of
from fedwinnow.data.from_program import understood_data
from fedwinnow.data.sources.csv import Csv
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError

pandas = pytest.importorskip("pandas", reason="pandas is not installed")

N = 60
NUMBER = np.arange(N)
SMALL = {"model": "linear", "rounds": 1, "epochs": 1, "participation": 1.0, "clients": 3, "test": 0.0}


def frame(**more):
    plain = {
        "age": np.where(NUMBER % 9 == 0, np.nan, NUMBER % 40),
        "stays": pandas.array([None if n % 7 == 0 else n % 5 for n in range(N)], dtype="Int64"),
        "smokes": pandas.array([None if n % 8 == 0 else n % 2 == 0 for n in range(N)], dtype="boolean"),
        "unit": pandas.Series(["a", "b", None] * (N // 3), dtype="string"),
        "seen": pandas.to_datetime(["2024-01-05", None, "2024-03-09"] * (N // 3)),
        "hospital": np.array(["north", "south"])[NUMBER % 2],
        "diagnosis": np.array(["ill", "well"])[NUMBER // 2 % 2],
    }
    return pandas.DataFrame(plain | more)


def rows(dataset):
    return dataset.train.features.take(np.arange(len(dataset.train)))


def kinds(dataset):
    return {column.title: (column.kind, column.missing) for column in dataset.columns}


def test_missing_values_of_every_type_are_those_of_the_file(tmp_path):
    frame().to_csv(tmp_path / "t.csv", index=False)
    saved = Csv(path=tmp_path / "t.csv", label="diagnosis", site="hospital").load()
    found = understood_data(frame(), label="diagnosis", site="hospital")
    # A whole number with missing values is written as 3.0 by some versions and as 3 by others; both are the number 3.
    assert (rows(found) == rows(saved)).all()
    assert found.train.sites.tolist() == saved.train.sites.tolist()
    assert kinds(found)["age"] == kinds(found)["stays"] == ("numeric", True)
    assert kinds(found)["smokes"] == kinds(found)["unit"] == ("categorical", True)
    assert kinds(found)["seen (day)"] == ("numeric", True)


def test_categories_stay_categories():
    codes = pandas.Categorical([3 if n % 3 else 10 for n in range(N)])
    grade = pandas.Categorical(np.array(["low", "high", "middle"])[NUMBER % 3], ["low", "middle", "high"], ordered=True)
    binned = pandas.cut(pandas.Series(NUMBER % 30), 3)
    given = frame(code=codes, plain=codes.astype(int), grade=grade, binned=binned)
    found = {column.title: column for column in understood_data(given, label="diagnosis").columns}
    assert (found["code"].kind, found["code"].categories) == ("categorical", ("10", "3"))
    assert found["plain"].kind == "numeric"
    assert (found["grade"].kind, found["grade"].categories) == ("ordered", ("low", "middle", "high"))
    assert found["binned"].kind == "ordered"
    assert len(found["binned"].categories) == 3


def test_categories_are_part_of_the_identity(tmp_path):
    codes = [3 if n % 3 else 10 for n in range(N)]
    settings = {"label": "diagnosis", "out": tmp_path, **SMALL}
    fedwinnow.run(data=frame(code=codes), **settings)
    assert fedwinnow.run(data=frame(code=codes), **settings).summary["status"] == "finished"
    with pytest.raises(UsageError, match="the values of frame have changed since this run was made"):
        fedwinnow.run(data=frame(code=pandas.Categorical(codes)), **settings)


def test_a_trained_model_reads_a_new_frame(tmp_path):
    given = frame(code=pandas.Categorical([n % 3 for n in range(N)]))
    result = fedwinnow.run(data=given, label="diagnosis", site="hospital", out=tmp_path, **SMALL | {"clients": 2})
    whole = result.predict(given)
    assert result.predict(given.drop(columns=["diagnosis", "hospital"]).sample(frac=1, random_state=0)).shape == (N,)
    assert result.predict(given.iloc[:7]).tolist() == whole[:7].tolist()


def test_the_rounds_of_a_run_as_a_frame(tmp_path):
    result = fedwinnow.run(data=frame(), label="diagnosis", out=tmp_path, **SMALL | {"rounds": 2, "test": 0.3})
    found = result.frame()
    assert found["round"].tolist() == [1, 2]
    assert found["accuracy"].tolist() == result.curve("accuracy")[1].tolist()


def test_a_second_frame_is_the_test_part():
    one, other = frame().iloc[:40], frame().iloc[40:]
    for both in ((one, other), [one, other], {"train": one, "test": other}):
        dataset = understood_data(both, label="diagnosis")
        assert (len(dataset.train), len(dataset.test)) == (40, 20)
    assert len(from_frame(one, other, label="diagnosis").test) == 20


def test_labels_beside_a_frame():
    x = frame().drop(columns="diagnosis")
    wanted = understood_data(frame(), label="diagnosis").train.labels.tolist()
    for labels in (frame()["diagnosis"], frame()[["diagnosis"]], frame()["diagnosis"].to_numpy()):
        assert understood_data((x, labels)).train.labels.tolist() == wanted


def test_the_options_of_a_file():
    given = frame(room=[f"room {n}" for n in range(N)])
    with pytest.warns(FedwinnowWarning, match=r"'room' has a different text.*options of fedwinnow\.data\.data_frames"):
        understood_data(given, label="diagnosis")
    dataset = from_frame(given, label="diagnosis", site="hospital", id="room", ignore="seen|unit")
    assert dataset.train.ids[:2].tolist() == ["room 0", "room 1"]
    assert list(kinds(dataset)) == ["age", "stays", "smokes"]
    with pytest.raises(UsageError, match=r"unknown option of a data frame: 'ignored'\. Did you mean 'ignore'"):
        from_frame(given, label="diagnosis", ignored="room")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda given: given.assign(waited=pandas.to_timedelta(NUMBER, "h")),
            r"'waited' holds .*Timedelta.*ignore=waited\. In",
        ),
        (lambda given: given.assign(codes=[[1]] * N), "'codes' holds values of the type list"),
        (lambda given: given.set_axis(["age", "age", *given.columns[2:]], axis=1), "two columns have the name 'age'"),
        (lambda given: pandas.concat({"first": given}, axis=1), "names of several levels"),
        (lambda given: given.iloc[:0], "at least one row"),
        (lambda given: given.assign(diagnosis=[None, *given["diagnosis"][1:]]), r"row 1: the label .* is missing"),
        (
            lambda given: pandas.concat([given] * 3).assign(code=pandas.Categorical(np.arange(3 * N) % 150)),
            "'code' has 150 categories, more than max_categories=100",
        ),
    ],
)
def test_what_no_column_can_hold_is_answered(change, words):
    with pytest.raises(DataError, match=words):
        understood_data(change(frame()), label="diagnosis")


def test_an_index_is_no_feature_and_need_not_be_unique():
    given = frame()
    given.index = np.zeros(N, int)
    assert (rows(understood_data(given, label="diagnosis")) == rows(understood_data(frame(), label="diagnosis"))).all()


def test_other_frames_say_what_to_do():
    class Other:
        columns = ("a",)

        def to_pandas(self):
            raise AssertionError

    with pytest.raises(UsageError, match=r"give data\.to_pandas\(\)"):
        understood_data(Other(), label="a")


def test_cells_are_those_of_a_file():
    table = table_of({"x": [1, 2.0, None, np.float32(0.5), True, np.datetime64("NaT")]}, "x")
    assert (table.path, list(table.column("x"))) == (Path("x"), ["1", "2.0", "", "0.5", "true", ""])
