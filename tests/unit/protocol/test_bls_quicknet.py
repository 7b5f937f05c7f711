"""Tests the quicknet signature scheme with a real beacon round, and with changed bytes."""

from hashlib import sha256

import py_arkworks_bls12381
import pytest

from quorate_protocol.messages.beacon_rounds import first_round_after, round_at, round_time
from quorate_protocol.messages.ports import BeaconInfo
from quorate_protocol.units import Round, Seconds
from quorate_runtime.keys import bls

QUICKNET_KEY = bytes.fromhex(
    "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d106451"
    "0d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a"
)
QUICKNET_ROUND = Round(657413)
QUICKNET_SIGNATURE = bytes.fromhex(
    "b713718a38ae728dfd477991af2822e08d2f305e47718cef9f7848ce4050e7be41076862b98fad56e91a6b85b89cd97b"
)


def test_real_quicknet_round_verifies() -> None:
    assert bls.verify_round(QUICKNET_KEY, QUICKNET_ROUND, QUICKNET_SIGNATURE)


@pytest.mark.parametrize("index", [0, 1, 24, 47])
def test_every_flipped_byte_is_refused(index: int) -> None:
    forged = bytearray(QUICKNET_SIGNATURE)
    forged[index] ^= 1
    assert not bls.verify_round(QUICKNET_KEY, QUICKNET_ROUND, bytes(forged))


def test_other_round_other_key_and_wrong_lengths_are_refused() -> None:
    assert not bls.verify_round(QUICKNET_KEY, Round(QUICKNET_ROUND + 1), QUICKNET_SIGNATURE)
    assert not bls.verify_round(
        bls.public_key(bls.keygen(bytes(32))), QUICKNET_ROUND, QUICKNET_SIGNATURE
    )
    assert not bls.verify_round(QUICKNET_KEY, QUICKNET_ROUND, QUICKNET_SIGNATURE[:-1])
    assert not bls.verify_round(QUICKNET_KEY[:-1], QUICKNET_ROUND, QUICKNET_SIGNATURE)


def test_points_at_infinity_are_refused() -> None:
    no_signature = b"\xc0" + bytes(47)
    no_key = b"\xc0" + bytes(95)
    assert not bls.verify_round(no_key, Round(1), no_signature)
    assert not bls.verify_round(QUICKNET_KEY, Round(1), no_signature)


def test_point_outside_the_subgroup_is_refused() -> None:
    # (0, 2) satisfies y^2 = x^3 + 4 but has order 3, not r.
    outside = b"\x80" + bytes(47)
    point = py_arkworks_bls12381.G1Point.from_compressed_bytes_unchecked(outside)
    assert not point.is_in_subgroup()
    assert not bls.verify_round(QUICKNET_KEY, Round(1), outside)


@pytest.mark.rule("9.3")
def test_own_key_signs_what_it_verifies() -> None:
    secret = bls.keygen(b"a seed of sufficient length")
    assert secret == bls.keygen(b"a seed of sufficient length")
    made = bls.beacon_round(secret, Round(42))
    assert len(made.signature) == 48 and made.randomness == sha256(made.signature).digest()
    assert bls.verify_round(bls.public_key(secret), Round(42), made.signature)
    assert not bls.verify_round(bls.public_key(secret), Round(43), made.signature)


def test_points_for_the_contract_are_encoded_by_eip_2537() -> None:
    words = bls.signature_words(QUICKNET_SIGNATURE)
    packed = bls.words_bytes(words)
    assert len(packed) == 128 and packed[:16] == bytes(16) and packed[64:80] == bytes(16)
    # x is the compressed form without its three flag bits.
    assert packed[16:64] == bytes([QUICKNET_SIGNATURE[0] & 0x1F]) + QUICKNET_SIGNATURE[1:]
    again = py_arkworks_bls12381.G1Point.from_xy_bytes_be(packed[16:64] + packed[80:128])
    assert again.to_compressed_bytes() == QUICKNET_SIGNATURE
    assert len(bls.words_bytes(bls.public_key_words(QUICKNET_KEY))) == 256
    with pytest.raises(ValueError):
        bls.signature_words(bytes(48))


def test_a_round_appears_at_genesis_plus_its_number_of_periods() -> None:
    info = BeaconInfo(QUICKNET_KEY, Seconds(3), 1000)
    assert [round_at(info, unix) for unix in (0, 999, 1000, 1002, 1003)] == [0, 0, 1, 1, 2]
    assert round_time(info, Round(1)) == 1000 and round_time(info, Round(5)) == 1012
    for unix in range(990, 1020):
        later = first_round_after(info, unix)
        assert round_time(info, later) > unix and (
            later == 1 or round_time(info, Round(later - 1)) <= unix
        )
