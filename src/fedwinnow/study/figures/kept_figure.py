"""Any picture as a figure of matplotlib, for programs and notebooks, without a file."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwinnow.errors import DataError, unknown
from fedwinnow.scene.scene import Scene
from fedwinnow.study.figures import scene_pictures
from fedwinnow.study.figures.gallery import draw
from fedwinnow.study.figures.style import KEPT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_SCENES = {
    "partition": scene_pictures.draw_bubbles,
    "rates": scene_pictures.draw_rates,
    "transitions": scene_pictures.draw_transitions,
}
NOWHERE = Path("kept.svg")  # the drawing functions want a file; nothing is written to it


def figure_of(name: str, of: Scene | Iterable[str | Path], **options: Any) -> Figure:
    """The figure that a picture is drawn into, of a scene or of run folders."""
    kept: list[Figure] = []
    before = KEPT.set(kept)
    try:
        if isinstance(of, Scene):
            if name not in OF_SCENES:
                raise unknown("figure of a scene", name, OF_SCENES)
            if name == "transitions" and of.true is None:
                raise DataError("the true labels of this scene are unknown, so it has no transitions.")
            OF_SCENES[name](of, NOWHERE)
        else:
            draw(name, of, NOWHERE, **options)
    finally:
        KEPT.reset(before)
    figure = kept[-1]
    figure._repr_png_ = lambda: as_png(figure)  # type: ignore[attr-defined]  # a notebook shows it without pyplot
    return figure


def as_png(figure: Figure) -> bytes:
    """The picture as the content of a file."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=100)
    return stream.getvalue()
