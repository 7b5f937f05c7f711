"""The attestation document: the records of all GPUs of one slot of an offer.

The slot names it by its CID digest. Each record names its proof by SHA-256, and the document names
the CID under which the provider's gateway serves that proof.
"""

from msgspec import Struct

from quorate_attestation.records import VERIFIERS_MAX
from quorate_protocol.codec import canonical
from quorate_protocol.codec.cids import cid_parts
from quorate_protocol.messages.document import Document
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.gpu_inventory import DEVICES_MAX, TEXT_MAX
from quorate_protocol.messages.signed import AttestationRecord
from quorate_protocol.refusals import Code, Refused

DOCUMENT_BYTES_MAX = 512 * 1024


class GpuEvidence(Struct, frozen=True):
    """The evidence of one GPU."""

    uuid: str
    proof_cid: str
    records: tuple[Envelope[AttestationRecord], ...]  # one of each verifier of the challenge


class AttestationDocument(Document, frozen=True):
    """The evidence of the GPUs of one slot, all of one challenge."""

    gpus: tuple[GpuEvidence, ...]
    version: int = 1

    def validate(self) -> None:
        """Raises `Refused(MALFORMED)` for counts or names out of bounds."""
        is_good = (
            self.version == 1
            and 1 <= len(self.gpus) <= DEVICES_MAX
            and len({gpu.uuid for gpu in self.gpus}) == len(self.gpus)
            and all(0 < len(gpu.uuid) <= TEXT_MAX for gpu in self.gpus)
            and all(1 <= len(gpu.records) <= VERIFIERS_MAX for gpu in self.gpus)
        )
        if not is_good:
            raise Refused(
                Code.MALFORMED,
                f"attestation: it needs version 1, 1 to {DEVICES_MAX} GPUs with different UUIDs, "
                f"and 1 to {VERIFIERS_MAX} records of each",
            )
        for gpu in self.gpus:
            cid_parts(gpu.proof_cid, "attestation: proofCid")
        rounds = {item.message.beacon_round for gpu in self.gpus for item in gpu.records}
        challenges = {item.message.challenge for gpu in self.gpus for item in gpu.records}
        if len(rounds) != 1 or len(challenges) != 1:
            raise Refused(Code.STALE, "attestation: its records belong to different challenges")


def decode(data: bytes) -> AttestationDocument:
    """Raises `Refused` for bytes that are not canonical."""
    document = canonical.decode(AttestationDocument, data, DOCUMENT_BYTES_MAX)
    document.validate()
    return document
