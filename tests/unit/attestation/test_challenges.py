"""Whole challenges: honest GPUs get records, and slower, shared or larger ones are refused."""

from functools import cache

import pytest

from quorate_attestation import records
from quorate_attestation.challenge import STAGES
from quorate_attestation.claims import Figures, figures, judge
from quorate_attestation.seeds import gpu_hash
from quorate_attestation.sessions import verifier_session
from quorate_protocol.limits import MAINNET
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import PPM_ONE, Milliseconds, Small
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import recover
from support.attestation.challenges import DOMAIN, PEER_KEY, nonce
from support.attestation.cheats import ForgetfulEngine, SkippingEngine
from support.attestation.scene import (
    NETWORK_MS,
    NOW,
    PROVIDER,
    Scene,
    claims,
    open_challenge,
    reference,
)


@cache
def honest() -> Scene:
    scene = Scene(open_challenge(claims(2)))
    scene.run()
    return scene


def refusal_of(scene: Scene, gpu: int = 0) -> Refused:
    with pytest.raises(Refused) as refused:
        scene.record(0, gpu)
    return refused.value


@pytest.mark.rule("10.2", "10.3", "10.6", "10.13")
def test_three_verifiers_sign_one_record_each() -> None:
    scene = honest()
    assert len(scene.states) == 3
    for gpu in range(2):
        found = [scene.record(place, gpu) for place in range(3)]
        signers = {
            records.validate(envelope, DOMAIN, recover, NOW, MAINNET.attestation_ttl)
            for envelope in found
        }
        assert signers == set(scene.challenge.verifiers)
        messages = [envelope.message for envelope in found]
        summary = records.attested(messages, PROVIDER.address, PEER_KEY, f"GPU-{gpu}")
        rates = sorted(message.int8_operations for message in messages)
        assert summary.int8_operations == rates[1], "the median"
        assert summary.verifiers == summary.verifiers_asked == 3
        assert 950_000 < summary.ratio <= PPM_ONE
        assert summary.gpu == gpu_hash(f"GPU-{gpu}")


@pytest.mark.rule("10.5", "10.14")
def test_one_gpu_that_claims_to_be_four_has_a_quarter_of_the_rate() -> None:
    scene = Scene(open_challenge(claims(4)), slowness=lambda _gpu, _stage: 4.0)
    scene.run()
    for gpu in range(4):
        _, found = scene.verify(0, gpu)
        measured = reference(scene.challenge.gpus[0]).measured
        assert measured is not None
        share = 4 * found.int8_operations_per_second / measured.int8_ops_per_second
        assert 0.95 < share < 1.05
        refused = refusal_of(scene, gpu)
        assert refused.code is Code.BAD_AMOUNT and "0.25 of" in refused.detail


@pytest.mark.rule("10.5", "10.14")
def test_one_gpu_that_serves_four_claims_in_turn_gains_nothing() -> None:
    """The last one waits for all others, and no stage opens before it has committed."""
    scene = Scene(open_challenge(claims(4)), slowness=lambda gpu, _stage: gpu + 1.0)
    scene.run()
    assert scene.record(0, 0)
    assert all(refusal_of(scene, gpu).code is Code.BAD_AMOUNT for gpu in range(1, 4))


@pytest.mark.rule("10.14")
@pytest.mark.parametrize(
    ("factors", "is_refused"),
    [
        ((1.0, 1.0, 1.0), False),
        ((5.0, 1.2, 1.1), False),  # the first stage fills memory, and has no rate
        ((1.0, 1.3, 1.0), True),  # slower products
        ((1.0, 1.0, 1.25), True),  # slower memory
        ((1.0, 0.85, 1.0), True),  # a larger GPU behind it
        ((1.0, 1.0, 0.85), True),
    ],
)
def test_a_gpu_of_another_speed_than_its_model_is_refused(
    factors: tuple[float, ...], is_refused: bool
) -> None:
    scene = Scene(open_challenge(claims()), slowness=lambda _gpu, stage: factors[stage])
    scene.run()
    if is_refused:
        assert refusal_of(scene).code is Code.BAD_AMOUNT
    else:
        assert scene.record(1, 0)


@pytest.mark.rule("10.8", "10.9")
def test_skipped_tiles_and_missing_memory_get_no_record() -> None:
    for make in (lambda: SkippingEngine(0.4), lambda: ForgetfulEngine(0.5)):
        scene = Scene(open_challenge(claims()), make=make)
        scene.run()
        assert refusal_of(scene).code is Code.DOES_NOT_OPEN


def some_figures(**changes: object) -> Figures:
    (claim,) = claims()
    times = tuple(Milliseconds(ms) for ms in (900, 1000, 1000))
    return replace(figures(claim, times), **changes)  # type: ignore[arg-type]


