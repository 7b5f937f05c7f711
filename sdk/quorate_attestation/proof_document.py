"""The proof document of one GPU: everything that a recheck of the arithmetic needs.

Bytes: the length of the header as uint32, big-endian; the header in canonical JSON; then five
sections whose sizes follow from the header. So each proof has exactly one encoding. Its CID is a
raw one, as of every document.
"""

from msgspec import Struct

from quorate_attestation import seeds
from quorate_attestation.challenge import (
    PAGES,
    PAGES_AGAIN,
    PRODUCTS,
    STAGES,
    ChallengeOpened,
    roots_expected,
)
from quorate_attestation.parameters import BUCKET, TILE, Parameters
from quorate_protocol.codec import canonical
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Hash32, Small

HEADER_BYTES_MAX = 256 * 1024
PROOF_BYTES_MAX = 16 * 1024 * 1024
_LENGTH_BYTES = 4
_DIGEST_BYTES = 32
_WORD_BYTES = 8
_ENTRY_BYTES = 4
_PASSES = 2


class StageShown(Struct, frozen=True):
    """The nonces and roots of one stage, as the verifiers received them."""

    nonces: tuple[Hash32, ...]
    roots: tuple[Hash32, ...]


class ProofHeader(Struct, frozen=True):
    """The challenge, all commitments, and the nonces of the sample."""

    challenge: ChallengeOpened
    gpu: Small  # place in challenge.gpus
    stages: tuple[StageShown, ...]
    sample_nonces: tuple[Hash32, ...]
    version: int = 1

    @property
    def parameters(self) -> Parameters:
        return self.challenge.gpus[self.gpu].parameters

    def sample_seed(self) -> Hash32:
        """All commitments of this GPU, and the last nonces."""
        return sample_seed(self.challenge.digest(), self.gpu, self.stages, self.sample_nonces)

    def validate(self) -> None:
        """Raises `Refused(MALFORMED)` for counts that do not fit the challenge."""
        self.challenge.validate()
        verifiers = len(self.challenge.verifiers)
        is_good = (
            self.version == 1
            and self.gpu < len(self.challenge.gpus)
            and len(self.stages) == STAGES
            and all(len(stage.nonces) == verifiers for stage in self.stages)
            and len(self.sample_nonces) == verifiers
        )
        is_good = is_good and all(
            len(stage.roots) == roots_expected(self.parameters, number)
            for number, stage in enumerate(self.stages)
        )
        if not is_good:
            raise Refused(
                Code.MALFORMED,
                "proof: header: it needs three stages with one nonce a verifier, and all roots",
            )


class Sections(Struct, frozen=True):
    """The opened parts, in the order in which the sample draws them."""

    tiles: bytes  # 256 little-endian int32 each
    rows: bytes  # fingerprints of each tile's row, little-endian uint64
    tile_paths: bytes  # hashes from each row's leaf to its round's root
    buckets: bytes  # final states of each chain's bucket; all of the first pass, then the second
    chain_paths: bytes


class Proof(Struct, frozen=True):
    """A proof of one GPU."""

    header: ProofHeader
    sections: Sections

    def encode(self) -> bytes:
        head = canonical.encode(self.header)
        parts = [getattr(self.sections, name) for name in Sections.__struct_fields__]
        return b"".join([len(head).to_bytes(_LENGTH_BYTES, "big"), head, *parts])


def sample_seed(
    challenge: Hash32, gpu: int, stages: tuple[StageShown, ...], nonces: tuple[Hash32, ...]
) -> Hash32:
    head = seeds.TAG + b"/sample" + challenge + gpu.to_bytes(1, "big")
    body = b"".join(b"".join(stage.nonces) + b"".join(stage.roots) for stage in stages)
    return sha256(head + body + b"".join(nonces))


def section_sizes(parameters: Parameters) -> tuple[int, ...]:
    tiles, chains = parameters.tiles, _PASSES * parameters.chains_opened
    return (
        tiles * TILE * _ENTRY_BYTES,
        tiles * parameters.blocks * _WORD_BYTES,
        tiles * parameters.tile_depth * _DIGEST_BYTES,
        chains * BUCKET * _WORD_BYTES,
        chains * parameters.chain_depth * _DIGEST_BYTES,
    )


def decode(data: bytes) -> Proof:
    """Raises `Refused` with OVERSIZE, MALFORMED, UNKNOWN_FIELD or NOT_CANONICAL."""
    if len(data) > PROOF_BYTES_MAX:
        raise Refused(Code.OVERSIZE, f"proof: {len(data)} bytes, at most {PROOF_BYTES_MAX}")
    length = int.from_bytes(data[:_LENGTH_BYTES], "big")
    at = _LENGTH_BYTES + length
    if not 0 < length <= HEADER_BYTES_MAX or at > len(data):
        raise Refused(Code.MALFORMED, f"proof: a header has 1 to {HEADER_BYTES_MAX} bytes")
    header = canonical.decode(ProofHeader, data[_LENGTH_BYTES:at], HEADER_BYTES_MAX)
    header.validate()
    sizes = section_sizes(header.parameters)
    if len(data) != at + sum(sizes):
        raise Refused(Code.MALFORMED, f"proof: {len(data)} bytes, {at + sum(sizes)} by its header")
    parts = []
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return Proof(header, Sections(*parts))


def chain_stages() -> tuple[int, int]:
    return PAGES, PAGES_AGAIN


def product_roots(header: ProofHeader) -> tuple[Hash32, ...]:
    return header.stages[PRODUCTS].roots
