"""What a program hands over in place of the words of the command line: data, methods, optimisers, losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedwinnow.all_settings import SceneSettings
from fedwinnow.data.from_program import understood_data
from fedwinnow.errors import UsageError
from fedwinnow.federation.method import find_method
from fedwinnow.mathematics.torch_optimizers import understood_optimizer
from fedwinnow.scene.scene import Scene
from fedwinnow.setting import setting


@dataclass(frozen=True, kw_only=True)
class HandedOver:
    """What only a program can say of the data and of the loss."""

    label: Any = setting(None, "The column of a table, a frame or a Hugging Face data set that has the labels.")
    site: Any = setting(
        None,
        "The column that says which site holds the sample, or a value per sample; the partition is then `column`.",
    )
    group: Any = setting(None, "The column that says which samples belong together (a patient), or a value per sample.")
    loss: Any = setting(
        None, "The loss of local training: a name (gce:q=0.7), or a function loss(logits, target); none: the method's."
    )
    progress: bool | None = setting(None, "Show a line of text with the progress; None: in notebooks only.")


ONLY_HERE = tuple(one.name for one in dataclasses.fields(HandedOver) if one.name != "progress")
Asked = TypeVar("Asked", bound=HandedOver)


def taken_over(asked: Asked, given: Mapping[str, Any]) -> Asked:
    """The settings of a run, with objects of a program in the forms that an experiment has."""
    names = {one.name for one in dataclasses.fields(asked)}
    values = {
        name: getattr(asked, name) for name in names & {"data", "method", "optimizer", "partition", "scene", *ONLY_HERE}
    }
    found = plain_settings(values, given)
    return dataclasses.replace(asked, **{name: value for name, value in found.items() if name not in ONLY_HERE})


def plain_settings(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The same for settings in a dictionary; `given` are those that were really given."""
    found = dict(values)
    roles = {role: found.pop(role, None) for role in ("label", "site", "group")}
    if found.get("scene") is not None and not isinstance(found["scene"], str | Path | Scene):
        raise UsageError(
            f"scene= was given an object of the type {type(found['scene']).__name__}; allowed: a Scene, or the folder "
            "of a saved one."
        )
    if found.get("scene") is not None:
        if named := [role for role, value in roles.items() if value is not None]:
            raise UsageError(f"{named[0]}= was given beside a scene, which has its own data; leave it out.")
    elif "data" in found or any(value is not None for value in roles.values()):
        found["data"] = understood_data(found.get("data", SceneSettings.data), **roles)
        if roles["site"] is not None and given.get("partition") is None:
            found["partition"] = "column"
    if "optimizer" in found:
        found["optimizer"] = understood_optimizer(found["optimizer"])
    loss = found.pop("loss", None)
    if "method" in found or loss is not None:
        found["method"] = method_with(found.get("method", "fedavg"), loss)
    return found


def method_with(method: Any, loss: Any) -> Any:
    """A method, made from its class if it is one, with another loss if one is given."""
    if loss is None:
        return find_method(method) if isinstance(method, type) else method
    made = find_method(method)
    if made.loss != made.by_preset(type(made).__dataclass_fields__["loss"]):
        raise UsageError(f"loss= was given beside {made}, which names a loss already; leave one of them out.")
    return dataclasses.replace(made, loss=loss)
