"""What a coordinator asks, in words for the people at a site: what a part does, and what is not set as usual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedwinnow import catalogue
from fedwinnow.deployment.exposure_limit import ABOUT
from fedwinnow.deployment.foreign_text import one_line
from fedwinnow.errors import UsageError
from fedwinnow.experiment.settings import Experiment
from fedwinnow.federation.ledger import receivers
from fedwinnow.mathematics.optimizers import Optimizer
from fedwinnow.mathematics.payload import Exposure
from fedwinnow.models.make_model import in_turn
from fedwinnow.options import Part, parse_spec
from fedwinnow.setting import settings_in

NESTED = {"loss": "losses", "aggregator": "aggregators"}  # options that name a part themselves
ALWAYS = ("lr", "momentum")  # options of an optimiser that are told also where they are as usual
LONGEST_NAME = 30  # letters of a sentence that stands in the place of an option's name
BY_FORM = "chosen by the form of the samples"


def part_in_words(family: str, part: Part) -> str:
    """A part that was made from what is asked."""
    return spec_in_words(family, str(part))


def spec_in_words(family: str, spec: Any) -> str:
    """A part by its name, what it does, and the options that were set."""
    name, given = pieces(spec)
    known = catalogue.entries(family).get(name)
    if known is None:
        return one_line(f"{name} (not among the parts that are installed here)", 200)
    options = [option_in_words(known, key, value_in_words(key, value)) for key, value in given.items()]
    return "; ".join([f"{name} ({sentence(known.summary)})", *options])


def pieces(spec: Any) -> tuple[str, dict[str, Any]]:
    """Name and options of a spec, as a text or as a table."""
    if isinstance(spec, dict):
        return str(spec.get("kind")), {str(key): value for key, value in spec.items() if key != "kind"}
    try:
        name, given = parse_spec(str(spec))
    except UsageError:  # refused when the part is made
        return str(spec), {}
    return name, dict(given)


def option_in_words(known: catalogue.Entry, key: str, value: str) -> str:
    """An option with its value: by its sentence if that is short, else by its name, and the sentence after it."""
    text = next((sentence(one.sentence) for one in known.options if one.name == key), "")
    if key in NESTED:
        return f"{key} {value}"
    if text and len(text) <= LONGEST_NAME:
        return f"{text} {value}"
    return f"{key.replace('_', ' ')} {value}" + (f" ({text})" if text else "")


def value_in_words(key: str, value: Any) -> str:
    """The value of an option."""
    return spec_in_words(NESTED[key], value) if key in NESTED else one_line(value)


def models_in_words(spec: Any) -> str:
    """The model, or those that the sites have in turn."""
    return "; the next site ".join(BY_FORM if one is None else spec_in_words("models", one) for one in in_turn(spec))


def optimizer_in_words(optimizer: Optimizer) -> str:
    """An optimiser with its learning rate, and what else is set."""
    known = catalogue.entries("optimizers").get(optimizer.name)
    usual = {name: getattr(type(optimizer), name, None) for name in optimizer.values()}
    told = [(name, value) for name, value in optimizer.values().items() if name in ALWAYS or value != usual[name]]
    words = [option_in_words(known, name, str(value)) if known else f"{name} {value}" for name, value in told]
    return f"optimiser {optimizer.name} with {', '.join(words)}"


def leaves_in_words(exposes: Mapping[str, Exposure], forwarded: dict[str, str]) -> str:
    """What may leave the site: what it is about, the names of the values, and who receives them."""
    groups: dict[tuple[str, str], list[str]] = {}
    for key, kind in exposes.items():
        whom = " and other ".join(receivers(key, forwarded))
        groups.setdefault((ABOUT[kind], whom), []).append(key)
    return "; ".join(f"about {about}: {', '.join(keys)} (for the {whom})" for (about, whom), keys in groups.items())


def settings_in_words(one: Experiment, names: tuple[str, ...]) -> list[str]:
    """Settings that are not at their default, each with its sentence."""
    declared = settings_in(Experiment)
    return [
        f"{name.replace('_', ' ')} {one_line(getattr(one, name))} ({sentence(declared[name].metadata['help'])})"
        for name in names
        if getattr(one, name) != declared[name].default
    ]


def audit_in_words(audit: Any) -> str:
    """What an audit asks of a site; also of one that is refused later, because it cannot be read."""
    if audit is None:
        return "no"
    if not isinstance(audit, dict) or not isinstance(audit.get("judge"), str):
        return one_line(audit)
    parts, group = audit.get("parts"), audit.get("group")
    many = len(parts) if isinstance(parts, list) else 0
    told = ["yes: this site judges its own labels, and counts of them leave it"]
    told += [f"it trains {many} times, and each model judges labels that it has not seen"] if many > 1 else []
    told += [f"rows with the same {one_line(group, 80)} stay together"] if group else []
    return "; ".join([*told, f"judge {spec_in_words('judges', audit['judge'])}"])


def sentence(text: str) -> str:
    """A sentence within another: without its full stop, and its first word small unless it is a name."""
    text = text.replace("`", "").strip().removesuffix(".")
    return (
        text[:1].lower() + text[1:] if text[1:2].islower() and not any(map(str.isupper, text.split()[0][1:])) else text
    )
