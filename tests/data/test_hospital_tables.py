"""Tables as hospitals export them: encodings, dates, yes and no, orders, free text, spreadsheets, other units."""

from __future__ import annotations

import json
import warnings
from datetime import date, datetime, time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from damaging import spoken
from fedwinnow.data.cell_values import parts_of_dates
from fedwinnow.data.dates import as_date, number_of
from fedwinnow.data.load import load
from fedwinnow.data.packed_cells import pack
from fedwinnow.data.schema import TableSchema
from fedwinnow.data.sources.csv import Csv
from fedwinnow.data.table_reading import TextTable
from fedwinnow.errors import DataError, FedwinnowWarning, UsageError


@pytest.fixture
def write(tmp_path: Path):
    def writer(text: str, name: str = "table.csv", encoding: str = "utf-8") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return writer


def rows(dataset, part: str = "train") -> list[list[float]]:
    samples = getattr(dataset, part)
    return samples.features.take(np.arange(len(samples))).tolist()


def load_csv(path: Path, **options):
    return load({"kind": "csv", "path": path, "label": "label", **options})


def silent(path: Path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load_csv(path, **options)


# --- encodings and separators --------------------------------------------------------------------------------------

LETTERS = "größe;label\n1,5;König\n3,5;Bär\n"


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("latin-1", "Latin-1 .* letters ß ä ö"),
        ("cp1252", "Latin-1"),
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16"),
        ("utf-16-be", "UTF-16"),
    ],
)
def test_other_encodings_are_found_and_said(write, encoding, said):
    with pytest.warns(FedwinnowWarning, match=said):
        dataset = load_csv(write(LETTERS, encoding=encoding))
    assert dataset.class_names == ("Bär", "König")
    assert dataset.columns[0].name == "größe"
    assert rows(dataset) == [[-1.0], [1.0]]


def test_the_warning_shows_letters_and_no_cell(write):
    with pytest.warns(FedwinnowWarning) as told:
        load_csv(write("name,label\nMüller,a\nJörg,b\n", encoding="latin-1"))
    assert "ller" not in str(told[0].message)


def test_an_asked_encoding_is_used_and_not_said(write):
    assert silent(write(LETTERS, encoding="latin-1"), encoding="latin-1").class_names == ("Bär", "König")
    assert silent(write(LETTERS, encoding="utf-16-le"), encoding="utf-16").class_names == ("Bär", "König")
    with pytest.raises(DataError, match="line 1: not UTF-8"):
        load_csv(write(LETTERS, encoding="latin-1"), encoding="utf-8")


def test_the_euro_sign_of_windows(write):
    with pytest.warns(FedwinnowWarning, match="€"):
        assert load_csv(write("a,label\n1,€\n2,$\n", encoding="cp1252")).class_names == ("$", "€")


@settings(max_examples=100)
@given(
    st.text(alphabet="aäßé€中", min_size=1, max_size=9).filter(str.strip),
    st.sampled_from(["utf-8", "utf-16", "utf-8-sig"]),
)
def test_a_unicode_file_gives_its_letters(tmp_path_factory, text, encoding):
    path = tmp_path_factory.mktemp("any") / "a.csv"
    path.write_bytes(f"x,label\n1,{text}\n2,other\n".encode(encoding))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedwinnowWarning)
        assert text.strip() in load_csv(path).class_names


def test_half_a_letter_between_two_blocks_is_whole(write, monkeypatch):
    monkeypatch.setattr("fedwinnow.data.text_encoding.BLOCK", 3)
    assert silent(write("x,label\n1,ää中ä\n2,中\n")).class_names == ("ää中ä", "中")
    path = write("x,label\n1,ä\n")
    path.write_bytes(path.read_bytes() + b"2,ab\xe4,\n")
    with pytest.raises(DataError, match=r"line 3: not UTF-8 text \(byte 18 "):
        load_csv(path)


def test_a_tsv_file_may_have_commas_in_its_names_and_numbers(write):
    path = write("a,b,c\tlabel\n1,5\tx\n3,5\ty\n", "t.tsv")
    assert rows(load(path)) == [[-1.0], [1.0]]


