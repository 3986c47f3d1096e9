"""Numbers, dates and ids as spreadsheets write them: read right, or one clear sentence, never silently wrong."""

from __future__ import annotations

import json
import warnings
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwinnow.data.cell_values import numbers_and_unit, numbers_of
from fedwinnow.data.column import Column
from fedwinnow.data.dates import as_date
from fedwinnow.data.number_forms import number_in
from fedwinnow.data.schema import TableSchema
from fedwinnow.data.sources.csv import Csv
from fedwinnow.data.table_reading import TextTable
from fedwinnow.errors import DataError, FedwinnowWarning
from loaded_tables import load_csv, rows, silent


def table_of(cells, decimal: str = ".", asked: str = "auto", **more) -> TextTable:
    return TextTable(Path("t.csv"), {"x": list(cells), **more}, decimal=decimal, asked_decimal=asked)


def read(cells, decimal: str = ".", asked: str = "auto", **more) -> list[float] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = numbers_and_unit(table_of(cells, decimal, asked, **more), "x")
    return None if found is None else found[0].tolist()


# --- thousands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "decimal", "expected"),
    [
        (["1,234.5", "950"], ".", [1234.5, 950]),
        (["1,234,567", "1,234"], ".", [1234567, 1234]),
        (["1.234,5", "950"], ",", [1234.5, 950]),
        (["1.234.567", "1.234"], ",", [1234567, 1234]),
        (["1.234", "950,5"], ",", [1234, 950.5]),
        (["1,5", "2.5", "3"], ",", [1.5, 2.5, 3]),
        (["1 234,5", "1\u202f234\u202f567", "12"], ",", [1234.5, 1234567, 12]),
        (["1'234.50", "12"], ".", [1234.5, 12]),
        (["1\u00a0234", "12"], ".", [1234, 12]),
        (["0,123", "1,234"], ".", [0.123, 1.234]),
        (["-1.234,5", "+2,0", "\u22123,5"], ",", [-1234.5, 2, -3.5]),
        (["1,5e-3", "2,0E+02"], ",", [0.0015, 200]),
        (["50.123", "49.998"], ".", [50.123, 49.998]),
        (["50,123", "49,998"], ",", [50.123, 49.998]),
        (["1,5", "2,25"], "either", [1.5, 2.25]),
        (["50.123", "1.5"], ",", [50.123, 1.5]),
        (["12,34,567"], ".", None),
        (["1,2,3"], ".", None),
        (["1 23"], ".", None),
        (["1.234,5", "1,234.5"], ",", [1234.5, 1234.5]),
        (["1.234,5", "1,234.5"], ".", None),
        (["1_000", "2"], ".", None),
        (["1,5", "2.5"], ".", None),
    ],
)
def test_a_number_is_read_as_its_column_writes_it(cells, decimal, expected):
    assert read(cells, decimal) == expected


@pytest.mark.parametrize(
    ("cells", "decimal", "expected", "words"),
    [
        (
            ["1.234", "950"],
            ",",
            [1.234, 950],
            "the point is taken as the decimal sign. Write decimal=comma if it separates",
        ),
        (
            ["1,234", "950"],
            "either",
            [1.234, 950],
            "the comma is taken as the decimal sign. Write decimal=point if it separates",
        ),
        (
            ["1,234", "950"],
            ".",
            [1234, 950],
            "the comma is taken to separate thousands. Write decimal=comma if it is the",
        ),
    ],
)
def test_a_number_that_can_be_read_in_two_ways_is_said(cells, decimal, expected, words):
    with pytest.warns(FedwinnowWarning, match=words) as told:
        found = numbers_and_unit(table_of(cells, decimal), "x")
    assert found is not None
    assert found[0].tolist() == expected
    rid = str(told[0].message).partition("and decimal=")[2].split()[0]
    assert read(cells, decimal, rid) == expected
    other = read(cells, decimal, {"point": "comma", "comma": "point"}[rid])
    assert other is not None
    assert other != expected


