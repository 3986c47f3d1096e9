"""What a coordinator has asked in an audit before: another question would show what counts are meant to hide.

Each answer hides what concerns fewer labels than the least count, but two answers that differ by one label do not. So a
site answers the same question as often as it is asked, and other ones in its place a few times only: an audit that goes
on after a site was lost tells the others other sums. It is kept in a file, for a site that is started anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwinnow.deployment.held_agreement import departed
from fedwinnow.files import json_of, write_text
from fedwinnow.mathematics.payload import Payload

if TYPE_CHECKING:
    from fedwinnow.auditing.looks_over_sites import LooksHere
    from fedwinnow.auditing.site_half import Sums

FILE, LOOKS = "asked.json", "looks-told"
MOST = 3  # different questions in the place of one
OF_LOOKS = ("looked", "found", "pairs")
LOOKS_FORM = {name: [float] for name in OF_LOOKS} | {"sums": {"*": [float]}}


@dataclass(frozen=True)
class AskedBefore:
    """The questions about one client in one audit."""

    folder: Path  # where a site keeps what belongs to the audit
    client: int

    def note(self, what: str, facts: Any, payload: Payload, most: int = MOST) -> None:
        """Refuse a question that differs from those before it, if there were several already."""
        path = self.folder / FILE
        kept: dict[str, list[str]] = json_of(path, {"*": [str]}) if path.exists() else {}
        key, mark = f"{self.client} {what}", mark_of(facts, payload)
        before = kept.get(key, [])
        if mark in before:
            return
        if len(before) >= most:
            raise departed(
                f"it asks '{what}' of an audit once more and otherwise, after {len(before)} different questions"
            )
        write_text(path, json.dumps(kept | {key: [*before, mark]}) + "\n")


@dataclass(frozen=True)
class LooksTold:
    """The looks that a site has told; what came since is told when it concerns enough labels."""

    folder: Path
    client: int

    @property
    def path(self) -> Path:
        return self.folder / f"{LOOKS}-{self.client}.json"

    def states(self) -> list[dict[str, Any]]:
        """What was told, the last at the end."""
        return list(json_of(self.path, {"told": [LOOKS_FORM]})["told"]) if self.path.exists() else []

    def told(self, now: LooksHere, least: int) -> Sums:
        """What is told of the looks now: the same as the last time where the difference would concern too few."""
        from fedwinnow.auditing.looks_over_sites import LooksHere, SiteLooks

        states = self.states()
        earlier = [LooksHere(*(np.array(one[name]) for name in OF_LOOKS)) for one in states]
        sums = now.told(least, earlier)
        if states:
            last = {key: np.array(value, np.float64) for key, value in states[-1]["sums"].items()}
            if SiteLooks.of(sums).looked.sum() <= SiteLooks.of(last).looked.sum():
                return last
        if not SiteLooks.of(sums).looked.any() and not sums["pairs"].any():
            return sums  # nothing is told of what was found
        state: dict[str, Any] = {"looked": now.looked.tolist(), "found": now.found.tolist()}
        state["pairs"] = sums["pairs"].tolist()  # those that were told
        state["sums"] = {key: np.asarray(value).tolist() for key, value in sums.items()}
        write_text(self.path, json.dumps({"told": [*states, state]}) + "\n")
        return sums


def mark_of(facts: Any, payload: Payload) -> str:
    """What tells one question from another, in all its numbers."""
    found = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for key in sorted(payload):
        value = payload[key].detach().cpu().contiguous()
        found.update(f"{key} {value.dtype} {tuple(value.shape)} ".encode())
        found.update(value.numpy().tobytes())
    return found.hexdigest()
