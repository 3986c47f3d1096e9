"""The limit of what a site lets others learn: the site looks up what a method sends and refuses what exceeds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from fedwinnow.deployment.foreign_text import for_others
from fedwinnow.errors import UsageError
from fedwinnow.federation.method import Method
from fedwinnow.mathematics.payload import Exposure

LEVELS: tuple[Exposure, ...] = get_args(Exposure)  # each includes those before it
USUAL: Exposure = "client"
ABOUT = {"model": "the model", "client": "the site as a whole", "sample": "single samples"}


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


def refuse_beyond(method: Method, keys: Mapping[str, Exposure], allowed: Exposure) -> None:
    """Refuse keys that exceed the limit; the message names the flag by which the people at this site can allow them."""
    if too_much := beyond(keys, allowed):
        named = ", ".join(f"'{key}' (about {ABOUT[kind]})" for key, kind in too_much.items())
        least = max(too_much.values(), key=LEVELS.index)
        raise for_others(
            Declined(
                f"method '{method.name}' sends {named}, but this site lets others learn about {ABOUT[allowed]} at "
                f"most; nothing was sent. Its people can allow it: join --allow-exposure {least}."
            )
        )