def test_the_rows_of_a_large_file_come_in_pieces(write, monkeypatch):
    monkeypatch.setattr("fedwinnow.data.table_reading.PIECE", 7)
    path = write("x,label\n" + "".join(f"{row / 2},{'ab'[row % 2]}\n" for row in range(100)))
    whole = rows(load_csv(path))
    monkeypatch.undo()
    assert rows(load_csv(path)) == whole
    monkeypatch.setattr("fedwinnow.data.table_reading.PIECE", 7)
    with pytest.raises(DataError, match=r"row 101 \(line 102\): 3 cells"):
        load_csv(write(path.read_text() + "1,2,3\n"))


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\0"), max_size=6)))
def test_packed_cells_are_the_cells(cells):
    packed = pack(cells)
    assert list(packed) == cells
    assert packed == cells
    assert [packed[place] for place in range(-len(cells), len(cells))] == cells * 2
    assert packed[1:3] == cells[1:3]
    assert len(packed) == len(cells)


# --- dates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "style", "expected"),
    [
        ("1970-01-02", "iso", 1.0),
        ("1970-01-02T12:00:00Z", "iso", 1.5),
        ("1970-01-02 12:00:00.000+02:00", "iso", 1.5),
        ("2021/3/4", "iso", 18690.0),
        ("04.03.2021", "day-first", 18690.0),
        ("04/03/2021 06:00 PM", "day-first", 18690.75),
        ("03/04/2021", "month-first", 18690.0),
        ("4-Mar-2021", "iso", 18690.0),
        ("04MAR2021", "iso", 18690.0),
        ("31.02.2021", "day-first", None),
        ("2021-13-01", "iso", None),
        ("2021-01-01 24:10", "iso", None),
        ("08:30", "time", 8.5),
        ("08:61", "time", None),
        ("12:00 am", "time", 0.0),
    ],
)
def test_a_date_is_the_days_since_1970(cell, style, expected):
    assert number_of(cell, style) == expected


@given(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)))
def test_the_parts_are_those_of_the_calendar(moment):
    moment = moment.replace(microsecond=0)
    table = TextTable(Path("t"), {"when": [moment.isoformat(), ""]})
    parts = parts_of_dates(table, "when")
    assert parts is not None
    found = {part: values[0] for part, values in parts.items()}
    assert (found["month"], found["weekday"]) == (moment.month, moment.isoweekday())
    assert found["hour"] == pytest.approx(moment.hour + moment.minute / 60 + moment.second / 3600)
    assert as_date(float(np.floor(found["day"]))) == moment.date().isoformat()
    assert all(np.isnan(values[1]) for values in parts.values())


def test_dates_become_numbers_and_parts(write):
    text = "seen,label\n2021-03-01 10:00,a\n2021-03-02 14:00,b\n,a\n2021-04-05 10:00,b\n"
    dataset = silent(write(text))
    assert [(column.title, column.missing) for column in dataset.columns] == [
        ("seen (day)", True),
        ("seen (month)", False),
        ("seen (weekday)", False),
        ("seen (hour)", False),
    ]
    # months 3, 3, 4: mean 10/3, deviation sqrt(2)/3; the missing date is the mean
    assert np.array(rows(dataset))[:, 2] == pytest.approx([-1 / 2**0.5, -1 / 2**0.5, 0, 2**0.5])
    assert [row[1] for row in rows(dataset)] == [0, 0, 1, 0]


def test_parts_that_do_not_differ_are_left_out(write):
    found = silent(write("seen,label\n2021-03-01,a\n2021-03-02,b\n2021-03-08,a\n")).columns
    assert [column.part for column in found] == ["day", "weekday"]
    found = silent(write("at,label\n08:30,a\n14:30,b\n")).columns
    assert [column.part for column in found] == ["hour"]


def test_which_of_two_numbers_is_the_day(write):
    day = silent(write("seen,label\n13/04/2021,a\n03/04/2021,b\n")).columns[0]
    assert as_date(day.mean) == "2021-04-08"
    month = silent(write("seen,label\n04/13/2021,a\n04/03/2021,b\n")).columns[0]
    assert as_date(month.mean) == "2021-04-08"
    with pytest.warns(FedwinnowWarning, match="can be read in two ways; the day is taken to come first"):
        load_csv(write("seen,label\n01/02/2021,a\n03/02/2021,b\n"))
    first = silent(write("seen,label\n01/02/2021,a\n01/04/2021,b\n"), dates="month-first").columns[0]
    assert as_date(first.mean) == "2021-01-03"
    assert silent(write("seen,label\n01.02.2021,a\n03.02.2021,b\n")).columns[0].part == "day"


