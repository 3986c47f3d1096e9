"""`fedwinnow board`: all runs of a folder on one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedwinnow.commands.common import Flags, escaped
from fedwinnow.errors import UsageError

Folder = Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


@dataclass(frozen=True)
class BoardOfRuns(Flags):
    """One page of all runs and sweeps in a folder: curves, filters, means and links to the reports.

    The page is FOLDER/board.html. It needs no server and no internet, and the same command makes it again. Runs that
    are unfinished, stale or broken are shown as such.
    """

    folder: Folder = None
    """A folder with runs or sweeps, such as runs or sweeps/first."""

    def run(self) -> int:
        """Write the page, and print where it is."""
        from fedwinnow.study.board.page import write_board

        if self.folder is None:
            raise UsageError(
                "no folder was given; allowed: a folder with runs or sweeps, such as runs or sweeps/first."
            )
        board = write_board(self.folder)
        self.emit({"file": str(board.path), "runs": len(board.runs), "states": board.counts})
        console = self.console()
        states = ", ".join(f"{count} {state}" for state, count in board.counts.items())
        console.print(f"{len(board.runs)} runs: {states}", markup=False)
        console.print(f"written to [bold]{escaped(board.path)}[/]; open it in a browser")
        return 0
