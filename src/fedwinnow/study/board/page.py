"""board.html: all runs of a folder on one page with everything in it, which needs no server and no internet."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fedwinnow.errors import DataError
from fedwinnow.experiment.report.templates import render
from fedwinnow.files import write_text
from fedwinnow.study.board.runs_found import NUMBERS, Run, as_script, runs_in
from fedwinnow.study.method_styles import method_styles

HOME = Path(__file__).parent
NAME = "board.html"
STROKES = {"-": "", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}  # matplotlib's dashes, for SVG


@dataclass(frozen=True)
class Board:
    """A board that was written."""

    path: Path
    runs: tuple[Run, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many runs there are by state, the most frequent state first."""
        states = [run["status"] for run in self.runs]
        return {state: states.count(state) for state in sorted(set(states), key=lambda one: (-states.count(one), one))}


def write_board(folder: str | Path) -> Board:
    """Write board.html of a folder; the same runs give the same file."""
    home = Path(folder)
    if not home.is_dir():
        reason = "it is a file" if home.exists() else "there is no such folder"
        raise DataError(f"{home}: {reason}. Allowed: a folder with runs or sweeps, for example runs or sweeps/first.")
    runs = runs_in(home)
    if not runs:
        raise DataError(
            f"{home}: no run in there (no folder has a config.toml). Allowed: a folder with runs or sweeps; "
            "`fedwinnow run` and `fedwinnow sweep` make them."
        )
    write_text(home / NAME, page_of(runs, readable(home.resolve().name)))
    return Board(home / NAME, tuple(runs))


def readable(name: str) -> str:
    """The name of a folder; letters that are no text become question marks."""
    return name.encode("utf-8", "replace").decode()


def page_of(runs: list[Run], name: str) -> str:
    """The page as a text; its policy allows its own script and style alone, and no request at all."""
    css, script = ((HOME / file).read_text(encoding="utf-8") for file in ("board.css", "board.js"))
    content = {
        "name": name,
        "css": css,
        "script": script,
        "css_hash": hash_for_policy(css),
        "script_hash": hash_for_policy(script),
        "data": as_script({"runs": runs, "looks": looks_of(runs), "numbers": list(NUMBERS)}),
    }
    return render(HOME / "board.html", content)


def looks_of(runs: list[Run]) -> dict[str, dict[str, str]]:
    """Colour and dashes of every method; with several scenes the page takes the dashes for these."""
    styles = method_styles(run["row"] for run in runs)
    looks = {row: {"colour": style.colour, "dashes": STROKES[style.dashes]} for row, style in styles.items()}
    return looks | {"": {"colour": "#7F7F7F", "dashes": ""}}


def hash_for_policy(text: str) -> str:
    """A text's hash as a content security policy names it."""
    return base64.b64encode(sha256(text.encode()).digest()).decode()
