"""What programs put around and into the tables they export: read right, or one clear sentence, never silently wrong."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import pytest

from fedwinnow.auditing.applying.changes import Change
from fedwinnow.auditing.applying.excel_labels import corrected_excel, reversed_excel
from fedwinnow.auditing.applying.table_labels import corrected_csv, reversed_csv
from fedwinnow.data.load import load
from fedwinnow.data.sources.csv import Csv
from fedwinnow.data.sources.excel import Excel
from fedwinnow.errors import DataError, FedwinnowWarning
from loaded_tables import load_csv, rows, silent


@pytest.fixture
def workbook(tmp_path: Path):
    openpyxl = pytest.importorskip("openpyxl", reason="the extra `excel` is not installed")

    def maker(rows, change=lambda sheet: None, first=None) -> Path:
        book = openpyxl.Workbook()
        sheet = book.active
        if first is not None:
            sheet = book.create_sheet("Export")
            first(book.worksheets[0])
        for row in rows:
            sheet.append(row)
        change(sheet)
        book.save(tmp_path / "a.xlsx")
        return tmp_path / "a.xlsx"

    return maker


def refused(path: Path, **options) -> str:
    kind = "excel" if path.suffix == ".xlsx" else "csv"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedwinnowWarning)
        with pytest.raises(DataError) as caught:
            load({"kind": kind, "path": path, "label": "label", **options})
    assert path.name in str(caught.value)
    return str(caught.value)


# --- above and below the table -------------------------------------------------------------------------------------

TABLE = "age;sex;label\n1,5;m;a\n3,5;f;b\n"
TITLES = {
    "a line": "Laboratory export of 19.11.2026\n",
    "a line and a blank one": "Laboratory export\n\n",
    "padded, as Excel does": "Laboratory export;;\n;;\n",
    "with the other separator": "Laboratory, ward 3, Dr. Ng, November\n",
    "shorter than the rows it stands above": "Laboratory;2026\n",
    "several": "Laboratory\nWard: 3\nFrom; 1.1.2026\n",
}


@pytest.mark.parametrize("title", TITLES)
def test_lines_above_the_names(write, title):
    path, line = write(TITLES[title] + TABLE), TITLES[title].count("\n") + 1
    said = refused(path)
    assert (
        f"If the names of the columns stand in line {line}, remove the lines above it or write header={line}." in said
    )
    assert rows(silent(path, header=line)) == rows(silent(write(TABLE, "plain.csv")))
    with pytest.raises(DataError, match=rf"row 2 \(line {line + 2}\): the id \(column 'sex'\) is missing"):
        load_csv(write(TITLES[title] + TABLE.replace("f;b", ";b")), header=line, id="sex")


@pytest.mark.parametrize(("header", "words"), [(9, "is beyond the end: the file has 5"), (2, "is empty")])
def test_a_line_of_names_that_is_none(write, header, words):
    assert f"line {header} (header={header}) {words}" in refused(write("Title\n\n" + TABLE), header=header)


def test_a_file_may_state_its_separator(write):
    for first in ("sep=;\n", '"sep=;"\r\n', "SEP=;\n"):
        assert rows(silent(write(first + "a,b;label\n1;x\n3;y\n"))) == [[-1], [1]]


NOTES = {
    "42 rows selected.\n": 1,
    "\nEnd of report\nPrinted by: Ng\n": 2,
    "Total;5,0\n": 1,
    "Mean\n": 1,
}


@pytest.mark.parametrize("note", NOTES)
def test_notes_below_the_table(write, note):
    path, count = write(TABLE + note), NOTES[note]
    assert f"footer={count}" in refused(path)
    assert rows(silent(path, footer=count)) == rows(silent(write(TABLE, "plain.csv")))


@pytest.mark.parametrize("last", ["5,0;;Total", "5,0;Summe:;a", "5,0;TOTAL 2;b", "5,0;Gesamt;a"])
def test_a_line_of_totals_is_no_row(write, last):
    path = write(TABLE + last + "\n")
    assert "row 3 (line 4): column " in (said := refused(path))
    assert "looks like one of totals" in said
    assert rows(silent(path, footer=1)) == rows(silent(write(TABLE, "plain.csv")))
    assert len(silent(path, footer=0).train) == 3


def test_a_word_for_a_total_may_be_a_value(write):
    text = "operation;age;label\ntotal;1;a\npartial;2;b\ntotal;3;b\n"
    assert silent(write(text)).columns[0].categories == ("partial", "total")
    assert len(silent(write(text.replace("total;3", "partial;3").replace("partial;2", "total;2"))).train) == 3


def test_empty_rows_and_cells_at_the_end_are_nothing(write):
    plain = rows(silent(write(TABLE)))
    assert rows(silent(write("age;sex;label;;\n1,5;m;a;;\n;;;;\n3,5;f;b;;\n;;;;\n ; ;;;\n", "b.csv"))) == plain
    assert rows(silent(write(TABLE.replace(";a\n", ";a;;\n"), "b.csv"))) == plain


def test_columns_without_a_name_that_have_values_are_named(write):
    said = refused(write("age;;sex;;label\n1;;m;4;a\n2;x;f;;b\n"))
    assert "line 1: columns 2, 4 have no name, but values" in said
    said = refused(write(",age,label\n0,1,a\n1,2,b\n"))
    assert "line 1: column 1 has no name, but values" in said
    assert "index=False" in said


def test_all_doubled_names_are_named(write):
    assert "line 1: two columns are named 'age' (so are 'sex')" in refused(write("age,sex,age,sex,label\n1,m,2,f,a\n"))


def test_line_breaks_in_quotes_belong_to_the_cell(write):
    text = 'note;age;label\n"first line\nsecond; line";1;a\n"one ""quoted""\r\nword";3;b\nplain;;b\n'
    dataset = silent(write(text), ignore="note")
    assert rows(dataset) == [[-1, 0], [1, 0], [0, 1]]
    assert "row 3 (line 6): the id (column 'age') is missing" in refused(write(text), id="age")


@pytest.mark.parametrize("options", [{}, {"header": 3, "footer": 2}])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_corrected_labels_leave_everything_else_where_it_is(write, options, end):
    above, below = ("Report, 2026\n\n", "\nTotal;5\nPrinted by Ng;today;x;y;z;more\n") if options else ("", "")
    content = above + "age;label;;\n1;a;;\n;;;\n2;b;;\n3;a;;\n" + below
    path = write(content.replace("\n", end))
    source = Csv(path=path, label="label", **options)
    corrected = corrected_csv(path, source, {"2": Change("b", "a", "review")})
    out = path.with_name("out.csv")
    out.write_bytes(corrected)
    text = (
        above + "age;label;;;label_given;label_source\n1;a;;;a;given\n2;a;;;b;review\n3;a;;;a;given\n" + below.lstrip()
    )
    assert corrected.decode() == text.replace("\n", end)
    undone = above + "age;label;;\n1;a;;\n2;b;;\n3;a;;\n" + below.lstrip()
    assert reversed_csv(out, "label").decode() == undone.replace("\n", end)


# --- letters of DOS ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["cp437", "cp850"])
@pytest.mark.parametrize("word", ["Männer", "über", "größe", "élève", "señor", "blåbær", "Müller-Lüdenscheid"])
def test_letters_of_dos_are_found_and_said(write, page, word):
    path = write(f"x,label\n1,{word}\n2,other\n".encode(page))
    with pytest.warns(FedwinnowWarning, match=r"DOS \(code page 850\), with the letters"):
        assert word in load_csv(path).class_names
    assert word in silent(path, encoding=page).class_names


@pytest.mark.parametrize(
    "words", ["Männer,Größe", "d’accord,élève", "it’s “so” – good,Ärzte", "„Wort”,Öl", "5 € pro Stück,ü"]
)
def test_letters_of_windows_are_not_taken_for_those_of_dos(write, words):
    path = write(f"x,label\n1,{words.split(',')[0]}\n2,{words.split(',')[1]}\n".encode("cp1252"))
    with pytest.warns(FedwinnowWarning, match="Latin-1"):
        assert set(load_csv(path).class_names) == set(words.split(","))


# --- files that are not what they are called -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04" + b"\0" * 50, r"a spreadsheet \(\.xlsx\) .* excel:path=FILE"),
        (b"PAR1" + b"\0" * 50, "parquet:path=FILE"),
        (b"\xd0\xcf\x11\xe0" + b"\0" * 50, r"an old spreadsheet \(\.xls\)"),
        (b"\x89HDF\r\n", "h5:path=FOLDER"),
        (b"%PDF-1.4\n1;2\n", "a PDF"),
        (b"\xef\xbb\xbf\r\n <HTML><table><tr><td>age</td></tr></table>", "a web page"),
        (b'<?xml version="1.0"?><Workbook>', "XML"),
    ],
)
def test_a_file_of_another_kind_is_named(write, content, words):
    with pytest.raises(DataError, match=rf"table\.csv: not a text file with a table, but .*{words}"):
        load_csv(write(content))


def test_a_text_that_is_called_a_spreadsheet(write):
    pytest.importorskip("openpyxl", reason="the extra `excel` is not installed")
    assert "a text file, whatever its name says. Read it with csv:path=" in refused(write(TABLE, "a.xlsx"))


# --- spreadsheets --------------------------------------------------------------------------------------------------

SHEET = [["age", "sex", "label"], [1, "m", "a"], [3, "f", "b"], [3, "f", "b"]]


def load_excel(path: Path, **options):
    return load({"kind": "excel", "path": path, "label": "label", **options})


def test_titles_and_notes_in_a_sheet(workbook):
    plain = rows(load_excel(workbook(SHEET)))
    path = workbook([["Report", None], [], *SHEET, [None, "Printed by Ng"]], lambda sheet: sheet.merge_cells("A1:C1"))
    assert "write header=3" in refused(path)
    assert "the label (column 'label') is missing" in refused(path, header=3)
    assert "line 2 (header=2) is empty" in refused(path, header=2)
    assert rows(load_excel(path, header=3, footer=1)) == plain
    assert "looks like one of totals" in refused(workbook([*SHEET, [7, "Total", "b"]]))
    assert "two columns are named 'age'" in refused(workbook([["age", "age", "label"], [1, 2, "a"]]))


def test_the_names_may_be_longer_than_the_rows(workbook, write):
    more = [[*SHEET[0], "empty"], *SHEET[1:]]
    path = workbook([["Report"], *more], lambda sheet: sheet.merge_cells("A1:C1"))
    assert "write header=2" in refused(path)
    assert "write header=2" in refused(write("Report\nage;label;empty\n1;a;\n2;b;\n"))


def test_the_first_sheet_that_is_not_hidden_is_read(workbook):
    def hide(sheet):
        sheet.title, sheet.sheet_state = "_meta", "hidden"
        sheet.append(["version", 3])

    with pytest.warns(FedwinnowWarning, match=r"the sheet 'Export' was read; .* another one: _meta \(hidden\)"):
        assert len(load_excel(workbook(SHEET, first=hide)).train) == 3


@pytest.mark.parametrize("cells", ["A2:A3", "B3:C3", "A1:B1"])
def test_merged_cells_are_refused(workbook, cells):
    path = workbook(SHEET, lambda sheet: sheet.merge_cells(cells))
    assert f"cells of the table are merged ({cells})" in refused(path)


def test_merged_cells_beside_the_table_are_no_matter(workbook):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load_excel(workbook(SHEET, lambda sheet: sheet.merge_cells("E1:F2"))).train) == 3


def test_hidden_rows_and_columns_are_read_and_said(workbook):
    def hide(sheet):
        sheet.row_dimensions[3].hidden = True
        sheet.row_dimensions[9].hidden = True
        sheet.column_dimensions["B"].hidden = True

    with pytest.warns(FedwinnowWarning) as told:
        assert len(load_excel(workbook(SHEET, hide)).train) == 3
    first, second = (str(one.message) for one in told if one.category is FedwinnowWarning)
    assert "1 rows (line 3) are hidden in the spreadsheet, and were read all the same" in first
    assert "1 columns ('sex') are hidden" in second


def test_corrected_labels_in_a_sheet_with_titles_and_notes(workbook):
    openpyxl = pytest.importorskip("openpyxl")

    def hide(sheet):
        sheet.sheet_state = "hidden"
        sheet.append(["age", "label"])

    path = workbook([["Report"], [], *SHEET, [None, "Printed by Ng"]], lambda sheet: sheet.merge_cells("A1:C1"), hide)
    source = Excel(path=path, label="label", header=3, footer=1)

    def cells(content: bytes) -> list[list]:
        book = openpyxl.load_workbook(io.BytesIO(content))
        assert book.worksheets[0].max_row == 1
        return [[value for value in row if value is not None] for row in book["Export"].iter_rows(values_only=True)]

    with pytest.warns(FedwinnowWarning, match="'Export' was read"):
        corrected = corrected_excel(path, source, {"2": Change("b", "a", "review")})
    before = cells(path.read_bytes())
    assert cells(corrected) == [
        *before[:2],
        [*before[2], "label_given", "label_source"],
        [*before[3], "a", "given"],
        [3, "f", "a", "b", "review"],
        [*before[5], "b", "given"],
        before[6],
    ]
    path.write_bytes(corrected)
    assert cells(reversed_excel(path, "label")) == before


def test_marks_are_found_across_pieces_of_the_file(workbook, monkeypatch):
    path = workbook(SHEET, lambda sheet: sheet.merge_cells("A2:A3"))
    monkeypatch.setattr("fedwinnow.data.sources.excel.BLOCK", 50)
    assert "merged (A2:A3)" in refused(path)
