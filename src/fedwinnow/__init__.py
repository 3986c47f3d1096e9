"""fedwinnow: federated learning with noisy labels.

`run`, `load`, `sweep`, `table`, `board`, `figure`, `audit`, `update_audit`, `Experiment`, `Result`, `Scene`
and `Method` are loaded when first used, so that importing the package is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedwinnow.old_names import find_old_modules
from fedwinnow.version import __version__

if TYPE_CHECKING:
    from fedwinnow.api import load, run
    from fedwinnow.auditing.audit_from_python import audit
    from fedwinnow.auditing.update import update_audit
    from fedwinnow.experiment.play import Stop, Watcher
    from fedwinnow.experiment.result import Result
    from fedwinnow.experiment.settings import Experiment
    from fedwinnow.federation.method import Method
    from fedwinnow.scene.scene import Scene
    from fedwinnow.study.study_from_python import board, figure, sweep, table

__all__ = [
    "Experiment",
    "Method",
    "Result",
    "Scene",
    "Stop",
    "Watcher",
    "__version__",
    "audit",
    "board",
    "figure",
    "load",
    "run",
    "sweep",
    "table",
    "update_audit",
]

_HOMES = {
    "run": "fedwinnow.api",
    "load": "fedwinnow.api",
    "audit": "fedwinnow.auditing.audit_from_python",
    "update_audit": "fedwinnow.auditing.update",
    "Experiment": "fedwinnow.experiment.settings",
    "Result": "fedwinnow.experiment.result",
    "Method": "fedwinnow.federation.method",
    "Scene": "fedwinnow.scene.scene",
    "Stop": "fedwinnow.experiment.play",
    "Watcher": "fedwinnow.experiment.play",
    "figure": "fedwinnow.study.study_from_python",
    "board": "fedwinnow.study.study_from_python",
    "sweep": "fedwinnow.study.study_from_python",
    "table": "fedwinnow.study.study_from_python",
}

find_old_modules()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedwinnow' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
