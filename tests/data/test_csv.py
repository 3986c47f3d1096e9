"""Tables: what becomes of every kind of column, and what is said about every kind of mistake."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedwinnow.data.labels import class_names_of, class_numbers
from fedwinnow.data.load import load
from fedwinnow.data.schema import TableSchema, encode_rows
from fedwinnow.data.schema_fitting import fit
from fedwinnow.data.sources.csv import Csv
from fedwinnow.data.table_reading import TextTable, read_csv
from fedwinnow.data.tokens import token_ids
from fedwinnow.errors import DataError, FedwinnowError, FedwinnowWarning, UsageError
from loaded_tables import load_csv, rows

PLAIN = "age,label\n1,yes\n3,no\n"


def test_a_numeric_column_is_standardised_and_the_row_number_is_the_id(write):
    dataset = load(f"csv:path={write(PLAIN)},label=label")
    assert rows(dataset) == [[-1.0], [1.0]]  # mean 2, standard deviation 1
    assert dataset.class_names == ("no", "yes")
    assert dataset.train.labels.tolist() == [1, 0]
    assert dataset.train.ids.tolist() == [1, 2]
    assert (dataset.kind, dataset.labels_trusted, dataset.test) == ("rows", False, None)
    assert dataset.train.features.dtype == np.float32


def test_a_column_is_divided_by_its_own_standard_deviation(write):
    dataset = load_csv(write("age,weight,label\n1,10,a\n5,10,b\n1,40,a\n5,40,b\n"))
    # ages: mean 3, standard deviation 2; weights: mean 25, standard deviation 15
    assert rows(dataset) == [[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(("number", "rows_needed"), [("{}", 50), ("p{}", 10)])
def test_a_column_with_a_different_value_in_every_row_is_named_and_left_out(write, number, rows_needed):
    head, body = "sample,age,label\n", [f"{number.format(row)},{row % 40}.5,{'ab'[row % 2]}" for row in range(60)]
    path = write(head + "\n".join(body))
    with pytest.warns(FedwinnowWarning, match="column 'sample' has a different .* write id=sample") as told:
        assert load_csv(path).sample_shape == (1,)  # the age alone
    assert len(told) == 1
    with pytest.warns(FedwinnowWarning, match="'sample'"):
        load_csv(write(head + "\n".join(body[:rows_needed]), "few.csv"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_csv(path, id="sample").train.ids.tolist()[1] == number.format(1)
        assert load_csv(path, ignore="sample").sample_shape == (1,)
        assert load_csv(path, keep="sample").sample_shape == ((2,) if number == "{}" else (61,))
        load_csv(write(head + "\n".join(body[: rows_needed - 1])))  # so few measurements may well differ
        twice = write(head + "\n".join([*body, body[0]]))
        assert load_csv(twice).sample_shape == ((2,) if number == "{}" else (61,))
    with pytest.raises(DataError, match="no column is left to learn from: sample, age look like ids"):
        load_csv(write("sample,age,label\n" + "\n".join(f"a{row},{row}x,{'ab'[row % 2]}" for row in range(60))))


def test_missing_numbers_are_the_mean_and_are_marked(write):
    text = "age,label\n1,a\nNA,b\n3,a\n,b\nnan,a\nNULL,b\n"
    assert rows(load(write(text))) == [[-1, 0], [0, 1], [1, 0], [0, 1], [0, 1], [0, 1]]


def test_categories_are_one_column_each_and_missing_is_its_own(write):
    text = "sex,label\nm,a\nf,b\n,a\nf,b\n"
    assert rows(load(write(text))) == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0]]


def test_a_constant_column_is_zero(write):
    assert rows(load(write("c,label\n0.1,a\n0.1,b\n0.1,a\n"))) == [[0.0], [0.0], [0.0]]


def test_numbers_near_the_limits_of_a_double_are_fine(write):
    assert rows(load(write("c,label\n1.7e308,a\n-1.7e308,b\n"))) == [[1.0], [-1.0]]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_separators_marks_and_line_ends(write, delimiter, mark, end):
    text = end.join(["age,label", "1,ä", "3,b", "", ""]).replace(",", delimiter)
    dataset = load(write(mark + text.encode()))
    assert rows(dataset) == [[-1.0], [1.0]]
    assert dataset.class_names == ("b", "ä")


def test_a_semicolon_file_may_have_decimal_commas(write):
    assert rows(load(write("age;label\n1,5;a\n3,5;b\n"))) == [[-1.0], [1.0]]


def test_a_comma_in_a_quoted_name_does_not_count_as_separator(write):
    assert read_csv(write('"a,b,c";label\n1;2\n')).names == ["a,b,c", "label"]


def test_roles_are_no_features(write):
    text = "key,ward,truth,age,junk,label\na,north,x,1,9,x\nb,south,y,3,8,x\nc,north,y,2,7,y\n"
    dataset = load(f"csv:path={write(text)},label=label,id=key,site=ward,true=truth,ignore=junk")
    assert dataset.sample_shape == (1,)
    assert dataset.train.ids.tolist() == ["a", "b", "c"]
    assert dataset.train.sites is not None
    assert dataset.train.sites.tolist() == ["north", "south", "north"]
    assert dataset.train.true is not None
    assert dataset.train.true.tolist() == [0, 1, 1]
    assert dataset.train.labels.tolist() == [0, 0, 1]


def test_the_test_file_is_encoded_with_the_training_schema(write):
    test = write("sex,age,label\nx,4,b\nm,,a\n", "test.csv")  # which site a row is at, only training rows say
    dataset = load_csv(write("age,sex,ward,label\n1,m,north,a\n3,f,south,b\n"), test_path=test, site="ward")
    assert rows(dataset, "test") == [[2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]  # an unknown category is none
    assert dataset.test.labels.tolist() == [1, 0]
    assert dataset.test.sites is None


def test_numeric_labels_are_ordered_by_value_and_1_0_is_1(write):
    dataset = load(write("x,label\n1,10\n2,9\n3,9.0\n4,1e1\n"))
    assert dataset.class_names == ("9", "10")
    assert dataset.train.labels.tolist() == [1, 0, 0, 1]


@given(st.lists(st.integers(-(10**17), 10**17) | st.decimals(-1000, 1000, places=3), min_size=1))
def test_however_a_number_is_written_it_is_one_class(numbers):
    names = class_names_of(map(str, numbers))
    assert len(names) == len(set(numbers))
    again = class_numbers([f"{number}.0" if isinstance(number, int) else f"{number}0" for number in numbers], names)
    assert [sorted(set(numbers))[place] for place in again] == numbers


@settings(max_examples=50)
@given(st.lists(st.tuples(st.none() | st.floats(-1e30, 1e30), st.sampled_from(["", "u", "v,w", 'q"'])), min_size=2))
def test_a_schema_survives_json_and_encodes_alike(cells):
    numbers = ["" if number is None else repr(number) for number, _ in cells]
    columns = {"n": ["1.5", *numbers], "c": ["u", *(text for _, text in cells)], "label": ["b", *("a" for _ in cells)]}
    table = TextTable(Path("t.csv"), columns)
    schema = fit(table, ["n", "c"], "label")
    again = TableSchema.from_dict(json.loads(json.dumps(schema.to_dict())))
    assert again == schema
    encoded = encode_rows(table, again)
    assert np.isfinite(encoded).all()
    assert encoded.shape == (len(table), schema.width)


def test_two_sites_that_share_a_schema_encode_alike(write, tmp_path):
    first = Csv(path=write("age,sex,label\n1,m,a\n3,f,b\n5,f,c\n"), label="label")
    shared = tmp_path / "schema.json"
    shared.write_text(json.dumps(first.fitted_schema().to_dict()))
    text = "extra,sex,age,label\n0,f,3,b\n0,m,3,b\n"
    dataset = load(f"csv:path={write(text, 'second.csv')},label=label,schema={shared}")
    assert rows(dataset) == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert dataset.class_names == ("a", "b", "c")  # although this site has no a and no c


@pytest.mark.parametrize(
    "broken",
    [
        "[]",
        "{",
        '{"version": 2}',
        '{"version": 1, "class_names": "ab", "columns": []}',
        '{"version": 1, "class_names": ["a", "b"], "columns": [{"name": "age"}]}',
        '{"version": 1, "class_names": ["a", "b"], "columns": [{"name": "age", "kind": "numeric", "missing": false,'
        ' "mean": NaN, "std": 1, "categories": []}]}',
        '{"version": 1, "class_names": ["a", "b"], "columns": []}',
        '{"version": 1, "class_names": ["yes", "no"], "columns": [{"name": "size", "kind": "numeric",'
        ' "missing": false, "mean": 0, "std": 1, "categories": []}]}',
    ],
)
def test_a_schema_that_does_not_fit_is_refused(write, broken):
    with pytest.raises(DataError, match=r"schema\.json|no file|size"):
        load(f"csv:path={write(PLAIN)},label=label,schema={write(broken, 'schema.json')}")


def test_texts_become_hashed_words(write):
    dataset = load_csv(write("note,label\nA big Cat,x\na cat!,y\n,x\n"), text="note", length=4)
    ids = rows(dataset)
    assert dataset.kind == "tokens"
    assert dataset.vocabulary == 30000
    assert ids[0][0] == ids[1][0]
    assert ids[0][2] == ids[1][1]
    assert ids[1][2:] == [0, 0]
    assert ids[2][0] != 0  # no sample is padding alone


def test_a_word_has_the_id_its_crc32_gives():
    # The CRC-32 of "123456789" is the published check value 0xCBF43926.
    assert token_ids(["123456789 x"], 1, 1001).tolist() == [[1 + 0xCBF43926 % 1000]]


@given(st.lists(st.text(max_size=30)), st.integers(1, 6), st.integers(2, 50))
def test_token_ids_stay_in_the_vocabulary(texts, length, vocabulary):
    ids = token_ids(texts, length, vocabulary)
    assert ids.shape == (len(texts), length)
    assert ids.dtype == np.int32
    assert (ids[:, 0] > 0).all()
    assert ((ids >= 0) & (ids < vocabulary)).all()


def test_a_column_of_image_paths(write, tmp_path):
    (tmp_path / "pictures").mkdir()
    for name, value in (("a", 10), ("b", 20)):
        Image.new("L", (3, 2), value).save(tmp_path / "pictures" / f"{name}.png")
    dataset = load_csv(write("file,label\npictures/a.png,x\npictures\\b.png,y\n"), image="file")
    assert dataset.kind == "images"
    assert dataset.sample_shape == (2, 3, 1)
    assert np.array(rows(dataset))[:, 0, 0, 0].tolist() == [10, 20]
    assert dataset.mean == pytest.approx([15 / 255])
    assert dataset.std == pytest.approx([5 / 255])


PROBLEMS = {
    "empty file": ("", "is empty"),
    "blank lines only": ("\n\n", "is empty"),
    "header only": ("age,label\n", "no row below"),
    "ragged row": ("age,label\n1,a\n1,2,b\n", r"row 2 \(line 3\): 3 cells"),
    "missing label": ("age,label\n1,a\n\n2,\n", r"row 2 \(line 4\): the label \(column 'label'\) is missing"),
    "unknown column": ("age,lable\n1,a\n", "unknown column 'label'. Did you mean 'lable'"),
    "no encoding": (b"age,label\n1,\xff\x01\n", "line 2: not UTF-8"),
    "two encodings": ("age,label\n1,ä\n".encode() + b"2,\xe4\n", "line 3: not UTF-8"),
    "zero byte": (b"age,label\n1,\x00\n", "line 2: a zero byte"),
    "open quote": ('age,label\n1,"a\n', "Check the quotes"),
    "infinite": ("age,label\n1,a\ninf,b\n", r"row 2 \(line 3\): column 'age' has 'inf'"),
    "too large": ("age,label\n1,a\n1e999,b\n", "infinite or too large"),
    "no value": ("n,label\n,a\nNA,b\n", "n have no value in any row"),
    "no feature": ("label\na\nb\n", "no column is left"),
    "one class": ("age,label\n1,a\n2,a\n", "has the value 'a' in every row; a classifier needs at least two classes"),
    "nameless column": (",age,label\n0,1,a\n1,2,b\n", "column 1 has no name"),
    "double name": ("age,age,label\n0,1,a\n1,2,b\n", "two columns are named 'age'"),
    "continuous label": ("age,label\n" + "".join(f"{n},{n}.5\n" for n in range(50)), "does not look like a class"),
    "many texts": ("name,label\n" + "".join(f"n{n % 101},{n % 2}\n" for n in range(202)), "ignore=name"),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_a_bad_file_is_named_with_what_to_do(write, case):
    content, words = PROBLEMS[case]
    with pytest.raises(DataError, match=words) as caught:
        load(write(content))
    assert "table.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("k,age,label\na,1,x\na,2,y\n", "id=k", r"row 2 \(line 3\): the id 'a' .* in row 1"),
        ("k,age,label\na,1,x\n,2,y\n", "id=k", r"row 2 .* id .* missing"),
        ("t,age,label\nx,1,x\nz,2,y\n", "true=t", r"row 2 .* true label .* 'z', which is not a class; allowed: x, y"),
        ("age,label\n1,x\n2,y\n", "ignore=agee", "Did you mean 'age'"),
        ("age,label\n1,x\n2,y\n", "ignore=age", "no column is left"),
        ("f,label\nno.png,x\nno.png,y\n", "image=f", r"row 1 \(line 2\), column 'f': there is no file"),
        ("f,label\ntable.csv,x\ntable.csv,y\n", "image=f", r"row 1 \(line 2\): .*table\.csv: not a readable image"),
    ],
)
def test_a_bad_row_is_named(write, text, options, words):
    with pytest.raises(DataError, match=words):
        load(f"csv:path={write(text)},label=label,{options}")


@pytest.mark.parametrize(
    ("test_text", "words"),
    [
        ("age,label\nold,a\n", "not a number"),
        ("age,label\n1,c\n", "is 'c', which is not a class"),
        ("a,label\n1,a\n", "'age'"),
    ],
)
def test_a_test_file_that_does_not_fit(write, test_text, words):
    with pytest.raises(DataError, match=words) as caught:
        load_csv(write("age,label\n1,a\n2,b\n"), test_path=write(test_text, "second.csv"))
    assert "second.csv" in str(caught.value)


def test_a_test_value_too_far_out_to_store(write):
    with pytest.raises(DataError, match="too far from its mean"):
        load_csv(write("c,label\n1e-300,a\n2e-300,b\n"), test_path=write("c,label\n1,a\n", "t.csv"))


def test_missing_path_and_folder(tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        load(f"csv:path={tmp_path / 'no.csv'},label=label")
    with pytest.raises(DataError, match="is a folder"):
        load(f"csv:path={tmp_path},label=label")
    with pytest.raises(DataError, match="cannot be opened"):
        load(f"csv:path={'a' * 5000},label=label")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with a name")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="device or a pipe"):
        load(f"csv:path={tmp_path / 'pipe'},label=label")


@pytest.mark.parametrize(
    "options", ["id=label", "image=a,text=b", "length=0", "vocabulary=1", "lazy=maybe", "colour=1"]
)
def test_wrong_use(write, options):
    with pytest.raises(UsageError):
        load(f"csv:path={write(PLAIN)},label=label,{options}")


@pytest.mark.parametrize(
    ("option", "role"), [("size=8", "image"), ("lazy=true", "image"), ("length=9", "text"), ("vocabulary=50", "text")]
)
def test_an_option_that_would_do_nothing_is_refused(write, option, role):
    with pytest.raises(UsageError, match=f"{option} was given without {role}="):
        load(f"csv:path={write(PLAIN)},label=label,{option}")


@settings(max_examples=200)
@given(st.text(alphabet='a1,;\t"\n\r .-eNA\u2028_', max_size=80))
def test_any_text_either_loads_or_is_refused(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "any.csv"
    path.write_text("a,label\n" + text, encoding="utf-8", newline="")
    try:
        outcome = f"{len(load(path).train)} rows"
    except FedwinnowError as problem:
        outcome = str(problem)
    assert outcome not in ("", "0 rows")
