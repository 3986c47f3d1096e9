"""`fedwinnow configs`: the papers' set-ups that come with this package."""

from __future__ import annotations

from dataclasses import dataclass

from fedwinnow.commands.common import Flags, escaped
from fedwinnow.config import shipped


@dataclass
class Configs(Flags):
    """The set-ups of the papers, for --config NAME; a flag beside it wins, option by option."""

    def run(self) -> int:
        """One line each."""
        from rich.table import Table

        lines = {name: path.read_text(encoding="utf-8").partition("\n")[0][2:] for name, path in shipped().items()}
        self.emit([{"name": name, "summary": line} for name, line in lines.items()])
        table = Table(box=None, show_header=False, pad_edge=False)
        for name, line in lines.items():
            table.add_row(f"[bold]{name}[/]", escaped(line))
        console = self.console()
        console.print(table)
        console.print("\n[dim]fedwinnow run --config NAME --rounds 5 changes one thing of it.[/]")
        return 0
