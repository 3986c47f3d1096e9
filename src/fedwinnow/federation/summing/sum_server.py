"""The server's half of a secure sum: it passes messages on, and takes the masks off the sum of those that stayed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from fedwinnow.federation.summing.party import Peers, pair_purpose
from fedwinnow.federation.summing.sum_messages import (
    BOTH_KEYS,
    ENVELOPE,
    LEAST,
    Malformed,
    Phase,
    SumFailed,
    advert,
    as_rows,
    as_text,
    asked_text,
    hash_of,
    noise_text,
    row_in,
    rows_in,
    survivors_text,
    text_in,
    threshold_of,
    transcript,
)
from fedwinnow.mathematics.fixed_point import Ring
from fedwinnow.mathematics.masks import KEY, KeyPair, from_system, is_signed, mask
from fedwinnow.mathematics.payload import Payload
from fedwinnow.mathematics.shamir import SIZE, from_bytes, secret_from

Reply = Payload | str  # what a site sent, or why it is left out
Ask = Callable[[Phase, dict[int, Payload]], Iterator[tuple[int, Reply]]]
TRIES = 500  # sets of shares that are tried where some do not fit


@dataclass
class Partial:
    """The masked answers of one form, added up."""

    members: list[int] = field(default_factory=list)
    ring: Ring = field(default_factory=lambda: np.zeros(0, np.uint64))


@dataclass(frozen=True)
class Total:
    """The sum of the sites that stayed, and its form."""

    members: tuple[int, ...]
    form: object  # what each site said of the form of its numbers; all the same
    ring: Ring


class SecureSum:
    """One sum over sites, which are known by number and name."""

    def __init__(self, names: dict[int, str], peers: Peers, session: bytes, share: float, ask: Ask) -> None:
        self.names, self.peers, self.session, self.share, self.ask = names, peers, session, share, ask
        self.dropped: dict[int, str] = {}  # sites that are left out, and why
        self.public: dict[int, bytes] = {}
        self.commitments: dict[int, bytes] = {}
        self.question = hash_of({})  # what is sent along with the question, known when the sites are asked for answers

    def result(self) -> Total:
        """The sum; raises SumFailed if there is none."""
        if len(self.names) < LEAST:
            raise SumFailed(f"secure sums need at least {LEAST} sites, and {len(self.names)} were asked.")
        about = self.keys()
        envelopes = self.envelopes()
        told = list(envelopes)
        forms = self.masked(told, envelopes)
        partial, form = self.of_one_form(forms)
        survivors = sorted(partial.members)
        self.about, self.asked = about, asked_text(self.question, form)
        signed = self.agree(told, survivors)
        ring = self.unmasked(told, survivors, signed, partial.ring)
        return Total(tuple(survivors), form, ring)

    # --- one phase after the other ---------------------------------------------------------------------------------

    def each(self, phase: Phase, letters: dict[int, Payload]) -> Iterator[tuple[int, Payload]]:
        """The answers to a phase; a site without one is left out."""
        for member, reply in self.ask(phase, letters):
            if isinstance(reply, str):
                self.dropped[member] = reply
            else:
                yield member, reply

    def spoilt(self, member: int, problem: Malformed) -> None:
        """Leave out a site whose message cannot be used."""
        self.dropped[member] = f"its message cannot be used in a secure sum: {problem}"

    def enough(self, left: Sequence[int], phase: Phase) -> None:
        """Raise SumFailed if too few sites are left."""
        if len(left) < self.threshold:
            raise SumFailed(
                f"only {len(left)} of {self.members} sites are left of a secure sum after '{phase}'; {self.threshold} "
                f"must stay to the end.{self.reasons}"
            )

    @property
    def reasons(self) -> str:
        """Who was left out, and why."""
        return "".join(f" {self.names[member]}: {why}." for member, why in sorted(self.dropped.items()))

    def keys(self) -> bytes:
        """Phase 1: the sites' keys, which must be signed; returns what stands for the sum among these sites."""
        self.members, self.threshold = len(self.names), LEAST
        signatures = {}
        for member, reply in self.each("keys", {member: {} for member in self.names}):
            try:
                keys, signed = row_in(reply, "keys", BOTH_KEYS), row_in(reply, "signature")
                self.check_keys(member, keys, signed)
            except Malformed as problem:
                self.spoilt(member, problem)
                continue
            self.public[member], signatures[member] = keys, signed
        self.public = dict(sorted(self.public.items()))
        self.threshold = threshold_of(self.share, len(self.public))
        self.enough(list(self.public), "keys")
        self.members = len(self.public)
        self.introduction = {
            "members": torch.tensor(list(self.public)),
            "names": as_text([self.names[member] for member in self.public]),
            "keys": as_rows(list(self.public.values())),
            "signatures": as_rows([signatures[member] for member in self.public]),
        }
        return transcript(self.session, self.share, [(one, self.names[one], keys) for one, keys in self.public.items()])

    def check_keys(self, member: int, keys: bytes, signed: bytes) -> None:
        """Refuse keys that the site has not signed, or that no site could use."""
        name = self.names[member]
        public = self.peers(name)
        if public is None or not is_signed(public, signed, advert(self.session, member, name, keys)):
            raise Malformed("its keys are not signed by the key it is known by")
        try:
            own = KeyPair.of(from_system("a test", KEY))
            own.agreed(keys[:KEY], b"")
            own.agreed(keys[KEY:], b"")
        except ValueError:
            raise Malformed("its keys cannot be used") from None

    def envelopes(self) -> dict[int, dict[int, bytes]]:
        """Phase 2: the envelopes by sender and receiver."""
        found: dict[int, dict[int, bytes]] = {}
        for member, reply in self.each("shares", dict.fromkeys(self.public, self.introduction)):
            try:
                rows = rows_in(reply, "shares", len(self.public), ENVELOPE)
                self.commitments[member] = row_in(reply, "commitment", KEY)
            except Malformed as problem:
                self.spoilt(member, problem)
                continue
            found[member] = dict(zip(self.public, rows, strict=True))
        self.enough(list(found), "shares")
        return dict(sorted(found.items()))

    def masked(self, told: list[int], envelopes: dict[int, dict[int, bytes]]) -> dict[str, Partial]:
        """Phase 3: the masked answers, added up as they come, by their form."""
        letters = {
            receiver: {
                "members": torch.tensor(told),
                "shares": as_rows([envelopes[sender][receiver] for sender in told]),
            }
            for receiver in told
        }
        found: dict[str, Partial] = {}
        self.forms: dict[str, object] = {}
        for member, reply in self.each("masked", letters):
            try:
                form, value = text_in(reply, "form"), reply.get("masked")
                if value is None or value.dtype != torch.int64 or value.dim() != 1:
                    raise Malformed("'masked' is no row of whole numbers")
                text = f"{len(value)} {form!r}"
            except Malformed as problem:
                self.spoilt(member, problem)
                continue
            ring = value.numpy().view(np.uint64)
            partial = found.setdefault(text, Partial(ring=np.zeros(len(ring), np.uint64)))
            partial.ring += ring
            partial.members.append(member)
            self.forms[text] = form
        return found

    def of_one_form(self, forms: dict[str, Partial]) -> tuple[Partial, object]:
        """The answers of the form that most sites have; the others are left out."""
        ranked = sorted(forms, key=lambda text: (-len(forms[text].members), min(forms[text].members)))
        for text in ranked[1:]:
            for member in forms[text].members:
                self.dropped[member] = "its answer has another form than those of the other sites"
        best = forms[ranked[0]] if ranked else Partial()
        self.enough(best.members, "masked")
        return best, self.forms[ranked[0]]

    def agree(self, told: list[int], survivors: list[int]) -> dict[int, bytes]:
        """Phase 4: what the sites sign of who is in the sum."""
        statement = survivors_text(self.about, self.asked, told, survivors)
        signed: dict[int, bytes] = {}
        for member, reply in self.each("agree", {one: {"survivors": torch.tensor(survivors)} for one in survivors}):
            try:
                made = row_in(reply, "signature")
                if not is_signed(self.peers(self.names[member]), made, statement):
                    raise Malformed("it has signed something else than what it was asked and who is in the sum")
            except Malformed as problem:
                self.spoilt(member, problem)
                continue
            signed[member] = made
        self.enough(list(signed), "agree")
        return dict(sorted(signed.items()))

    def unmasked(self, told: list[int], survivors: list[int], signed: dict[int, bytes], ring: Ring) -> Ring:
        """Phase 5: the sum without masks."""
        gone = [member for member in told if member not in survivors]
        letter = {"signers": torch.tensor(list(signed)), "signatures": as_rows(list(signed.values()))}
        of_masks: dict[int, dict[int, int]] = {member: {} for member in survivors}
        of_keys: dict[int, dict[int, int]] = {member: {} for member in gone}
        places = {member: place + 1 for place, member in enumerate(self.public)}
        holders: list[int] = []
        for member, reply in self.each("unmask", dict.fromkeys(signed, letter)):
            try:
                rows = rows_in(reply, "of_masks", len(survivors), SIZE), rows_in(reply, "of_keys", len(gone), SIZE)
            except Malformed as problem:
                self.spoilt(member, problem)
                continue
            holders.append(member)
            for wanted, shares in zip((of_masks, of_keys), rows, strict=True):
                for owner, raw in zip(wanted, shares, strict=True):
                    if (share := from_bytes(raw)) is not None:
                        wanted[owner][places[member]] = share
        self.enough(holders, "unmask")
        without = ring.copy()
        for owner, held in of_masks.items():
            without -= mask(self.seed_of(owner, held), len(ring))
        for owner, held in of_keys.items():
            pair = KeyPair.of(self.key_of(owner, held))
            for member in survivors:
                purpose = pair_purpose(self.about, self.asked, owner, member)
                common = mask(pair.agreed(self.public[member][KEY:], purpose), len(ring))
                if owner < member:
                    without += common  # which the survivor had taken away
                else:
                    without -= common
        return without

    # --- secrets from shares ---------------------------------------------------------------------------------------

    def seed_of(self, owner: int, shares: dict[int, int]) -> bytes:
        """The seed of a site's own mask."""
        commitment = self.commitments[owner]
        return self.secret(owner, shares, lambda found: noise_text(self.session, owner, found) == commitment)

    def key_of(self, owner: int, shares: dict[int, int]) -> bytes:
        """The key for masks of a site that has left."""
        public = self.public[owner][KEY:]
        return self.secret(owner, shares, lambda found: KeyPair.of(found).public == public)

    def secret(self, owner: int, shares: dict[int, int], fits: Callable[[bytes], bool]) -> bytes:
        """The secret that enough shares agree on; some may be wrong."""
        for chosen in itertools.islice(itertools.combinations(sorted(shares), self.threshold), TRIES):
            found = secret_from({place: shares[place] for place in chosen})
            if found is not None and fits(found):
                return found
        raise SumFailed(
            f"the shares of {self.names[owner]}'s secrets do not fit together: it has given out wrong ones, or too "
            f"many others have sent wrong ones.{self.reasons}"
        )
