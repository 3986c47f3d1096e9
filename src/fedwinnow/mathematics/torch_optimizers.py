"""Optimisers as a program has them: objects and classes of torch.optim, and of this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fedwinnow import catalogue
from fedwinnow.errors import UsageError, unknown
from fedwinnow.mathematics.optimizers import Optimizer

ALLOWED = (
    "a text such as sgd:lr=0.1,momentum=0.9, an object such as Sgd(lr=0.1) of fedwinnow.mathematics.optimizers, or "
    "SGD, Adam or AdamW of torch.optim, as an object, a class or a function of the parameters"
)
# What must be at its default, because the optimiser here does not do it; other settings change speed, not numbers.
USUAL = {"dampening": 0, "nesterov": False, "maximize": False, "amsgrad": False, "eps": 1e-8}


def understood_optimizer(given: Any) -> Any:
    """What a program gave as the optimiser: texts as they are, everything else as an object or a text of ours."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        return catalogue.make("optimizers", dict(given))
    if isinstance(given, type) and issubclass(given, Optimizer):
        given = given()
    if isinstance(given, Optimizer):
        return known(given)
    if isinstance(given, torch.optim.Optimizer):
        return str(of_torch(given))
    if isinstance(given, torch.optim.lr_scheduler.LRScheduler):
        raise UsageError(
            f"a schedule of torch ({type(given).__name__}) was given as the optimizer; allowed: {ALLOWED}. A schedule "
            "is an option of a text or of an object of ours, by rounds: sgd:lr=0.1,schedule=cosine."
        )
    if callable(given):
        return str(of_torch(made(given)))
    raise UsageError(f"an object of the type {type(given).__name__} was given as the optimizer; allowed: {ALLOWED}.")


def known(optimizer: Optimizer) -> Optimizer:
    """An optimiser of ours, or of a package that has registered it, so that every site can make it by its name."""
    try:
        same = catalogue.find("optimizers", optimizer.name).load() is type(optimizer)
    except UsageError:
        same = False
    if not same:
        raise UsageError(
            f"the optimizer {type(optimizer).__name__} is of your own, and a site could not make it by its name "
            f"'{optimizer.name}'; allowed: {ALLOWED}, or an optimiser that an installed package registers as an entry "
            "point of the group fedwinnow.optimizers."
        )
    return optimizer


def made(function: Callable[..., Any]) -> torch.optim.Optimizer:
    """The optimiser that a class of torch.optim or a function makes, for parameters of no meaning."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        found = function([torch.nn.Parameter(torch.zeros(1))])
    except Exception as problem:  # code of others
        raise UsageError(
            f"{name}(parameters) was called to make the optimizer and failed ({type(problem).__name__}: {problem}); "
            f"allowed: {ALLOWED}."
        ) from problem
    if not isinstance(found, torch.optim.Optimizer):
        raise UsageError(
            f"{name}(parameters) was called to make the optimizer and returned {type(found).__name__}; allowed: "
            f"{ALLOWED}."
        )
    return found


def of_torch(given: torch.optim.Optimizer) -> Optimizer:
    """The optimiser here that makes the same steps; one that makes others is refused."""
    kind = type(given).__name__
    names = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}
    if type(given) not in names:
        raise unknown("optimizer of torch", kind, [one.__name__ for one in names])
    groups = [{name: value for name, value in group.items() if name != "params"} for group in given.param_groups]
    if any(group != groups[0] for group in groups):
        raise UsageError(
            f"{kind} was given with {len(groups)} groups of parameters that have different settings; allowed: one "
            "group. Here all parameters of a model are one vector."
        )
    options = groups[0]
    for name, usual in USUAL.items():
        if name in options and options[name] != usual:
            raise UsageError(f"{kind} was given with {name}={options[name]}; allowed: {name}={usual}.")
    name = "adamw" if options.get("decoupled_weight_decay") else names[type(given)]
    values = {"lr": float(options["lr"]), "weight_decay": float(options["weight_decay"])}
    if name == "sgd":
        values["momentum"] = float(options["momentum"])
    else:
        values["beta1"], values["beta2"] = map(float, options["betas"])
    found = catalogue.make("optimizers", {"kind": name, **values})
    assert isinstance(found, Optimizer)
    return found