def test_numbers_with_thousands_are_no_ids(write):
    text = "platelets;label\n" + "".join(f"{150 + row}.{row:03};{'ab'[row % 2]}\n" for row in range(60))
    assert silent(write(text), decimal="comma").sample_shape == (1,)
    with pytest.warns(FedwinnowWarning, match="a different whole number in every row"), pytest.raises(DataError):
        load_csv(write(text.replace(".", "")))


def test_other_columns_tell_the_decimal_sign():
    assert read(["1.234", "950"], ",", y=["1,5", "2"]) == [1234, 950]
    assert read(["1.234", "950"], ",", y=["1.5", "2"]) == [1.234, 950]
    assert read(["1,234", "950"], ".", y=["1,5", "2"]) == [1.234, 950]
    assert read(["1,234", "950"], ",", y=["1.5", "2"]) == [1234, 950]
    assert read(["1,234", "950"], "either", y=["0,25", "2"]) == [1.234, 950]
    assert read(["1,234", ""], ".", y=["0.25", "2"])[0] == 1234
    with pytest.warns(FedwinnowWarning, match="in two ways"):
        numbers_and_unit(table_of(["1.234", "950"], ",", y=["1.5", "1,5"]), "x")


def test_the_user_decides(write):
    text = "x;label\n1.234;a\n950;b\n"
    assert silent(write(text), decimal="comma").columns[0].mean == 1092
    assert silent(write(text), decimal="point").columns[0].mean == 475.617
    with pytest.warns(FedwinnowWarning, match="in two ways"):
        load_csv(write(text))


def test_nothing_is_said_where_only_the_scale_is_in_doubt(write):
    text = "x;label\n1.234;a\n3.234;b\n"
    assert rows(silent(write(text))) == rows(silent(write(text), decimal="comma"))
    assert silent(write(text)).columns[0].mean == 2.234


@settings(max_examples=300)
@given(st.integers(-(10**9), 10**9), st.integers(0, 3), st.sampled_from([",", "'", "\u202f", " ", ""]), st.booleans())
def test_every_way_of_writing_gives_the_number(whole, places, gap, comma):
    value = whole / 10**places
    text = f"{value:,.{places}f}".replace(",", "G").replace(".", "D")
    gap = "." if comma and gap == "," else gap
    cell = text.replace("G", gap).replace("D", "," if comma else ".")
    assert number_in(cell, "," if comma else ".") == pytest.approx(value)


@given(st.lists(st.text(alphabet="0123456789.,- '\u00a0e+", min_size=1, max_size=9).map(str.strip), min_size=1))
def test_what_python_reads_alone_is_read_alike(cells):
    """In a file with commas between cells nothing changes for columns that were numbers before."""
    try:
        plain = [float(cell) for cell in cells]
    except ValueError:
        return
    assert read(cells) == plain


# --- units ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "expected", "unit"),
    [
        (["12 mg", "7.5mg", "1,200 mg"], [12, 7.5, 1200], "mg"),
        (["45 %", "50%"], [45, 50], "%"),
        (["80/min", "90 /min"], [80, 90], "/min"),
        (["12 mg/dl", "7 mg/dl", ""], [12, 7, None], "mg/dl"),
        (["5 μmol/l", "6 µmol/l"], [5, 6], "µmol/l"),
        (["3 weeks", "4 weeks", "12"], [3, 4, 12], "weeks"),
        (["37.5 °C", "38 °C"], [37.5, 38], "°C"),
        (["12 mg", "1 g"], None, ""),
        (["1a", "2", "3a"], None, ""),
        (["1a", "2a", "3a"], None, ""),
        (["2 x", "3 x"], [2, 3], "x"),
        (["3 tablets", "4 tablets"], [3, 4], "tablets"),
        (["5m", "6 m"], [5, 6], "m"),
        (["T1", "T2"], None, ""),
        (["1+", "2+"], None, ""),
    ],
)
def test_numbers_with_a_unit_are_numbers(cells, expected, unit):
    found = numbers_and_unit(table_of(cells), "x")
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert [None if np.isnan(value) else value for value in found[0]] == expected
    assert found[1] == unit


