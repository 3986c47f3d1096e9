"""identity.json: hashes of the code and the data that made a run, so that a change of either is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedwinnow import catalogue, files
from fedwinnow.all_settings import Redo
from fedwinnow.data.content_hash import Contents
from fedwinnow.data.source_files import hash_of_files
from fedwinnow.encoders.make_encoder import find_encoder
from fedwinnow.errors import DataError, StaleError
from fedwinnow.experiment.own_code import Pieces, code_of, code_of_models, code_of_part, code_of_spec
from fedwinnow.experiment.prepare import Stage
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.method import Method
from fedwinnow.mathematics.losses import OwnLoss
from fedwinnow.options import Part
from fedwinnow.version import __version__

FORMAT = 1
FILE = "identity.json"
START_AGAIN = "Add --redo to start again, or choose another folder."

Identity = dict[str, Any]


def identity_of(stage: Stage, judge: str | Part = "") -> Identity:
    """The identity of a run: the content of identity.json."""
    aside = stage.aside.public_contents
    return {
        "format": FORMAT,
        "fedwinnow": {"version": __version__, "source": files.package_source()},
        "code": code_in(stage.experiment, stage.method, judge),
        "data": data_in(stage.scene.dataset.known_contents(), aside, stage.left_out) | start_in(stage.experiment),
        **({} if stage.encoding is None else {"encoder": stage.encoding.facts()}),
    }


def data_in(contents: Contents, public: Contents | None = None, left_out: Contents | None = None) -> dict[str, Any]:
    """The contents of a run's data, of public samples from other data, and which samples were left out by request."""
    found = {"samples": contents, "public": public, "left_out": left_out}
    return {name: one.as_value() for name, one in found.items() if one is not None}


def start_in(experiment: Experiment) -> dict[str, Any]:
    """The trained model that the run begins with, if it does."""
    if experiment.start is None:
        return {}
    path = RunFolder.existing(Path(experiment.start)).path / "state.safetensors"
    if not path.is_file():
        raise DataError(f"--start {experiment.start}: this run has no model yet. Continue it with --resume first.")
    return {"start": Contents(f"the model in {path.parent.name}", hash_of_files([path]), False).as_value()}


def code_in(experiment: Experiment, method: Method, judge: str | Part = "") -> dict[str, Pieces]:
    """The code of the user and of installed packages, by the part of the experiment that it is for."""
    found = {
        "method": code_of_part(method),
        "model": {} if experiment.model is None else code_of_models(experiment.model),
        "loss": named("losses", method.loss),
        "aggregator": named("aggregators", method.aggregate),
        "optimizer": named("optimizers", experiment.optimizer),
        "judge": named("judges", judge) if judge else {},
        "encoder": {} if experiment.encoder is None else code_of_part(find_encoder(experiment.encoder)),
    }
    return {part: pieces for part, pieces in found.items() if pieces}


def named(family: str, spec: Any) -> Pieces:
    """The code of a part that was given by name, as a table or as an object."""
    if isinstance(spec, dict):
        spec = catalogue.make(family, spec)
    if isinstance(spec, OwnLoss):
        return code_of(spec.function, "loss")
    return code_of_part(spec) if isinstance(spec, Part) else code_of_spec(family, str(spec))


# --- what has changed ----------------------------------------------------------------------------------------------


def stored_identity(folder: RunFolder) -> Identity | None:
    """The identity in a folder; None for a run of a version that did not write it."""
    found = folder.read_json(FILE)
    return found if isinstance(found, dict) and found.get("format") == FORMAT else None


def changes(before: Identity, now: Identity) -> list[str]:
    """What has changed in the user's code and data, a few words each."""
    found = []
    for part in dict.fromkeys([*before.get("code", {}), *now["code"]]):
        found += code_changes(before.get("code", {}).get(part, {}), now["code"].get(part, {}))
    for name in dict.fromkeys([*before.get("data", {}), *now["data"]]):
        there, here = before.get("data", {}).get(name), now["data"].get(name)
        if there is None or here is None or there["hash"] != here["hash"]:
            found.append(f"the values of {(here or there)['name']} have changed")
    there, here = (one.get("encoder") or {} for one in (before, now))
    if there.get("hash") != here.get("hash"):
        found.append("the weights or settings of the encoder have changed")
    return list(dict.fromkeys(found))


def code_changes(before: Pieces, now: Pieces) -> list[str]:
    """Which pieces of the code of a part differ."""
    first = next(iter(now or before), "")
    found = []
    for name in dict.fromkeys([*now, *before]):
        # The run itself may have made or deleted a file that an option names.
        made_since = name.startswith("the file ") and (name not in before or name not in now)
        if before.get(name) != now.get(name) and not made_since:
            several = name.startswith(("the weights", "the settings"))
            what = "is new" if name not in before else "is gone" if name not in now else "has changed"
            beside = "" if name == first or name.startswith("the ") else f", which {first} imports,"
            found.append(f"{name}{beside} {'have changed' if several else what}")
    return found


def staleness(folder: RunFolder, now: Identity, rounds: int) -> str | None:
    """Why the run in a folder is not what this code and data would give; None if it is.

    A finished run stays valid if only the source of fedwinnow has changed; tables and figures mark it.
    """
    before = stored_identity(folder)
    if before is not None and (found := changes(before, now)):
        return f"{' and '.join(found)} since this run was made"
    if files.is_current(before) or is_finished(folder, rounds):
        return None
    if before is None:
        return "this run was begun by an older version, which did not note its source, and is not finished"
    return "the source of fedwinnow has changed since this run was begun, and it is not finished"


def is_finished(folder: RunFolder, rounds: int) -> bool:
    """Whether a folder holds a finished run with at least this many rounds, or one that a watcher ended before."""
    summary = folder.read_json("summary.json")
    if not isinstance(summary, dict) or summary.get("status") != "finished":
        return False
    return bool(summary.get("rounds", 0) >= rounds or summary.get("stopped_early", {}).get("of") == rounds)


def admit(
    folder: RunFolder, config: dict[str, Any], now: Identity, rounds: int, redo: Redo, replace: bool = False
) -> None:
    """Refuse a folder whose run was made with other code or data, or clear it if `redo` allows that.

    A run with other settings is cleared only with `replace`; `RunFolder.check` refuses it.
    """
    if not folder.holds_run:
        return
    if folder.other_settings(config):
        if replace:
            folder.clear()
        return
    reason = staleness(folder, now, rounds)
    if redo == "all" or (redo == "stale" and reason is not None):
        folder.clear()
    elif reason is not None:
        raise StaleError(f"--out {folder.path}: {reason}. {START_AGAIN}")


def refuse_changed(folder: RunFolder, now: Identity, apart: tuple[str, ...] = ("judge",)) -> None:
    """Refuse a run whose code or data has changed; parts named in `apart` may be others now, usually the judge."""
    before = stored_identity(folder)
    if before is None:
        return
    code = {part: pieces for part, pieces in before["code"].items() if part not in apart}
    if found := changes(before | {"code": code}, now):
        raise StaleError(
            f"{folder.path}: {' and '.join(found)} since this run was made. Play it again with --redo, or restore the "
            f"old code and data."
        )
