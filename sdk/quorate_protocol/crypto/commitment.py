"""Commitments, reveals and the ids that blind auditors (PROTOCOL §3)."""

from quorate_protocol.crypto.hashing import hash_tuple, keccak256
from quorate_protocol.messages.signed import Commit, Reveal
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, ExitStatus, Hash32


def result_digest(exit_status: ExitStatus, output_digest: Hash32) -> Hash32:
    """H(uint16 exitStatus, outputDigest): what executions are compared by under `exact`."""
    return hash_tuple(exit_status, output_digest)


def commitment(assignment_hash: Hash32, provider: Address, salt: Hash32, result: Hash32) -> Hash32:
    """H(assignmentHash, provider, salt32, resultDigest): useless to a copier, who cannot change
    the provider in it.
    """
    return hash_tuple(assignment_hash, provider, salt, result)


def assignment_id(job_id: Hash32, index: int, blind: Hash32) -> Hash32:
    """H(jobId, index, blind32): auditors cannot tell which job they check."""
    return hash_tuple(job_id, index, blind)


def secret_hash(secret: Hash32) -> Hash32:
    """What Ack commits to: keccak256 of x."""
    return keccak256(secret)


def opens(commit: Commit, reveal: Reveal) -> bool:
    """True when the reveal opens the commitment."""
    return _is_of(commit, reveal, result_digest(reveal.exit_status, reveal.output_digest))


def check_opens(commit: Commit, reveal: Reveal) -> Hash32:
    """The result digest, or `Refused(DOES_NOT_OPEN)`."""
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
