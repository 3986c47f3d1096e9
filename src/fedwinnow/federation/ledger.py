"""The ledger: what left each site, by key: what a receiver learns, who receives it, how often, how many bytes."""

from __future__ import annotations

from typing import Any

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
        """Add one reply."""
        sent = self.entries.setdefault(site, {})
        for key, value in reply.items():
            line = sent.setdefault(key, [0, 0])
            line[0] += 1
            line[1] += value.numel() * value.element_size()

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
