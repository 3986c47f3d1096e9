"""A table of runs that are kept in results/: `python tools/table_of_results.py results/features.toml --out FILE.md`.

The names and the order of rows and columns are those of the TOML files, whose runs are in the CSV files beside them.
A seed counts in a column where every row has it.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import tomllib
from pathlib import Path
from typing import Any

from fedwinnow.experiment.settings import Experiment
from fedwinnow.experiment.summary import plain
from fedwinnow.federation.method import find_method
from fedwinnow.setting import settings_in
from fedwinnow.study import table_writers
from fedwinnow.study.arrangement import Arrangement, common_settings, what_columns_are
from fedwinnow.study.run_records import Record
from fedwinnow.study.table import Table, Wanted, build
from fedwinnow.study.table_names import Names


def main() -> None:
    """Read the runs and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweeps", type=Path, nargs="+", help="TOML files of sweeps")
    parser.add_argument("--show", default="last10", help="one figure: last10, last, best or auroc")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    table_writers.write(table_of_results(asked.sweeps, asked.show), asked.out)


def table_of_results(sweeps: list[Path], show: str) -> Table:
    """The table of all runs of these sweeps."""
    rows: dict[str, str] = {}  # by method
    columns: dict[str, None] = {}
    records: list[Record] = []
    for sweep in sweeps:
        wanted = tomllib.loads(sweep.read_text(encoding="utf-8"))
        rows |= {method: method for method in wanted["methods"]}
        rows |= {row["method"]: row["name"] for row in wanted.get("rows", ())}
        columns |= dict.fromkeys(scene["name"] for scene in wanted["scenes"])
        with sweep.with_suffix(".csv").open(newline="", encoding="utf-8") as lines:
            records += [record_of(line, rows) for line in csv.DictReader(lines)]
    there = {(record.column, record.seed, record.row) for record in records}
    records = [one for one in records if all((one.column, one.seed, row) in there for row in rows.values())]
    cells: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        cells.setdefault((record.row, record.column), {})[record.seed] = record
    notes = (*common_settings(records, {"method"}), *what_columns_are(cells, tuple(columns), Names()))
    layout = Arrangement(tuple(rows.values()), tuple(columns), cells, notes)
    return build(layout, records, Wanted(show))


def record_of(line: dict[str, str], rows: dict[str, str]) -> Record:
    """One line as the run that it was."""
    words = shlex.split(line["command"])[2:]
    given = {
        flag.removeprefix("--").replace("-", "_"): value for flag, value in zip(words[::2], words[1::2], strict=True)
    }
    usual = {name: str(plain(one.default)) for name, one in settings_in(Experiment).items()}
    method = find_method(line["method"])
    summary: dict[str, Any] = {
        "seed": int(line["seed"]),
        "status": "finished",
        "scene": {"hash": line["scene_hash"]},
        "cheats": "truth" in method.needs,
        "federated": "pooled_data" not in method.needs,
        "detection": {"samples": {"auroc": number(line["auroc"])}},
        **{name: {"accuracy": number(line[name])} for name in ("last10", "last", "best")},
    }
    return Record(Path(line["scene"]), usual | given, summary, row=rows[line["method"]], column=line["scene"])


def number(text: str) -> float | None:
    """A figure; None where there is none."""
    return float(text) if text else None


if __name__ == "__main__":
    main()
