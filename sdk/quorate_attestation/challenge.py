"""The documents of a challenge: what verifiers and provider send each other, in canonical JSON.

Verifiers draw nonces. The provider answers each stage with roots, and at the end with one proof
document for each GPU (`proof_document`).
"""

from msgspec import Struct

from quorate_attestation import seeds
from quorate_attestation.catalogue import CPU, models_called
from quorate_attestation.parameters import PAGE_BYTES, Parameters
from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.messages.eligible_list import ShownSlot
from quorate_protocol.messages.gpu_inventory import DEVICES_MAX, TEXT_MAX
from quorate_protocol.messages.ports import BeaconRound
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Small

PAGES, PRODUCTS, PAGES_AGAIN = range(3)
STAGES = 3
VERIFIERS_MAX = 3
SHOWN_MAX = 65  # slots: one for each try of the draw, and the provider's own


class GpuClaim(Struct, frozen=True):
    """What a provider claims of one GPU, and the sizes of its challenge."""

    uuid: str  # of the GPU or of its MIG partition; `cpu_uuid` without a GPU
    model: str  # canonical name in the catalogue
    vram_bytes: int  # as the driver reports it
    parameters: Parameters


def cpu_uuid(peer_key: Hash32) -> str:
    """What stands for a CPU's UUID, so that nobody names the CPU of another."""
    return f"cpu-{peer_key.hex()}"


class VerifierDraw(Struct, frozen=True):
    """The evidence of the draw of verifiers from an eligible list (`verifier_draw`)."""

    eligible_root: Hash32
    attempts: tuple[Small, ...]  # tries that gave the drawn verifiers, in order
    shown: tuple[ShownSlot, ...]  # the entries that the tries met, in order of their index
    own: tuple[ShownSlot, ...]  # one slot of the provider, if the list has one


class ChallengeOpened(Struct, frozen=True):
    """All GPUs start each stage together, so one that stands for several is that much slower."""

    provider: Address
    peer_key: Hash32
    beacon: BeaconRound  # draws the verifiers and seeds the matrices
    verifiers: tuple[Address, ...]  # accounts: the coordinator, then those drawn
    draw: VerifierDraw
    gpus: tuple[GpuClaim, ...]

    def digest(self) -> Hash32:
        return sha256(canonical.encode(self))

    def validate(self) -> None:
        """Raises `Refused(MALFORMED)` for counts, names or sizes out of bounds."""
        uuids = {claim.uuid for claim in self.gpus}
        is_good = (
            1 <= len(self.gpus) <= DEVICES_MAX
            and len(uuids) == len(self.gpus)
            and all(0 < len(uuid) <= TEXT_MAX for uuid in uuids)
            and 1 <= len(self.verifiers) <= VERIFIERS_MAX
            and len(set(self.verifiers)) == len(self.verifiers)
            and self.provider not in self.verifiers[1:]
            and len(self.draw.shown) + len(self.draw.own) <= SHOWN_MAX
        )
        if not is_good:
            raise Refused(
                Code.MALFORMED,
                f"challenge: it needs 1 to {DEVICES_MAX} GPUs with different UUIDs, and 1 to "
                f"{VERIFIERS_MAX} different verifiers other than the provider",
            )
        for claim in self.gpus:
            _validate_claim(claim)

    def base_seed(self, domain: Domain, gpu: int) -> Hash32:
        return seeds.base_seed(
            domain,
            self.beacon.round,
            self.beacon.randomness,
            self.provider,
            self.peer_key,
            gpu,
            self.gpus[gpu].uuid,
        )

    def right_seed(self) -> int:
        return seeds.right_seed(self.beacon.round, self.beacon.randomness)


def _validate_claim(claim: GpuClaim) -> None:
    claim.parameters.validate()
    is_known = claim.model == CPU.name or claim.model in {
        model.name for model in models_called(claim.model)
    }
    if not is_known:
        raise Refused(
            Code.MALFORMED,
            f"challenge: gpus: model {claim.model[:96]!r} is not a canonical name of the catalogue",
        )
    if claim.parameters.pages * PAGE_BYTES > claim.vram_bytes:
        raise Refused(Code.MALFORMED, "challenge: gpus: pages exceed the claimed memory")


class StageOpened(Struct, frozen=True):
    """Verifier: its nonce for one stage. Its clock for the stage starts when it sends this."""

    challenge: Hash32  # digest of ChallengeOpened
    stage: Small
    nonce: Hash32


class StageCommitted(Struct, frozen=True):
    """Provider: the roots of one stage of one GPU, sent to every verifier."""

    challenge: Hash32
    gpu: Small  # place in ChallengeOpened.gpus
    stage: Small
    nonces: tuple[Hash32, ...]  # of all verifiers, in their order
    roots: tuple[Hash32, ...]  # one a round for PRODUCTS, else one a batch


class SampleOpened(Struct, frozen=True):
    """Verifier: its nonce for the sample, sent after all GPUs have committed all stages."""

    challenge: Hash32
    nonce: Hash32


def roots_expected(parameters: Parameters, stage: int) -> int:
    """Returns the count of roots that a stage commits."""
    return parameters.rounds if stage == PRODUCTS else parameters.batches
