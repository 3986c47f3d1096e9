"""Files that people open in a spreadsheet and save again, and folder names with all letters."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fedwinnow.auditing.audit import RESERVED
from fedwinnow.auditing.decisions import Decision, read_decisions, save_decision
from fedwinnow.auditing.spreadsheet_files import as_given, harmless, read_table, table_text
from fedwinnow.errors import DataError
from fedwinnow.files import folder_names, safe_name, same_key

TEXTS = some.text(some.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
RISKY = some.builds(str.__add__, some.sampled_from(["=", "+", "-", "@", "\t", "\r", "'", "'=", "''-", "1", ""]), TEXTS)


@pytest.mark.parametrize(
    ("given_text", "written"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("@SUM(1+1)", "'@SUM(1+1)"),
        ("+49 30 1234", "'+49 30 1234"),
        ("-", "'-"),
        ("-5", "-5"),
        ("+2.5e-3", "+2.5e-3"),
        ("-1,5", "-1,5"),
        ("\tx", "'\tx"),
        ("'=x", "''=x"),
        ("'quoted", "'quoted"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_formulas_are_neutralised_and_numbers_are_not(given_text, written):
    assert harmless(given_text) == written
    assert as_given(written) == given_text


@given(RISKY)
def test_no_text_begins_like_a_formula_and_all_come_back(text):
    written = harmless(text)
    assert as_given(written) == text
    assert written[:1] not in tuple("=@\t\r\n") or written == ""


@settings(max_examples=200)
@given(some.lists(some.tuples(RISKY, RISKY), min_size=1, max_size=4))
def test_every_cell_survives_the_file(tmp_path_factory, rows):
    rows = [(f"x{one}" if not one.strip() and not two.strip() else one, two) for one, two in rows]  # no blank lines
    path = tmp_path_factory.mktemp("files") / "a.csv"
    path.write_bytes(table_text(("id", "site"), rows).encode())
    assert [(row["id"], row["site"]) for row in read_table(path, ("id", "site"))] == rows


def as_excel(path: Path, encoding: str = "utf-8-sig", delimiter: str = ";", decimal: str = ",") -> None:
    """What a European spreadsheet saves: separator, decimal comma, CRLF, byte order mark, empty cells and lines."""
    rows = read_table(path, ())
    header = list(rows[0])

    def cell(name: str, text: str) -> str:
        text = str(harmless(text))
        text = text.replace(".", decimal) if name in ("p_wrong", "score") else text
        return f'"{text}"' if delimiter in text or '"' in text else text

    lines = [header, *([cell(name, row[name]) for name in header] for row in rows)]
    text = "\r\n".join(delimiter.join([*line, ""]) for line in lines) + "\r\n" + delimiter * len(header) + "\r\n"
    path.write_bytes(text.encode(encoding))


@pytest.mark.parametrize(
    ("encoding", "delimiter", "decimal"),
    [("utf-8-sig", ";", ","), ("utf-8", ";", ","), ("utf-16", "\t", ","), ("utf-8-sig", ";", "."), ("utf-8", ",", ".")],
)
def test_what_a_european_spreadsheet_saves_is_read_back(tmp_path, encoding, delimiter, decimal):
    header = ("site", "id", "given", "suggested", "score", "p_wrong", "decision")
    rows = [
        ("Charité", "=1+2", "a", "b", "-3.25", "0.950000", "review"),
        ("Charité", "7", "b", "a", "1.5e-05", "", "too few"),
    ]
    path = tmp_path / "audit.csv"
    path.write_text(table_text(header, rows), encoding="utf-8")
    plain = read_table(path, header)
    as_excel(path, encoding, delimiter, decimal)
    assert read_table(path, header, ("score", "p_wrong")) == plain
    assert plain[0]["id"] == "=1+2"


def test_other_encodings_and_missing_cells_are_refused(tmp_path):
    path = tmp_path / "audit.csv"
    path.write_bytes("id;site\r\n1;Charit\xe9\r\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"line 2: cannot be read, it is not UTF-8 text\. In the spreadsheet, save it"):
        read_table(path, ("id",))
    path.write_text("id;site\n1\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"row 1 \(line 2\): it does not have as many cells"):
        read_table(path, ("id",))
    path.write_text("id;site\n1;2;3\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"row 1 \(line 2\): it does not have as many cells"):
        read_table(path, ("id",))
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match="is empty"):
        read_table(path, ("id",))
    path.write_text("id;site\n1;2\n", encoding="utf-8")
    with pytest.raises(DataError, match="no column 'p_wrong'; needed: id, p_wrong"):
        read_table(path, ("id", "p_wrong"))


def test_a_comma_in_a_file_with_commas_is_no_decimal_point(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('id,p_wrong\n1,"0,5"\n', encoding="utf-8")
    assert read_table(path, ("id",), ("p_wrong",))[0]["p_wrong"] == "0,5"


def test_decisions_of_strange_people_about_strange_ids_survive(tmp_path):
    save_decision(tmp_path, "=1+2", "@ann", Decision("=1+2", "@ann", "keep", "-a", "now"))
    save_decision(tmp_path, "'=1+2", "@ann", Decision("'=1+2", "@ann", "keep", "b", "now"))
    text = (tmp_path / "decisions.csv").read_text(encoding="utf-8")
    assert "\n=1+2" not in text
    assert list(read_decisions(tmp_path)) == [("=1+2", "@ann"), ("'=1+2", "@ann")]
    as_excel(tmp_path / "decisions.csv")
    assert read_decisions(tmp_path)["=1+2", "@ann"].label == "-a"


# --- folder names --------------------------------------------------------------------------------------------------


def test_letters_stay():
    assert folder_names(["Charité", "北京", "Ålesund sykehus", "Clínica/São José", "مستشفى", "A.B_c-1"]) == [
        "Charité",
        "北京",
        "Ålesund-sykehus",
        "Clínica-São-José",
        "مستشفى",
        "A.B_c-1",
    ]


def test_names_that_a_system_takes_for_one_differ():
    decomposed = unicodedata.normalize("NFD", "Charité")
    names = folder_names(["Charité", decomposed, "CHARITÉ", "straße", "STRASSE", "Training", "index.html"], RESERVED)
    assert names == ["Charité", "Charité-2", "CHARITÉ-3", "straße", "STRASSE-2", "Training-2", "index.html-2"]


@pytest.mark.parametrize(
    ("site", "name"),
    [
        ("CON", "site-CON"),
        ("nul.txt", "site-nul.txt"),
        ("com1", "site-com1"),
        ("COM¹", "site-COM¹"),
        ("console", "console"),
    ],
)
def test_names_of_devices_are_no_folders(site, name):
    assert safe_name(site) == name


@given(some.lists(some.text(max_size=80), max_size=5))
def test_every_name_is_safe(sites):
    names = folder_names(sites, RESERVED)
    assert len({same_key(name) for name in (*names, *RESERVED)}) == len(sites) + len(RESERVED)
    for name in names:
        assert name == unicodedata.normalize("NFC", name)
        assert not set(name) & set('/\\:*?"<>|\0 \n')
        assert name not in ("", ".", "..")
        assert not name.endswith(".")
        assert len(name.encode()) < 150
        assert any(unicodedata.category(letter)[0] in "LN" for letter in name) or "_" in name


def test_a_folder_of_every_script_can_be_made(tmp_path):
    for name in folder_names(["Charité", "北京" * 50, "мед", "𝔘ni"]):
        (tmp_path / name).mkdir()
