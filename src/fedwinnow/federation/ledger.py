"""What leaves a site: the ledger of it, and the least count, below which nothing does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedwinnow.errors import UsageError
from fedwinnow.mathematics.payload import Exposure, Payload


class Ledger:
    """Counts every tensor that a site sent."""

    def __init__(
        self,
        exposes: dict[str, Exposure],
        forwarded: dict[str, str] | None = None,
        entries: dict[str, dict[str, list[int]]] | None = None,
    ) -> None:
        self.exposes = exposes
        self.forwarded = forwarded or {}  # keys that the server passes on to other sites unchanged, and when
        self.entries = entries or {}  # site -> key -> [count, bytes]

    def record(self, site: str, reply: Payload) -> None:
        """Add one reply; the lines of a site are written anew, so a copy of `entries` stays what it is."""
        sent = dict(self.entries.get(site, {}))
        for key, value in reply.items():
            count, size = sent.get(key, (0, 0))
            sent[key] = [count + 1, size + value.numel() * value.element_size()]
        self.entries[site] = sent

    def as_json(self) -> dict[str, Any]:
        """The content of ledger.json: what each key exposes and to whom; per site and key, count and bytes."""
        return {
            "keys": {
                key: {"exposes": kind, "receivers": receivers(key, self.forwarded)}
                for key, kind in self.exposes.items()
            },
            "sites": {
                site: {
                    key: {"exposes": self.exposes[key], "count": count, "bytes": size}
                    for key, (count, size) in sorted(sent.items())
                }
                for site, sent in sorted(self.entries.items())
            },
        }


def receivers(key: str, forwarded: dict[str, str]) -> list[str]:
    """Who receives what a site sends under a key: the server, and other sites where the server passes it on."""
    return ["server", "sites"] if key in forwarded else ["server"]


FROM_SYSTEM, FROM_SEED = "the operating system", "the seed"  # where the masks of secure sums come from
USUAL_OF_REAL_SITES = 5  # samples, unless the user sets another number


class TooFew(Exception):
    """The reply would concern too few samples: the site sends nothing, and that does not count as a failure."""


def usual_least_count(*, simulated: bool) -> int:
    """The default over a network; 0 in a simulation, where the coordinator has all data anyway."""
    return 0 if simulated else USUAL_OF_REAL_SITES


def refuse_values_per_sample(name: str, exposed: dict[str, Exposure], least_count: int) -> None:
    """In a simulation, refuse a method that sends a value per sample together with a least count above 1.

    A real site limits such values with `join --allow-exposure` instead.
    """
    single = [key for key, kind in exposed.items() if kind == "sample"]
    if single and least_count > 1:
        raise UsageError(
            f"method '{name}' sends '{single[0]}', a value for every single sample, and --least-count {least_count} "
            f"lets nothing leave that concerns fewer than {least_count} samples. Choose another method or option "
            f"(fedgr: gmm_scope=client), or --least-count 0."
        )


def without_small_classes(reply: Any, axes: dict[str, int], few: Tensor) -> Any:
    """The reply with 0 in the entries of classes with too few samples, as if the site did not have these classes.

    `axes` names, for every key with values per class, the axis of the classes.
    """
    if not isinstance(reply, dict) or not bool(few.any()):
        return reply
    return {key: hidden(value, axes.get(key), few) for key, value in reply.items()}


def hidden(value: Any, axis: int | None, few: Tensor) -> Any:
    """One value with 0 in the entries of these classes."""
    if axis is None or not isinstance(value, Tensor):
        return value
    shape = [1] * value.dim()
    shape[axis] = len(few)
    return torch.where(few.to(value.device).view(shape), torch.zeros_like(value), value)


def whole_passes(count: int, samples: int) -> int:
    """A count of computed samples, rounded up to whole passes: the exact one tells how many samples were selected."""
    return -(-count // samples) * samples if samples else count