@pytest.mark.parametrize("cells", [("1:20", "1:40"), ("12", "13"), ("2021-02-30", "2021-02-01"), ("3/4", "4/5")])
def test_what_only_looks_like_a_date_stays_what_it_was(write, cells):
    columns = silent(write(f"x,label\n{cells[0]},a\n{cells[1]},b\n")).columns
    assert [column.part for column in columns] == [""]


def test_dates_as_text(write):
    columns = silent(write("x,label\n2021-02-03,a\n2021-02-04,b\n"), dates="text").columns
    assert columns[0].kind == "categorical"


def test_a_schema_of_dates_refuses_what_is_none(write, tmp_path):
    shared = share(Csv(path=write("seen,label\n2021-02-03,a\n2021-02-05,b\n"), label="label"), tmp_path)
    with pytest.raises(DataError, match=r"row 2 \(line 3\): column 'seen' has 'soon', which is not a date"):
        load_csv(write("seen,label\n2021-02-03,a\nsoon,b\n", "b.csv"), schema=shared)
    assert rows(load_csv(write("seen,label\n04.02.2021,a\n04.02.2021,b\n", "b.csv"), schema=shared))[0][0] == 0


# --- yes and no, orders, missing values ----------------------------------------------------------------------------


def test_yes_and_no_in_several_spellings_are_two_values(write):
    dataset = silent(write("smokes,label\nyes,a\nYes,b\nno,a\nyes,b\n1,a\n"))
    assert dataset.columns[0].categories == ("no", "yes")
    assert rows(dataset) == [[0, 1], [0, 1], [1, 0], [0, 1], [0, 1]]


@pytest.mark.parametrize("cells", [("f", "m"), ("n", "j", "x"), ("f", "n"), ("T1", "T2"), ("no", "unknown", "yes")])
def test_other_categories_are_never_merged(write, cells):
    text = "x,label\n" + "".join(f"{cell},{'ab'[place % 2]}\n" for place, cell in enumerate(cells))
    assert silent(write(text)).columns[0].categories == tuple(sorted(cells))


@pytest.mark.parametrize(
    "there", [("true", "false"), ("TRUE", "FALSE"), ("Ja", "nein"), ("1", "0"), ("WAHR", "FALSCH")]
)
def test_a_schema_knows_yes_and_no_of_another_site(write, tmp_path, there):
    shared = share(Csv(path=write("x,label\nyes,a\nno,b\n"), label="label"), tmp_path)
    dataset = silent(write(f"x,label\n{there[0]},a\n{there[1]},b\n", "b.csv"), schema=shared)
    assert rows(dataset) == [[0, 1], [1, 0]]


def test_ordered_values_are_their_position(write):
    text = "grade,label\nlow,a\nhigh,b\n,a\nmiddle,b\n"
    dataset = silent(write(text), ordered="grade:low<middle<high")
    assert dataset.columns[0].kind == "ordered"
    deviation = (2 / 3) ** 0.5  # of 0, 2, 1
    assert np.array(rows(dataset)) == pytest.approx(np.array([[-1 / deviation, 0], [1 / deviation, 0], [0, 1], [0, 0]]))
    with pytest.raises(DataError, match=r"row 2 \(line 3\): column 'grade' has 'high', which is not in its order"):
        load_csv(write(text), ordered="grade:low<middle")


@pytest.mark.parametrize("wrong", ["grade", "grade:low", "grade:<low", "grade:low<low", ":a<b", "grade low<high"])
def test_an_order_that_is_none_is_refused(write, wrong):
    with pytest.raises(UsageError, match=r"ordered=.* was given; allowed: a column and its values in order"):
        load_csv(write("grade,label\nlow,a\nhigh,b\n"), ordered=wrong)


@pytest.mark.parametrize("option", ["keep", "notes"])
def test_an_option_for_features_names_features(write, option):
    with pytest.raises(DataError, match="Did you mean 'age'"):
        load_csv(write("age,label\n1,a\n2,b\n"), **{option: "agee"})
    with pytest.raises(UsageError, match="'label' is named as a feature, but has another role"):
        load_csv(write("age,label\n1,a\n2,b\n"), **{option: "label"})


