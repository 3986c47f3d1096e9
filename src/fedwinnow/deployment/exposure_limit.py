"""The limit of what a site lets others learn: the site looks up what a method sends and refuses what exceeds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from fedwinnow.deployment.error_codes import REFUSED, for_others
from fedwinnow.errors import UsageError
from fedwinnow.federation.method import Method
from fedwinnow.mathematics.payload import Exposure

LEVELS: tuple[Exposure, ...] = get_args(Exposure)  # each includes those before it
USUAL: Exposure = "client"
ABOUT = {"masked": "sums over sites", "model": "the model", "client": "the site as a whole", "sample": "single samples"}


class Declined(UsageError):
    """A method sends more than this site allows; only the people at the site can change that."""


def level_of(text: str, flag: str) -> Exposure:
    """The limit that a flag sets; empty means the default."""
    for level in LEVELS:
        if text == level:
            return level
    if not text:
        return USUAL
    raise UsageError(f"{flag} {text} was given; allowed: {', '.join(LEVELS)}.")


def beyond(keys: Mapping[str, Exposure], allowed: Exposure) -> dict[str, Exposure]:
    """The keys from which a receiver learns more than is allowed."""
    return {key: kind for key, kind in keys.items() if LEVELS.index(kind) > LEVELS.index(allowed)}


def beyond_in_words(name: str, keys: Mapping[str, Exposure], allowed: Exposure) -> str:
    """Why keys of a method exceed the limit, and how the people at this site can allow them; empty if they do not."""
    too_much = beyond(keys, allowed)
    if not too_much:
        return ""
    named = ", ".join(f"'{key}' (about {ABOUT[kind]})" for key, kind in too_much.items())
    least = max(too_much.values(), key=LEVELS.index)
    return (
        f"method '{name}' sends {named}, but this site lets others learn about {ABOUT[allowed]} at most; nothing was "
        f'sent. Its people can allow it: join --allow-exposure {least}, or exposure = "{least}" in their policy'
    )


def refuse_beyond(method: Method, keys: Mapping[str, Exposure], allowed: Exposure) -> None:
    """Refuse keys that exceed the limit."""
    if too_much := beyond_in_words(method.name, keys, allowed):
        raise for_others(Declined(f"{too_much}."), REFUSED)
