"""One style for all pictures: readable in print and for colour-blind people, drawn without a display."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from fedwinnow.errors import UsageError, missing_extra
from fedwinnow.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

# Okabe and Ito's colours: distinct for every kind of colour vision.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#7F7F7F"
WIDTHS = {"column": 3.5, "page": 7.16}  # inches: one column and both columns of a common two-column paper (IEEE)
MOST_IN_ONE = 4  # more runs than this have a small picture each where dots would cover each other
FONT_SIZES = (4.0, 24.0)


@dataclass(frozen=True)
class PictureLook:
    """What the user asks of every picture."""

    width: float | None = None  # in inches; None: what suits the picture
    font_size: float = 9.0

    def __post_init__(self) -> None:
        if not FONT_SIZES[0] <= self.font_size <= FONT_SIZES[1]:
            raise UsageError(f"--font-size {self.font_size:g} was given; allowed: 4 to 24 (points).")

    def size(self, width: float, height: float, square: bool) -> tuple[float, float]:
        """The size of a picture that would be this large by itself; a square one keeps its form, no one gets higher."""
        if self.width is None:
            return width, height
        return self.width, height * min(max(self.width / width, 0.0 if square else 0.7), 1.0)


LOOK: ContextVar[PictureLook | None] = ContextVar("look", default=None)


@contextmanager
def looking(look: PictureLook) -> Iterator[None]:
    """The look of every picture that is drawn in the block."""
    before = LOOK.set(look)
    try:
        yield
    finally:
        LOOK.reset(before)


def letters_in(inches: float, font_size: float) -> int:
    """How many letters of a usual line fit."""
    return max(int(inches * 72 / (0.52 * font_size)), 8)


def legend(figure: Figure, **options: Any) -> None:
    """The legend below the picture, in as many columns as fit; the picture grows by its height."""
    import matplotlib

    found: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found |= {label: handle for handle, label in zip(handles, labels, strict=True) if label not in found}
    font = float(matplotlib.rcParams["legend.fontsize"])
    width, height = figure.get_size_inches()
    most = letters_in(width - 0.2, font)
    lines = {label: wrap(label, most - 6) or [""] for label in found}
    longest = max(len(line) for label in lines.values() for line in label)
    columns = max(1, min(len(found), most // (longest + 6)))
    labels = ["\n".join(label) for label in lines.values()]
    figure.legend(found.values(), labels, frameon=False, loc="outside lower center", ncols=columns, **options)
    rows = -(-len(found) // columns) * max(map(len, lines.values()))
    figure.set_size_inches(width, height + 1.35 * font * rows / 72)


def fit_words(figure: Figure) -> None:
    """Break titles that are wider than their picture, and labels that are longer than their axis."""
    width, height = figure.get_size_inches()
    if title := figure.get_suptitle():
        text = figure.suptitle(title)
        lines = wrap_lines(title, width, text)
        text.set_text("\n".join(lines))
        height += (len(lines) - 1) * 1.2 * float(text.get_fontsize()) / 72
        figure.set_size_inches(width, height)
    figure.draw_without_rendering()  # the layout, which says how large everything is
    for axes in figure.axes:
        place = axes.get_position()
        across, up = width * place.width, height * place.height
        axes.set_title("\n".join(wrap_lines(axes.get_title(), across, axes.title)))
        axes.set_ylabel("\n".join(wrap_lines(axes.get_ylabel(), up, axes.yaxis.label)))
        axes.set_xlabel("\n".join(wrap_lines(axes.get_xlabel(), across, axes.xaxis.label)))


def wrap_lines(words: str, inches: float, text: Text) -> list[str]:
    """The lines of a title or a label, each no longer than its place."""
    most = letters_in(inches, float(text.get_fontsize()))
    return [line for part in words.split("\n") for line in wrap(part, most, break_long_words=False)]


def add_footnote(figure: Figure, words: str) -> None:
    """Small text between picture and legend, or below the picture."""
    lines = "\n".join(wrap(words, letters_in(figure.get_size_inches()[0], 6)))
    figure.set_figheight(figure.get_figheight() + 0.12 * (1 + lines.count("\n")))
    if figure.legends:
        title = figure.legends[0]
        title.set_title(lines)
        title.get_title().set(color=GREY, fontsize=6)
    elif label := figure.get_supxlabel():
        figure.supxlabel(f"{label}\n{lines}", fontsize="small")
    else:
        figure.supxlabel(lines, fontsize=6, color=GREY)


def small_pictures(figure: Figure, count: int, *, least: float = 1.5, height: float | None = None) -> list[Axes]:
    """Small pictures of the same scale for `count` runs instead of the figure's one picture."""
    width, given = figure.get_size_inches()
    for axes in list(figure.axes):
        axes.remove()
    rows = -(-count // max(1, min(count, int(width / least))))
    columns = -(-count // rows)
    figure.set_size_inches(width, max(given, rows * (height or width / columns) + 0.7))
    frames = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for place, frame in enumerate(frames.flat):
        frame.set_visible(place < count)
        if place < count and place + columns >= count:  # the last one of its column has the numbers
            frame.tick_params(labelbottom=True)
    return list(frames.flat[:count])


def name_panel(axes: Axes, name: str) -> None:
    """The name of a run over its small picture."""
    axes.set_title(name, fontsize="small", pad=3)


def count_rounds(axes: Axes) -> None:
    """Put ticks at whole rounds only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


SETTINGS: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedwinnow",  # the same picture gives the same file
}


FOOTNOTE = ContextVar("footnote", default="")
KEPT: ContextVar[list[Any] | None] = ContextVar("kept", default=None)  # where a program keeps figures, instead of files


@contextmanager
def footnote(words: str) -> Iterator[None]:
    """Small text under every picture that is drawn in the block."""
    before = FOOTNOTE.set(words)
    try:
        yield
    finally:
        FOOTNOTE.reset(before)


@contextmanager
def picture(path: Path, width: float, height: float, *, square: bool = False) -> Iterator[tuple[Figure, Axes]]:
    """A figure with one set of axes, saved to `path` when the block ends."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("figures", "drawing pictures") from None
    look = LOOK.get() or PictureLook()
    sizes = {"font.size": look.font_size, "axes.titlesize": look.font_size + 1, "figure.titlesize": look.font_size + 1}
    small = {"legend.fontsize": look.font_size - 1, "xtick.labelsize": look.font_size - 1}
    with matplotlib.rc_context(SETTINGS | sizes | small | {"ytick.labelsize": look.font_size - 1}):
        figure = Figure(figsize=look.size(width, height, square), layout="constrained")
        yield figure, figure.add_subplot()
        if words := FOOTNOTE.get():
            add_footnote(figure, words)
        fit_words(figure)
        if (kept := KEPT.get()) is not None:
            kept.append(figure)
            return
        metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        with replacing(path) as stream:
            figure.savefig(stream, format=path.suffix[1:], metadata=metadata)
