"""`fedwinnow schema`: the description of a table that all sites must share before they train together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedwinnow.commands.common import Flags
from fedwinnow.errors import FedwinnowWarning, UsageError

if TYPE_CHECKING:
    from fedwinnow.data.source import Source


@dataclass(frozen=True)
class Schema(Flags):
    """Write how a table becomes numbers and which classes there are, for other sites to use (schema=FILE).

    The file has the names of columns, the mean and deviation of numbers, the texts of categories and the names of the
    classes, but no row of the table.
    """

    data: str = ""
    """The table: csv:path=a.csv,label=diagnosis, or excel:..., parquet:..."""
    out: Path = Path("schema.json")
    """The file to write."""
    check: Path | None = None
    """Write nothing, but hold the table against this schema of another site and list what differs."""

    def run(self) -> int:
        """Fit and write."""
        import json

        from fedwinnow import catalogue
        from fedwinnow.data.load import understood
        from fedwinnow.data.sources.table_source import TableSource
        from fedwinnow.files import write_text

        source = catalogue.make("data", understood(self.data)) if self.data else None
        if not isinstance(source, TableSource):
            raise UsageError(
                f"--data {self.data or '(nothing)'} was given; allowed: a table (csv:..., excel:..., parquet:...)."
            )
        if self.check is not None:
            return self.compare(replace(source, schema=self.check))
        if self.out.suffix != ".json":  # a slip must not overwrite the table
            raise UsageError(f"--out {self.out} was given; allowed: a file that ends in .json.")
        schema = source.fitted_schema()
        write_text(self.out, json.dumps(schema.to_dict(), indent=1) + "\n")
        self.emit({"file": str(self.out), "classes": list(schema.class_names), "columns": len(schema.columns)})
        classes = ", ".join(schema.class_names)
        self.console().print(f"{self.out}: {len(schema.columns)} columns; classes: {classes}", markup=False)
        return 0

    def compare(self, source: Source) -> int:
        """Read the table with the schema and list what is said of it; a row that cannot be used is an error."""
        import warnings

        from fedwinnow.data.load import load

        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            dataset = load(source)
        lines = [str(one.message) for one in told if issubclass(one.category, FedwinnowWarning)]
        rows = len(dataset.train)
        self.emit({"schema": str(self.check), "rows": rows, "differences": lines})
        for line in lines:
            self.console().print(line, markup=False)
        found = f"{len(lines)} thing{'s' * (len(lines) > 1)} to look at, see above" if lines else "nothing differs"
        self.console().print(f"{rows} rows fit {self.check}; {found}", markup=False)
        return 0
