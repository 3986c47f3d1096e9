"""`fedwinnow configs`: the set-ups of the papers that come with this package."""

from __future__ import annotations

from dataclasses import dataclass

from fedwinnow.commands.common import Flags, escaped
from fedwinnow.flags import shipped


@dataclass(frozen=True)
class Configs(Flags):
    """The set-ups of the papers, for --config NAME; flags override single options of it."""

    def run(self) -> int:
        """One line each."""
        from fedwinnow.terminal import Grid

        lines = {name: path.read_text(encoding="utf-8").partition("\n")[0][2:] for name, path in shipped().items()}
        self.emit([{"name": name, "summary": line} for name, line in lines.items()])
        console = self.console()
        Grid("wt", (), [(f"[bold]{name}[/]", escaped(line)) for name, line in lines.items()]).show(console)
        console.print("\n[dim]fedwinnow run --config NAME --rounds 5 changes one setting of it.[/]")
        return 0
