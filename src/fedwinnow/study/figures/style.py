"""One style for all pictures: readable in print and for colour-blind people, drawn without a display."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwinnow.errors import missing_extra
from fedwinnow.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours: distinct for every kind of colour vision.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#7F7F7F"
CYCLE = (BLUE, RED, GREEN, ORANGE, "#CC79A7", "#56B4E9", "black")
DASHES = ("-", "--", "-.", ":")  # lines differ without colour too
MARKS = "osD^vP*X"


def line_style(place: int, lines: int) -> dict[str, Any]:
    """Colour and dashes of a line; all lines have different colours."""
    dashes = DASHES[place % len(DASHES)]
    if lines <= len(CYCLE):
        return {"color": CYCLE[place], "linestyle": dashes}
    import matplotlib

    return {"color": matplotlib.colormaps["viridis"](0.95 * place / (lines - 1)), "linestyle": dashes}


def count_rounds(axes: Axes) -> None:
    """Put ticks at whole rounds only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedwinnow",  # the same picture gives the same file
}


FOOTNOTE = ContextVar("footnote", default="")


@contextmanager
def footnote(words: str) -> Iterator[None]:
    """Small text under every picture that is drawn in the block."""
    before = FOOTNOTE.set(words)
    try:
        yield
    finally:
        FOOTNOTE.reset(before)


@contextmanager
def picture(path: Path, width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """A figure with one set of axes, saved to `path` when the block ends."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("figures", "drawing pictures") from None
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.add_subplot()
        if words := FOOTNOTE.get():
            figure.supxlabel(words, fontsize=6, color=GREY)
        metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        with replacing(path) as stream:
            figure.savefig(stream, format=path.suffix[1:], metadata=metadata)
