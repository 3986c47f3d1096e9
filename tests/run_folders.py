"""Run folders written by hand: as much of one as a table reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomli_w

from fedwinnow import files


def write_run(folder: Path, method: str, seed: int, accuracy: float | None, **changes: Any) -> Path:
    """A run that reached this accuracy; `status`, `cheats`, `federated`, `hash` and `auroc` go to the summary."""
    facts = {"status": "finished", "cheats": False, "federated": True, "hash": f"scene{seed}", "auroc": 0.5}
    facts |= {key: changes.pop(key) for key in list(changes) if key in facts}
    config = {"data": "digits", "clients": 4, "partition": "iid", "noise": "none", "views": "none", "rounds": 3}
    config |= changes | {"seed": seed, "method": {"kind": method}}
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    summary = {name: facts[name] for name in ("status", "cheats", "federated")}
    summary |= {"seed": seed, "method": method, "scene": {"hash": facts["hash"]}}
    summary |= {pick: {"accuracy": accuracy} for pick in ("last10", "last", "best")}
    summary["detection"] = {"samples": {"auroc": facts["auroc"]}}
    (folder / "summary.json").write_text(json.dumps(summary))
    made = {"format": 1, "fedwinnow": {"source": files.package_source()}, "code": {}, "data": {}}
    (folder / "identity.json").write_text(json.dumps(made))
    return folder


def write_runs(place: Path, values: dict[str, list[float]], **changes: Any) -> Path:
    """For every method one run per seed."""
    for method, accuracies in values.items():
        for seed, accuracy in enumerate(accuracies):
            name = "-".join([method, str(seed), *map(str, changes.values())])
            write_run(place / name, method, seed, accuracy, **changes)
    return place
