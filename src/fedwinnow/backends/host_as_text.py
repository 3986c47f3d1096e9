"""A host described as JSON, so that another process can build the same host.

Nothing is pickled. Arrays are named by their place in shared memory or in a file, methods and models by the module or
file they are imported from. The true labels are not in it.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

from fedwinnow.all_settings import SiteSettings
from fedwinnow.backends.shared_memory import OpenedArrays, SharedArrays
from fedwinnow.data.column import Column
from fedwinnow.data.dataset import Features, FieldRows, Resident
from fedwinnow.data.images import ImageFrame, LazyImages
from fedwinnow.encoders.encoded import Encoded
from fedwinnow.encoders.encoded_views import Viewed
from fedwinnow.encoders.head_input import Scaling
from fedwinnow.errors import UsageError
from fedwinnow.federation.host import Host, Setup, Sites
from fedwinnow.federation.memory import Memory
from fedwinnow.federation.method import OWN_METHOD, method_in
from fedwinnow.mathematics.losses import OwnLoss
from fedwinnow.models.make_model import ModelSpec
from fedwinnow.models.model import Shape
from fedwinnow.options import Part, build
from fedwinnow.scene.holdings import Holdings

LOSS = "a loss of the program"

# --- from a host to text -------------------------------------------------------------------------------------------


def describe_host(host: Host, arrays: SharedArrays) -> dict[str, Any]:
    """Everything a worker needs, as JSON."""
    return {
        "sites": describe_sites(host.sites, arrays),
        "judged": describe_sites(host.judged, arrays),
        "parts": {name: describe_features(features, arrays) for name, features in host.parts.items()},
        "method": describe_part("method", host.method),
        "models": [describe_model(model) for model in (host.setup.model, *host.setup.other_models)],
        "settings": dataclasses.asdict(host.setup.settings),
        "judge": str(host.setup.judge),
        "fast_heads": host.setup.fast_heads,
        "frozen": host.frozen,
        "memory": str(host.memory.folder.resolve()),
    }


def describe_sites(sites: Sites, arrays: SharedArrays) -> dict[str, Any]:
    """What the sites hold."""
    return {
        "features": describe_features(sites.features, arrays),
        "rows": arrays.describe(sites.holdings.rows),
        "offsets": arrays.describe(sites.holdings.offsets),
        "given": arrays.describe(sites.given),
        "shape": dataclasses.asdict(sites.shape),
        "mean": sites.mean,
        "std": sites.std,
    }


def describe_features(features: Features, arrays: SharedArrays) -> dict[str, Any]:
    """Samples in memory, or the files they are decoded from."""
    if isinstance(features, FieldRows):
        columns = [dataclasses.asdict(column) for column in features.columns]
        return {"array": arrays.describe(features.array), "columns": columns}
    if isinstance(features, Resident):
        return {"array": arrays.describe(features.array)}
    if isinstance(features, LazyImages):
        return {"files": arrays.describe_texts(features.paths), "frame": dataclasses.asdict(features.frame)}
    if isinstance(features, Encoded):
        return {
            "segments": [arrays.describe(segment) for segment in features.segments],
            "index": arrays.describe(features.index),
            "scale": features.scaling.scale,
            "scaling": [arrays.describe(features.scaling.mean), arrays.describe(features.scaling.factor)],
        }
    if isinstance(features, Viewed):
        views = {kind: describe_features(encoded, arrays) for kind, encoded in features.views.items()}
        return {"plain": describe_features(features.plain, arrays), "views": views, "count": features.count}
    raise UsageError(
        f"--backend processes cannot share samples kept in a {type(features).__name__}; allowed: arrays and image "
        f"files. Use --backend serial."
    )


def describe_part(kind: str, part: Part) -> dict[str, Any]:
    """The module or file of a part's class, and the values of its options."""
    values = {key: value_as_text(value) for key, value in part.values().items()}
    return {**whereabouts(kind, type(part)), "values": values}


def value_as_text(value: Any) -> Any:
    """The value of an option; a loss of the program by the module it is imported from."""
    if isinstance(value, OwnLoss):
        return {LOSS: whereabouts("loss", value.function)}
    return str(value) if isinstance(value, Path | Part) else value