def test_the_hospitals_own_word_for_missing(write):
    dataset = silent(write("age,sex,label\n1,m,a\n-99,?,b\n3,f,a\n"), missing_values="-99|?")
    assert rows(dataset) == [[-1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]


# --- free text -----------------------------------------------------------------------------------------------------

NOTES = "note,age,label\n" + "".join(
    f"{'small' if row % 2 else 'large'} lesion number {row},{row % 3},{'ab'[row % 2]}\n" for row in range(12)
)


def test_an_encoder_reads_a_column_of_notes_beside_the_numbers(write, tmp_path):
    path = write(NOTES + ",1,a\n")
    source = Csv(path=path, label="label", notes="note", notes_encoder="tfidf:width=32")
    dataset = load(source)
    column = dataset.columns[0]
    assert (column.kind, column.size, column.width, dataset.sample_shape) == ("text", 32, 33, (34,))
    block = np.array(rows(dataset))[:, :32]
    assert block[:-1].std() > 0.9  # on the scale of the other columns
    assert (block[-1] == 0).all()  # no text
    assert rows(dataset)[-1][32] == 1.0
    shared = share(source, tmp_path)
    assert rows(load_csv(path, schema=shared)) == rows(dataset)
    changed = json.loads(shared.read_text())
    changed["columns"][0]["hash"] = "0" * 64
    shared.write_text(json.dumps(changed))
    with pytest.raises(DataError, match="Install the same version"):
        load_csv(path, schema=shared)


def test_the_words_encoder_reads_notes(write):
    pytest.importorskip("wordllama", reason="the extra `encoders` is not installed")
    assert load_csv(write(NOTES), notes="note").sample_shape == (257,)


def test_an_encoder_of_images_does_not_read_notes(write):
    with pytest.raises(UsageError, match=r"does not read texts; allowed: .*words"):
        load_csv(write(NOTES), notes="note", notes_encoder="lite")


def test_a_column_of_notes_without_the_option_says_what_to_do(write):
    with pytest.warns(FedwinnowWarning, match="notes=note reads it as free text"):
        load_csv(write(NOTES))
    twice = NOTES + NOTES.partition("\n")[2]
    with pytest.raises(DataError, match="If it is free text, notes=note lets an encoder read it"):
        load_csv(write(twice), max_categories=5)


# --- a schema checks another site ----------------------------------------------------------------------------------


def share(source: Csv, folder: Path) -> Path:
    path = folder / "schema.json"
    path.write_text(json.dumps(source.fitted_schema().to_dict()))
    assert TableSchema.from_dict(json.loads(path.read_text())) == source.fitted_schema()
    return path


SITE = "height,sex,label\n1.60,f,a\n1.80,m,b\n1.70,f,a\n"  # mean 1.7, deviation 0.0816


@pytest.fixture
def shared(write, tmp_path):
    return share(Csv(path=write(SITE), label="label"), tmp_path)


def test_a_site_like_the_first_is_fine(write, shared):
    silent(write(SITE, "b.csv"), schema=shared)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "height,sex,label\n160,f,a\n180,m,b\n",
            r"mean 170; .* it was 1.7 with a deviation of 0.0816, so .* 2.06e\+03",
        ),
        ("height,sex,label\n1.6,female,a\n1.8,m,b\n", r"did not have: 'female' \(1 rows\)"),
        ("height,sex,label\n1.6,,a\n1.8,m,b\n", "has no value in 1 rows"),
    ],
)
def test_what_another_site_writes_otherwise_is_said(write, shared, text, words):
    with pytest.warns(FedwinnowWarning, match=words) as told:
        load_csv(write(text, "b.csv"), schema=shared)
    assert len(told) == 1


def test_all_columns_that_another_site_lacks_are_named(write, shared):
    with pytest.raises(
        DataError, match=r"b\.csv lacks columns that .*schema\.json has: 'height', 'sex'\. Its columns: h"
    ):
        load_csv(write("h,label\n1,a\n2,b\n", "b.csv"), schema=shared)


def test_ten_deviations_are_the_limit(write, shared):
    off = 10 * 0.0816496580927726
    silent(write(f"height,sex,label\n{1.7 + off * 0.999},f,a\n{1.7 + off * 0.999},m,b\n", "b.csv"), schema=shared)
    with pytest.warns(FedwinnowWarning, match="another unit"):
        load_csv(write(f"height,sex,label\n{1.7 + off * 1.001},f,a\n{1.7 + off * 1.001},m,b\n", "b.csv"), schema=shared)


