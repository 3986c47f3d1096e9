"""A site's half of a secure sum. It does not trust the server: it checks who takes part, and opens nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fedwinnow.federation.summing.sum_messages import (
    BOTH_KEYS,
    ENVELOPE,
    LEAST,
    PHASES,
    Malformed,
    Phase,
    SumRefused,
    advert,
    as_row,
    as_rows,
    as_text,
    asked_text,
    digest,
    noise_text,
    numbers_in,
    rows_in,
    survivors_text,
    text_in,
    threshold_of,
    transcript,
)
from fedwinnow.mathematics.fixed_point import Ring
from fedwinnow.mathematics.masks import KEY, Draw, KeyPair, is_signed, locked, mask, opened, signature
from fedwinnow.mathematics.payload import Payload
from fedwinnow.mathematics.shamir import LOST, PRIME, SIZE, as_bytes, split

Peers = Callable[[str], Any]  # a site's name -> its public key, or None for a site that is not known
Once = Callable[
    [list[str]], None
]  # is given names; raises SumRefused for a sum that was opened before with other sites


@dataclass(frozen=True)
class Numbers:
    """What a site answers, and the hash of what it was asked."""

    ring: Ring
    form: object
    question: bytes


@dataclass(frozen=True)
class Identity:
    """Who a site is: the name it is known by, the key it signs with, and where its random bytes come from."""

    name: str
    key: Any
    draw: Draw


class Party:
    """One site in one sum; each phase is answered once."""

    def __init__(self, me: Identity, number: int, peers: Peers, session: bytes, share: float) -> None:
        self.me, self.number, self.peers, self.session, self.share = me, number, peers, session, share
        self.done = 0  # phases
        self.places: dict[int, int] = {}  # member -> the place of its shares
        self.public: dict[int, bytes] = {}  # member -> its public keys
        self.names: dict[int, str] = {}
        self.asked = b""  # stands for what this site was asked
        self.told: list[int] = []  # the sites whose shares are here
        self.survivors: list[int] = []
        self.held: dict[int, tuple[bytes, bytes]] = {}  # member -> shares of its key and of the seed of its own mask

    def turn(self, phase: Phase) -> None:
        """Refuse a phase that was answered already or comes too early."""
        if PHASES.index(phase) != self.done:
            raise SumRefused(f"'{phase}' of a secure sum was asked out of turn; nothing was sent.")
        self.done += 1

    def random(self, purpose: str, count: int) -> bytes:
        """Random bytes for this sum alone."""
        return self.me.draw(f"{self.session.hex()} {self.number} {purpose}", count)

    # --- keys --------------------------------------------------------------------------------------------------------

    def keys(self) -> Payload:
        """The public halves of two new key pairs, signed."""
        self.turn("keys")
        self.for_shares = KeyPair.of(self.random("key for shares", KEY))
        self.for_masks = KeyPair.of(self.random("key for masks", KEY))
        self.mine = self.for_shares.public + self.for_masks.public
        said = advert(self.session, self.number, self.me.name, self.mine)
        return {"keys": as_row(self.mine), "signature": as_row(signature(self.me.key, said))}

    # --- shares ------------------------------------------------------------------------------------------------------

    def shares(self, got: Payload) -> Payload:
        """An envelope for each other site with shares of both secrets, if every site is who it should be."""
        self.turn("shares")
        self.meet(got)
        self.threshold = threshold_of(self.share, len(self.places))
        if not LEAST <= self.threshold <= len(self.places):
            raise SumRefused(f"a secure sum over {len(self.places)} sites was asked for; allowed: at least {LEAST}.")
        self.noise = self.random("own mask", KEY)
        places = list(self.places.values())
        coefficients = iter(range(2 * self.threshold))

        def draw() -> int:
            # 16 bytes more than the prime has, so that the remainder is as good as even
            return int.from_bytes(self.random(f"coefficient {next(coefficients)}", SIZE + 15), "big") % PRIME

        of_key = split(int.from_bytes(self.for_masks.secret, "big"), self.threshold, places, draw)
        of_noise = split(int.from_bytes(self.noise, "big"), self.threshold, places, draw)
        rows = []
        for member, first, second in zip(self.places, of_key, of_noise, strict=True):
            pair = (as_bytes(first), as_bytes(second))
            if member == self.number:
                self.held[member] = pair
                rows.append(bytes(ENVELOPE))
            else:
                rows.append(locked(self.channel(self.number, member), b"".join(pair), self.about))
        return {
            "shares": as_rows(rows),
            "commitment": as_row(noise_text(self.session, self.number, self.noise)),
        }

    def meet(self, got: Payload) -> None:
        """Check the list of all sites and their keys."""
        numbers, names = numbers_in(got, "members"), text_in(got, "names")
        keys = rows_in(got, "keys", len(numbers), BOTH_KEYS)
        signatures = rows_in(got, "signatures", len(numbers))
        if not isinstance(names, list) or len(names) != len(numbers) or len(set(map(str, names))) != len(numbers):
            raise SumRefused("the sites of a secure sum must have different names; nothing was sent.")
        for number, name, key, signed in zip(numbers, map(str, names), keys, signatures, strict=True):
            public = self.peers(name)
            if public is None:
                raise SumRefused(f"the server names a site '{name[:60]}' whose public key is not known here.")
            if not is_signed(public, signed, advert(self.session, number, name, key)):
                raise SumRefused(f"the keys that the server hands on for {name} were not signed by {name}.")
        self.places = {number: place + 1 for place, number in enumerate(numbers)}
        self.public = dict(zip(numbers, keys, strict=True))
        self.names = dict(zip(numbers, map(str, names), strict=True))
        if self.public.get(self.number) != self.mine or self.names[self.number] != self.me.name:
            raise SumRefused("the server does not hand on this site's own keys; nothing was sent.")
        members = [(number, self.names[number], self.public[number]) for number in numbers]
        self.about = transcript(self.session, self.share, members)

    def channel(self, sender: int, receiver: int) -> bytes:
        """The key of an envelope from one site to another, one of which is this site."""
        other = receiver if sender == self.number else sender
        purpose = digest("fedwinnow envelope", self.about, sender, receiver)
        try:
            return self.for_shares.agreed(self.public[other][:KEY], purpose)
        except ValueError:
            raise SumRefused(f"{self.names[other]} gave keys that cannot be used.") from None

    # --- masked ------------------------------------------------------------------------------------------------------

    def receive(self, got: Payload) -> None:
        """Take the envelopes of the other sites; one that cannot be opened costs its sender, not this site."""
        self.turn("masked")
        self.told = numbers_in(got, "members")
        envelopes = rows_in(got, "shares", len(self.told), ENVELOPE)
        if not set(self.told) <= set(self.places) or self.number not in self.told:
            raise SumRefused("the server names sites in a secure sum that were not in it before.")
        if len(self.told) < self.threshold:
            raise SumRefused(f"only {len(self.told)} sites are left of a secure sum that needs {self.threshold}.")
        for member, envelope in zip(self.told, envelopes, strict=True):
            if member != self.number:
                text = opened(self.channel(member, self.number), envelope, self.about)
                self.held[member] = (LOST, LOST) if text is None else (text[:SIZE], text[SIZE:])

    def masked(self, answer: Numbers) -> Ring:
        """The numbers under all masks."""
        self.asked, values = asked_text(answer.question, answer.form), answer.ring
        found = values + mask(self.noise, len(values))
        for member in self.told:
            if member > self.number:
                found += mask(self.pair_key(member), len(values))
            elif member < self.number:
                found -= mask(self.pair_key(member), len(values))
        return found

    def pair_key(self, member: int) -> bytes:
        """The key of the mask that this site shares with another."""
        try:
            purpose = pair_purpose(self.about, self.asked, self.number, member)
            return self.for_masks.agreed(self.public[member][KEY:], purpose)
        except ValueError:
            raise SumRefused(f"{self.names[member]} gave keys that cannot be used.") from None

    # --- agree, and unmask -------------------------------------------------------------------------------------------

    def agree(self, got: Payload, once: Once) -> Payload:
        """Sign whose answers are in the sum."""
        self.turn("agree")
        self.survivors = numbers_in(got, "survivors")
        if not set(self.survivors) <= set(self.told) or self.number not in self.survivors:
            raise SumRefused("the server names sites in a secure sum that it had not named before, or not this one.")
        if len(self.survivors) < self.threshold:
            raise SumRefused(f"only {len(self.survivors)} sites are in a secure sum that needs {self.threshold}.")
        once([self.names[member] for member in self.survivors])
        return {"signature": as_row(signature(self.me.key, self.statement))}

    @property
    def statement(self) -> bytes:
        """What this site knows of the sum."""
        return survivors_text(self.about, self.asked, self.told, self.survivors)

    def unmask(self, got: Payload) -> Payload:
        """One share of each other site: of its own mask if it is in the sum, else of its key, and never both."""
        self.turn("unmask")
        signers = numbers_in(got, "signers")
        signatures = rows_in(got, "signatures", len(signers))
        if not set(signers) <= set(self.survivors) or len(signers) < self.threshold:
            raise SumRefused(f"only {len(signers)} sites have signed who is in the sum; {self.threshold} must.")
        for signer, signed in zip(signers, signatures, strict=True):
            if not is_signed(self.peers(self.names[signer]), signed, self.statement):
                raise SumRefused(
                    f"{self.names[signer]} was asked something else than this site, or was told of other sites in the "
                    f"sum, or the server has changed its signature; nothing is opened."
                )
        gone = [member for member in self.told if member not in self.survivors]
        sent = {
            "of_masks": as_rows([self.held[member][1] for member in self.survivors]),
            "of_keys": as_rows([self.held[member][0] for member in gone]),
        }
        self.held = {}
        return sent


def pair_purpose(about: bytes, asked: bytes, one: int, other: int) -> bytes:
    """What the key of a mask between two sites is for."""
    return digest("fedwinnow mask", about, asked, min(one, other), max(one, other))


def answered(party: Party, phase: Phase, got: Payload, numbers: Callable[[], Numbers], once: Once) -> Payload:
    """The answer of a site to a phase; its numbers are made only once the site has agreed to take part."""
    try:
        if phase == "keys":
            return party.keys()
        if phase == "shares":
            return party.shares(got)
        if phase == "masked":
            party.receive(got)
            answer = numbers()
            return {"masked": torch.from_numpy(party.masked(answer).view("int64")), "form": as_text(answer.form)}
        return party.agree(got, once) if phase == "agree" else party.unmask(got)
    except Malformed as problem:
        raise SumRefused(f"a message of a secure sum cannot be used: {problem}; nothing was sent.") from None