@pytest.mark.rule("10.14")
def test_memory_is_compared_with_the_datasheet_and_the_claim() -> None:
    (claim,) = claims()
    model, found = reference(claim), some_figures()
    judge(claim, found, model, NETWORK_MS)
    with pytest.raises(Refused, match="less than"):
        judge(claim, found, replace(model, vram_bytes=2 << 20), NETWORK_MS)
    with pytest.raises(Refused, match="pages cover"):
        judge(claim, some_figures(vram_bytes=900 << 10), model, NETWORK_MS)
    partition = replace(claim, uuid="MIG-1")
    assert judge(partition, found, replace(model, vram_bytes=8 << 20), NETWORK_MS) == 0


@pytest.mark.rule("10.16")
def test_a_model_that_nobody_measured_has_no_ratio() -> None:
    (claim,) = claims()
    assert judge(claim, some_figures(), replace(reference(claim), measured=None), NETWORK_MS) == 0


@pytest.mark.rule("10.14")
def test_a_stage_that_the_network_could_hide_is_refused() -> None:
    (claim,) = claims()
    with pytest.raises(Refused) as refused:
        judge(claim, some_figures(), reference(claim), Milliseconds(51))
    assert refused.value.code is Code.TOO_EARLY


@pytest.mark.rule("10.4", "10.5")
def test_roots_that_do_not_fit_are_refused_and_change_nothing() -> None:
    scene = Scene(open_challenge(claims(2)))
    state, opened = verifier_session.begin(scene.challenge, Small(1), nonce(1), Milliseconds(0))
    good = honest().states[1].taken[0].committed
    good = replace(
        good, challenge=state.digest, nonces=(nonce(7), opened.nonce, nonce(8)), gpu=Small(0)
    )
    bad = {
        Code.UNKNOWN: (replace(good, challenge=nonce(0)), replace(good, gpu=Small(2))),
        Code.WRONG_PHASE: (replace(good, stage=Small(1)),),
        Code.MALFORMED: (replace(good, nonces=good.nonces[:2]), replace(good, roots=())),
        Code.STALE: (replace(good, nonces=(opened.nonce, nonce(7), nonce(8))),),
    }
    for code, messages in bad.items():
        for message in messages:
            with pytest.raises(Refused) as refused:
                verifier_session.take_roots(state, message, nonce(2), Milliseconds(1))
            assert refused.value.code is code
    with pytest.raises(Refused) as refused:
        verifier_session.take_roots(state, good, nonce(2), Milliseconds(600_001))
    assert refused.value.code is Code.TOO_LATE and verifier_session.is_late(
        state, Milliseconds(600_001)
    )
    taken, answer = verifier_session.take_roots(state, good, nonce(2), Milliseconds(5))
    assert answer is None, "the other GPU has not committed"
    again, _ = verifier_session.take_roots(taken, good, nonce(3), Milliseconds(9))
    assert again == taken
    with pytest.raises(Refused) as refused:
        other = replace(good, roots=(nonce(4),))
        verifier_session.take_roots(taken, other, nonce(3), Milliseconds(9))
    assert refused.value.code is Code.EQUIVOCATION


@pytest.mark.rule("10.4", "10.10", "10.23")
def test_a_proof_that_differs_from_what_was_committed_is_refused() -> None:
    scene = honest()
    state, proof = scene.states[0], scene.proofs[0]
    now = Milliseconds(scene.now_ms)
    header, stage = proof.header, proof.header.stages[1]
    other_roots = replace(stage, roots=(nonce(1), *stage.roots[1:]))
    cases = {
        Code.EQUIVOCATION: replace(
            header, stages=(header.stages[0], other_roots, header.stages[2])
        ),
        Code.STALE: replace(header, sample_nonces=(nonce(1), *header.sample_nonces[1:])),
        Code.UNKNOWN: replace(header, challenge=replace(header.challenge, peer_key=nonce(1))),
    }
    for code, changed in cases.items():
        with pytest.raises(Refused) as refused:
            verifier_session.take_proof(state, replace(proof, header=changed).encode(), now)
        assert refused.value.code is code
    with pytest.raises(Refused) as refused:
        verifier_session.take_proof(state, proof.encode(), Milliseconds(now + 600_001))
    assert refused.value.code is Code.TOO_LATE
    early = replace(state, nonces=state.nonces[:STAGES], opened_ms=state.opened_ms[:STAGES])
    with pytest.raises(Refused) as refused:
        verifier_session.take_proof(early, proof.encode(), now)
    assert refused.value.code is Code.WRONG_PHASE
