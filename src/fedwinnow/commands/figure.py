"""`fedwinnow figure`: any picture of the papers from run folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from fedwinnow.commands.common import Flags, escaped

Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
Folders = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


@dataclass(frozen=True)
class Figure(Flags):
    """Draw a picture from run folders; without a name, list the pictures."""

    name: Name = ""
    """The name of the picture."""
    folders: Folders = ()
    """Run folders, or folders that have some. Curves show seeds of one method as one line."""
    out: Path | None = None
    """The file: .png, .svg or .pdf; none: figures/<name>.png and .svg."""
    width: Literal["column", "page"] | None = None
    """The width of one column (3.5 inches) or of both (7.16 inches) of a two-column paper; none: what suits."""
    font_size: float | None = None
    """The size of the letters in points; none: 9, with --width column 8."""
    order: tuple[str, ...] = ()
    """Methods that come first, in this order; pictures of a single run show the first one."""
    column: str | None = None
    """curves: a column of rounds.jsonl, such as label_precision."""
    client: int | None = None
    """losses, clean-probability, confusion: one client only."""
    option: str | None = None
    """sensitivity: the option of the method that differs between the runs."""

    def run(self) -> int:
        """Draw, and print the path."""
        from fedwinnow.study.figures.gallery import PICTURES, draw

        console = self.console()
        if not self.name:
            self.emit([{"name": name, "summary": words} for name, (_, words, _) in PICTURES.items()])
            for name, (_, words, _) in PICTURES.items():
                console.print(f"{name:<18} {words}", markup=False)
            return 0
        files = (
            [self.out] if self.out is not None else [Path("figures") / f"{self.name}.{end}" for end in ("png", "svg")]
        )
        options: dict[str, Any] = {"column": self.column, "client": self.client, "option": self.option}
        options |= {"width": self.width, "font_size": self.font_size, "order": self.order}
        made = [str(draw(self.name, self.folders, path, **options)) for path in files]
        self.emit({"files": made})
        for name in made:
            console.print(f"written to [bold]{escaped(name)}[/]")
        return 0
