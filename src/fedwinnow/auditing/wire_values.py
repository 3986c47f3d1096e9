"""What travels between the two halves of an audit as values: what a site is told, and which numbers it answers with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedwinnow.auditing.claims import EDGES, ODDS, SiteFinding
from fedwinnow.auditing.judges import CANDIDATES
from fedwinnow.auditing.site_half import Sums, Told
from fedwinnow.errors import DataError
from fedwinnow.mathematics.payload import Payload
from fedwinnow.mathematics.strata import BINS
from fedwinnow.randomness import Floats

# question -> the numbers of the answer, and the shape of each; "classes" stands for their number.
SHAPES: dict[str, dict[str, tuple[int | str, ...]]] = {
    "losses": {"losses": (len(CANDIDATES),), "labels": (1,)},
    "classes": {"given": ("classes",), "predicted": ("classes",), "agreed": ("classes",)},
    "sureness": {"samples": (len(EDGES) - 1,), "differing": (len(EDGES) - 1,)},
    "errors": {"errors": ("classes", "classes")},
    "decoys": {"expected": (len(ODDS) - 1,), "found": (len(ODDS) - 1,)},
    "hundredths": {"labels": (101,)},
    "scores": {"labels": (BINS,)},
    "figures": {"judged": (1,), "here": (1,), "called": (1,), "called_p": (1,), "unknown": ("classes",)},
}
MOST = 1e12  # a larger number is a mistake
SCALARS = ("best", "threshold", "look")  # of what a site is told
SWITCHES = ("skilled", "somewhere", "harder")
OF_FINDING = (*SWITCHES, "common", "most", "rate", "most_rate")


def shape_of(shape: tuple[int | str, ...], classes: int) -> tuple[int, ...]:
    """A shape with the number of classes put in."""
    return tuple(classes if isinstance(side, str) else side for side in shape)


def problem_with_answer(ask: str, sums: Sums, classes: int) -> str | None:
    """Why these are not the counts that answer a question; None if they may be."""
    declared = SHAPES[ask]
    for key, value in sums.items():
        if key not in declared:
            return f"its answer to '{ask}' has a number that nobody asked for"
        if value.shape != shape_of(declared[key], classes):
            return f"'{key}' in its answer to '{ask}' has another shape"
        if not np.isfinite(value).all() or (value < 0).any() or (value > MOST).any():
            return f"'{key}' in its answer to '{ask}' is no count"
    return None


def told_as_values(told: Told) -> tuple[dict[str, Any], Payload]:
    """What a site is told, as facts and tensors; nothing is rounded."""
    facts: dict[str, Any] = {name: getattr(told, name) for name in SCALARS}
    arrays: dict[str, Any] = {"common": told.common, "known": told.known, "going": told.going, "limits": told.limits}
    if told.finding is not None:
        facts["finding"] = {name: getattr(told.finding, name) for name in OF_FINDING}
        arrays |= {"finding.known": told.finding.known, "finding.hard": told.finding.hard}
    return facts, {key: torch.from_numpy(np.array(value)) for key, value in arrays.items() if value is not None}


def told_from_values(facts: Any, payload: Payload, classes: int) -> Told:
    """What a site was told; an error if it does not have the form that `told_as_values` gives it."""
    shapes = {
        "common": (torch.bool, (classes,)),
        "known": (torch.bool, (classes,)),
        "going": (torch.float64, (classes, classes)),
        "limits": (torch.float64, (len(ODDS) - 1,)),
        "finding.known": (torch.bool, (classes,)),
        "finding.hard": (torch.float64, (len(EDGES) - 1,)),
    }
    arrays: dict[str, Any] = {}
    for key, value in payload.items():
        if key not in shapes or (value.dtype, tuple(value.shape)) != shapes[key]:
            raise unreadable(key)
        arrays[key] = value.numpy()
        if not np.isfinite(arrays[key].astype(np.float64)).all():
            raise unreadable(key)
    if not isinstance(facts, dict):
        raise unreadable("what it is told")
    finding = None
    if facts.get("finding") is not None:
        finding = finding_from(facts["finding"], arrays.pop("finding.known", None), arrays.pop("finding.hard", None))
    return Told(
        best=whole(facts.get("best"), "best", len(CANDIDATES) - 1),
        threshold=number(facts.get("threshold"), "threshold"),
        look=whole(facts.get("look"), "look"),
        finding=finding,
        **arrays,
    )


def finding_from(facts: Any, known: Any, hard: Floats | None) -> SiteFinding:
    """What a site gets of the finding."""
    if not isinstance(facts, dict) or known is None or hard is None:
        raise unreadable("finding")
    switches = {name: facts.get(name) for name in SWITCHES}
    if any(type(value) is not bool for value in switches.values()):
        raise unreadable("finding")
    rates = {name: number(facts.get(name), name) for name in ("common", "most", "rate", "most_rate")}
    return SiteFinding(known=known, hard=hard, **rates, **switches)  # type: ignore[arg-type]


def number(value: Any, name: str) -> float:
    """A share."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise unreadable(name)
    return float(value)


def whole(value: Any, name: str, most: int = 10**12) -> int | None:
    """A number of something, or nothing."""
    if value is not None and (type(value) is not int or not 0 <= value <= most):
        raise unreadable(name)
    return value


def unreadable(name: str) -> DataError:
    """The error for something that no coordinator of this version tells."""
    return DataError(f"what the coordinator tells in an audit cannot be used ('{name[:40]}' is not of its form).")


def sums_as_payload(sums: Sums) -> Payload:
    """An answer as tensors."""
    return {key: torch.from_numpy(np.array(value, np.float64)) for key, value in sums.items()}


def sums_from_payload(payload: Payload) -> Sums:
    """An answer from tensors; `problem_with_answer` looks at it."""
    return {key: value.double().numpy() for key, value in payload.items()}
