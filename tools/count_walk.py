"""Through how many files and functions of ours a round and an audit lead: `python tools/count_walk.py [round|audit]`.

A round is one of FedDiv with one client, its evaluation and its checkpoint; an audit is the whole command. What runs
while a module is imported does not count.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import fedwinnow
from fedwinnow.cli import dispatch
from fedwinnow.experiment import play
from fedwinnow.experiment.play import Player

ROOT = str(Path(fedwinnow.__file__).parent)
COUNTED = 8  # the round that is counted: the first seven may be FedDiv's warm-up
FUNCTION = 1  # the flag of code that a function has, and a class body or a module has not

Walk = dict[str, set[str]]


def watched(action: Callable[[], Any]) -> Walk:
    """The functions of ours that an action calls, by file."""
    seen: Walk = defaultdict(set)

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & FUNCTION and code.co_filename.startswith(ROOT):
            seen[code.co_filename[len(ROOT) + 1 :]].add(code.co_qualname)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return {name: functions for name, functions in seen.items() if name.endswith(".py")}


def round_walk() -> Walk:
    """One round of FedDiv with one client."""
    found: Walk = {}
    usual, apart = Player.one_round, play.APART

    def one_round(player: Player, number: int) -> None:
        if number == COUNTED:
            found.update(watched(lambda: usual(player, number)))
        else:
            usual(player, number)

    Player.one_round = one_round  # type: ignore[method-assign]
    play.APART = 0.0  # a checkpoint in every round, however long the last one is ago
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings: dict[str, Any] = {"clients": 1, "participation": 1.0, "rounds": COUNTED + 1, "epochs": 1}
            settings |= {"data": "digits:train=200", "noise": "constant:rate=0.3", "method": "feddiv:passes=2"}
            fedwinnow.run(out=Path(folder) / "run", **settings)
    finally:
        Player.one_round = usual  # type: ignore[method-assign]
        play.APART = apart
    return found


def audit_walk() -> Walk:
    """The command `fedwinnow audit`, from its words to the reports."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["audit", "--data", "digits:train=200", "--clients", "3", "--rounds", "2", "--epochs", "1", "--quiet"]
        return watched(lambda: dispatch([*words, "--out", f"{folder}/audit"]))


WALKS = {"round": round_walk, "audit": audit_walk}

if __name__ == "__main__":
    for name in sys.argv[1:] or WALKS:
        walk = WALKS[name]()
        print(f"{name}: {len(walk)} files, {sum(len(functions) for functions in walk.values())} functions")
        for file, functions in sorted(walk.items()):
            print(f"  {file:<42} {len(functions):3}  {', '.join(sorted(functions))[:110]}")
