"""Keys, masks and signatures."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from fedwinnow.mathematics.masks import KeyPair, from_seed, is_signed, locked, mask, opened, signature

SITES = [KeyPair.of(bytes([number]) * 32) for number in (1, 2, 3)]


def test_the_known_answer_of_the_standards() -> None:
    # RFC 7748, section 5.2: one iteration, that is 9 times the base point (after its bits are set)
    one = KeyPair.of(bytes([9]) + bytes(31))
    assert one.public.hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    # RFC 8439, appendix A.1: the key stream of ChaCha20 for a key and nonce of zeros begins with 76b8e0ada0f13d90
    assert mask(bytes(32), 1)[0] == int.from_bytes(bytes.fromhex("76b8e0ada0f13d90"), "little")


def test_the_masks_of_three_sites_cancel() -> None:
    values = np.array([[1, 2], [10, 20], [100, 200]], np.uint64)
    sent = values.copy()
    for one in range(3):
        for other in range(3):
            if one != other:
                pair = mask(SITES[one].agreed(SITES[other].public, b"mask"), 2)
                sent[one] = sent[one] + pair if other > one else sent[one] - pair
    assert not (sent == values).any()
    assert sent.sum(axis=0, dtype=np.uint64).tolist() == [111, 222]


def test_a_purpose_has_its_own_key() -> None:
    first, second = SITES[:2]
    assert first.agreed(second.public, b"a") == second.agreed(first.public, b"a") != first.agreed(second.public, b"b")
    with pytest.raises(ValueError, match=r".*"):
        first.agreed(bytes(32), b"a")  # a key with which everybody would agree on the same secret


def test_an_envelope_opens_with_its_key_for_its_purpose_unchanged() -> None:
    text = locked(bytes(32), b"shares", b"sum 1")
    assert opened(bytes(32), text, b"sum 1") == b"shares"
    assert opened(bytes(32), text, b"sum 2") is None
    assert opened(b"1" * 32, text, b"sum 1") is None
    assert opened(bytes(32), text[:-1] + b"0", b"sum 1") is None


@pytest.mark.parametrize("kind", ["simulation", "P-384"])
def test_signatures(kind: str) -> None:
    new = {
        "simulation": ed25519.Ed25519PrivateKey.generate,
        "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    }[kind]
    key, other = new(), new()
    made = signature(key, b"who is in the sum")
    assert len(made) == {"simulation": 64, "P-384": 96}[kind]
    assert is_signed(key.public_key(), made, b"who is in the sum")
    assert not is_signed(key.public_key(), made, b"who else is in the sum")
    assert not is_signed(other.public_key(), made, b"who is in the sum")
    assert not is_signed(key.public_key(), made[:-1], b"who is in the sum")
    assert not is_signed(key.public_key(), b"", b"who is in the sum")


def test_bytes_from_the_seed_are_the_same_again_and_differ_by_site_and_purpose() -> None:
    assert from_seed(7, "a")("x", 8) == from_seed(7, "a")("x", 8)
    others = {
        from_seed(8, "a")("x", 8),
        from_seed(7, "b")("x", 8),
        from_seed(7, "a")("y", 8),
        from_seed(7, "a")("x", 8),
    }
    assert len(others) == 4
