"""The tries of a draw that gave a provider which did not run the execution (PROTOCOL §5 Draw).

Each has a signed Assignment. The provider answered with a signed Decline, or was silent.
"""

from collections.abc import Sequence

from quorate_coordinator.core.model.entities import Job, Running, SkippedPlace
from quorate_coordinator.core.model.tables import StateTables
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import hash_list, hash_tuple
from quorate_protocol.rules import audit_draw
from quorate_protocol.rules.audit_draw import Skipped
from quorate_protocol.units import ZERO_HASH, Hash32


def of_job(state: StateTables, job: Job) -> list[Skipped]:
    found = [skip for batch in job.batches for skip in met(state, batch.number, batch.skips)]
    if isinstance(job.phase, Running):
        found += met(state, job.phase.batch, job.phase.skipped)
    return found


def met(state: StateTables, batch: int, skipped: Sequence[SkippedPlace]) -> list[Skipped]:
    return [
        Skipped(batch, skip.attempt, skip.slot, skip.assignment_hash in state.declines)
        for skip in skipped
    ]


def silent_until(state: StateTables, skipped: Sequence[SkippedPlace]) -> int:
    """The last second in which a silent provider could have accepted; 0 if none was silent."""
    return max(
        (
            state.leases[skip.assignment_hash].assignment.message.accept_by
            for skip in skipped
            if not _has_declined_outright(state, skip)
        ),
        default=0,
    )


def _has_declined_outright(state: StateTables, skip: SkippedPlace) -> bool:
    said = state.declines.get(skip.assignment_hash)
    return said is not None and audit_draw.is_outright(said.decline.message)


def skips_hash(state: StateTables, domain: Domain, skipped: Sequence[SkippedPlace]) -> Hash32:
    """`CommitSet.skips_hash`: hash_list over H(assignment hash, digest of the Decline)."""
    pairs = []
    for skip in skipped:
        said = state.declines.get(skip.assignment_hash)
        hashed = said.decline.digest(domain) if said is not None else ZERO_HASH
        pairs.append(hash_tuple(skip.assignment_hash, hashed))
    return hash_list(tuple(pairs))
