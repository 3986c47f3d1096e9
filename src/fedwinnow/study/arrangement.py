"""Which runs are in which row and column of a table, and the notes about their settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedwinnow.errors import UsageError, unknown
from fedwinnow.study.run_records import Record
from fedwinnow.study.sweep_plan import read_book
from fedwinnow.study.table_names import Names

SCENE_KEYS = ("data", "clients", "partition", "noise")
NEVER_A_COLUMN = {"seed", "scene"}
PLAIN = Names()
COMMON = ("data", "clients", "partition", "noise", "model", "participation", "rounds", "epochs", "views")


@dataclass(frozen=True)
class Arrangement:
    """Runs by row, column and seed."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    runs: dict[tuple[str, str], dict[int, Record]]
    notes: tuple[str, ...]
    names: Names = field(default_factory=Names)  # what they are called in print

    def competes(self, row: str) -> bool:
        """Whether a row can win; references that see the truth or are not federated cannot."""
        return all(run.competes for (name, _), runs in self.runs.items() if name == row for run in runs.values())


def lay_out(
    records: Sequence[Record],
    rows: Sequence[str] = ("method",),
    columns: Sequence[str] | None = None,
    names: Names = PLAIN,
) -> Arrangement:
    """Sort the runs into cells; without `columns`, the settings that differ make the columns."""
    keys = {key for record in records for key in record.settings}
    for flag, wanted in (("rows", rows), ("columns", columns or ())):
        for key in wanted:
            if key not in keys:
                raise unknown(f"setting for --{flag}", key, keys)
    across = tuple(columns) if columns is not None else differing_keys(records, rows)
    cells: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        cell = cells.setdefault((label(record, rows), label(record, across) or "all runs"), {})
        if record.seed in cell:
            raise clash(cell[record.seed], record)
        cell[record.seed] = record
    return Arrangement(
        rows=ordered_rows(cells),
        columns=tuple(dict.fromkeys(column for _, column in cells)),
        runs=cells,
        notes=(*common_settings(records, {*rows, *across}), *uneven_settings(records, rows, across, names)),
        names=names,
    )


def named_layout(records: Sequence[Record], names: Names = PLAIN) -> Arrangement | None:
    """Rows and columns with the names and the order of their sweeps.

    None if a run does not belong to a sweep, or if two sweeps use the same names for different runs.
    """
    cells: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        cell = cells.setdefault((record.row, record.column), {})
        if record.sweep is None or record.seed in cell:
            return None
        cell[record.seed] = record
    sweeps = dict.fromkeys(record.sweep for record in records)
    known = [name for sweep in sweeps if sweep is not None for name in read_book(sweep)["names"].values()]
    there = {name for cell in cells for name in cell}
    rows = tuple(row for row in dict.fromkeys(name["row"] for name in known) if row in there)
    columns = tuple(scene for scene in dict.fromkeys(name["scene"] for name in known) if scene in there)
    return Arrangement(
        rows=rows,
        columns=columns,
        runs=cells,
        notes=(
            *common_settings(records, {"method"}),
            *what_columns_are(cells, columns, names),
            *uneven_settings(records, ("method",), SCENE_KEYS, names),
        ),
        names=names,
    )


def what_columns_are(
    cells: dict[tuple[str, str], dict[int, Record]], columns: Sequence[str], names: Names
) -> list[str]:
    """A note with the scene of each column whose name does not describe it."""
    records = [record for runs in cells.values() for record in runs.values()]
    keys = [key for key in SCENE_KEYS if varies(records, key)]
    scenes = {column: label(next(iter(runs.values())), keys) for (_, column), runs in cells.items()}
    told = [f"{names.column(name)}: {scenes[name]}" for name in columns if scenes[name] != name]
    return [f"Scenes: {'; '.join(told)}."] if told and keys else []


def label(record: Record, keys: Sequence[str]) -> str:
    """The values of some settings; with the name of the setting if the value alone is not clear."""
    speaking = {"method", "data", "partition", "noise", "model", "optimizer", "scene"}
    return ", ".join(
        record.settings.get(key, "none") if key in speaking else f"{key}={record.settings.get(key, 'none')}"
        for key in keys
    )


def differing_keys(records: Sequence[Record], rows: Sequence[str]) -> tuple[str, ...]:
    """The settings that make the columns.

    The settings of the scene do whenever they differ. Another setting does only if rows and columns do not decide it
    already; for example, a model that follows from the data makes no column, nor do views that one method needs.
    """
    keys = dict.fromkeys(key for record in records for key in record.settings)
    candidates = [key for key in keys if key not in NEVER_A_COLUMN and key not in rows]
    found = [key for key in SCENE_KEYS if key in candidates and varies(records, key)]
    for key in candidates:
        if key not in found and not decided(records, (*rows, *found), key):
            found.append(key)
    return tuple(found)


def varies(records: Sequence[Record], key: str) -> bool:
    """Whether a setting has more than one value."""
    return len({record.settings.get(key) for record in records}) > 1


def decided(records: Sequence[Record], by: Sequence[str], key: str) -> bool:
    """Whether the settings `by` together decide another."""
    seen: dict[tuple[str | None, ...], str | None] = {}
    for record in records:
        place = tuple(record.settings.get(name) for name in by)
        if seen.setdefault(place, record.settings.get(key)) != record.settings.get(key):
            return False
    return True


def ordered_rows(cells: dict[tuple[str, str], dict[int, Record]]) -> tuple[str, ...]:
    """Plain averaging first, references last, the others by name."""

    def place(row: str) -> tuple[bool, bool, bool, str]:
        reference = any(not run.competes for (name, _), runs in cells.items() if name == row for run in runs.values())
        return (reference, not row.startswith("fedavg"), not row.startswith("fedprox"), row)

    return tuple(sorted({row for row, _ in cells}, key=place))


def clash(first: Record, second: Record) -> UsageError:
    """The error for two runs in one place of the table."""
    keys = sorted(first.settings.keys() | second.settings.keys())
    differing = [key for key in keys if first.settings.get(key) != second.settings.get(key)]
    hint = "They have the same settings: leave one of them out."
    if differing:
        hint = f"They differ in {', '.join(differing)}: add it to --columns or --rows, or leave one of them out."
    return UsageError(
        f"{first.folder} and {second.folder} both have seed {first.seed} in the same row and column. {hint}"
    )


def common_settings(records: Sequence[Record], used: set[str]) -> list[str]:
    """A note with the settings that all runs have in common."""
    shared = [key for key in COMMON if key not in used and not varies(records, key)]
    values = [f"{key} {records[0].settings[key]}" for key in shared if key in records[0].settings]
    return [f"All runs: {', '.join(values)}."] if values else []


def uneven_settings(
    records: Sequence[Record], rows: Sequence[str], across: Sequence[str], names: Names = PLAIN
) -> list[str]:
    """Warnings about settings that differ between the rows of one column."""
    found = []
    keys = dict.fromkeys(key for record in records for key in record.settings)
    for key in keys:
        if key in NEVER_A_COLUMN or key in rows or key in across or decided(records, tuple(across), key):
            continue
        values: dict[str, set[str]] = {}
        for record in records:
            values.setdefault(record.settings.get(key, "none"), set()).add(names.row(label(record, rows)))
        words = "; ".join(f"{value}: {', '.join(sorted(who))}" for value, who in sorted(values.items()))
        found.append(f"CAREFUL, the rows differ in {key} ({words}).")
    return found
