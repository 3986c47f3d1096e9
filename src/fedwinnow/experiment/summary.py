"""The numbers of a run: the last round, the last ten and the best, the cost, and where it ran."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import math
import platform
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedwinnow.data.dataset import Dataset
from fedwinnow.device import peak_memory
from fedwinnow.experiment.evaluation import SCORES, OwnTest
from fedwinnow.experiment.prepare import Stage
from fedwinnow.experiment.summing import sums_in_summary
from fedwinnow.federation.method import OWN_METHOD, Method
from fedwinnow.metrics.task import mean_of
from fedwinnow.options import Part
from fedwinnow.randomness import Floats
from fedwinnow.scene.scene import Scene, or_null
from fedwinnow.version import __version__

ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")  # how Python prints the address of an object


def summarise(
    stage: Stage,
    rounds: list[dict[str, Any]],
    costs: dict[str, float],
    status: str,
    final: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """summary.json; a figure that cannot be computed is null."""
    measured = [row for row in rounds if row.get("accuracy") is not None]
    scene, final = stage.scene, final or {}
    test = final.get("test")
    last = None if test is None else {**{name: test[name] for name in SCORES}, "round": len(rounds)}
    summary: dict[str, Any] = {
        "status": status,
        "rounds": len(rounds),
        "seed": stage.experiment.seed,
        "method": str(stage.method),
        "cheats": "truth" in stage.method.needs,
        "federated": "pooled_data" not in stage.method.needs,
        "scene": {
            "hash": scene.hash,
            "nominal_rate": or_null(scene.nominal_rate),
            "realised_rate": or_null(scene.realised_rate),
        },
        "set_aside": stage.aside.facts,
        **picked(measured, last),
    }
    if stage.experiment.validation > 0:
        summary["validation"] = scores_of(first_best(measured, "validation_accuracy"))  # its test scores count
    summary["test"] = None if test is None else {k: v for k, v in test.items() if k not in SCORES}
    summary["detection"] = final.get("detection")
    summary["memorisation"] = final.get("memorisation")
    if "own_test" in final:
        summary["own_test"] = final["own_test"]
    if stage.experiment.secure_sums:
        summary["secure_sums"] = sums_in_summary(stage, rounds)
    if "stopped_early" in final:
        summary["stopped_early"] = final["stopped_early"]
    if stage.absent:
        summary["absent"] = list(stage.absent)
    if ended := [name for row in rounds for name in row.get("ended", ())]:
        summary["ended"] = ended
    if final.get("silent"):
        summary["silent"] = final["silent"]
    seconds = round(sum(row["seconds"] + row["evaluation_seconds"] for row in rounds), 3)
    whole = {key: int(value) for key, value in costs.items()}
    summary["cost"] = {**whole, "seconds": seconds, "peak_memory_mb": peak_memory()}
    return summary


def picked(measured: list[dict[str, Any]], last: dict[str, Any] | None) -> dict[str, Any]:
    """The scores of the last round, the last ten and the best; if no round was measured, those at the end."""
    if not measured:
        return dict.fromkeys(("last", "last10", "best"), last or scores_of([]))
    return {
        "last": last or scores_of(measured[-1:]),
        "last10": scores_of(measured[-10:]),
        "best": scores_of(first_best(measured, "accuracy")),
    }


def first_best(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The first round with the best value of a figure, as a list; empty if no round has the figure."""
    return sorted((row for row in rows if row.get(name) is not None), key=lambda row: -row[name])[:1]


def scores_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean scores of these rounds; None without rounds."""
    if not rows:
        return {**dict.fromkeys(SCORES), "round": None}
    means: dict[str, Any] = {name: float(np.mean([row[name] for row in rows])) for name in SCORES}
    return {**means, "round": rows[-1]["round"]}


def clients_table(stage: Stage, estimated: Floats, rounds: list[dict[str, Any]]) -> str:
    """clients.csv: samples, true and estimated noise rate of each site, and how often it took part."""
    scene = stage.scene
    visits = np.bincount(
        np.array([client for row in rounds for client in row["participants"]], int), minlength=scene.clients
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["site", "samples", "kind", "nominal_rate", "realised_rate", "estimated_rate", "visits"])
    for number, name in enumerate(scene.site_names):
        rates = [scene.nominal[number], scene.realised[number], estimated[number]]
        cells = ["" if math.isnan(rate) else f"{rate:.6g}" for rate in rates]
        writer.writerow([name, int(scene.holdings.sizes[number]), scene.kinds[number], *cells, int(visits[number])])
    return text.getvalue()


def own_test_table(stage: Stage, own: OwnTest) -> str:
    """own_test.csv: how good the model that each site would use is on the site's own test part."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["site", "part", "test_rows", "accuracy", "balanced_accuracy"])
    for site in own.asked:
        cells = ["" if math.isnan(figure) else f"{figure:.6g}" for figure in (own.accuracy[site], own.balanced[site])]
        writer.writerow([stage.scene.site_names[site], own.part, int(own.rows[site]), *cells])
    return text.getvalue()


