"""The ledger: what left each site, by key: what a receiver could learn, who that was, how often, how many bytes."""

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
        self.forwarded = forwarded or {}  # keys that other sites may get as they came, and when
        self.entries = entries or {}  # site -> key -> [count, bytes]

    def record(self, site: str, reply: Payload) -> None:
        """Write down one reply."""
        sent = self.entries.setdefault(site, {})
        for key, value in reply.items():
            line = sent.setdefault(key, [0, 0])
            line[0] += 1
            line[1] += value.numel() * value.element_size()

    def as_json(self) -> dict[str, Any]:
        """For ledger.json: per key what it exposes and to whom, per site and key how often and how much."""
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
    """Who may get what a site sends under a key, as it came: the server, and other sites where it is handed on."""
    return ["server", "sites"] if key in forwarded else ["server"]
