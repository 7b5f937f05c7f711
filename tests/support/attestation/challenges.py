"""Small challenges and their proofs."""

from collections.abc import Callable

from quorate_attestation import proof_document
from quorate_attestation.challenge import STAGES, ChallengeOpened, GpuClaim, VerifierDraw
from quorate_attestation.parameters import Parameters
from quorate_attestation.proof_document import Proof, ProofHeader, StageShown
from quorate_attestation.provers.engine import Engine
from quorate_attestation.provers.numpy_engine import NumpyEngine
from quorate_attestation.provers.prover import Prover
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import hash_tuple, sha256
from quorate_protocol.messages.ports import BeaconRound
from quorate_protocol.units import ZERO_HASH, Address, Hash32, Round, Small

DOMAIN = Domain(31337, Address(b"\x22" * 20))
SMALL = Parameters(
    order=256, rounds=2, tiles=24, pages=512, page_rounds=2, chains=256, batches=2, chains_opened=8
)
PEER_KEY = Hash32(b"\x33" * 32)
GIB = 1 << 30


def account(number: int) -> Address:
    """An account."""
    return Address(hash_tuple("account", number)[:20])


def nonce(number: int, label: str = "") -> Hash32:
    """A nonce."""
    return hash_tuple("nonce", label, number)


def beacon(number: int = 7) -> BeaconRound:
    """A round whose signature nobody checks here."""
    signature = bytes([number]) * 48
    return BeaconRound(Round(number), signature, sha256(signature))


def challenge(
    parameters: Parameters = SMALL,
    gpus: int = 1,
    verifiers: int = 3,
    round_number: int = 7,
    model: str = "H100 SXM",
) -> ChallengeOpened:
    """A challenge of GPUs that claim to be of one model."""
    return ChallengeOpened(
        account(0),
        PEER_KEY,
        beacon(round_number),
        tuple(account(number) for number in range(1, verifiers + 1)),
        VerifierDraw(ZERO_HASH, (), (), ()),
        tuple(GpuClaim(f"GPU-{gpu}", model, 80 * GIB, parameters) for gpu in range(gpus)),
    )


def nonces(count: int, label: str) -> tuple[Hash32, ...]:
    """One nonce of each verifier."""
    return tuple(nonce(number, label) for number in range(count))


def prove(opened: ChallengeOpened, gpu: int = 0, make: Callable[[], Engine] = NumpyEngine) -> Proof:
    """The proof of one GPU of a challenge, computed by an engine."""
    prover = Prover(
        make(), opened.gpus[gpu].parameters, opened.right_seed(), opened.base_seed(DOMAIN, gpu)
    )
    count = len(opened.verifiers)
    stages = tuple(
        StageShown(nonces(count, f"stage {stage}"), prover.commit(nonces(count, f"stage {stage}")))
        for stage in range(STAGES)
    )
    proof = finish(prover, opened, gpu, stages)
    prover.close()
    return proof


def finish(
    prover: Prover, opened: ChallengeOpened, gpu: int, stages: tuple[StageShown, ...]
) -> Proof:
    """Opens the sample that fixed nonces draw."""
    last = nonces(len(opened.verifiers), "sample")
    drawn = proof_document.sample_seed(opened.digest(), gpu, stages, last)
    header = ProofHeader(opened, Small(gpu), stages, last)
    assert header.sample_seed() == drawn
    return Proof(header, prover.open(drawn))