def describe_model(model: ModelSpec) -> Any:
    """A text or a table as it is; anything else by the module it is imported from."""
    if model is None or isinstance(model, str | dict):
        return {"spec": model}
    return describe_part("model", model) if isinstance(model, Part) else whereabouts("model", model)


def whereabouts(kind: str, thing: Any) -> dict[str, str]:
    """The file or module in which another process finds a class or function."""
    name, home = getattr(thing, "__qualname__", None), getattr(thing, "__module__", "__main__")
    module = sys.modules.get(home)
    if kind == "method" and home.startswith(OWN_METHOD) and module is not None:
        return {"file": str(module.__file__)}
    if name is None or "<" in name or home == "__main__" or module is None:
        raise UsageError(
            f"--backend processes: the {kind} {name or type(thing).__name__} cannot be found by another "
            f"process. Put it into a file and give the file's path, or use --backend serial."
        )
    return {"module": home, "name": name}


# --- from text to a host -------------------------------------------------------------------------------------------


def build_host(described: dict[str, Any], device: str, arrays: OpenedArrays) -> Host:
    """The host of a description; its samples are in the opened arrays."""
    first, *further = map(build_model, described["models"])
    settings, judge = SiteSettings(**described["settings"]), described["judge"]
    setup = Setup(first, settings, device, judge, tuple(further), described["fast_heads"])
    method = described["method"]
    host = Host(
        build_sites(described["sites"], arrays),
        build_sites(described["judged"], arrays),
        {name: build_features(features, arrays) for name, features in described["parts"].items()},
        build("method", found("method", method), {key: value_of(value) for key, value in method["values"].items()}),
        setup,
        Memory(Path(described["memory"])),
    )
    if host.frozen != described["frozen"]:
        raise UsageError(
            "--backend processes: the frozen part of the model has other values in another process. Let the function "
            "that builds it read a file, or draw from torch's generator, or use --backend serial."
        )
    return host


def value_of(described: Any) -> Any:
    """The value of an option that was described."""
    return found("loss", described[LOSS]) if isinstance(described, dict) and LOSS in described else described


def build_sites(described: dict[str, Any], arrays: OpenedArrays) -> Sites:
    """What the sites hold."""
    return Sites(
        build_features(described["features"], arrays),
        Holdings(arrays.open(described["rows"]), arrays.open(described["offsets"])),
        arrays.open(described["given"]),
        Shape.from_table(described["shape"]),
        tuple(described["mean"]),
        tuple(described["std"]),
    )


def build_features(described: dict[str, Any], arrays: OpenedArrays) -> Features:
    """Samples in memory, or the files they are decoded from."""
    if "columns" in described:
        columns = [Column(**column | {"categories": tuple(column["categories"])}) for column in described["columns"]]
        return FieldRows(arrays.open(described["array"]), tuple(columns))
    if "array" in described:
        return Resident(arrays.open(described["array"]))
    if "views" in described:
        views = {kind: build_encoded(encoded, arrays) for kind, encoded in described["views"].items()}
        return Viewed(build_features(described["plain"], arrays), views, described["count"])
    if "segments" in described:
        return build_encoded(described, arrays)
    return LazyImages(arrays.texts(described["files"]), ImageFrame(**described["frame"]))


def build_encoded(described: dict[str, Any], arrays: OpenedArrays) -> Encoded:
    """Rows of an encoder."""
    scaling = Scaling(described["scale"], *map(arrays.open, described["scaling"]))
    return Encoded(tuple(map(arrays.open, described["segments"])), arrays.open(described["index"]), scaling)


def build_model(described: dict[str, Any]) -> ModelSpec:
    """The model's spec, class or function."""
    if "spec" in described:
        return described["spec"]  # type: ignore[no-any-return]
    thing = found("model", described)
    made: ModelSpec = build("model", thing, described["values"]) if "values" in described else thing
    return made


def found(kind: str, described: dict[str, Any]) -> Any:
    """The class or function of a description."""
    if "file" in described:
        return method_in(Path(described["file"]))
    thing: Any
    try:
        thing = importlib.import_module(described["module"])
        for name in described["name"].split("."):
            thing = getattr(thing, name)
    except Exception as problem:
        raise UsageError(
            f"--backend processes: the {kind} {described['module']}.{described['name']} cannot be imported by another "
            f"process ({type(problem).__name__}: {problem}). Put it into a file and give the file's path, or use "
            f"--backend serial."
        ) from None
    return thing
