"""One verifier's part in one challenge, as a pure state machine.

It opens the three stages and the sample with its own nonces, takes the provider's roots, and at the
end takes each GPU's proof. A stage opens only when all GPUs have committed the one before. Calls
return a new state; a refused call leaves the state as it was.
"""

from msgspec import Struct

from quorate_attestation import claims, proof_document
from quorate_attestation.challenge import (
    STAGES,
    ChallengeOpened,
    SampleOpened,
    StageCommitted,
    StageOpened,
    roots_expected,
)
from quorate_attestation.claims import Figures
from quorate_attestation.proof_document import Proof, ProofHeader, StageShown
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Hash32, Milliseconds, Small
from quorate_protocol.values import replace

STAGE_MS_MAX = 600_000  # from a nonce to the last GPU's roots
PROOF_MS_MAX = 600_000  # from the sample to the last proof


class Taken(Struct, frozen=True):
    """The roots of one stage of one GPU, and when the verifier received them."""

    committed: StageCommitted
    at_ms: Milliseconds


class VerifierState(Struct, frozen=True):
    """What one verifier knows of one challenge. Times are milliseconds of its own clock."""

    challenge: ChallengeOpened
    digest: Hash32  # of the challenge
    place: Small  # of this verifier in challenge.verifiers
    nonces: tuple[Hash32, ...]  # that it has sent: one a stage, then the sample's
    opened_ms: tuple[Milliseconds, ...]  # when it sent each
    taken: tuple[Taken, ...] = ()

    @property
    def stage(self) -> int:
        """STAGES when the sample is open."""
        return len(self.nonces) - 1

    def roots_of(self, gpu: int, stage: int) -> Taken | None:
        for item in self.taken:
            if (item.committed.gpu, item.committed.stage) == (gpu, stage):
                return item
        return None


def begin(
    challenge: ChallengeOpened, place: Small, nonce: Hash32, now_ms: Milliseconds
) -> tuple[VerifierState, StageOpened]:
    """Opens stage 0. The nonce is 32 random bytes. The caller checks draw and beacon. Raises
    `Refused(MALFORMED)` out of bounds.
    """
    challenge.validate()
    digest = challenge.digest()
    state = VerifierState(challenge, digest, place, (nonce,), (now_ms,))
    return state, StageOpened(digest, Small(0), nonce)


def take_roots(
    state: VerifierState, committed: StageCommitted, next_nonce: Hash32, now_ms: Milliseconds
) -> tuple[VerifierState, StageOpened | SampleOpened | None]:
    """After the last GPU's roots opens the next stage or the sample, with `next_nonce`, 32 new
    random bytes. Roots that came before have no effect. Raises `Refused` with UNKNOWN (another
    challenge or GPU), WRONG_PHASE, STALE (another nonce), MALFORMED, TOO_LATE, or EQUIVOCATION
    (other roots than before).
    """
    known = _check_roots(state, committed, now_ms)
    if known:
        return state, None
    state = replace(state, taken=(*state.taken, Taken(committed, now_ms)))
    count = sum(item.committed.stage == committed.stage for item in state.taken)
    if count < len(state.challenge.gpus):
        return state, None
    assert next_nonce not in state.nonces, "every nonce is new"
    state = replace(state, nonces=(*state.nonces, next_nonce), opened_ms=(*state.opened_ms, now_ms))
    if state.stage == STAGES:
        return state, SampleOpened(state.digest, next_nonce)
    return state, StageOpened(state.digest, Small(state.stage), next_nonce)


def _check_roots(state: VerifierState, committed: StageCommitted, now_ms: Milliseconds) -> bool:
    """Returns whether they came before."""
    if committed.challenge != state.digest or committed.gpu >= len(state.challenge.gpus):
        raise Refused(Code.UNKNOWN, "roots: they belong to another challenge or GPU")
    before = state.roots_of(committed.gpu, committed.stage)
    if before is not None:
        if before.committed != committed:
            raise Refused(Code.EQUIVOCATION, "roots: other roots were committed before")
        return True
    if committed.stage != state.stage or state.stage >= STAGES:
        raise Refused(Code.WRONG_PHASE, f"roots: stage {state.stage} is open")
    if len(committed.nonces) != len(state.challenge.verifiers):
        raise Refused(Code.MALFORMED, "roots: nonces: one of each verifier")
    if committed.nonces[state.place] != state.nonces[state.stage]:
        raise Refused(Code.STALE, "roots: nonces: this verifier sent another one")
    parameters = state.challenge.gpus[committed.gpu].parameters
    if len(committed.roots) != roots_expected(parameters, committed.stage):
        raise Refused(Code.MALFORMED, "roots: one a round for the products, else one a batch")
    if now_ms - state.opened_ms[state.stage] > STAGE_MS_MAX:
        raise Refused(Code.TOO_LATE, f"roots: at most {STAGE_MS_MAX} ms after the nonce")
    return False


def take_proof(state: VerifierState, data: bytes, now_ms: Milliseconds) -> tuple[Proof, Figures]:
    """The caller then checks the arithmetic (`arithmetic.proof_check.check`, in a thread) and
    judges the figures (`claims.judge`). Raises `Refused` with the codes of
    `proof_document.decode`, WRONG_PHASE, TOO_LATE, UNKNOWN, STALE (another sample nonce), or
    EQUIVOCATION (other roots than committed).
    """
    if state.stage < STAGES:
        raise Refused(Code.WRONG_PHASE, f"proof: stage {state.stage} is open")
    if now_ms - state.opened_ms[STAGES] > PROOF_MS_MAX:
        raise Refused(Code.TOO_LATE, f"proof: at most {PROOF_MS_MAX} ms after the sample's nonce")
    proof = proof_document.decode(data)
    _check_header(state, proof.header)
    claim = state.challenge.gpus[proof.header.gpu]
    return proof, claims.figures(claim, stage_times(state, proof.header.gpu))


def _check_header(state: VerifierState, header: ProofHeader) -> None:
    if header.challenge.digest() != state.digest:
        raise Refused(Code.UNKNOWN, "proof: it belongs to another challenge")
    if header.sample_nonces[state.place] != state.nonces[STAGES]:
        raise Refused(Code.STALE, "proof: sampleNonces: this verifier sent another one")
    for stage, shown in enumerate(header.stages):
        taken = state.roots_of(header.gpu, stage)
        assert taken is not None, "the sample opened after all roots"
        if shown != StageShown(taken.committed.nonces, taken.committed.roots):
            raise Refused(Code.EQUIVOCATION, f"proof: stage {stage} shows other roots or nonces")


def stage_times(state: VerifierState, gpu: int) -> tuple[Milliseconds, ...]:
    found = []
    for stage in range(STAGES):
        taken = state.roots_of(gpu, stage)
        assert taken is not None, "all stages are committed"
        found.append(Milliseconds(taken.at_ms - state.opened_ms[stage]))
    return tuple(found)


def is_late(state: VerifierState, now_ms: Milliseconds) -> bool:
    """Whether the provider did not answer in time."""
    limit = PROOF_MS_MAX if state.stage == STAGES else STAGE_MS_MAX
    return now_ms - state.opened_ms[-1] > limit
