"""What the rows, columns and figures of a table are called: names in print, or those that the user gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedwinnow.errors import UsageError, unknown
from fedwinnow.method_names import title_of
from fedwinnow.study.scene_words import scene_in_words
from fedwinnow.study.table_figures import Shown


@dataclass(frozen=True)
class Names:
    """Names in print by the names in the files."""

    rename: Mapping[str, str] = field(default_factory=dict)  # a name in the files or in print -> the user's
    columns: Mapping[str, str] = field(default_factory=dict)  # words for columns whose names are not specs

    def row(self, row: str) -> str:
        """A row's name in print."""
        return self.chosen(row) or title_of(row)

    def column(self, column: str) -> str:
        """A column's name in print."""
        return self.rename.get(column) or self.rename.get(self.words(column)) or self.words(column)

    def words(self, column: str) -> str:
        """A column's name in words."""
        return self.columns.get(column) or scene_in_words(column)

    def figure(self, shown: Shown) -> str:
        """A figure's name in print."""
        return self.rename.get(shown.name) or self.rename.get(shown.title) or shown.title

    def chosen(self, row: str) -> str | None:
        """The name that the user gave to a row."""
        return self.rename.get(row) or self.rename.get(title_of(row))

    def in_file(self, name: str) -> str:
        """A name for CSV: that of the files, unless the user gave another."""
        return self.rename.get(name) or self.rename.get(title_of(name)) or self.rename.get(self.words(name)) or name

    def row_named(self, name: str, rows: Sequence[str]) -> str:
        """The row that has this name in the files or in print; an unknown one is returned as it is."""
        return next((row for row in rows if name in (row, title_of(row), self.row(row))), name)

    def check(self, rows: Sequence[str], columns: Sequence[str], figures: Sequence[Shown]) -> None:
        """Refuse a new name for something that is not there, and one name for two rows or two columns."""
        known = [*rows, *columns, *(shown.name for shown in figures)]
        printed = [*map(title_of, rows), *map(self.words, columns), *(shown.title for shown in figures)]
        for old in self.rename:
            if old not in known and old not in printed:
                raise unknown("row, column or figure for --rename", old, dict.fromkeys([*known, *printed]))
        for what, names in (("rows", map(self.row, rows)), ("columns", map(self.column, columns))):
            listed = list(names)
            if twice := [name for name in listed if listed.count(name) > 1]:
                raise UsageError(f"--rename: two {what} are called '{twice[0]}'; allowed: a name of its own for each.")


def parsed_names(pairs: Iterable[str]) -> dict[str, str]:
    """old=new as names; where the old name has an equals sign itself, the last one counts."""
    found = {}
    for pair in pairs:
        old, equals, new = pair.rpartition("=")
        if not equals or not old.strip() or not new.strip():
            raise UsageError(f"--rename {pair} was given; allowed: old=new, such as feddiv=Ours.")
        found[old.strip()] = new.strip()
    return found
