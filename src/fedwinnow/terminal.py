"""Tables in the terminal: numbers are never cut, and columns that do not fit are printed below the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

GAP = "  "
# After a space, or after a mark that is not followed by a digit: 0.5, 1,000, 12:30 and 3/4 stay whole.
BREAK = re.compile(r" +|(?<=[,:;/\\|])(?=[^\d\s,:;/\\|])")


@dataclass(frozen=True)
class Grid:
    """Rows of cells, in rich's markup or as rich's texts."""

    shape: str  # a letter per column: t for text that may wrap, w for text that may not, n for numbers (right-aligned)
    titles: Sequence[str | Text]
    rows: Sequence[Sequence[str | Text]]
    names: int = 1  # the number of columns at the left that name a row; they are repeated in every block

    def show(self, console: Console) -> None:
        """Print the table; in a file or a pipe it may have any width."""
        width = console.width if console.is_terminal else None
        for number, block in enumerate(blocks(prepared(self), width)):
            if number:
                console.print()
            for line in block:
                console.print(line, soft_wrap=True)


@dataclass(frozen=True)
class Prepared:
    """Columns of texts: the title first, then a cell per row."""

    shape: str
    columns: list[list[Text]]
    names: int
    headed: bool

    def of(self, places: Sequence[int]) -> Prepared:
        """The table with only these columns."""
        return replace(
            self, shape="".join(self.shape[place] for place in places), columns=[self.columns[p] for p in places]
        )

    def widest(self, place: int) -> int:
        """The width of the column without wrapping."""
        return max((line.cell_len for cell in self.columns[place] for line in cell.split("\n")), default=0)

    def narrowest(self, place: int) -> int:
        """The smallest width of the column."""
        head, *cells = self.columns[place]
        pieces = [piece for cell in cells for piece in unbreakable(cell, self.shape[place])]
        return max((piece.cell_len for piece in [*pieces, *unbreakable(head, "t")]), default=0)


def prepared(grid: Grid) -> Prepared:
    """All cells as rich's texts."""
    from rich.text import Text

    def text(cell: str | Text, style: str = "") -> Text:
        made = Text.from_markup(cell) if isinstance(cell, str) else cell.copy()
        made.stylize(style)
        return made

    heads = [text(title, "dim") for title in grid.titles] or [Text() for _ in grid.shape]
    columns = [[head, *(text(row[place]) for row in grid.rows)] for place, head in enumerate(heads)]
    return Prepared(grid.shape, columns, grid.names, bool(grid.titles))


def blocks(table: Prepared, width: int | None) -> list[list[Text]]:
    """The lines of each block; a block is wider than the terminal only if a number or word is."""
    if width is None:
        return [lines_of(table, [table.widest(place) for place in range(len(table.shape))])]
    names, others = list(range(table.names)), list(range(table.names, len(table.shape)))
    if sum(table.widest(place) for place in names) <= width // 2:  # then only the rest is wrapped
        table = replace(table, shape=table.shape[: table.names].replace("t", "w") + table.shape[table.names :])
    found: list[list[int]] = [[]]
    for place in others:
        if found[-1] and least(table.of([*names, *found[-1], place])) > width:
            found.append([])
        found[-1].append(place)
    return [fitted(table.of([*names, *places]), width) for places in found]


def least(table: Prepared) -> int:
    """The smallest width of the table."""
    count = len(table.shape)
    return sum(table.narrowest(place) for place in range(count)) + len(GAP) * (count - 1)


def fitted(table: Prepared, width: int) -> list[Text]:
    """One block: columns of text are narrowed, the widest first; if that is not enough, cells go below the names."""
    if least(table) > width and len(table.shape) > 1:
        return stacked(table, width)
    sizes = [table.widest(place) for place in range(len(table.shape))]
    floors = [table.narrowest(place) for place in range(len(table.shape))]
    while sum(sizes) + len(GAP) * (len(sizes) - 1) > width:
        room = [place for place, size in enumerate(sizes) if size > floors[place]]
        if not room:
            break
        sizes[max(room, key=lambda place: sizes[place])] -= 1
    return lines_of(table, sizes)


def lines_of(table: Prepared, sizes: list[int]) -> list[Text]:
    """Every row, wrapped to the widths of its columns."""
    from rich.text import Text

    found = []
    last = len(sizes) - 1
    for row in range(0 if table.headed else 1, len(table.columns[0]) if table.columns else 0):
        cells = [
            wrapped(column[row], size, kind if row else "t")
            for column, size, kind in zip(table.columns, sizes, table.shape, strict=True)
        ]
        for number in range(max(map(len, cells))):
            line = Text(end="")
            for place, (cell, size, kind) in enumerate(zip(cells, sizes, table.shape, strict=True)):
                piece = cell[number] if number < len(cell) else Text()
                blank = " " * max(size - piece.cell_len, 0)
                line.append(blank if kind == "n" else "").append_text(piece)
                line.append(blank if kind != "n" and place != last else "").append(GAP if place != last else "")
            line.rstrip()
            found.append(line)
    return found


def stacked(table: Prepared, width: int) -> list[Text]:
    """The names of a row, and below them the title and the cell of every other column."""
    from rich.text import Text

    found = []
    for row in range(1, len(table.columns[0])):
        name = Text(" ").join(column[row] for column in table.columns[: table.names] if column[row].plain)
        found += wrapped(name, width, "t")
        for column, kind in zip(table.columns[table.names :], table.shape[table.names :], strict=True):
            title = Text(" ".join(column[0].plain.split()), style="dim")
            found += [Text(GAP).append_text(line) for line in wrapped(title, width - len(GAP), "t") if title.plain]
            found += [
                Text(2 * GAP).append_text(line)
                for line in wrapped(column[row], width - 2 * len(GAP), "w" if kind == "w" else "t")
            ]
    return found


def unbreakable(text: Text, kind: str) -> list[Text]:
    """The pieces of a cell that are never split."""
    lines = list(text.split("\n"))
    return [piece for line in lines for piece in pieces_of(line)] if kind == "t" else lines


def pieces_of(line: Text) -> list[Text]:
    """A line split wherever that is allowed, without the spaces between."""
    found, start = [], 0
    for match in BREAK.finditer(line.plain):
        if match.start() > start:
            found.append(line[start : match.start()])
        start = match.end()
    return [*found, line[start:]]


def wrapped(text: Text, width: int, kind: str) -> list[Text]:
    """The lines of a cell; a piece that is wider than its column is not split."""
    lines = list(text.split("\n", allow_blank=True)) or [text]
    return [part for line in lines for part in (wrap(line, width) if kind == "t" else [line])]


def wrap(line: Text, width: int) -> list[Text]:
    """One line as several."""
    found, start, end = [], 0, 0  # the present line goes from start to end
    cuts = [*((match.start(), match.end()) for match in BREAK.finditer(line.plain)), (len(line.plain), len(line.plain))]
    following = 0
    for cut, after in cuts:
        if end > start and line[start:cut].cell_len > width:
            found.append(line[start:end])
            start = following
        end, following = cut, after
    return [*found, line[start:end]]
