"""The provider waits for every verifier's nonce, and refuses what does not fit."""

import pytest

from quorate_attestation.challenge import STAGES, SampleOpened, StageOpened, roots_expected
from quorate_attestation.sessions import prover_session
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Small
from support.attestation.challenges import SMALL, challenge, nonce

OPENED = challenge(gpus=2)
DIGEST = OPENED.digest()


def nonce_of(stage: int, place: int) -> StageOpened | SampleOpened:
    value = nonce(place, f"stage {stage}")
    if stage == STAGES:
        return SampleOpened(DIGEST, value)
    return StageOpened(DIGEST, Small(stage), value)


@pytest.mark.rule("10.4", "10.5")
def test_a_stage_is_computed_when_all_verifiers_have_sent_their_nonce() -> None:
    state = prover_session.begin(OPENED)
    for stage in range(STAGES + 1):
        for place in range(3):
            assert not state.are_complete(stage)
            state = prover_session.take_nonce(state, place, nonce_of(stage, place))
        assert state.are_complete(stage)
        if stage == STAGES:
            break
        roots = tuple(nonce(number) for number in range(roots_expected(SMALL, stage)))
        for gpu in range(2):
            state, sent = prover_session.add_roots(state, gpu, roots)
            assert (sent.gpu, sent.stage, sent.roots) == (gpu, stage, roots)
            assert sent.nonces == state.nonces[stage]
            assert state.stage == stage + (gpu == 1), "the next stage waits for all GPUs"
    header = prover_session.header(state, 1)
    header.validate()
    assert header.sample_seed() == prover_session.sample_of(state, 1)
    assert prover_session.sample_of(state, 0) != prover_session.sample_of(state, 1)


@pytest.mark.rule("10.4")
def test_nonces_that_do_not_fit_are_refused() -> None:
    state = prover_session.begin(OPENED)
    first = StageOpened(DIGEST, Small(0), nonce(1))
    state = prover_session.take_nonce(state, 0, first)
    assert prover_session.take_nonce(state, 0, first) == state
    cases = [
        (0, StageOpened(DIGEST, Small(0), nonce(2)), Code.EQUIVOCATION),
        (3, first, Code.UNKNOWN),
        (-1, first, Code.UNKNOWN),
        (1, StageOpened(nonce(9), Small(0), nonce(2)), Code.UNKNOWN),
        (1, StageOpened(DIGEST, Small(1), nonce(2)), Code.WRONG_PHASE),
        (1, SampleOpened(DIGEST, nonce(2)), Code.WRONG_PHASE),
        (1, StageOpened(DIGEST, Small(3), nonce(2)), Code.MALFORMED),
        (1, StageOpened(DIGEST, Small(200), nonce(2)), Code.MALFORMED),
        (1, StageOpened(DIGEST, Small(0), ZERO_HASH), Code.MALFORMED),
    ]
    for place, message, code in cases:
        with pytest.raises(Refused) as refused:
            prover_session.take_nonce(state, place, message)
        assert refused.value.code is code