def test_a_unit_belongs_to_the_schema(write, tmp_path):
    source = Csv(path=write("dose,label\n1 mg,a\n3 mg,b\n"), label="label")
    schema = source.fitted_schema()
    assert schema.columns[0] == Column("dose", "numeric", False, 2, 1, unit="mg")
    assert TableSchema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    shared = tmp_path / "s.json"
    shared.write_text(json.dumps(schema.to_dict()))
    assert rows(silent(write("dose,label\n1,a\n3,b\n", "b.csv"), schema=shared)) == [[-1], [1]]
    with pytest.warns(FedwinnowWarning, match=r"has the unit g; in .* it was mg\. Convert it"):
        load_csv(write("dose,label\n0.01 g,a\n0.03 g,b\n", "b.csv"), schema=shared)
    with pytest.raises(DataError, match="in several ways or units"):
        load_csv(write("dose,label\n10 mg,a\n0.03 g,b\n", "b.csv"), schema=shared)


# --- columns that are nearly numbers or dates -----------------------------------------------------------------------


def nearly(cells: list[str]) -> str:
    text = "x\tn\tlabel\n" + "".join(f"{cell}\t{row % 7}\t{'ab'[row % 2]}\n" for row, cell in enumerate(cells))
    path = Path("t.tsv")
    path.write_text(text)
    with pytest.warns(FedwinnowWarning, match="column 'x'") as told:
        assert load_csv(path).columns[0].kind == "categorical"
    (one,) = told
    return str(one.message)


NUMBERS = [f"{n}.5" for n in range(20)] * 2
DATES = [f"{n + 1:02}.03.2021" for n in range(20)] * 2


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([*NUMBERS, "<0.5", "<0.5", "n.d."], "has numbers, but also '<0.5' (2 rows), 'n.d.' (1 rows)."),
        ([*NUMBERS, "n.d."], "missing_values='n.d.'"),
        ([*(f"{n} mg" for n in range(9)), "1 g"], "has numbers in several units: mg (9 rows), g (1 rows)"),
        ([*(f"12{n}/80" for n in range(9)), "?"], "has two numbers in a cell, such as '120/80'"),
        ([*DATES, "30.02.2021"], "has dates, but also '30.02.2021'."),
        ([*DATES, "unknown"], "missing_values='unknown'"),
        (["01.02.21", "02.02.21", "01.02.21"], "has dates with two digits for the year ('01.02.21')"),
        (["13/02/2021", "02/13/2021", "13/02/2021"], "has dates of two kinds: '02/13/2021' has the month first"),
    ],
)
def test_what_keeps_a_column_from_being_numbers_or_dates_is_said(tmp_path, monkeypatch, cells, words):
    monkeypatch.chdir(tmp_path)
    assert words in nearly(cells)


@pytest.mark.parametrize("cells", [["I10", "E11"], ["a", "b"], ["1a", "2b", "1b"], ["3+", "4+", "3+"], ["T1", "T2"]])
def test_nothing_is_said_of_other_texts(write, cells):
    text = "x,label\n" + "".join(f"{cells[row % len(cells)]},{'ab'[row % 2]}\n" for row in range(30))
    assert silent(write(text)).columns[0].kind == "categorical"


def test_too_many_texts_that_are_nearly_numbers(write):
    text = "x,label\n" + "".join(f"{row / 4 if row else 'n.d.'},{'ab'[row % 2]}\n" for row in range(300))
    with pytest.raises(
        DataError, match=r"has numbers, but also 'n\.d\.' \(1 rows\)\. .*, or leave it out with ignore=x"
    ):
        load_csv(write(text))


def test_dates_of_several_forms_in_one_column(write):
    text = "seen,label\n04.03.2021,a\n2021-03-04,b\n4 Mar 2021,a\n04/03/2021 12:00,b\n"
    day = silent(write(text.replace("04/03/2021", "04.03.2021"))).columns[0]
    assert (day.part, as_date(day.mean)) == ("day", "2021-03-04")
    dataset = silent(write(text), dates="day-first")
    assert as_date(dataset.columns[0].mean) == "2021-03-04"
    shared = numbers_of(TextTable(Path("t"), {"seen": ["2021-03-04", "04.03.2021"]}), day)
    assert shared.tolist() == [date(2021, 3, 4).toordinal() - date(1970, 1, 1).toordinal()] * 2


