"""Bindings of peer keys to accounts, and the texts of peer ids."""

import pytest

from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.peer_ids import peer_id, peer_id_bytes, peer_key, peer_key_of_bytes
from quorate_protocol.messages.key_binding import (
    KnownBindings,
    SignedBinding,
    check_binding,
    sign_binding,
)
from quorate_protocol.messages.signed import KeyBinding
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Sequence
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner, PeerKey, recover, verify_peer

DOMAIN = Domain(31337, Address(b"\x5a" * 20))
ADA, BOB = Address(b"\x01" * 20), Address(b"\x02" * 20)
OPERATOR, STRANGER = KeySigner(b"\x01" * 32), KeySigner(b"\x02" * 32)
PEER, OTHER_PEER = PeerKey(b"\x03" * 32), PeerKey(b"\x04" * 32)
BOX = Hash32(b"\x05" * 32)


def binding(account: Address = ADA, peer: PeerKey = PEER, seq: int = 1) -> KeyBinding:
    return KeyBinding(account, peer.public, BOX, Sequence(seq))


def signed(
    given: KeyBinding, signer: KeySigner = OPERATOR, peer: PeerKey = PEER, domain: Domain = DOMAIN
) -> SignedBinding:
    return sign_binding(domain, given, signer.address, signer.sign, peer.sign)


def check(given: SignedBinding, peer: PeerKey = PEER) -> None:
    check_binding(DOMAIN, given, peer.public, recover, verify_peer)


@pytest.mark.rule("2.7", "3.6", "3.51")
def test_binding_needs_both_signatures_and_the_peer_key_of_the_connection() -> None:
    good = signed(binding())
    check(good)
    assert canonical.decode(SignedBinding, canonical.encode(good)) == good
    bad = {
        Code.WRONG_SIGNER: [signed(binding(peer=OTHER_PEER), peer=OTHER_PEER)],
        Code.BAD_SIGNATURE: [
            signed(binding(), peer=OTHER_PEER),
            replace(good, key=STRANGER.address),
            replace(good, sig=STRANGER.sign(b"\0" * 32)),
            replace(good, binding=binding(BOB)),
            replace(good, binding=binding(seq=2)),
            replace(good, peer_sig=good.peer_sig[:63]),
            signed(binding(), domain=Domain(1, DOMAIN.verifying_contract)),
        ],
    }
    for code, cases in bad.items():
        for case in cases:
            with pytest.raises(Refused) as refused:
                check(case)
            assert refused.value.code is code


@pytest.mark.rule("3.51")
def test_newest_binding_of_an_account_counts() -> None:
    known = KnownBindings()
    known.learn(binding(seq=2))
    known.learn(binding(seq=2))
    with pytest.raises(Refused) as refused:
        known.learn(binding(seq=1))
    assert refused.value.code is Code.STALE
    with pytest.raises(Refused) as refused:
        known.learn(binding(peer=OTHER_PEER, seq=2))
    assert refused.value.code is Code.EQUIVOCATION
    assert known.newest(ADA) == binding(seq=2) and known.newest(BOB) is None


@pytest.mark.rule("3.51")
def test_peer_key_belongs_to_one_account_at_a_time() -> None:
    known = KnownBindings()
    known.learn(binding(ADA))
    with pytest.raises(Refused) as refused:
        known.learn(binding(BOB))
    assert refused.value.code is Code.NOT_YOURS and "0x" + ADA.hex() in refused.value.detail
    known.learn(binding(ADA, OTHER_PEER, seq=2))
    known.learn(binding(BOB))  # the account that had it took another key
    assert known.newest(BOB) == binding(BOB)


def test_known_bindings_are_bounded() -> None:
    known = KnownBindings(accounts_max=1)
    known.learn(binding(ADA))
    known.learn(binding(ADA, seq=2))
    with pytest.raises(Refused) as refused:
        known.learn(binding(BOB, OTHER_PEER))
    assert refused.value.code is Code.BUSY


def test_peer_ids_are_read_and_written() -> None:
    text = peer_id(PEER.public)
    assert text.startswith("12D3Koo") and len(text) == 52
    assert peer_key(text) == PEER.public == peer_key_of_bytes(peer_id_bytes(PEER.public))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", Code.MALFORMED),
        ("12D3Koo0", Code.MALFORMED),
        ("1" * 65, Code.MALFORMED),
        ("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG", Code.UNSUPPORTED),
        ("1", Code.UNSUPPORTED),
        (peer_id(PEER.public)[:-1], Code.UNSUPPORTED),
    ],
)
def test_other_peer_ids_are_refused(text: str, code: Code) -> None:
    with pytest.raises(Refused) as refused:
        peer_key(text)
    assert refused.value.code is code
