"""The provider's part in one challenge, as a pure state machine.

It collects the verifiers' nonces of a stage. When it has all, the caller computes the stage on
every GPU at once (`provers.prover.Prover.commit`), adds the roots here, and sends them to all
verifiers.
"""

from msgspec import Struct

from quorate_attestation.challenge import (
    STAGES,
    ChallengeOpened,
    SampleOpened,
    StageCommitted,
    StageOpened,
    roots_expected,
)
from quorate_attestation.proof_document import ProofHeader, StageShown, sample_seed
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import ZERO_HASH, Hash32, Small
from quorate_protocol.values import replace


class ProverState(Struct, frozen=True):
    """What the provider knows of one challenge."""

    challenge: ChallengeOpened
    digest: Hash32  # of the challenge
    nonces: tuple[tuple[Hash32, ...], ...]  # of each stage and the sample; zero = not received
    roots: tuple[tuple[tuple[Hash32, ...], ...], ...]  # of each GPU, then of each stage so far

    @property
    def stage(self) -> int:
        """The stage that waits for nonces or roots; STAGES when the sample is next."""
        return min(len(roots) for roots in self.roots)

    def are_complete(self, stage: int) -> bool:
        """Of a stage, or of the sample (STAGES)."""
        return ZERO_HASH not in self.nonces[stage]


def begin(challenge: ChallengeOpened) -> ProverState:
    """The caller checks provider, key and GPUs. Raises `Refused(MALFORMED)`."""
    challenge.validate()
    none = (ZERO_HASH,) * len(challenge.verifiers)
    return ProverState(
        challenge, challenge.digest(), (none,) * (STAGES + 1), ((),) * len(challenge.gpus)
    )


def take_nonce(state: ProverState, place: int, opened: StageOpened | SampleOpened) -> ProverState:
    """Raises `Refused` with UNKNOWN (another challenge), WRONG_PHASE (a later stage), MALFORMED (a
    zero nonce), or EQUIVOCATION (another nonce than before).
    """
    stage = STAGES if isinstance(opened, SampleOpened) else opened.stage
    if opened.challenge != state.digest or not 0 <= place < len(state.challenge.verifiers):
        raise Refused(Code.UNKNOWN, "nonce: it belongs to another challenge")
    if stage > STAGES or (stage == STAGES and isinstance(opened, StageOpened)):
        raise Refused(Code.MALFORMED, f"nonce: stage is 0 to {STAGES - 1}")
    if stage > state.stage:
        raise Refused(Code.WRONG_PHASE, f"nonce: stage {state.stage} is open")
    if opened.nonce == ZERO_HASH:
        raise Refused(Code.MALFORMED, "nonce: it must not be zero")
    known = state.nonces[stage][place]
    if known not in (ZERO_HASH, opened.nonce):
        raise Refused(Code.EQUIVOCATION, "nonce: this verifier sent another one before")
    mine = state.nonces[stage]
    changed = (*mine[:place], opened.nonce, *mine[place + 1 :])
    return replace(state, nonces=(*state.nonces[:stage], changed, *state.nonces[stage + 1 :]))


def add_roots(
    state: ProverState, gpu: int, roots: tuple[Hash32, ...]
) -> tuple[ProverState, StageCommitted]:
    """Returns what every verifier is to receive."""
    stage = len(state.roots[gpu])
    assert stage < STAGES and state.are_complete(stage), "the stage is open and its nonces known"
    assert len(roots) == roots_expected(state.challenge.gpus[gpu].parameters, stage)
    mine = (*state.roots[gpu], roots)
    new = replace(state, roots=(*state.roots[:gpu], mine, *state.roots[gpu + 1 :]))
    committed = StageCommitted(state.digest, Small(gpu), Small(stage), state.nonces[stage], roots)
    return new, committed


def header(state: ProverState, gpu: int) -> ProofHeader:
    """Once the sample's nonces are complete."""
    assert state.stage == STAGES and state.are_complete(STAGES), "the sample is open"
    return ProofHeader(state.challenge, Small(gpu), _shown(state, gpu), state.nonces[STAGES])


def sample_of(state: ProverState, gpu: int) -> Hash32:
    """Returns the seed of a GPU's sample, for `Prover.open`."""
    return sample_seed(state.digest, gpu, _shown(state, gpu), state.nonces[STAGES])


def _shown(state: ProverState, gpu: int) -> tuple[StageShown, ...]:
    pairs = zip(state.nonces, state.roots[gpu], strict=False)
    return tuple(StageShown(nonces, roots) for nonces, roots in pairs)
