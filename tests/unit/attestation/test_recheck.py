"""Anybody can check a published proof and its records again, and sees what is only told."""

from functools import cache

import pytest

from quorate_attestation.sessions.recheck import VERIFIERS_WORD, recheck
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.receipt import Report
from quorate_protocol.messages.signed import AttestationRecord
from quorate_protocol.units import ByteCount, Hash32, Milliseconds, Small, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys import bls
from quorate_runtime.keys.crypto import recover
from support.attestation.challenges import DOMAIN, nonce
from support.attestation.scene import BEACON_SECRET, PARAMETERS, Scene, claims, open_challenge

Records = tuple[Envelope[AttestationRecord], ...]


@cache
def published() -> tuple[bytes, Records]:
    scene = Scene(open_challenge(claims()))
    scene.run()
    return scene.proofs[0].encode(), tuple(scene.record(place, 0) for place in range(3))


def report(document: bytes, found: Records, is_chain_known: bool = True) -> Report:
    return recheck(
        document,
        found,
        DOMAIN,
        bls.public_key(BEACON_SECRET),
        b"\x77" * 32,
        recover,
        bls.verify_round,
        (lambda account, key: account == key) if is_chain_known else None,
        lambda claim: PARAMETERS,
    )


def wrong_names(document: bytes, found: Records) -> set[str]:
    return {check.name for check in report(document, found).checks if not check.is_good}


@pytest.mark.rule("10.6", "10.12")
def test_honest_documents_pass_and_times_are_labelled() -> None:
    checks = {check.name: check for check in report(*published()).checks}
    assert all(check.is_good for check in checks.values())
    assert checks["time"].detail == VERIFIERS_WORD
    assert "coordinator's word" in checks["draw"].detail
    offline = {check.name: check for check in report(*published(), False).checks}
    assert "not compared with the chain" in offline["signature:record[0]"].detail


@pytest.mark.rule("10.12", "10.13")
@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"proof": nonce(1)}, {"records:proof", "records:subject"}),
        ({"model": nonce(1)}, {"records:challenge", "records:subject"}),
        ({"gpus": Small(4)}, {"records:challenge", "records:subject"}),
        ({"gpu": nonce(1)}, {"records:challenge", "records:subject"}),
        ({"vram_bytes": ByteCount(1)}, {"records:memory", "records:subject"}),
        ({"elapsed_ms": Milliseconds(1)}, set()),
        ({"expires": UnixSeconds(10 * 365 * 86_400)}, {"records:lifetime"}),
    ],
)
def test_a_changed_record_is_noticed(change: dict[str, object], names: set[str]) -> None:
    document, found = published()
    first = Envelope(replace(found[0].message, **change), found[0].sig)  # type: ignore[arg-type]
    assert wrong_names(document, (first, *found[1:])) == names | {"signature:record[0]"}


@pytest.mark.rule("10.12")
def test_a_changed_document_is_noticed() -> None:
    document, found = published()
    assert wrong_names(document[:-1], found) == {"proof:form"}
    last = document[:-1] + bytes([document[-1] ^ 1])
    assert wrong_names(last, found) == {"arithmetic", "records:proof"}
    weak = recheck(document, found, DOMAIN, b"", b"\x77" * 32, recover, bls.verify_round)
    assert {"sizes", "signature:beacon"} == {c.name for c in weak.checks if not c.is_good}


@pytest.mark.rule("10.3", "10.4", "10.12")
def test_another_beacon_round_is_noticed() -> None:
    scene = Scene(open_challenge(claims()))
    beacon = replace(scene.challenge.beacon, randomness=Hash32(b"\x01" * 32))
    scene.challenge = replace(scene.challenge, beacon=beacon)
    scene.run()
    assert wrong_names(scene.proofs[0].encode(), ()) >= {"signature:beacon", "draw"}
