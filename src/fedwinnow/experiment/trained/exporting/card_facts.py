"""What a model card says of a run, read from its folder: nothing of single samples, no names of sites, no folders."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fedwinnow.data.source_files import read_npz
from fedwinnow.errors import DataError
from fedwinnow.experiment.evaluation import SCORES
from fedwinnow.experiment.report.run_report import ledger_rows, method_of
from fedwinnow.experiment.run_folder import FREE_TO_CHANGE, RunFolder, flatten
from fedwinnow.experiment.trained.exporting.bare_names import bare, last_name
from fedwinnow.experiment.trained.exporting.config_file import joining_rule, model_name
from fedwinnow.experiment.trained.trained_model import TrainedModel
from fedwinnow.options import parse_spec
from fedwinnow.randomness import Floats
from fedwinnow.scene.scene import Scene
from fedwinnow.version import __version__

AVERAGED = 10  # rounds
FEWEST_SITES = 3  # a range over fewer sites would tell the figure of each
SWEEP = "sweep.json"  # in the folder of a sweep, a few levels above its runs


def collect(run: RunFolder, trained: TrainedModel, format: str, checked: dict[str, Any]) -> dict[str, Any]:
    """The facts of the card."""
    config, summary = run.settings(), run.read_json("summary.json")
    environment = run.read_json("environment.json") or {}
    scene = Scene.load(run.path)
    said = method_of(config, environment)
    return {
        "format": format,
        "version": __version__,
        "torch": torch.__version__.partition("+")[0],
        "trained_with": environment.get("fedwinnow", "an unknown version"),
        "method": {**said, "name": last_name(said["name"]), "options": options_of(trained)},
        "model": model_name(trained.spec),
        "models": len(trained.models),
        "join": joining_rule(trained),
        "own_model": trained.site is not None,
        "by_batch": trained.by_batch,
        "parameters": sum(model.trainable for model in trained.models),
        "data": data_facts(scene) | {"took_part": took_part(run.rounds())},
        "federated": summary.get("federated", True),
        "cheats": summary.get("cheats", False),
        "rounds": summary.get("rounds"),
        "seed": summary["seed"],
        "noise": noise_facts(run, scene),
        "scores": score_facts(run.rounds(), summary),
        "seeds": seed_facts(run),
        "classes": class_facts(scene, summary),
        "test_samples": sum(map(sum, (summary.get("test") or {}).get("confusion") or [])),
        "ledger": (ledger_rows(run.read_json("ledger.json")) or {"keys": []})["keys"],
        "command": shlex.join(map(bare, environment.get("command") or [])),
        "checked": checked,
    }


def options_of(trained: TrainedModel) -> dict[str, str]:
    """The options of the method that differ from their defaults."""
    return {key: last_name(value) for key, value in parse_spec(str(trained.method))[1].items()}


def took_part(rounds: list[dict[str, Any]]) -> int:
    """How many sites took part in a round."""
    return len({number for row in rounds for number in row.get("participants", [])})


def data_facts(scene: Scene) -> dict[str, Any]:
    """The data as a whole."""
    return {
        "name": last_name(scene.data.name),
        "samples": len(scene.given),
        "sites": int((scene.holdings.sizes > 0).sum()),
        "partition": bare(scene.partition),
        "noise": bare(scene.noise),
        "hash": scene.hash,
    }


def noise_facts(run: RunFolder, scene: Scene) -> dict[str, Any]:
    """How many labels the method calls wrong, for all sites together and as a range over them."""
    rate = scene.realised_rate
    found: dict[str, Any] = {"realised": None if np.isnan(rate) else rate, "called": None, "lowest": None}
    path = run.path / "verdicts.npz"
    if not path.exists():
        return found
    p_wrong = read_npz(path, ("p_wrong",)).get("p_wrong")
    if p_wrong is None or p_wrong.shape != scene.given.shape:
        raise DataError(f"{path}: not the verdicts on the {len(scene.given)} labels of this run. Restore the file.")
    judged = ~np.isnan(p_wrong)
    if not judged.any():
        return found
    found["called"] = float((p_wrong[judged] > 0.5).mean())
    shares = shares_of_sites(p_wrong > 0.5, judged, scene)
    if len(shares) >= FEWEST_SITES:
        found |= {"lowest": float(shares.min()), "highest": float(shares.max())}
    return found


def shares_of_sites(called: Any, judged: Any, scene: Scene) -> Floats:
    """The share of labels that were called wrong, of each site with verdicts."""
    client, sites = scene.holdings.client, scene.clients
    counts = np.bincount(client, weights=judged, minlength=sites)
    calls = np.bincount(client, weights=called & judged, minlength=sites)
    shares: Floats = calls[counts > 0] / counts[counts > 0]
    return shares


def score_facts(rounds: list[dict[str, Any]], summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each score: after the last round, and mean and deviation of the last ten measured rounds."""
    found = []
    for name in SCORES:
        values = [row[name] for row in rounds if row.get(name) is not None][-AVERAGED:]
        last = (summary.get("last") or {}).get(name)
        if last is not None:
            deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
            mean = float(np.mean(values)) if values else None
            found.append({"name": name, "last": last, "mean": mean, "deviation": deviation, "rounds": len(values)})
    return found


def seed_facts(run: RunFolder) -> dict[str, Any] | None:
    """Mean and deviation of the last-ten accuracy over the runs of a sweep that differ in the seed only."""
    wanted = without_seed(run)
    found: dict[int, float] = {}
    for other in runs_of_sweep(run):
        try:
            summary = other.read_json("summary.json")
            if summary is None or summary["status"] != "finished" or without_seed(other) != wanted:
                continue
        except DataError:
            continue  # a damaged neighbour says nothing about this run
        accuracy = (summary.get("last10") or {}).get("accuracy")
        if accuracy is not None:
            found[summary["seed"]] = accuracy
    if len(found) < 2:
        return None
    values = list(found.values())
    return {"count": len(values), "mean": float(np.mean(values)), "deviation": float(np.std(values, ddof=1))}


def runs_of_sweep(run: RunFolder) -> Iterator[RunFolder]:
    """All runs of the sweep that a run belongs to; none if it belongs to none."""
    place = run.path.resolve()
    for folder in list(place.parents)[:3]:
        if (folder / SWEEP).is_file():
            yield from (RunFolder(path.parent) for path in sorted(folder.rglob("config.toml")))
            return


def without_seed(run: RunFolder) -> dict[str, Any]:
    """The settings of a run but its seed, and the scene, which follows from the seed."""
    free = {"seed", *FREE_TO_CHANGE} - {"rounds"}
    return {key: value for key, value in flatten(run.settings()).items() if key not in free}


def class_facts(scene: Scene, summary: dict[str, Any]) -> dict[str, Any]:
    """Which classes no training label had, and how many samples of each class the model recognises in the test."""
    known = scene.given[scene.given >= 0]
    counts = np.bincount(known, minlength=scene.classes)
    unseen = [name for name, count in zip(scene.data.class_names, counts, strict=True) if count == 0]
    recalls = (summary.get("test") or {}).get("per_class_recall") or [None] * scene.classes
    return {
        "unseen": unseen if len(known) else None,
        "recall": list(zip(scene.data.class_names, recalls, strict=True)),
    }
