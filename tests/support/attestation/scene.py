"""A whole challenge in memory: a provider with GPUs, three verifiers, and one virtual clock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quorate_attestation import records, verifier_draw
from quorate_attestation.arithmetic.proof_check import SecretKeeper, check
from quorate_attestation.catalogue import Measured, Model
from quorate_attestation.challenge import (
    STAGES,
    ChallengeOpened,
    GpuClaim,
    SampleOpened,
    StageOpened,
)
from quorate_attestation.claims import Figures, judge, model_of
from quorate_attestation.parameters import Parameters
from quorate_attestation.proof_document import Proof
from quorate_attestation.provers.engine import Engine
from quorate_attestation.provers.numpy_engine import NumpyEngine
from quorate_attestation.provers.prover import Prover
from quorate_attestation.sessions import prover_session, verifier_session
from quorate_attestation.sessions.verifier_session import VerifierState
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import MAINNET
from quorate_protocol.messages.eligible_list import EligibleList
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import AttestationRecord
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.units import (
    Address,
    BlockNumber,
    Hash32,
    Milliseconds,
    Round,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace
from quorate_runtime.keys import bls
from quorate_runtime.keys.crypto import KeySigner
from support.attestation.challenges import DOMAIN, PEER_KEY, SMALL

BEACON_SECRET = bls.keygen(b"\x05" * 32)
NOW = UnixSeconds(1_800_000_000)
STAGE_MS = (900, 1000, 1000)  # of one GPU at the catalogue's speed
NETWORK_MS = Milliseconds(10)
PARAMETERS: Parameters = replace(SMALL, pages=1000)
MODEL = "RTX 3080 10GB"


def key(number: int) -> KeySigner:
    """The one key of an account."""
    return KeySigner(hash_tuple("key", number))


def a_slot(index: int, number: int, network: int | None = None) -> StakeSlot:
    """A stake slot of an account."""
    owner = key(number).address
    home = hash_tuple("network", number if network is None else network)
    return StakeSlot(index, owner, owner, owner, home, BlockNumber(0))


COORDINATOR, PROVIDER = key(100), key(0)


def a_list(owners: int = 8) -> EligibleList:
    """An eligible list with one slot of each of some owners, the provider the first."""
    return EligibleList([a_slot(index, index) for index in range(owners)], owners)


def open_challenge(
    gpus: Sequence[GpuClaim],
    eligible: EligibleList | None = None,
    number: int = 9,
    silent: frozenset[Address] = frozenset(),
) -> ChallengeOpened:
    """What an honest coordinator opens; drawn verifiers in `silent` do not answer."""
    eligible = a_list() if eligible is None else eligible
    beacon = bls.beacon_round(BEACON_SECRET, Round(number))
    provider = PROVIDER.address
    seed = verifier_draw.seed(beacon.round, beacon.randomness, provider, PEER_KEY)
    own = [slot for slot in eligible if slot.owner == provider]
    found = verifier_draw.candidates(
        seed, eligible, eligible.length, provider, COORDINATOR.address, own
    )
    served = [drawn for drawn in found if drawn.slot.owner not in silent][: verifier_draw.DRAWN]
    return ChallengeOpened(
        provider,
        PEER_KEY,
        beacon,
        (COORDINATOR.address, *(drawn.slot.owner for drawn in served)),
        verifier_draw.evidence(seed, eligible, [drawn.attempt for drawn in served], provider),
        tuple(gpus),
    )


def claims(count: int = 1, model: str = MODEL) -> tuple[GpuClaim, ...]:
    """Claims of GPUs of one model. Their pages are few; `Scene` judges memory by a small model."""
    return tuple(GpuClaim(f"GPU-{number}", model, 1 << 20, PARAMETERS) for number in range(count))


def reference(claim: GpuClaim) -> Model:
    """The claimed model as if it had been measured, with as much memory as the claims have."""
    milli = 1000
    return replace(
        model_of(claim),
        vram_bytes=1 << 20,
        measured=Measured(
            PARAMETERS.int8_operations * milli // STAGE_MS[1],
            PARAMETERS.pass_bytes * milli // STAGE_MS[2],
            5,
        ),
    )


@dataclass
class Scene:
    """One challenge and how its GPUs behave."""

    challenge: ChallengeOpened
    slowness: Callable[[int, int], float] = lambda _gpu, _stage: 1.0  # by GPU and stage
    make: Callable[[], Engine] = NumpyEngine
    lag_ms: tuple[int, ...] = (1, 3, 7)  # one way, to each verifier
    now_ms: int = 5_000
    nonce_count: int = 0
    states: list[VerifierState] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)

    def nonce(self) -> Hash32:
        """A new nonce."""
        self.nonce_count += 1
        return hash_tuple("scene", self.challenge.digest(), self.nonce_count)

    def run(self) -> None:
        """Runs all stages, and leaves the verifiers with the sample open and the proofs made."""
        challenge, places = self.challenge, range(len(self.challenge.verifiers))
        provers = [
            Prover(
                self.make(),
                claim.parameters,
                challenge.right_seed(),
                challenge.base_seed(DOMAIN, gpu),
            )
            for gpu, claim in enumerate(challenge.gpus)
        ]
        provider = prover_session.begin(challenge)
        opened: list[StageOpened | SampleOpened] = []
        for place in places:
            state, first = verifier_session.begin(
                challenge, Small(place), self.nonce(), Milliseconds(self.now_ms)
            )
            self.states.append(state)
            opened.append(first)
        for stage in range(STAGES):
            for place in places:
                provider = prover_session.take_nonce(provider, place, opened[place])
            commits, began = [], self.now_ms
            for gpu, prover in enumerate(provers):
                roots = prover.commit(provider.nonces[stage])
                provider, committed = prover_session.add_roots(provider, gpu, roots)
                at = began + int(STAGE_MS[stage] * self.slowness(gpu, stage))
                commits.append((at, committed))
            for at, committed in sorted(commits, key=lambda item: item[0]):
                self.now_ms = at
                for place in places:
                    self.states[place], answer = verifier_session.take_roots(
                        self.states[place],
                        committed,
                        self.nonce(),
                        Milliseconds(at + self.lag_ms[place]),
                    )
                    opened[place] = answer if answer is not None else opened[place]
            self.now_ms += max(self.lag_ms)
        for place in places:
            provider = prover_session.take_nonce(provider, place, opened[place])
        for gpu, prover in enumerate(provers):
            sections = prover.open(prover_session.sample_of(provider, gpu))
            self.proofs.append(Proof(prover_session.header(provider, gpu), sections))
            prover.close()

    def verify(self, place: int, gpu: int) -> tuple[Proof, Figures]:
        """What the verifier at a place finds in a GPU's proof; its arithmetic is checked."""
        data = self.proofs[gpu].encode()
        proof, figures = verifier_session.take_proof(
            self.states[place], data, Milliseconds(self.now_ms)
        )
        check(proof, DOMAIN, SecretKeeper(bytes([place + 1]) * 32))
        return proof, figures

    def record(self, place: int, gpu: int) -> Envelope[AttestationRecord]:
        """The record of the verifier at a place."""
        proof, figures = self.verify(place, gpu)
        claim = self.challenge.gpus[gpu]
        ratio = judge(claim, figures, reference(claim), NETWORK_MS)
        account = self.challenge.verifiers[place]
        signing = next(each for each in ALL_KEYS if each.address == account)
        made = records.record_of(proof, Small(place), figures, ratio, NOW, MAINNET.attestation_ttl)
        return seal(DOMAIN, made, signing.sign)


ALL_KEYS = (COORDINATOR, *(key(number) for number in range(20)))