# --- columns that are left out, and ids -----------------------------------------------------------------------------


def test_empty_columns_are_named_at_once_and_left_out(write):
    path = write("a,b,c,label\n1,,NA,x\n3,,,y\n")
    with pytest.warns(FedwinnowWarning, match="the columns 'b', 'c' have no value in any row and are left out") as told:
        assert rows(load_csv(path)) == [[-1], [1]]
    assert len(told) == 1
    assert rows(silent(path, ignore="b|c")) == [[-1], [1]]
    with pytest.raises(DataError, match="no column is left to learn from: b, c have no value"):
        load_csv(path, ignore="a")


@pytest.mark.parametrize("name", ["patient_id", "PatientID", "Pat-Nr.", "MRN", "Fallnummer", "patient"])
@pytest.mark.parametrize("number", ["{}", "P{:04}"])
def test_the_number_of_a_patient_with_several_rows_is_named_and_left_out(write, name, number):
    text = f"{name},age,label\n" + "".join(f"{number.format(n // 3)},{n % 5},{'ab'[n % 2]}\n" for n in range(60))
    path = write(text)
    with pytest.warns(
        FedwinnowWarning, match=rf"20 different ones in 60 rows\), so it is left out\. Write group={name}"
    ):
        assert load_csv(path).sample_shape == (1,)
    assert silent(path, group=name).sample_shape == (1,)
    assert silent(path, keep=name).sample_shape[0] > 1


@pytest.mark.parametrize("name", ["patient_age", "case", "visit", "patients"])
def test_other_columns_about_patients_are_used(write, name):
    text = f"{name},label\n" + "".join(f"{n // 3},{'ab'[n % 2]}\n" for n in range(60))
    assert silent(write(text)).sample_shape == (1,)


@pytest.mark.parametrize(
    "name", ["Surname", "last_name", "Vorname", "E-Mail", "address", "Straße", "prénom", "Telefonnummer"]
)
@pytest.mark.parametrize("different", [4, 40])
def test_names_of_people_do_not_get_into_a_schema(write, name, different):
    text = f"{name},age,label\n" + "".join(f"Muster{n % different},{n % 5},{'ab'[n % 2]}\n" for n in range(40))
    path = write(text)
    with pytest.warns(
        FedwinnowWarning, match=rf"column '{name}' looks like names or addresses of people, so it is left"
    ):
        schema = Csv(path=path, label="label").fitted_schema()
    assert "Muster" not in json.dumps(schema.to_dict())
    assert silent(path, keep=name).sample_shape == (1 + different,)
    assert silent(path, ignore=name).sample_shape == (1,)


@pytest.mark.parametrize("name", ["name", "drug name", "ward"])
def test_other_names_are_values(write, name):
    text = f"{name},label\n" + "".join(f"Muster{n % 4},{'ab'[n % 2]}\n" for n in range(40))
    assert silent(write(text)).sample_shape == (4,)


def test_a_patient_given_as_the_id_is_told_about_groups(write):
    with pytest.raises(DataError, match="write group=k in place of id=k"):
        load_csv(write("k,age,label\na,1,x\na,2,y\n"), id="k")


@pytest.mark.parametrize("role", ["id", "group"])
@pytest.mark.parametrize(
    "cells",
    [("1.23E+10", "1.24E+10"), ("77", "1,23457E+15"), ("1.23e+16", "5"), ("1234567890123450", "1234567890123460")],
)
def test_ids_that_a_spreadsheet_cut_short_are_refused(write, role, cells):
    text = f"k;age;label\n{cells[0]};1;a\n{cells[1]};2;b\n1234567890123470;3;a\n"
    with pytest.raises(DataError, match=rf"the {role} \(column 'k'\) is '.*'\. A spreadsheet has cut the number short"):
        load_csv(write(text), **{role: "k"})


def test_long_ids_with_all_their_digits_pass(write):
    text = "k;age;label\n1234567890123450;1;a\n1234567890123461;2;b\n1E5;3;a\n"
    assert silent(write(text), id="k").train.ids.tolist() == ["1234567890123450", "1234567890123461", "1E5"]
