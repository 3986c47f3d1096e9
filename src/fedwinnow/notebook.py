"""What a notebook shows: small tables, and a line of text that changes while work goes on."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

MOST_ROWS = 20  # of a table; a notebook is no place for a thousand clients


def in_notebook() -> bool:
    """Whether this is a notebook, which shows HTML; a terminal with IPython is none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else getattr(ipython, "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def html_table(
    heads: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", notes: Sequence[str] = ()
) -> str:
    """A table as HTML without styles, so that it follows those of the notebook; long ones are cut, which is said.

    A cell between ** and ** is bold, as in Markdown.
    """
    cells = [tuple(map(str, row)) for row in rows]
    left = len(cells) - MOST_ROWS
    told = [*notes, *([f"... and {left} more"] if left > 0 else [])]
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{bold(cell)}</td>" for cell in row) + "</tr>" for row in cells[:MOST_ROWS])
    above = f"<div><b>{escape(caption)}</b></div>" if caption else ""
    below = "".join(f"<div>{escape(note)}</div>" for note in told)
    return f"{above}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def bold(cell: str) -> str:
    """A cell, escaped, and bold if it asks for it."""
    marked = len(cell) > 4 and cell.startswith("**") and cell.endswith("**")
    return f"<b>{escape(cell[2:-2])}</b>" if marked else escape(cell)


def percent(value: float | None) -> str:
    """A share as per cent; a dash where it is not known."""
    return "–" if value is None or value != value else f"{100 * value:.2f} %"


def line_of_text(wanted: bool | None) -> Callable[[str], None] | None:
    """A function that shows a line in the place of the line before; None where nothing is shown.

    None shows it in notebooks only, True also in a terminal.
    """
    if wanted is False or (wanted is None and not in_notebook()):
        return None
    if in_notebook():
        from IPython.display import HTML, display  # type: ignore[import-not-found,unused-ignore]

        handle = display(HTML(""), display_id=True)
        return lambda text: handle.update(HTML(f"<code>{escape(text)}</code>"))
    return lambda text: print(f"\r{text:<78.78}", end="", file=sys.stderr, flush=True)


def figure_of(name: str, of: Any, **options: Any) -> Any:
    """`fedwinnow.figure`, for runs and scenes, which do not know what is drawn of them: found by its name."""
    return importlib.import_module("fedwinnow.study.study_from_python").figure(name, of, **options)