def test_the_command_lists_what_differs_and_writes_nothing(write, shared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("height,sex,label\n160,f,a\n180,x,b\n", "b.csv")
    before = sorted(tmp_path.iterdir())
    assert spoken("schema --data csv:path=b.csv,label=label --check schema.json")[0] == 0
    assert spoken("schema --quiet --data csv:path=table.csv,label=label --check schema.json") == (0, "")
    write("height,sex,label\n1.6,f,a\n1.8,m,c\n", "b.csv")
    code, said = spoken("schema --data csv:path=b.csv,label=label --check schema.json")
    assert code == 3
    assert "b.csv, row 2 (line 3): the label (column 'label') is 'c', which is not a class" in said
    assert sorted(tmp_path.iterdir()) == before


# --- spreadsheets --------------------------------------------------------------------------------------------------


@pytest.fixture
def workbook(tmp_path):
    openpyxl = pytest.importorskip("openpyxl", reason="the extra `excel` is not installed")

    def maker(sheet_rows, name: str = "a.xlsx", more=()) -> Path:
        book = openpyxl.Workbook()
        for row in sheet_rows:
            book.active.append(row)
        for title, others in more:
            sheet = book.create_sheet(title)
            for row in others:
                sheet.append(row)
        book.save(tmp_path / name)
        return tmp_path / name

    return maker


def test_a_sheet_is_read_like_a_csv_file(workbook, write):
    book = workbook(
        [
            [None, None],
            ["age", "born", "smokes", "at", "n", "label"],
            [1.5, date(2000, 1, 2), True, time(8, 30), 7, "ill"],
            [],
            [3.5, datetime(2001, 1, 2, 12, 0), False, time(9, 30), None, "well"],
        ]
    )
    text = "age,born,smokes,at,n,label\n1.5,2000-01-02,true,08:30:00,7,ill\n\n"
    text += "3.5,2001-01-02 12:00:00,false,09:30:00,,well\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rows(load(book)) == rows(load_csv(write(text)))
    with pytest.raises(DataError, match=r"a\.xlsx, row 2 \(line 5\): the id \(column 'n'\) is missing"):
        load(f"excel:path={book},label=label,id=n")


def test_the_sheet_is_chosen_and_the_others_named(workbook):
    table = [["age", "label"], [1, "a"], [3, "b"]]
    book = workbook([["nothing"]], more=[("data", table)])
    with pytest.warns(FedwinnowWarning, match="sheet=NAME chooses another one: data"), pytest.raises(DataError):
        load(f"excel:path={book},label=label")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rows(load(f"excel:path={book},label=label,sheet=data")) == [[-1.0], [1.0]]
    with pytest.raises(DataError, match=r"unknown sheet 'dat'\. Did you mean 'data'"):
        load(f"excel:path={book},label=label,sheet=dat")


def test_errors_of_the_spreadsheet_are_missing_values(workbook):
    book = workbook([["age", "label"], [1, "a"], ["#DIV/0!", "b"], [3, "a"]])
    with pytest.warns(FedwinnowWarning, match=r"count as missing: 'age' \(1 rows\)"):
        assert rows(load(book)) == [[-1, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("sheet_rows", "words"),
    [
        ([], "is empty"),
        ([["age", "label"]], "no row below"),
        ([["age", None, "label"], [1, 2, "a"]], "column 2 has no name"),
        ([["age", "label"], [1, "a"], [2, "b", 5]], r"row 2 \(line 3\): a cell stands to the right"),
        ([["age", "age", "label"], [1, 2, "a"]], "two columns are named 'age'"),
        ([["age", "label"], [1, "a"], [2, None]], r"row 2 \(line 3\): the label"),
    ],
)
def test_a_sheet_with_a_mistake_is_named(workbook, sheet_rows, words):
    with pytest.raises(DataError, match=words) as caught:
        load(workbook(sheet_rows))
    assert "a.xlsx" in str(caught.value)


def test_an_old_workbook_and_other_files_are_refused(tmp_path):
    pytest.importorskip("openpyxl", reason="the extra `excel` is not installed")
    for content, words in (
        (b"\xd0\xcf\x11\xe0" + b"0" * 600, "old .xls"),
        (b"age,label\n", "a text file"),
        (b"age\0label", "not a readable .xlsx"),
    ):
        (tmp_path / "a.xlsx").write_bytes(content)
        with pytest.raises(DataError, match=words):
            load(tmp_path / "a.xlsx")


def test_parquet_orders_categories_itself(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    from pyarrow import parquet

    grades = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([2, 0, 1], pyarrow.int8()), ["z", "y", "x"], ordered=True
    )
    parquet.write_table(pyarrow.table({"grade": grades, "label": ["a", "b", "a"]}), tmp_path / "a.parquet")
    column = load(tmp_path / "a.parquet").columns[0]
    assert (column.kind, column.categories, column.mean) == ("ordered", ("z", "y", "x"), 1.0)
