"""An export from beginning to end: written beside its place, checked, and moved there when it is whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fedwinnow.errors import DataError, FedwinnowWarning, UsageError, unknown
from fedwinnow.experiment.run_folder import RunFolder
from fedwinnow.experiment.trained.exporting import onnx_file, safetensors_file, torch_file
from fedwinnow.experiment.trained.exporting.bare_names import last_name, refuse_folders
from fedwinnow.experiment.trained.exporting.card_facts import collect
from fedwinnow.experiment.trained.exporting.config_file import FILE as CONFIG
from fedwinnow.experiment.trained.exporting.config_file import (
    MEAN_LOGITS,
    OWN_RULE,
    config_of,
    is_export,
    joining_rule,
    method_name,
    model_name,
)
from fedwinnow.experiment.trained.exporting.input_description import FILE as DESCRIPTION
from fedwinnow.experiment.trained.exporting.input_description import described_input, encoder_facts
from fedwinnow.experiment.trained.exporting.model_card import card
from fedwinnow.experiment.trained.exporting.probe import Probe, make_probe
from fedwinnow.experiment.trained.trained_model import TrainedModel, load_model
from fedwinnow.files import LEFT_OVER, ROOT, make_folder, settle
from fedwinnow.options import parse_spec

Format = Literal["torch", "onnx", "safetensors"]
FILES = {"torch": torch_file.FILE, "onnx": onnx_file.FILE, "safetensors": safetensors_file.FILE}
CARD = "README.md"
MADE = {*FILES.values(), CONFIG, DESCRIPTION, CARD}


@dataclass(frozen=True)
class Exported:
    """What an export left."""

    folder: Path
    file: Path
    bytes: int
    difference: float | None  # largest difference of a logit to the run's model; None: it could not be asked
    bound: float


def export_model(
    run: Path, out: Path, format: Format, *, site: str | None = None, model: Any = None, encoder: Any = None
) -> Exported:
    """Write the model of a finished run to the folder `out`, which must be empty, absent or an earlier export."""
    if format not in get_args(Format):
        raise unknown("format", str(format), get_args(Format))
    if format == "onnx":
        onnx_file.refuse_without_exporter()
    folder = RunFolder.existing(run)
    refuse_other_things(out)
    trained = load_model(run, site=site, device="cpu", model=model, encoder=encoder)
    if format == "safetensors":
        refuse_encoder(trained)
        refuse_unknown_join(trained)
    inside = encoder_facts(trained)
    trained = trained if trained.has_whole_module else trained.on_rows()
    probe = make_probe(trained)
    with whole_folder(out) as place:
        checked = write_model(trained, format, place, probe, inside)
        facts = collect(folder, trained, format, checked) | {"encoder": inside}
        (place / CARD).write_text(card(facts, trained.form), encoding="utf-8", newline="\n")
        refuse_folders(sorted(place.iterdir()), private_folders(folder))
        size = (place / FILES[format]).stat().st_size
    return Exported(out, out / FILES[format], size, checked["largest_difference"], probe.bound)


def write_model(
    trained: TrainedModel, format: Format, place: Path, probe: Probe, encoder: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The model file, preprocessing.json and config.json; the file is asked, and refused if it answers otherwise."""
    path = place / FILES[format]
    description = json.dumps(described_input(trained.form, encoder), indent=1, allow_nan=False) + "\n"
    (place / DESCRIPTION).write_text(description, encoding="utf-8", newline="\n")
    if format == "safetensors":
        safetensors_file.write(trained, path)
    else:
        writer = torch_file.write if format == "torch" else onnx_file.write
        writer(trained, probe.batch, path, description)
    facts = {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "probe_samples": len(probe.batch),
        "largest_difference": None,
        "allowed_difference": probe.bound,
    }
    more = {} if encoder is None else {"encoder": encoder}
    write_config(trained, format, place, facts | more)
    facts["largest_difference"] = asked_difference(format, place, probe, trained.spec)
    write_config(trained, format, place, facts | more)
    return facts


def write_config(trained: TrainedModel, format: Format, place: Path, facts: dict[str, Any]) -> None:
    """config.json."""
    text = json.dumps(config_of(trained, format, FILES[format], facts), indent=1, allow_nan=False)
    (place / CONFIG).write_text(text + "\n", encoding="utf-8", newline="\n")


