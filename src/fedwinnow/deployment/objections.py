"""What a policy has against what is asked. `join` refuses for any of these, `join --check` can show them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args

from fedwinnow.deployment.asked import Asked, name_in, spec_text
from fedwinnow.deployment.exposure_limit import beyond_in_words
from fedwinnow.deployment.foreign_text import one_line
from fedwinnow.deployment.policy import ANY, Policy
from fedwinnow.models.make_model import in_turn
from fedwinnow.options import Part, hints_of

NOT_DIVISORS = ("tolerance", "floor")  # in the name of an option that must be above 0, but is small by its nature


def objections(policy: Policy, asked: Asked) -> list[str]:
    """Everything that a policy does not allow, in words; empty if it allows what is asked."""
    if (kept := policy.key) is not None and kept != asked.coordinator:
        return [f"the coordinator's key is {asked.coordinator or 'not known'}; the policy names {kept} (coordinator)"]
    found = [*by_name(policy, asked), *by_number(policy, asked), *by_option(policy, asked), *of_the_site(policy, asked)]
    if policy.start != ANY and not asked.from_seed:
        found.append('the first model is not made from the seed; the policy does not name start = "any"')
    if policy.start != ANY and asked.done and not asked.known:
        found.append(
            f"the run goes on after {asked.done} rounds in which this site took no part, so with a model that it "
            f'cannot make itself; the policy does not name start = "any"'
        )
    if asked.audit is not None and not policy.audit:
        found.append("the run is an audit; the policy does not name audit = true")
    allowed = policy.settings
    for name, value in asked.others().items():
        if allowed != ANY and name not in (allowed or ()):
            found.append(f"{name} = {one_line(value, 80)} is asked for; the policy does not name it (settings)")
    return [one_line(each, 500) for each in found]


def by_name(policy: Policy, asked: Asked) -> Iterator[str]:
    """Parts that are not named, and exposure."""
    one = asked.experiment
    models = [name_in(model) for model in in_turn(one.model)]  # a coordinator names its model, also a usual one
    groups: dict[str, list[str]] = {
        "methods": [asked.method.name],
        "models": models,
        "encoders": [] if one.encoder is None else [name_in(one.encoder)],
        "optimizers": [asked.optimizer.name],
    }
    for key, names in groups.items():
        allowed = getattr(policy, key)
        for name in names:
            if allowed != ANY and name not in (allowed or ()):
                yield f"{key[:-1]} '{name}' is asked for; the policy {named(key, allowed)}"
    if policy.exposure is None:
        yield "the policy names no exposure"
    elif too_much := beyond_in_words(asked.method.name, asked.exposes, policy.exposure):
        yield too_much


def by_number(policy: Policy, asked: Asked) -> Iterator[str]:
    """Bounds on how long and how strongly is trained."""
    one, optimizer = asked.experiment, asked.optimizer
    found: dict[str, Any] = {
        "rounds": one.rounds,
        "epochs": one.epochs,
        "batch_size": one.batch_size,
        "learning_rate": optimizer.lr,
        "momentum": getattr(optimizer, "momentum", 0.0),
        "weight_decay": optimizer.weight_decay,
    }
    if asked.parameters is not None:
        found["parameters"] = asked.parameters
    for key, value in found.items():
        if (most := getattr(policy, key)) is None or not value <= most:
            shown = f" ({spec_text(str(optimizer))})" if key in ("learning_rate", "momentum", "weight_decay") else ""
            what = f"a model of {amount(value)} weights" if key == "parameters" else f"{key} {amount(value)}{shown}"
            yield f"{what} is asked for; the policy {named(key, most)}"
    for field in dataclasses.fields(asked.method):  # a method may have epochs of its own
        value = getattr(asked.method, field.name)
        if "epochs" in field.name and isinstance(value, int) and value > (policy.epochs or 0):
            yield f"{field.name} {value} is asked for; the policy {named('epochs', policy.epochs)}"


def by_option(policy: Policy, asked: Asked) -> Iterator[str]:
    """Weights and factors of the method and its loss, which scale a step as a learning rate does."""
    most = policy.largest_option
    for part in (asked.method, asked.method.criterion):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if not is_real(part, field.name) or value in (None, 0.0, part.by_preset(field)):
                continue
            divides = field.metadata.get("above") == 0 and not any(word in field.name for word in NOT_DIVISORS)
            if most is None or not abs(value) <= most or (divides and abs(value) * most < 1):
                least = f", and at least {1 / most:g}" if divides and most else ""
                what = f"{part.name}:{field.name}={value:g} is asked for"
                yield f"{what}; the policy {named('largest_option', most)}{least}"


def is_real(part: Part, name: str) -> bool:
    """Whether an option takes real numbers: a weight or a factor, not a count."""
    hint = hints_of(type(part)).get(name)  # type: ignore[arg-type]  # a class is hashable
    return float in (hint, *get_args(hint))


def of_the_site(policy: Policy, asked: Asked) -> Iterator[str]:
    """What the policy demands of this site's own data."""
    if asked.samples < (policy.least_samples or 0):
        yield f"this site has {asked.samples} samples; the policy demands {policy.least_samples} (least_samples)"


def named(key: str, allowed: Any) -> str:
    """What a policy says of a key, in words."""
    if allowed is None:
        return f"does not name {key}"
    return (
        f"allows {', '.join(allowed) or 'none'} ({key})"
        if isinstance(allowed, list)
        else f"allows at most {amount(allowed)} ({key})"
    )


def amount(value: float) -> str:
    """A number for people."""
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else f"{value:g}"
