"""`fedwinnow review`: the page where a person accepts or rejects suggestions."""

from __future__ import annotations

import getpass
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedwinnow.commands.common import Flags
from fedwinnow.errors import UsageError

Where = Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


@dataclass(frozen=True)
class Review(Flags):
    """Look at the labels of one site that are worth a look, and decide, in a browser on this machine.

    Every keystroke is saved to decisions.csv in the site's folder; `fedwinnow apply` then writes the corrected data.
    """

    folder: Where = None
    """The folder of an audited site, for example audits/x/north."""
    reviewer: str | None = None
    """Your name; a second reviewer takes another, and the page shows how far both agree. None: the user's name."""
    port: int = 0
    """The port on 127.0.0.1; 0: any free one."""
    no_browser: bool = False
    """Only print the address, do not open a browser."""

    def run(self) -> int:
        """Serve until interrupted."""
        import webbrowser

        from fedwinnow.auditing.decisions import check_reviewer
        from fedwinnow.auditing.reviewing.review_queue import ReviewQueue
        from fedwinnow.auditing.reviewing.review_server import ReviewServer

        if self.folder is None:
            raise UsageError("no folder was given; needed: that of one audited site, for example audits/x/north.")
        desk = ReviewQueue(self.folder, check_reviewer(self.reviewer if self.reviewer is not None else user_name()))
        with ReviewServer(desk, self.port) as server:
            self.emit({"url": server.url, "to_review": len(desk.rows), "reviewer": desk.reviewer})
            if self.json:
                sys.stdout.flush()  # whoever reads it waits for the address
            else:
                # Also with --quiet: without its address the page is of no use.
                print(
                    f"{len(desk.rows)} labels to review, as {desk.reviewer}: {server.url}\nCtrl-C ends it.", flush=True
                )
            if not self.no_browser:
                webbrowser.open(server.url)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                self.console().print(f"everything is saved in {self.folder / 'decisions.csv'}", markup=False)
        return 0


def user_name() -> str:
    """Who is at the keyboard, as far as the system knows."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "reviewer"