def asked_difference(format: Format, place: Path, probe: Probe, spec: Any) -> float | None:
    """The largest difference between what the written file answers and what the run's model does."""
    if format == "safetensors":
        own = None if safetensors_file.is_known(model_name(spec)) else spec  # a user's own model is given by hand
        return probe.check(safetensors_file.asked(place, own), FILES[format])
    ask = (torch_file if format == "torch" else onnx_file).asked(place / FILES[format])
    if ask is None:
        warnings.warn(
            "onnxruntime is not installed, so model.onnx was not asked whether it answers like the run's model: "
            "pip install onnxruntime, then export again.",
            FedwinnowWarning,
            stacklevel=2,
        )
        return None
    return probe.check(ask, FILES[format])


# --- the place ------------------------------------------------------------------------------------------------------


def refuse_other_things(out: Path) -> None:
    """Refuse a place that holds anything but an earlier export."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UsageError(f"--out {out}: it is a file; allowed: a new or empty folder, or an earlier export.")
    names = sorted(path.name for path in out.iterdir())
    others = [name for name in names if name not in MADE]
    if names and (others or not is_export(out)):
        raise UsageError(
            f"--out {out} holds other things ({(others or names)[0]}); allowed: a new or empty folder, or an earlier "
            "export, which is replaced."
        )


@contextlib.contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A new folder beside `out` that takes its place at the end; after an error nothing is left of it."""
    out = out.resolve()
    temporary, old = (out.with_name(f".{out.name}.{secrets.token_hex(8)}") for _ in range(2))
    try:
        make_folder(out.parent)
        clear_left_overs(out)
        temporary.mkdir()
        yield temporary
        for path in temporary.iterdir():
            settle(path)
        refuse_other_things(out)  # somebody may have put something there meanwhile
        if out.exists():
            os.rename(out, old)
        os.rename(temporary, out)
        settle(out.parent)
    except OSError as problem:
        raise DataError(f"--out {out}: cannot be written: {problem.strerror or problem}.") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if out.exists():
            shutil.rmtree(old, ignore_errors=True)


def clear_left_overs(out: Path) -> None:
    """Delete what killed exports to the same place have left; an old export that was being replaced comes back."""
    for path in out.parent.iterdir():
        found = LEFT_OVER.fullmatch(path.name)
        if found is None or found[1] != out.name or not path.is_dir():
            continue
        if not out.exists() and (path / CARD).exists() and is_export(path):
            os.rename(path, out)
        else:
            shutil.rmtree(path, ignore_errors=True)


# --- what is refused ------------------------------------------------------------------------------------------------


def refuse_encoder(trained: TrainedModel) -> None:
    """Refuse weights alone where samples go through an encoder and a scaling first, which they cannot carry."""
    if trained.encoding is not None:
        raise UsageError(
            f"{trained.folder}: this run has the encoder {trained.encoding.data_encoder.encoder}, and a file of "
            "weights cannot carry the scaling of its features; allowed: --format torch or --format onnx, or fedwinnow "
            "predict with the run itself."
        )


def refuse_unknown_join(trained: TrainedModel) -> None:
    """Refuse weights alone where only the user's method knows how its models answer together."""
    rule, own = joining_rule(trained), method_name(trained.method) is None
    if rule == OWN_RULE or (own and rule == MEAN_LOGITS):
        raise UsageError(
            "the models of this run are joined by a rule of your own method, which a file of weights cannot carry; "
            "allowed: --format torch or --format onnx."
        )


def private_folders(run: RunFolder) -> set[Path]:
    """Folders of this machine that must not be named in an export."""
    found = {run.path.resolve(), Path.cwd(), ROOT.parent, Path.home()}
    config = run.settings()
    for word in (config.get(name) for name in ("data", "scene", "start", "model", "public", "encoder")):
        with contextlib.suppress(UsageError):
            name, values = parse_spec(str(word or "none"))
            for text in (name, *values.values()):
                if folder := text.removesuffix(last_name(text)).rstrip("/\\"):
                    found.add(Path(folder))
    return found
