"""A site's part in secure sums over a network: it answers one phase after the other, and sends no single reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from fedwinnow.all_settings import SiteSettings
from fedwinnow.deployment.error_codes import REFUSED, for_others
from fedwinnow.deployment.exposure_limit import Declined
from fedwinnow.deployment.sum_identity import Identities
from fedwinnow.errors import DataError
from fedwinnow.federation.summing.party import Numbers, Party, answered
from fedwinnow.federation.summing.secure_sums import Session
from fedwinnow.federation.summing.sum_memory import SumMemory
from fedwinnow.federation.summing.sum_messages import PHASES, Phase, SumRefused, hash_of
from fedwinnow.federation.summing.summed_form import Sums, flattened
from fedwinnow.mathematics.payload import Payload

KIND = "sum"  # of a message
OF_A_PHASE = ("phase", "ask", "round", "exchange", "client", "memory")  # of a message, besides what is agreed
GOT = "got."  # before the keys of what a method sends along
OPENED = "sums.json"  # in the folder of a run at a site: the sums that it has opened


@dataclass(frozen=True)
class SumQuestion:
    """One phase of one sum, as the coordinator asks it."""

    phase: Phase
    client: int
    session: Session
    payload: Payload

    @classmethod
    def of(cls, facts: dict[str, Any], payload: Payload, run: str, share: float) -> SumQuestion:
        """The question of a message; an error if it is none."""
        phase, client, ask = facts.get("phase"), facts.get("client"), facts.get("ask")
        round_, exchange = facts.get("round"), facts.get("exchange")
        known = phase in PHASES and isinstance(ask, str)
        if not (known and isinstance(client, int) and isinstance(round_, int) and isinstance(exchange, int)):
            raise for_others(DataError("the coordinator's message about a secure sum cannot be read."), "message")
        return cls(cast(Phase, phase), client, Session(run, str(ask), round_, exchange, share), payload)

    @property
    def got(self) -> Payload:
        """What the method sends along."""
        return {key.removeprefix(GOT): value for key, value in self.payload.items() if key.startswith(GOT)}


@dataclass
class SiteSums:
    """The sums that a site is in, one per client."""

    identities: Identities | None
    parties: dict[int, Party] = field(default_factory=dict)
    memories: dict[Path | None, SumMemory] = field(default_factory=dict)

    def check(self, run: dict[str, Any], settings: SiteSettings) -> None:
        """Decline a run whose masks would come from elsewhere than this site's do."""
        if not settings.secure_sums:
            return
        if self.identities is None:
            raise for_others(
                Declined("the coordinator wants secure sums; a site with --data needs --tls for that, for its key."),
                REFUSED,
            )
        if run.get("masks_from") != self.identities.masks_from:
            raise for_others(
                Declined(
                    f"the coordinator says that the masks of secure sums come from {str(run.get('masks_from'))[:40]}; "
                    f"here they come from {self.identities.masks_from}. Only a simulation (--scene) takes them from "
                    f"the seed, which the coordinator knows."
                ),
                REFUSED,
            )
        self.identities.of(0, settings.seed)  # declines where the other sites' keys are missing

    def answer(
        self, question: SumQuestion, seed: int, sums: Sums, reply: Callable[[], Payload], opened: Path | None
    ) -> tuple[Payload, int]:
        """The answer to a phase, and how many values were clipped; `reply` computes what is summed."""
        session, clipped = question.session, [0]
        if question.phase == "keys":
            assert self.identities is not None
            me, peers = self.identities.of(question.client, seed)
            self.parties[question.client] = Party(me, question.client, peers, session.name, session.share)
        party = self.parties.get(question.client)
        if party is None or party.session != session.name:
            raise for_others(SumRefused("a phase of a secure sum was asked that had not begun here."), "question")

        def numbers() -> Numbers:
            form, ring, clipped[0] = flattened(reply(), sums, len(party.places))
            return Numbers(ring, form, hash_of(question.got))

        if opened not in self.memories:
            self.memories[opened] = SumMemory(opened)
        # Not by the exchange: a method asks the same several times a round, with answers that differ little.
        once = partial(self.memories[opened].allow, f"{question.client} {session.ask} {session.round}")
        try:
            sent = answered(party, question.phase, question.payload, numbers, once)
        except SumRefused as refused:
            raise for_others(refused, "sum") from None
        return sent, clipped[0]
