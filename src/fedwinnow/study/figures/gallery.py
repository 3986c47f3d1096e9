"""Every picture of runs by name."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedwinnow.errors import FedwinnowWarning, UsageError, unknown
from fedwinnow.study.run_records import finished, outdated_words, read_records

if TYPE_CHECKING:
    from fedwinnow.study.figures.run_view import View

# name -> (module and function, one line, options it takes)
PICTURES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "curves": ("lines:draw_curves", "accuracy, or another --column of rounds.jsonl, by round", ("column",)),
    "memorisation": ("lines:draw_memorisation", "wrong labels that are memorised, by round (--memorisation-every)", ()),
    "stability": ("lines:draw_stability", "distance of the trained models from the global one, by round", ()),
    "sensitivity": ("lines:draw_sensitivity", "accuracy against an --option of the method", ("option",)),
    "detection": ("lines:draw_detection", "noisy clients found, by round of the first stage (fednoro)", ()),
    "losses": ("samples:draw_losses", "losses of right and wrong labels with the two Gaussians", ("client",)),
    "clean-probability": ("samples:draw_clean_probability", "probability of a right label, by loss", ("client",)),
    "confusion": ("samples:draw_confusion", "true class against label, before and after", ("client",)),
    "f-scores": ("samples:draw_f_scores", "how well right labels were found, by client", ()),
    "identification": ("samples:draw_identification", "samples rightly called right or wrong, by client", ()),
    "estimates": ("clients:draw_estimates", "estimated against realised noise rates, with Pearson's r", ()),
    "quality": ("clients:draw_quality", "data quality of the clients, true and estimated (fedes)", ()),
    "similarity": ("clients:draw_similarity", "similarity of the clients' models (fedrn)", ()),
    "memorised-map": ("clients:draw_memorised_map", "memorised by local beyond global, by client and round", ()),
    "expertise": ("clients:draw_expertise", "how many given labels the model fits, by noise rate of the client", ()),
    "local-accuracy": ("clients:draw_local_accuracy", "test accuracy of each client's model, cleanest first", ()),
    "partition": ("scene_pictures:draw_bubbles", "who holds which class", ()),
    "rates": ("scene_pictures:draw_rates", "how wrong each client is", ()),
    "transitions": ("scene_pictures:draw_transitions", "what the wrong labels became", ()),
}

OF_ONE_RUN = {"losses", "confusion", "similarity", "memorised-map", "detection"}
OF_ONE_SCENE = {"partition", "rates", "transitions"}


def draw(
    name: str,
    places: Iterable[str | Path],
    path: Path,
    *,
    width: Literal["column", "page"] | None = None,
    font_size: float | None = None,
    order: Sequence[str] = (),
    **options: Any,
) -> Path:
    """Draw one picture of these run folders into a file that ends in .png, .svg or .pdf."""
    from fedwinnow.study.figures.run_view import View, in_order
    from fedwinnow.study.figures.style import WIDTHS, PictureLook, footnote, looking

    if name not in PICTURES:
        problem = unknown("figure", name, PICTURES)
        swapped = " The name of the picture comes first, then the folders." if Path(name).exists() else ""
        raise UsageError(f"{problem}{swapped}")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--out {path} was given; allowed: a file that ends in .png, .svg or .pdf.")
    home, _, allowed = PICTURES[name]
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if key not in allowed:
            takes = ", ".join(f"--{one}" for one in allowed) or "none of these options"
            raise UsageError(f"--{key} {given[key]} was given, but figure {name} takes {takes}. Leave it out.")
    module, _, function = home.partition(":")
    drawing = getattr(importlib.import_module(f"fedwinnow.study.figures.{module}"), function)
    records = finished(read_records(places))
    views = in_order([View(record) for record in records], order)
    tell_of_one(name, views)
    look = PictureLook(None if width is None else WIDTHS[width], usual_font(width) if font_size is None else font_size)
    if name == "sensitivity":
        given.setdefault("option", "")
    with looking(look), footnote("" if module == "scene_pictures" else " ".join(outdated_words(records))):
        made: Path = drawing(views[0].scene if module == "scene_pictures" else views, path, **given)
    return made


def tell_of_one(name: str, views: Sequence[View]) -> None:
    """Say which of several runs is shown, where a picture is of one."""
    scenes = {view.record.scene for view in views}
    if (name in OF_ONE_RUN and len(views) > 1) or (name in OF_ONE_SCENE and len(scenes) > 1):
        what = f"one run, the first of {len(views)}" if name in OF_ONE_RUN else f"one scene, the first of {len(scenes)}"
        first = views[0]
        warnings.warn(
            f"figure {name} shows {what}: {first.label}, in {first.record.folder}. Name the folder of the run that you "
            "mean.",
            FedwinnowWarning,
            stacklevel=2,
        )


def usual_font(width: str | None) -> float:
    """The font size without --font-size: 8 points in a column, otherwise 9."""
    return 8.0 if width == "column" else 9.0
