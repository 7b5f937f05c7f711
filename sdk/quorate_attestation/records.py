"""Attestation records: what a verifier signs, when a record counts, and what records say together.

A record is one verifier's word about one GPU. An offer shows the records of all verifiers of a
challenge. Their medians count.
"""

from collections.abc import Sequence

from msgspec import Struct

from quorate_attestation import seeds, verifier_draw
from quorate_attestation.catalogue import CPU
from quorate_attestation.challenge import ChallengeOpened, cpu_uuid
from quorate_attestation.claims import Figures, model_of
from quorate_attestation.proof_document import Proof
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.messages.envelope import Envelope, Recover, signer
from quorate_protocol.messages.signed import AttestationRecord
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    Address,
    ByteCount,
    Hash32,
    PerSecond,
    Ppm,
    Round,
    Seconds,
    Small,
    UnixSeconds,
)

CLOCK_SKEW_SECONDS = 60
VERIFIERS_MAX = 3


def record_of(
    proof: Proof, place: Small, found: Figures, ratio: Ppm, now: UnixSeconds, ttl: Seconds
) -> AttestationRecord:
    """The caller has made all checks."""
    challenge = proof.header.challenge
    claim = challenge.gpus[proof.header.gpu]
    return AttestationRecord(
        verifier=challenge.verifiers[place],
        provider=challenge.provider,
        peer_key=challenge.peer_key,
        gpu=seeds.gpu_hash(claim.uuid),
        model=model_of(claim).id(),
        beacon_round=challenge.beacon.round,
        verifiers=Small(len(challenge.verifiers)),
        challenge=challenge.digest(),
        gpus=Small(len(challenge.gpus)),
        int8_operations=PerSecond(found.int8_operations_per_second),
        memory_bytes=PerSecond(found.memory_bytes_per_second),
        vram_bytes=ByteCount(found.vram_bytes),
        ratio=ratio,
        elapsed_ms=found.elapsed_ms,
        proof=sha256(proof.encode()),
        issued=now,
        expires=UnixSeconds(now + ttl),
    )


def validate(
    envelope: Envelope[AttestationRecord],
    domain: Domain,
    recover: Recover,
    now: UnixSeconds,
    ttl: Seconds,
) -> Address:
    """Returns the key that signed; the caller checks that it was the verifier's then. Raises
    `Refused` with EXPIRED, TOO_EARLY or BAD_SIGNATURE.
    """
    check_times(envelope.message, now, ttl)
    return signer(domain, envelope, recover)


def check_times(record: AttestationRecord, now: UnixSeconds, ttl: Seconds) -> None:
    """Raises `Refused` with EXPIRED or TOO_EARLY."""
    if record.issued > now + CLOCK_SKEW_SECONDS:
        raise Refused(Code.TOO_EARLY, "record: issued lies in the future; look at the clock")
    check_lifetime(record, ttl)
    if record.expires <= now:
        raise Refused(Code.EXPIRED, "record: ask for a new challenge")


def check_lifetime(record: AttestationRecord, ttl: Seconds) -> None:
    """Raises `Refused(EXPIRED)` for a longer life than records have."""
    if not record.issued < record.expires <= record.issued + ttl:
        raise Refused(Code.EXPIRED, f"record: expires lies 1 to {ttl} s after issued")


class Attested(Struct, frozen=True):
    """Medians of one challenge's records of one GPU. Rates and elapsed time are the verifiers'
    word; proof, memory and draw can be checked again.
    """

    gpu: Hash32
    model: Hash32
    beacon_round: Round
    verifiers: int  # records that agree
    verifiers_asked: int  # verifiers of the challenge
    int8_operations: PerSecond
    memory_bytes: PerSecond
    vram_bytes: ByteCount
    ratio: Ppm  # 0: nobody has measured the model
    proof: Hash32
    expires: UnixSeconds


def attested(
    records: Sequence[AttestationRecord], provider: Address, peer_key: Hash32, uuid: str
) -> Attested:
    """The caller validated each record and compares them with the challenge (`check_challenge`), or
    a provider could name verifiers of its own. Raises `Refused` with NOT_YOURS, STALE for records
    of different challenges, and UNKNOWN if a verifier's is missing.
    """
    if not 1 <= len(records) <= VERIFIERS_MAX:
        raise Refused(Code.MALFORMED, f"records: 1 to {VERIFIERS_MAX} of one GPU")
    expected = (provider, peer_key, seeds.gpu_hash(uuid))
    if any((record.provider, record.peer_key, record.gpu) != expected for record in records):
        raise Refused(Code.NOT_YOURS, "records: they belong to another provider, key or GPU")
    first = records[0]
    if first.model == CPU.id() and uuid != cpu_uuid(peer_key):
        raise Refused(Code.NOT_YOURS, "records: a CPU is named by its provider's peer key")
    if any(_challenge(record) != _challenge(first) for record in records):
        raise Refused(Code.STALE, "records: they belong to different challenges or proofs")
    signers = {record.verifier for record in records}
    if len(signers) != first.verifiers or len(records) != first.verifiers:
        raise Refused(
            Code.UNKNOWN, f"records: {len(signers)} verifiers signed of {first.verifiers}"
        )
    return Attested(
        gpu=first.gpu,
        model=first.model,
        beacon_round=first.beacon_round,
        verifiers=len(signers),
        verifiers_asked=first.verifiers,
        int8_operations=PerSecond(_median([record.int8_operations for record in records])),
        memory_bytes=PerSecond(_median([record.memory_bytes for record in records])),
        vram_bytes=first.vram_bytes,
        ratio=Ppm(_median([record.ratio for record in records])),
        proof=first.proof,
        expires=min(record.expires for record in records),
    )


def check_challenge(records: Sequence[AttestationRecord], challenge: ChallengeOpened) -> None:
    """Checks also the draw of the verifiers; not the beacon's signature, nor that `verifiers[0]` is
    a coordinator. Raises `Refused` with NOT_YOURS, or DOES_NOT_OPEN for the draw.
    """
    challenge.validate()
    verifier_draw.check(challenge)
    named = {(seeds.gpu_hash(claim.uuid), model_of(claim).id()) for claim in challenge.gpus}
    is_theirs = all(
        record.challenge == challenge.digest()
        and record.beacon_round == challenge.beacon.round
        and record.verifier in challenge.verifiers
        and record.verifiers == len(challenge.verifiers)
        and record.gpus == len(challenge.gpus)
        and (record.provider, record.peer_key) == (challenge.provider, challenge.peer_key)
        and (record.gpu, record.model) in named
        for record in records
    )
    if not is_theirs:
        raise Refused(Code.NOT_YOURS, "records: the challenge names other verifiers or GPUs")


def _challenge(record: AttestationRecord) -> tuple[object, ...]:
    return (
        record.model,
        record.beacon_round,
        record.verifiers,
        record.challenge,
        record.gpus,
        record.vram_bytes,
        record.proof,
    )


def _median(values: Sequence[int]) -> int:
    """The lower one of an even count, so that nobody gains by silence."""
    return sorted(values)[(len(values) - 1) // 2]
