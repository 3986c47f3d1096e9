"""What a site remembers of the sums that it has opened, so that the same answer is never in two different ones."""

from __future__ import annotations

import json
from pathlib import Path

from fedwinnow.federation.summing.sum_messages import SumRefused
from fedwinnow.files import json_of, write_text


class SumMemory:
    """For each question that this site has answered: the sites whose sum it was in."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.known: dict[str, list[str]] = {}
        if path is not None and path.exists():
            self.known = json_of(path, {"*": [str]})

    def allow(self, question: str, members: list[str]) -> None:
        """Remember a sum before this site signs it; refuse one over other sites for a question answered before.

        The difference of two sums would be the answer of a site that is in only one of them.
        """
        before = self.known.get(question)
        if before is not None and before != members:
            raise SumRefused(
                f"'{question}' was answered before in a sum over other sites (then {', '.join(before)}; now "
                f"{', '.join(members)}). "
                f"The difference would tell the answers of single sites."
            )
        self.known[question] = list(members)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(self.known) + "\n")
