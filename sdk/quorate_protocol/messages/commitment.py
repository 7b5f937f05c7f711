"""Commitments, reveals, and assignment ids, which hide a job from its auditors (PROTOCOL §3)."""

from quorate_protocol.codec.hashing import hash_tuple, keccak256
from quorate_protocol.messages.signed import Commit, Reveal
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, ExitStatus, Hash32


def result_digest(exit_status: ExitStatus, output_digest: Hash32) -> Hash32:
    """H(uint16 exitStatus, outputDigest). Under `exact` results agree if it is equal."""
    return hash_tuple(exit_status, output_digest)


def commitment(assignment_hash: Hash32, provider: Address, salt: Hash32, result: Hash32) -> Hash32:
    """`Commit.commitment`: H(assignmentHash, provider, salt32, resultDigest). Another provider
    cannot copy it, because it holds the first provider's address.
    """
    return hash_tuple(assignment_hash, provider, salt, result)


def assignment_id(job_id: Hash32, index: int, blind: Hash32) -> Hash32:
    """Returns `Assignment.assignment_id`: H(jobId, index, blind32). The blind, a random value,
    hides the job. So auditors cannot tell which job they check.
    """
    return hash_tuple(job_id, index, blind)


def secret_hash(secret: Hash32) -> Hash32:
    """`Ack.secret_hash`: keccak256 of the secret x."""
    return keccak256(secret)


def opens(commit: Commit, reveal: Reveal) -> bool:
    return _is_of(commit, reveal, result_digest(reveal.exit_status, reveal.output_digest))


def check_opens(commit: Commit, reveal: Reveal) -> Hash32:
    """The result digest of a reveal. Raises `Refused(DOES_NOT_OPEN)` if it does not open."""
    result = result_digest(reveal.exit_status, reveal.output_digest)
    if not _is_of(commit, reveal, result):
        raise Refused(
            Code.DOES_NOT_OPEN,
            "reveal: exitStatus, outputDigest and salt do not give the commitment that was signed",
        )
    return result


def _is_of(commit: Commit, reveal: Reveal, result: Hash32) -> bool:
    same = commit.assignment_hash == reveal.assignment_hash
    return same and commit.commitment == commitment(
        reveal.assignment_hash, reveal.provider, reveal.salt, result
    )
