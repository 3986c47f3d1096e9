"""`fedwinnow review`: the page where a person accepts or rejects suggestions."""

from __future__ import annotations

import getpass
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fedwinnow.commands.common import Flags
from fedwinnow.errors import UsageError

if TYPE_CHECKING:
    from fedwinnow.auditing.reviewing.review_queue import ReviewQueue

Where = Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]


@dataclass(frozen=True)
class Review(Flags):
    """Review the labels of one site that are worth a look, in a browser on this machine.

    Every decision is saved at once in decisions.csv in the site's folder; `fedwinnow apply` then writes the corrected
    data. With --anchor labels are drawn by lot, and the page says how many labels are wrong as far as that is known.
    """

    folder: Where = None
    """The folder of an audited site, for example audits/x/north, or of a whole audit on this machine."""
    anchor: int | None = None
    """Look at so many labels drawn by lot, 30 for example, without score and suggestion; then: audit --update."""
    first: int | None = None
    """Look at the first so many labels in the order of the audit, also where it called none."""
    look_cost: float = 0.2
    """With --anchor: what a look costs, if a corrected label is worth 1; says how many more looks are worth it."""
    reviewer: str | None = None
    """Your name; a second reviewer takes another, and the page shows how far both agree. None: your user name."""
    port: int = 0
    """The port on 127.0.0.1; 0: any free one."""
    no_browser: bool = False
    """Only print the address, do not open a browser."""

    def run(self) -> int:
        """Serve until interrupted."""
        import webbrowser

        from fedwinnow.auditing.reviewing.review_server import ReviewServer

        queue = self.queue()
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
                self.goodbye(queue)
        return 0

    def queue(self) -> ReviewQueue:
        """The labels to show."""
        from fedwinnow.auditing.decisions import check_reviewer
        from fedwinnow.auditing.reviewing.anchor_queue import AnchorQueue
        from fedwinnow.auditing.reviewing.review_queue import ReviewQueue

        if self.folder is None:
            raise UsageError("no folder was given; needed: the folder of an audited site, for example audits/x/north.")
        if self.anchor is not None and self.first is not None:
            raise UsageError("--anchor and --first exclude each other: labels by lot, or those at the top.")
        check_cost(self.look_cost)
        name = check_reviewer(self.reviewer if self.reviewer is not None else user_name())
        if self.anchor is not None:
            return AnchorQueue(self.folder, name, self.anchor, self.look_cost)
        return ReviewQueue(self.folder, name, self.first)

    def goodbye(self, queue: ReviewQueue) -> None:
        """Where everything is, and what comes next."""
        console = self.console()
        assert self.folder is not None
        place = self.folder if len(queue.folders) == 1 else self.folder / "*"
        console.print(f"everything is saved in {place / 'decisions.csv'}", markup=False)
        if self.anchor is not None:
            console.print(f"then: fedwinnow audit --update {self.folder}", markup=False)


def check_cost(cost: float) -> float:
    """What a look costs; refuses what is no share."""
    if not 0 < cost < 1:
        raise UsageError(f"--look-cost {cost} was given; allowed: above 0 and below 1.")
    return cost


def user_name() -> str:
    """The name of the logged-in user, or "reviewer" if the system does not know it."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "reviewer"
