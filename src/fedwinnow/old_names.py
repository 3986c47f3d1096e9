"""Names of version 0.1 in users' commands, config files and programs: in version 0.2 they work, with a warning.

Each name warns once per process. Version 0.3 removes this file.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Container, Mapping
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fedwinnow.errors import FedwinnowWarning

COMMANDS = {"judgements": "judges"}
SETTINGS = {"judgement": "judge"}  # flags of `audit`, and keywords of `fedwinnow.audit`
GROUPS = {"fedwinnow.judges": "fedwinnow.judgements"}  # entry point groups of other packages: the new and the old name

# Modules that a user's own method, tracker, model or Flower app may import. A folder includes all its modules.
MODULES = {
    "fedwinnow.auditing.python": "fedwinnow.auditing.audit_from_python",
    "fedwinnow.backends.flower_app": "fedwinnow.deployment.flower_app",
    "fedwinnow.federation.flat": "fedwinnow.mathematics.payload",
    "fedwinnow.federation.payload": "fedwinnow.mathematics.payload",
    "fedwinnow.models.layers": "fedwinnow.models.model",
    "fedwinnow.study.front": "fedwinnow.study.study_from_python",
    "fedwinnow.trackers": "fedwinnow.experiment.trackers",
    "fedwinnow.parts": "fedwinnow.mathematics",
    "fedwinnow.parts.aggregate": "fedwinnow.mathematics.aggregators",
    "fedwinnow.parts.augment": "fedwinnow.mathematics.views",
    "fedwinnow.parts.lid": "fedwinnow.mathematics.intrinsic_dimension",
    "fedwinnow.parts.mixture": "fedwinnow.mathematics.gaussian_mixture",
    "fedwinnow.parts.contributions": "fedwinnow.steps.contributions",
    "fedwinnow.parts.distances": "fedwinnow.methods.fednoro",
    "fedwinnow.parts.criticality": "fedwinnow.steps.criticality",
    "fedwinnow.parts.history": "fedwinnow.steps.site_labels",
    "fedwinnow.parts.mixmatch": "fedwinnow.methods.dividemix",
    "fedwinnow.parts.passes": "fedwinnow.steps.stages",
    "fedwinnow.parts.regularise": "fedwinnow.steps.regularisers",
    "fedwinnow.parts.relabel": "fedwinnow.steps.site_labels",
    "fedwinnow.parts.replies": "fedwinnow.steps.stages",
    "fedwinnow.parts.sample_losses": "fedwinnow.steps.site_labels",
    "fedwinnow.parts.second_model": "fedwinnow.steps.second_model",
    "fedwinnow.parts.warm_up": "fedwinnow.steps.stages",
    "fedwinnow.parts.centroids": "fedwinnow.methods.rofl",
    "fedwinnow.parts.class_rates": "fedwinnow.methods.winnow",
    "fedwinnow.parts.flips": "fedwinnow.methods.winnow",
    "fedwinnow.parts.head": "fedwinnow.methods.fedrn",
    "fedwinnow.parts.mild_views": "fedwinnow.methods.fedlsr",
    "fedwinnow.parts.moving_average": "fedwinnow.methods.fedgr",
    "fedwinnow.parts.shared_mixture": "fedwinnow.methods.winnow",
}

FOLDERS = ("fedwinnow.parts", "fedwinnow.trackers")


@cache
def warn_of_old_name(old: str, new: str) -> None:
    """Warn once that a name has changed."""
    warnings.warn(f"{old} is now {new}; the old name goes with version 0.3.", FedwinnowWarning, stacklevel=3)


def new_command(words: list[str]) -> list[str]:
    """The words of a command line with the new name of the command."""
    if not words or words[0] not in COMMANDS:
        return words
    warn_of_old_name(f"fedwinnow {words[0]}", f"fedwinnow {COMMANDS[words[0]]}")
    return [COMMANDS[words[0]], *words[1:]]


def new_flags(words: list[str], known: Container[str]) -> list[str]:
    """The flags with their new names, if the command has them; `--judgement=mean` keeps its value."""
    found = []
    for word in words:
        flag, equals, value = word.partition("=")
        new = SETTINGS.get(flag.removeprefix("--"), "") if flag.startswith("--") else ""
        if new in known:
            warn_of_old_name(flag, f"--{new}")
            word = f"--{new}{equals}{value}"
        found.append(word)
    return found


def new_keywords(given: Mapping[str, Any], known: Container[str]) -> dict[str, Any]:
    """The keywords of a call by today's names, where the function knows the new one."""
    found = {}
    for name, value in given.items():
        new = SETTINGS.get(name, "")
        if new in known:
            warn_of_old_name(name, new)
        found[new if new in known else name] = value
    return found


def new_module(name: str) -> str | None:
    """The new name of a module of version 0.1; None if the name did not change, or the module is gone."""
    if name in MODULES:
        return MODULES[name]
    folder, _, module = name.rpartition(".")
    if folder not in FOLDERS:
        return None
    new = f"{MODULES[folder]}.{module}"
    return new if os.path.exists(os.path.join(os.path.dirname(__file__), *new.split(".")[1:]) + ".py") else None


class OldModules:
    """Finds modules by their old names; it comes before Python's own finders, because some old folders are gone."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The import spec for an old name; None for other names."""
        if not name.startswith("fedwinnow.") or new_module(name) is None:
            return None
        return ModuleSpec(name, self, is_package=name in FOLDERS)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module under its new name, so that its classes are the same under both names."""
        new = new_module(spec.name)
        assert new is not None
        warn_of_old_name(spec.name, new)
        module = importlib.import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: the module was imported under its new name, and gets the spec of that name back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def find_old_modules() -> None:
    """Let old module names be imported."""
    if not any(isinstance(finder, OldModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldModules())
