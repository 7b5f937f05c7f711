"""Records count only for their own provider, key, GPU and round, once, and while they live."""

from functools import cache

import pytest

from quorate_attestation import records
from quorate_attestation.seeds import gpu_hash
from quorate_protocol.limits import MAINNET
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import AttestationRecord
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import PerSecond, Ppm, Round, Small, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import recover
from support.attestation.challenges import DOMAIN, PEER_KEY, nonce
from support.attestation.scene import ALL_KEYS, NOW, PROVIDER, Scene, claims, key, open_challenge


@cache
def a_scene() -> Scene:
    scene = Scene(open_challenge(claims()))
    scene.run()
    return scene


@cache
def signed() -> tuple[Envelope[AttestationRecord], ...]:
    scene = a_scene()
    return tuple(scene.record(place, 0) for place in range(3))


def messages() -> list[AttestationRecord]:
    return [envelope.message for envelope in signed()]


def code_of(found: list[AttestationRecord], uuid: str = "GPU-0") -> Code:
    with pytest.raises(Refused) as refused:
        records.attested(found, PROVIDER.address, PEER_KEY, uuid)
    return refused.value.code


@pytest.mark.rule("10.13", "10.15")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"provider": key(3).address}, Code.NOT_YOURS),
        ({"peer_key": nonce(1)}, Code.NOT_YOURS),
        ({"gpu": gpu_hash("GPU-1")}, Code.NOT_YOURS),
        ({"beacon_round": Round(8)}, Code.STALE),
        ({"proof": nonce(1)}, Code.STALE),
        ({"challenge": nonce(1)}, Code.STALE),
        ({"model": nonce(1)}, Code.STALE),
        ({"gpus": Small(1), "verifiers": Small(2)}, Code.STALE),
    ],
)
def test_a_record_of_another_challenge_does_not_count(
    change: dict[str, object], code: Code
) -> None:
    one, two, three = messages()
    assert code_of([one, replace(two, **change), three]) is code  # type: ignore[arg-type]


@pytest.mark.rule("10.13")
def test_every_verifier_of_the_challenge_must_have_signed() -> None:
    one, two, three = messages()
    assert code_of([one, two]) is Code.UNKNOWN
    assert code_of([one, two, two]) is Code.UNKNOWN
    assert code_of([]) is code_of([one, two, three, three]) is Code.MALFORMED
    assert code_of([one, two, three], "GPU-1") is Code.NOT_YOURS


@pytest.mark.rule("10.6")
def test_one_lying_verifier_does_not_move_the_median_beyond_the_others() -> None:
    one, two, three = messages()
    rates = sorted(record.int8_operations for record in (one, two))
    for lie in (1, 10**18):
        false = replace(three, int8_operations=PerSecond(lie), ratio=Ppm(lie % 2**32))
        found = records.attested([one, two, false], PROVIDER.address, PEER_KEY, "GPU-0")
        assert rates[0] <= found.int8_operations <= rates[1]


@pytest.mark.rule("10.13", "10.15")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"issued": UnixSeconds(NOW + 61), "expires": UnixSeconds(NOW + 100)}, Code.TOO_EARLY),
        ({"issued": UnixSeconds(NOW - 9), "expires": UnixSeconds(NOW)}, Code.EXPIRED),
        ({"expires": UnixSeconds(NOW + 24 * 3600 + 1)}, Code.EXPIRED),
        ({"expires": UnixSeconds(0)}, Code.EXPIRED),
    ],
)
def test_records_live_for_a_day(change: dict[str, UnixSeconds], code: Code) -> None:
    wrong = seal(DOMAIN, replace(messages()[0], **change), ALL_KEYS[0].sign)
    with pytest.raises(Refused) as refused:
        records.validate(wrong, DOMAIN, recover, NOW, MAINNET.attestation_ttl)
    assert refused.value.code is code


@pytest.mark.rule("10.13")
def test_a_changed_record_has_another_signer() -> None:
    good = signed()[0]
    assert (
        records.validate(good, DOMAIN, recover, NOW, MAINNET.attestation_ttl) == ALL_KEYS[0].address
    )
    changed = Envelope(replace(good.message, int8_operations=PerSecond(1)), good.sig)
    assert (
        records.validate(changed, DOMAIN, recover, NOW, MAINNET.attestation_ttl)
        != ALL_KEYS[0].address
    )


@pytest.mark.rule("10.3", "10.13")
def test_verifiers_that_were_not_drawn_do_not_count() -> None:
    """A provider could sign three records with keys of its own; the challenge shows the draw."""
    found, opened = messages(), a_scene().challenge
    records.check_challenge(found, opened)
    friend = key(12).address
    with pytest.raises(Refused) as refused:
        records.check_challenge([replace(found[0], verifier=friend), *found[1:]], opened)
    assert refused.value.code is Code.NOT_YOURS
    forged = replace(opened, verifiers=(opened.verifiers[0], friend, key(13).address))
    named = [replace(record, challenge=forged.digest()) for record in found]
    with pytest.raises(Refused) as refused:
        records.check_challenge(named, forged)
    assert refused.value.code is Code.DOES_NOT_OPEN
