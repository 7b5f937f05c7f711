"""Checks a published proof and its records again. Anybody can, without the verifiers.

Two things cannot be checked again. The elapsed time, and all rates that follow from it, are the
verifiers' word. The eligible list behind the draw is the coordinator's word, as in an Ack.
"""

from collections.abc import Callable, Iterator, Sequence

from quorate_attestation import proof_document, verifier_draw
from quorate_attestation.arithmetic import proof_check
from quorate_attestation.arithmetic.proof_check import SecretKeeper
from quorate_attestation.challenge import ChallengeOpened, GpuClaim
from quorate_attestation.claims import check_sizes, standard_sizes
from quorate_attestation.parameters import Parameters
from quorate_attestation.proof_document import Proof
from quorate_attestation.records import attested, check_challenge, check_lifetime
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.limits import MAINNET
from quorate_protocol.messages.envelope import Envelope, Recover, signer
from quorate_protocol.messages.receipt import Check, Report
from quorate_protocol.messages.signed import AttestationRecord
from quorate_protocol.refusals import Refused
from quorate_protocol.rules.receipts.receipt_draws import VerifyRound
from quorate_protocol.units import Address, Seconds

VERIFIERS_WORD = "the verifiers' word; nobody can check it again"

IsKeyOf = Callable[[Address, Address], bool]
"""Whether a key (second) signs for an account (first), by the chain."""


def recheck(
    document: bytes,
    records: Sequence[Envelope[AttestationRecord]],
    domain: Domain,
    beacon_key: bytes,
    secret: bytes,
    recover: Recover,
    verify_round: VerifyRound,
    is_key_of: IsKeyOf | None = None,
    standard: Callable[[GpuClaim], Parameters] = standard_sizes,
    ttl: Seconds = MAINNET.attestation_ttl,
) -> Report:
    """Of one GPU. `secret` is 32 random bytes that the provider did not know. Without `is_key_of`
    keys are not compared with the chain. Computes for about a second.
    """
    try:
        proof = proof_document.decode(document)
    except Refused as refused:
        return Report((Check("proof:form", False, str(refused)),))
    checks = [Check("proof:form", True, f"{len(document)} bytes")]
    checks += _beacon(proof, beacon_key, verify_round)
    checks.append(_passes("sizes", lambda: _sizes(proof, standard)))
    checks.append(_passes("draw", lambda: _draw(proof)))
    keeper = SecretKeeper(secret)
    checks.append(_passes("arithmetic", lambda: _arithmetic(proof, domain, keeper)))
    checks += _signatures(records, domain, recover, is_key_of)
    checks += _records(document, proof, [envelope.message for envelope in records], ttl)
    return Report(tuple(checks))


def _passes(name: str, action: Callable[[], str]) -> Check:
    try:
        return Check(name, True, action())
    except Refused as refused:
        return Check(name, False, refused.detail)


def _challenge(records: Sequence[AttestationRecord], challenge: ChallengeOpened) -> str:
    check_challenge(records, challenge)
    return "they name this round, these verifiers and these GPUs"


def _lifetimes(records: Sequence[AttestationRecord], ttl: Seconds) -> str:
    for record in records:
        check_lifetime(record, ttl)
    return f"they live at most {ttl} s"


def _beacon(proof: Proof, beacon_key: bytes, verify_round: VerifyRound) -> Iterator[Check]:
    beacon = proof.header.challenge.beacon
    is_signed = verify_round(beacon_key, beacon.round, beacon.signature)
    is_good = is_signed and beacon.randomness == sha256(beacon.signature)
    yield Check("signature:beacon", is_good, f"round {beacon.round}")


def _sizes(proof: Proof, standard: Callable[[GpuClaim], Parameters]) -> str:
    check_sizes(proof.header.challenge, standard)
    return f"order {proof.header.parameters.order}, {proof.header.parameters.tiles} tiles"


def _draw(proof: Proof) -> str:
    challenge = proof.header.challenge
    slots = verifier_draw.check(challenge)
    skipped = verifier_draw.skipped(challenge)
    return f"{len(slots)} drawn verifiers, {skipped} skipped; the list is the coordinator's word"


def _arithmetic(proof: Proof, domain: Domain, keeper: SecretKeeper) -> str:
    proof_check.check(proof, domain, keeper)
    parameters = proof.header.parameters
    return f"{parameters.tiles} tiles and {2 * parameters.chains_opened} chains are right"


def _signatures(
    records: Sequence[Envelope[AttestationRecord]],
    domain: Domain,
    recover: Recover,
    is_key_of: IsKeyOf | None,
) -> Iterator[Check]:
    for number, envelope in enumerate(records):
        name = f"signature:record[{number}]"
        try:
            key = signer(domain, envelope, recover)
        except Refused as refused:
            yield Check(name, False, refused.detail)
            continue
        account = envelope.message.verifier
        is_good = is_key_of is None or is_key_of(account, key)
        note = "its key was not compared with the chain" if is_key_of is None else "by its key"
        yield Check(name, is_good, f"verifier 0x{account.hex()}, {note}")


def _records(
    document: bytes, proof: Proof, records: Sequence[AttestationRecord], ttl: Seconds
) -> Iterator[Check]:
    challenge = proof.header.challenge
    claim = challenge.gpus[proof.header.gpu]
    is_named = all(record.proof == sha256(document) for record in records)
    yield Check("records:proof", is_named, "they name this proof")
    yield _passes("records:challenge", lambda: _challenge(records, challenge))
    yield _passes(
        "records:subject",
        lambda: (
            f"{attested(records, challenge.provider, challenge.peer_key, claim.uuid).verifiers}"
            " verifiers signed"
        ),
    )
    yield _passes("records:lifetime", lambda: _lifetimes(records, ttl))
    is_covered = all(record.vram_bytes == claim.parameters.pages * 1024 for record in records)
    yield Check("records:memory", is_covered, f"{claim.parameters.pages} pages of 1 KiB")
    yield Check("time", True, VERIFIERS_WORD)
