"""A secure sum: what it gives, who may leave when, and what a server or a site that lies achieves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")
from fedwinnow.errors import FedwinnowError
from fedwinnow.federation.summing.party import Numbers, Party
from fedwinnow.federation.summing.sum_messages import (
    Questions,
    SumFailed,
    SumRefused,
    as_row,
    as_rows,
    as_text,
    asked_text,
    hash_of,
    survivors_text,
    threshold_of,
)
from fedwinnow.mathematics.masks import KEY, KeyPair, mask, signature
from fedwinnow.mathematics.payload import Payload
from fedwinnow.mathematics.shamir import from_bytes, secret_from
from playing_sums import Play, numbers

VALUES = {0: [1, -5], 2: [10, 0], 5: [100, 7], 7: [1000, -2], 8: [10000, 3]}
PHASES = ("keys", "shares", "masked", "agree", "unmask")


def gone(phase: str, *sites: int):
    """These sites are lost in this phase."""
    return lambda now, site, letter: "lost" if now == phase and site in sites else letter


def test_the_threshold() -> None:
    assert [threshold_of(0.66, count) for count in (3, 4, 5, 6, 10, 100)] == [3, 3, 4, 4, 7, 67]
    assert [threshold_of(0.5, count) for count in (1, 3, 4, 5, 6, 10)] == [3, 3, 3, 3, 4, 6]


def test_the_sum_is_exact_and_single_answers_look_random() -> None:
    play = Play(VALUES)
    assert play.result() == ((0, 2, 5, 7, 8), [11111, 3])
    masked = np.stack([play.replies["masked", site]["masked"].numpy() for site in VALUES])
    assert (np.abs(masked) > 2**40).all()  # by chance false once in 10^6


@pytest.mark.parametrize("phase", PHASES)
def test_a_site_may_leave_in_every_phase(phase: str) -> None:
    play = Play(VALUES, told=gone(phase, 2))
    before = phase in ("keys", "shares", "masked")
    assert play.result() == (((0, 5, 7, 8), [11101, 3]) if before else ((0, 2, 5, 7, 8), [11111, 3]))
    assert play.server.dropped == {2: "lost"}


def test_sites_may_leave_in_several_phases() -> None:
    values = {site: [10**site] for site in range(8)}
    when = {"keys": 0, "shares": 1, "masked": 6}
    play = Play(values, told=lambda phase, site, letter: "lost" if when.get(phase) == site else letter)
    assert play.result() == ((2, 3, 4, 5, 7), [10111100 + 0 * 10**6])


@pytest.mark.parametrize("phase", PHASES)
def test_below_the_threshold_there_is_no_sum(phase: str) -> None:
    play = Play(VALUES, told=gone(phase, 2, 5, 8))
    with pytest.raises(SumFailed, match=rf"only 2 of \d sites are left of a secure sum after '{phase}'; 3 must stay"):
        play.result()


def test_two_sites_have_no_sum() -> None:
    with pytest.raises(SumFailed, match="at least 3 sites, and 2 were asked"):
        Play({0: [1], 1: [2]}).result()


def test_everything_follows_from_the_seed() -> None:
    first, again, other = Play(VALUES), Play(VALUES), Play(VALUES, seed=1)
    for play in (first, again, other):
        assert play.result()[1] == [11111, 3]
    for key, reply in first.replies.items():
        assert all(torch.equal(value, again.replies[key][name]) for name, value in reply.items())
    assert not torch.equal(first.replies["masked", 0]["masked"], other.replies["masked", 0]["masked"])


# --- a server that wants to open the answer of one site ---------------------------------------------------------------


def refused(play: Play) -> str:
    """Why there was no sum."""
    with pytest.raises(SumFailed) as found:
        play.result()
    return str(found.value)


def test_other_survivors_named_to_other_sites() -> None:
    """To open site 2 the server needs shares of its key from some sites and of its own mask from others."""

    def told(phase: str, site: int, letter: Payload) -> Payload:
        if phase == "agree" and site in (5, 7):
            return {"survivors": numbers(0, 5, 7, 8)}
        return letter

    play = Play(VALUES, told=told)
    assert play.result() == ((0, 2, 5, 7, 8), [11111, 3])  # three were told the same, which is enough for the sum
    assert "signed something else" in play.server.dropped[5]
    for site in (0, 2, 8):
        assert not play.replies["unmask", site]["of_keys"].numel()

    # A server that hands the other two what it has gets no share of the key of site 2 from them.
    for site in (5, 7):
        letters = {one: play.replies["agree", one]["signature"] for one in (0, 5, 7, 8)}
        letter = {"signers": numbers(*letters), "signatures": torch.stack(list(letters.values()))}
        with pytest.raises(SumRefused, match="was told of other sites"):
            play.answer("unmask", site, letter)


def test_a_server_that_keeps_two_groups_apart_opens_nothing_above_half() -> None:
    """Two groups that sign different survivors: with a threshold above half, at most one of them is large enough."""
    play = Play({site: [site] for site in range(6)}, share=0.5)
    groups = {0: (0, 1, 2), 1: (0, 1, 2), 2: (0, 1, 2), 3: (0, 3, 4, 5), 4: (0, 3, 4, 5), 5: (0, 3, 4, 5)}

    def told(phase: str, site: int, letter: Payload) -> Payload:
        return {"survivors": numbers(*groups[site])} if phase == "agree" else letter

    play.told = told
    refused(play)
    signed = {site: play.replies["agree", site]["signature"] for site in (3, 4, 5) if ("agree", site) in play.replies}
    letter = {"signers": numbers(*signed), "signatures": torch.stack(list(signed.values()))}
    with pytest.raises(SumRefused, match="only 3 sites have signed who is in the sum; 4 must"):
        play.answer("unmask", 4, letter)
    assert ("agree", 0) not in play.replies  # its group is below the threshold


def test_a_site_that_is_asked_something_else_makes_the_sum_noise() -> None:
    """A server sends site 2 a crafted model, and the others an honest one: what it gets says nothing of any site."""
    play = Play(VALUES, questions={2: b"a crafted model"})
    _, total = play.result()
    assert min(abs(number) for number in total) > 2**40  # by chance false once in 10^6
    assert "something else than what it was asked" in play.server.dropped[2]
    letter = {"signers": numbers(0, 5, 7, 8)}
    letter["signatures"] = torch.stack([play.replies["agree", site]["signature"] for site in (0, 5, 7, 8)])
    with pytest.raises(SumRefused, match="was asked something else than this site"):
        play.answer("unmask", 2, letter)
    honest = Play({site: row for site, row in VALUES.items() if site != 2})
    assert honest.result()[1] == [11101, 3]  # not what the other four give above, whose masks with site 2 stay on


def test_two_groups_that_are_asked_different_things_have_no_sum() -> None:
    play = Play({site: [site] for site in range(6)}, questions=dict.fromkeys((3, 4, 5), b"another model"))
    assert "only 3 of 6 sites are left of a secure sum after 'agree'; 4 must stay" in refused(play)
    for site, signers in ((0, (0, 1, 2)), (3, (3, 4, 5)), (1, (0, 1, 2, 3))):
        made = torch.stack([play.replies["agree", site]["signature"] for site in signers])
        with pytest.raises(SumRefused, match=r"only 3 sites have signed|asked something else"):
            play.answer("unmask", site, {"signers": numbers(*signers), "signatures": made})


def test_masks_depend_on_what_was_asked_and_on_the_form() -> None:
    parties = []
    for question, form in ((b"asked", "numbers"), (b"other", "numbers"), (b"asked", "others")):
        play = Play(VALUES)
        play.result()
        party = play.parties[0]
        party.masked(Numbers(play.ring(0), form, question))
        parties.append(party.pair_key(2))
    assert len(set(parties)) == 3


def test_no_site_gives_both_kinds_of_share() -> None:
    play = Play(VALUES)
    play.result()
    for site in VALUES:
        reply = play.replies["unmask", site]
        assert len(reply["of_masks"]) == 5
        assert not reply["of_keys"].numel()
        with pytest.raises(SumRefused, match="'unmask' of a secure sum was asked out of turn"):
            play.answer("unmask", site, {})
        with pytest.raises(SumRefused, match="'agree' of a secure sum was asked out of turn"):
            play.answer("agree", site, {"survivors": numbers(0, 5, 7, 8)})
        assert play.parties[site].held == {}


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_is_answered_once_and_in_order(phase: str) -> None:
    play = Play(VALUES)
    play.result()
    with pytest.raises(SumRefused, match="out of turn"):
        play.answer(phase, 0, {})
    if phase != "keys":
        play.parties[0] = play.party(0)
        with pytest.raises(SumRefused, match="out of turn"):
            play.answer(phase, 0, {})


def test_a_late_answer_stays_hidden() -> None:
    """A site that counts as lost sends its answer after all: the server has its key, but not its own mask."""
    play = Play(VALUES, sent=lambda phase, site, reply: "too late" if (phase, site) == ("masked", 2) else reply)
    assert play.result() == ((0, 5, 7, 8), [11101, 3])
    late = play.replies["masked", 2]["masked"].numpy().view(np.uint64)
    shares = {}
    for place, site in enumerate(VALUES):
        if site != 2:
            shares[place + 1] = from_bytes(play.replies["unmask", site]["of_keys"][0].numpy().tobytes())
    found = secret_from({place: shares[place] for place in sorted(shares)[:3]})
    party = play.parties[2]
    assert found == party.for_masks.secret  # so the server can take every mask away that it shares with others
    opened = late.copy()
    for other in VALUES:
        if other != 2:
            pair = mask(party.pair_key(other), 2)
            opened = opened - pair if other > 2 else opened + pair
    assert (opened - mask(party.noise, 2)).view(np.int64).tolist() == VALUES[2]  # that is what its own mask is for
    assert opened.view(np.int64).tolist() != VALUES[2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"members": numbers(0, 2)}, "rows of bytes"),
        ({"names": as_text(["site 0", "site 2", "site 5", "site 7", "site 7"])}, "different names"),
        ({"names": as_text(["site 0", "site 2", "site 5", "site 7", "a stranger"])}, "public key is not known here"),
        ({"names": as_text(["site 2", "site 0", "site 5", "site 7", "site 8"])}, "were not signed by site 2"),
        ({"names": as_text(7)}, "different names"),
        ({"names": as_row(b"{")}, "cannot be read"),
    ],
)
def test_a_list_of_sites_that_is_not_right_is_refused(change: Payload, said: str) -> None:
    play = Play(VALUES, told=lambda phase, site, letter: letter | (change if phase == "shares" else {}))
    assert said in refused(play)


def test_keys_of_the_servers_own_are_refused() -> None:
    """A server in the middle: it hands its own keys on in the name of site 2."""
    own = KeyPair.of(b"s" * 32).public * 2

    def told(phase: str, site: int, letter: Payload) -> Payload:
        if phase != "shares":
            return letter
        rows = [row.numpy().tobytes() for row in letter["keys"]]
        return letter | {"keys": as_rows([rows[0], own, *rows[2:]])}

    assert "the keys that the server hands on for site 2 were not signed by site 2" in refused(Play(VALUES, told=told))


def test_a_sum_among_fewer_sites_than_three_is_refused() -> None:
    def told(phase: str, site: int, letter: Payload) -> Payload:
        if phase != "shares":
            return letter
        first = {key: letter[key][:2] for key in ("members", "keys", "signatures")}
        return first | {"names": as_text(["site 0", "site 2"])}

    play = Play(VALUES, told=told)
    assert "a secure sum over 2 sites was asked for; allowed: at least 3" in refused(play)


def test_a_site_left_out_of_its_own_sum_opens_nothing() -> None:
    def told(phase: str, site: int, letter: Payload) -> Payload:
        return {"survivors": numbers(0, 5, 7, 8)} if phase == "agree" and site == 2 else letter

    play = Play(VALUES, told=told)
    play.result()
    assert ("agree", 2) not in play.replies
    assert "not this one" in play.server.dropped[2]


def test_other_senders_of_envelopes_to_other_sites_are_noticed() -> None:
    def told(phase: str, site: int, letter: Payload) -> Payload:
        if phase == "masked" and site == 0:
            return {"members": letter["members"][:4], "shares": letter["shares"][:4]}
        return letter

    play = Play(VALUES, told=told)
    found = play.result()[1]  # site 0 signs nothing, and its mask with site 8 does not cancel: the sum is worthless
    assert found != [11111, 3]
    assert "not named before" in play.server.dropped[0]


def test_a_signature_that_the_server_changed() -> None:
    def told(phase: str, site: int, letter: Payload) -> Payload:
        if phase != "unmask":
            return letter
        changed = letter["signatures"].clone()
        changed[1, 3] ^= 1
        return {**letter, "signatures": changed}

    assert "changed its signature" in refused(Play(VALUES, told=told))


def test_signatures_of_another_sum_do_not_count() -> None:
    play = Play(VALUES)
    play.result()
    fresh = Play(VALUES)  # the same keys of everybody, as the seed is the same; another session
    for site in VALUES:
        identity = fresh.parties[site].me
        fresh.parties[site] = Party(identity, site, fresh.peers, b"another sum", 0.5)
    fresh.server.session = b"another sum"
    old = {site: play.replies["agree", site]["signature"] for site in VALUES}
    fresh.told = lambda phase, site, letter: (
        {"signers": numbers(*old), "signatures": torch.stack(list(old.values()))} if phase == "unmask" else letter
    )
    assert "was told of other sites" in refused(fresh)


def test_asked_again_with_other_sites_a_site_refuses() -> None:
    """The difference of the two sums would be the answer of the site that is in only one of them."""
    from fedwinnow.federation.summing.sum_memory import SumMemory

    memories = {site: SumMemory() for site in VALUES}

    def play(told) -> Play:  # type: ignore[no-untyped-def]
        return Play(VALUES, told=told, once=lambda site, members: memories[site].allow("round 1", members))

    assert play(lambda phase, site, letter: letter).result()[1] == [11111, 3]
    assert play(lambda phase, site, letter: letter).result()[1] == [11111, 3]  # the same sum tells nothing new
    assert "in a sum over other sites" in refused(play(gone("masked", 2)))


# --- a site that lies ------------------------------------------------------------------------------------------------


def flipped(reply: Payload, key: str) -> Payload:
    """The reply with one bit of each row changed."""
    changed = reply[key].clone()
    changed.view(-1)[0] ^= 1
    return reply | {key: changed}


@pytest.mark.parametrize(
    ("phase", "key"),
    [("keys", "keys"), ("keys", "signature"), ("agree", "signature")],
)
def test_a_changed_message_costs_its_sender(phase: str, key: str) -> None:
    play = Play(VALUES, sent=lambda now, site, reply: flipped(reply, key) if (now, site) == (phase, 5) else reply)
    members, total = play.result()
    assert (members, total) == (((0, 2, 7, 8), [11011, -4]) if phase == "keys" else ((0, 2, 5, 7, 8), [11111, 3]))
    assert "cannot be used in a secure sum" in play.server.dropped[5]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"keys": torch.zeros(3)},
        {"keys": torch.zeros(64, dtype=torch.uint8), "signature": torch.zeros(64, dtype=torch.uint8)},
        {"shares": torch.zeros(5, 82, dtype=torch.int64), "commitment": torch.zeros(32, dtype=torch.uint8)},
        {"shares": torch.zeros(4, 82, dtype=torch.uint8), "commitment": torch.zeros(32, dtype=torch.uint8)},
        {"masked": torch.zeros(2), "form": as_text("numbers")},
        {"masked": torch.zeros(2, 1, dtype=torch.int64), "form": as_text("numbers")},
        {"masked": torch.zeros(7, dtype=torch.int64), "form": as_text("numbers")},
        {"masked": torch.zeros(2, dtype=torch.int64), "form": as_text("others")},
        {"masked": torch.zeros(2, dtype=torch.int64), "form": as_row(b"[")},
        {"of_masks": torch.zeros(5, 32, dtype=torch.uint8), "of_keys": torch.zeros(0, dtype=torch.uint8)},
        {"signature": torch.zeros(0, dtype=torch.uint8)},
    ],
)
def test_messages_of_a_wrong_form_cost_their_sender(phase: str, broken: Payload) -> None:
    play = Play(VALUES, sent=lambda now, site, reply: broken if (now, site) == (phase, 5) else reply)
    members, total = play.result()
    in_sum = phase in ("agree", "unmask")
    assert (members, total) == (((0, 2, 5, 7, 8), [11111, 3]) if in_sum else ((0, 2, 7, 8), [11011, -4]))
    assert 5 in play.server.dropped


def test_wrong_shares_of_one_site_are_worked_around() -> None:
    def sent(phase: str, site: int, reply: Payload) -> Payload:
        if (phase, site) != ("unmask", 0):
            return reply
        return {key: value.clone().bitwise_xor_(1) if value.numel() else value for key, value in reply.items()}

    assert Play(VALUES, sent=sent).result() == ((0, 2, 5, 7, 8), [11111, 3])
    wrong_and_lost = Play(VALUES, sent=sent, told=gone("masked", 8))
    assert wrong_and_lost.result() == ((0, 2, 5, 7), [1111, 0])


def test_envelopes_that_cannot_be_opened_cost_their_sender() -> None:
    """Site 5 gives out rubbish: it is named, and nobody else is thrown out."""

    def sent(phase: str, site: int, reply: Payload) -> Payload:
        return flipped_rows(reply) if (phase, site) == ("shares", 5) else reply

    said = refused(Play(VALUES, sent=sent))
    assert "the shares of site 5's secrets do not fit together" in said
    assert "site 0" not in said


def flipped_rows(reply: Payload) -> Payload:
    changed = reply["shares"].clone()
    changed[:, 0] ^= 1
    return reply | {"shares": changed}


def test_a_wrong_commitment_is_that_sites_fault() -> None:
    play = Play(
        VALUES, sent=lambda now, site, reply: flipped(reply, "commitment") if site == 5 and now == "shares" else reply
    )
    assert "the shares of site 5's secrets" in refused(play)


def test_one_bad_site_can_spoil_a_sum() -> None:
    """What is not protected against: a masked answer may be anything."""

    def sent(phase: str, site: int, reply: Payload) -> Payload:
        return reply | {"masked": reply["masked"] + 1} if (phase, site) == ("masked", 5) else reply

    assert Play(VALUES, sent=sent).result() == ((0, 2, 5, 7, 8), [11112, 4])


def test_the_statement_binds_every_part() -> None:
    texts = {
        survivors_text(b"about", b"asked", [0, 1, 2], [0, 1]),
        survivors_text(b"about", b"asked", [0, 1], [0, 1]),
        survivors_text(b"about", b"asked", [0, 1, 2], [0, 2]),
        survivors_text(b"about", b"other", [0, 1, 2], [0, 1]),
        survivors_text(b"other", b"asked", [0, 1, 2], [0, 1]),
    }
    assert len(texts) == 5


def test_the_hash_of_a_question_binds_every_part() -> None:
    model = {"weights": torch.tensor([1.0, 2.0]), "counters": torch.tensor([3])}
    others = [
        {},
        {"weights": model["weights"]},
        model | {"weights": torch.tensor([1.0, 2.0 + 2**-22])},
        model | {"weights": torch.tensor([[1.0, 2.0]])},
        model | {"weights": torch.tensor([1.0, 2.0]).view(torch.int32)},
        {"weight": model["weights"], "counters": model["counters"]},
    ]
    hashes = {hash_of(one) for one in [model, *others]}
    assert len(hashes) == len(others) + 1
    assert hash_of({key: model[key].clone() for key in reversed(model)}) == hash_of(model)
    known = Questions()
    assert [known.of(one) for one in (model, dict(model), others[2], model)] == [
        hash_of(one) for one in (model, model, others[2], model)
    ]
    assert asked_text(b"asked", [["weights", "float32", [2]]]) != asked_text(b"asked", [["weights", "float32", [1, 2]]])


def test_an_error_is_one_of_the_programs() -> None:
    assert issubclass(SumRefused, FedwinnowError)
    assert issubclass(SumFailed, FedwinnowError)
    assert len(signature(Play(VALUES).parties[0].me.key, b"")) == 64
    assert KEY == 32
