"""Tests account signatures against eth-account, and peer signatures and boxes against changed
bytes.
"""

from collections.abc import Callable

import pytest
from eth_account import Account
from hypothesis import given
from hypothesis import strategies as st

from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.messages.envelope import HALF_ORDER
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Signature
from quorate_runtime.keys.crypto import BoxKey, KeySigner, PeerKey, recover, seal_to, verify_peer

ORDER = 2 * HALF_ORDER + 1
secrets = st.integers(1, ORDER - 1).map(lambda n: n.to_bytes(32, "big"))


@given(secrets, st.binary(min_size=32, max_size=32))
def test_signatures_are_those_of_eth_account(secret: bytes, digest: bytes) -> None:
    signer, reference = KeySigner(secret), Account.from_key(secret)
    ours = signer.sign(digest)
    assert signer.address == bytes.fromhex(reference.address[2:])
    # both use RFC 6979 and the low s
    assert ours == bytes(reference.unsafe_sign_hash(digest).signature)
    assert recover(Hash32(digest), ours) == signer.address


def test_the_known_account_of_secret_one() -> None:
    assert (
        KeySigner((1).to_bytes(32, "big")).address.hex()
        == "7e5f4552091a69125d5dfcb7b8c2659029395bdf"
    )


def _forged() -> list[bytes]:
    good = KeySigner(b"\1" * 32).sign(keccak256(b"x"))
    high = (ORDER - int.from_bytes(good[32:64], "big")).to_bytes(32, "big")
    return [
        good[:64],
        good + b"\0",
        b"",
        good[:64] + b"\0",
        good[:64] + b"\x1d",
        good[:32] + high + bytes([55 - good[64]]),  # the same signature in its malleable form
        bytes(64) + b"\x1b",
        bytes(32) + good[32:],
        good[:32] + bytes(32) + good[64:],
        b"\xff" * 32 + good[32:],
    ]


@pytest.mark.rule("3.3")
@pytest.mark.parametrize("forged", _forged())
def test_malformed_and_malleable_signatures_are_refused(forged: bytes) -> None:
    with pytest.raises(Refused) as refused:
        recover(keccak256(b"x"), Signature(forged))
    assert refused.value.code is Code.BAD_SIGNATURE


@given(st.binary(min_size=65, max_size=65))
def test_any_65_bytes_recover_or_are_refused(sig: bytes) -> None:
    try:
        assert len(recover(keccak256(b"x"), Signature(sig))) == 20
    except Refused as refusal:
        assert refusal.code is Code.BAD_SIGNATURE


def test_another_digest_recovers_another_address() -> None:
    signer = KeySigner(b"\7" * 32)
    assert (
        recover(keccak256(b"b"), signer.sign(keccak256(b"a")))
        != signer.address
        != Address(bytes(20))
    )


@pytest.mark.parametrize("secret", [bytes(32), ORDER.to_bytes(32, "big"), b"short"])
def test_bytes_that_are_no_secret_key_make_no_signer(secret: bytes) -> None:
    with pytest.raises(ValueError):
        KeySigner(secret)


@pytest.mark.rule("2.6")
def test_a_peer_signature_holds_for_its_key_and_message_only() -> None:
    key = PeerKey(b"\5" * 32)
    sig = key.sign(b"message")
    verify_peer(key.public, b"message", sig)
    other = PeerKey(b"\6" * 32).public
    for public, message, forged in (
        (key.public, b"messagf", sig),
        (other, b"message", sig),
        (key.public, b"message", sig[:63]),
    ):
        with pytest.raises(Refused):
            verify_peer(Hash32(public), message, Signature(forged))


@pytest.mark.rule("2.6")
def test_a_box_opens_for_its_owner_only() -> None:
    bob, eve = (BoxKey(bytes([n]) * 32) for n in (2, 3))
    sealed = seal_to(bob.public, b"weights")
    assert bob.open_sealed(sealed) == b"weights"
    attempts: list[Callable[[], bytes]] = [
        lambda: eve.open_sealed(sealed),
        lambda: bob.open_sealed(sealed[:-1]),
        lambda: bob.open_sealed(b""),
        lambda: bob.open_sealed(sealed[:-1] + bytes([sealed[-1] ^ 1])),
    ]
    for attempt in attempts:
        with pytest.raises(Refused) as refused:
            attempt()
        assert refused.value.code is Code.DOES_NOT_OPEN
