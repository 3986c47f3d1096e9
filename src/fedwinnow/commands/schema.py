"""`fedwinnow schema`: the description of a table that all sites must share before they train together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedwinnow.commands.common import Flags
from fedwinnow.errors import UsageError


@dataclass(frozen=True)
class Schema(Flags):
    """Write how a table becomes numbers and which classes there are, for other sites to use (schema=FILE).

    The file has the names of columns, the mean and deviation of numbers, the texts of categories and the names of the
    classes, but no row of the table.
    """

    data: str = ""
    """The table: csv:path=a.csv,label=diagnosis, or parquet:..."""
    out: Path = Path("schema.json")
    """The file to write."""

    def run(self) -> int:
        """Fit and write."""
        import json

        from fedwinnow import catalogue
        from fedwinnow.data.load import understood
        from fedwinnow.data.sources.table_source import TableSource
        from fedwinnow.files import write_text

        source = catalogue.make("data", understood(self.data)) if self.data else None
        if not isinstance(source, TableSource):
            raise UsageError(f"--data {self.data or '(nothing)'} was given; allowed: a table (csv:..., parquet:...).")
        if self.out.suffix != ".json":  # a slip must not overwrite the table
            raise UsageError(f"--out {self.out} was given; allowed: a file that ends in .json.")
        schema = source.fitted_schema()
        write_text(self.out, json.dumps(schema.to_dict(), indent=1) + "\n")
        self.emit({"file": str(self.out), "classes": list(schema.class_names), "columns": len(schema.columns)})
        classes = ", ".join(schema.class_names)
        self.console().print(f"{self.out}: {len(schema.columns)} columns; classes: {classes}", markup=False)
        return 0