def own_test_means(stage: Stage, own: OwnTest) -> dict[str, Any]:
    """The means over the sites with a figure, and the site with the lowest accuracy."""
    stated = [site for site in own.asked if not math.isnan(own.accuracy[site])]
    worst = min(stated, key=lambda site: float(own.accuracy[site]), default=None)
    return {
        "part": own.part,
        "sites": len(stated),
        "sites_without_figure": len(own.asked) - len(stated),
        "accuracy": mean_of(float(own.accuracy[site]) for site in stated),
        "balanced_accuracy": mean_of(float(own.balanced[site]) for site in stated),
        "worst_site": None if worst is None else stage.scene.site_names[worst],
        "worst_accuracy": None if worst is None else float(own.accuracy[worst]),
    }


def config_of(stage: Stage) -> dict[str, Any]:
    """config.toml: every setting with its final value; a setting without a value is left out."""
    config: dict[str, Any] = {}
    for field in dataclasses.fields(stage.experiment):
        value = getattr(stage.experiment, field.name)
        if field.name in ("data", "partition", "noise", "clients"):
            continue  # taken from the scene below
        if field.name == "public" and value is not None:
            value = str(value)  # on the command line a number is a text
        if isinstance(value, Scene):
            continue  # the run folder has it
        if field.name in ("scene", "start") and value is not None:
            value = Path(value)  # a program may give a text
        if value is not None:
            config[field.name] = plain(value.resolve() if isinstance(value, Path) else value)
    scene = stage.scene
    config |= {
        "data": scene.data.source or scene.data.name,
        "clients": scene.clients,
        "partition": scene.partition,
        "noise": scene.noise,
        "method": {"kind": origin(stage.method), **{k: plain(v) for k, v in stage.method.values().items()}},
    }
    return config


def origin(method: Method) -> str:
    """The name of the method, or the path of the user's file that defines it."""
    home = type(method).__module__
    return str(sys.modules[home].__file__) if home.startswith(OWN_METHOD) else method.name


def plain(value: Any) -> Any:
    """A value that TOML can hold."""
    if isinstance(value, bool | int | float | str):
        return value
    if value is None:
        return "none"
    if isinstance(value, Part | dict):
        return str(value)
    if isinstance(value, Dataset):
        return value.name
    if isinstance(value, Scene):
        return f"{value.data.name}-{value.hash[:8]}"
    if isinstance(value, list | tuple):
        return ", ".join(str(plain(one)) for one in value)
    if isinstance(value, functools.partial):
        return f"partial of {plain(value.func)}"
    text = str(getattr(value, "__name__", None) or value)
    return type(value).__name__ if ADDRESS.search(text) else text


def environment(stage: Stage, backend: str, device: str | None) -> dict[str, Any]:
    """environment.json: versions, machine and command; the command is null for a run from Python."""
    from importlib.metadata import version

    from fedwinnow.device import choose_device, settings_in_force

    chosen = choose_device(device)
    packages = ("torch", "numpy", "scipy", "safetensors")
    return {
        "fedwinnow": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.machine(),
        "packages": {name: version(name) for name in packages},
        "backend": backend,
        "device": str(chosen),
        **({"device_settings": settings_in_force(chosen)} if chosen.type == "cuda" else {}),
        "command": ["fedwinnow", *sys.argv[1:]] if from_command_line(Path(sys.argv[0])) else None,
        "method": {"summary": first_line(stage.method.__doc__), "citation": stage.method.citation},
    }


def first_line(text: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


def from_command_line(program: Path) -> bool:
    """Whether this process is the command, as `fedwinnow` or as `python -m fedwinnow`."""
    return program.stem == "fedwinnow" or (program.name == "__main__.py" and program.parent.name == "fedwinnow")
