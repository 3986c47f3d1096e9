"""Tables in the terminal: at no width is a number cut, and in a pipe there is no width."""

from __future__ import annotations

import io
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from fedwinnow import cli
from fedwinnow.terminal import Grid

NUMBER = re.compile(r"\d[\d.,]*\d|\d")
COLUMNS = 12
SPECS = [f"winnow:rate=0.{place}5,share=1.{place}25" for place in range(3)]
MEASURED = [[f"{80 + row + place / 7:.2f} ± {1 + place / 9:.2f} (n=3)" for place in range(COLUMNS)] for row in range(3)]


def shown(grid: Grid, width: int | None) -> list[str]:
    """The lines at a terminal of this width; without one, in a file."""
    stream = io.StringIO()
    grid.show(Console(file=stream, width=width or 30, force_terminal=width is not None, color_system=None))
    return stream.getvalue().splitlines()


def wide() -> Grid:
    """A table of many numbers, specs and a sentence."""
    titles = ["", *(f"constant:rate=0.{place}\nlast 10" for place in range(COLUMNS)), "meaning"]
    rows = [[spec, *cells, "at most 1,000 of 12.75 lines"] for spec, cells in zip(SPECS, MEASURED, strict=True)]
    return Grid("t" + "n" * COLUMNS + "t", titles, rows)


@pytest.mark.parametrize("width", [20, 40, 80, 130])
def test_every_number_is_whole_and_every_line_fits(width):
    lines = shown(wide(), width)
    found = Counter(number for line in lines for number in NUMBER.findall(line))
    for row in wide().rows:
        for cell in row:
            for number in NUMBER.findall(str(cell)):
                assert found[number], number
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [40, 80, 130])
def test_every_cell_of_numbers_stays_in_one_line(width):
    lines = shown(wide(), width)
    for cells in MEASURED:
        for cell in cells:
            assert any(cell in line for line in lines), cell


@pytest.mark.parametrize("width", [80, 130])
def test_every_block_names_its_rows(width):
    text = "\n".join(shown(wide(), width))
    parts = text.split("\n\n")
    assert len(parts) > 1
    for part in parts:
        assert all(spec.split(",")[0] in part for spec in SPECS)


def test_a_pipe_has_no_width():
    lines = shown(wide(), None)
    assert len(lines) == 2 + len(SPECS)  # a title of two lines
    for line, cells in zip(lines[2:], MEASURED, strict=True):
        assert all(cell in line for cell in cells)


def test_the_first_column_alone_and_no_row_at_all():
    assert shown(Grid("t", ("name",), [("one",)]), 40) == ["name", "one"]
    assert shown(Grid("tn", ("name", "value"), []), 40) == ["name  value"]
    assert shown(Grid("tn", (), []), 40) == []


def test_markup_is_style_and_a_text_is_taken_as_it_is():
    assert shown(Grid("tt", (), [("[bold]a[/]", Text("[b]"))]), 40) == ["a  [b]"]


CELLS = st.text(st.sampled_from("ab0123456789.,:;/= ±\n漢"), max_size=30).map(Text)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=4),
    st.integers(1, 60),
    st.sampled_from(["tnt", "ttt"]),
)
def test_nothing_is_lost_whatever_the_width(rows, width, shape):
    lines = shown(Grid(shape, ("x", "y", "z"), rows), width)
    letters = Counter(letter for line in lines for letter in line if not letter.isspace())
    wanted = Counter(letter for row in rows for cell in row for letter in cell.plain if not letter.isspace())
    assert letters >= wanted
    found = {word for line in lines for word in NUMBER.findall(line)}
    for number in (number for row in rows for cell in row for number in re.findall(r"\d+(?:[.]\d+)*", cell.plain)):
        assert any(number in word for word in found)


def test_long_lines_of_a_command_are_not_folded_in_a_pipe(tmp_path, capsys):
    folder = tmp_path / ("deep-" * 30)
    with pytest.raises(SystemExit):
        cli.main(["scene", "make", "--data", "digits", "--clients", "3", "--out", str(folder)])
    assert str(folder) in capsys.readouterr().out
