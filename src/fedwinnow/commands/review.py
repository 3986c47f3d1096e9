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
    """Review the labels of one site that are worth a look, in a browser on this machine.

    Every decision is saved at once in decisions.csv in the site's folder; `fedwinnow apply` then writes the corrected
    data.
    """

    folder: Where = None
    """The folder of an audited site, for example audits/x/north."""
    reviewer: str | None = None
    """Your name; a second reviewer takes another, and the page shows how far both agree. None: your user name."""
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
            raise UsageError("no folder was given; needed: the folder of an audited site, for example audits/x/north.")
        queue = ReviewQueue(self.folder, check_reviewer(self.reviewer if self.reviewer is not None else user_name()))
        with ReviewServer(queue, self.port) as server:
            self.emit({"url": server.url, "to_review": len(queue.rows), "reviewer": queue.reviewer})
            if self.json:
                sys.stdout.flush()  # the reading program waits for the address
            else:
                # Also with --quiet: without its address the page is useless.
                print(
                    f"{len(queue.rows)} labels to review, as {queue.reviewer}: {server.url}\nCtrl-C ends it.",
                    flush=True,
                )
            if not self.no_browser:
                webbrowser.open(server.url)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                self.console().print(f"everything is saved in {self.folder / 'decisions.csv'}", markup=False)
        return 0


def user_name() -> str:
    """The name of the logged-in user, or "reviewer" if the system does not know it."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "reviewer"
