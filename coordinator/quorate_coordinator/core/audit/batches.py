"""Batches: executions that commit together, are closed together and then reveal (PROTOCOL §5)."""

from quorate_coordinator.core.audit.assignment import step_lease
from quorate_coordinator.core.model import beacon_time, skips
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import Send
from quorate_coordinator.core.model.entities import (
    Batch,
    BatchPlace,
    Job,
    Revealing,
    Running,
    SkippedPlace,
)
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import escrows
from quorate_protocol.messages import frames
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Commit, CommitEntry, CommitSet
from quorate_protocol.units import ZERO_HASH, Round, Small, UnixSeconds
from quorate_protocol.values import replace

CLOSINGS_MAX = 3


def committed_members(context: StepContext, phase: Running) -> list[Lease] | None:
    """The leases of a batch once every place has committed and every skipped provider had its time
    to accept; None before. Empty when the draw found no provider.
    """
    if len(phase.places) < phase.wanted:
        return None
    members = [
        context.state.leases[place.assignment_hash]
        for place in by_try(phase.places)
        if place.assignment_hash
    ]
    if len(members) < len(phase.places) or not all(
        isinstance(lease.phase, leases.Committed) for lease in members
    ):
        return None
    if beacon_time.known_moment(context) <= skips.silent_until(context.state, phase.skipped):
        return None
    return members


def close(context: StepContext, job: Job, phase: Running, members: list[Lease]) -> Job:
    entries = tuple(
        CommitEntry(lease.assignment_hash, lease.provider, context.digest(commit_of(lease).message))
        for lease in members
    )
    stored_at = tuple(stored_at_of(lease) for lease in members)
    message = CommitSet(
        job_id=job.id,
        batch=Small(phase.batch),
        ordered=entries,
        blinds=tuple(lease.blind for lease in members),
        beacon_round=phase.beacon.round if phase.beacon else Round(0),
        secret=job.secret,
        audit_ppm=phase.audit_ppm,
        slots=tuple(Small(place.attempt) for place in by_try(phase.places) if place.attempt >= 0),
        skips_hash=skips.skips_hash(context.state, context.rules.domain, in_order(phase.skipped)),
        witness_hash=ZERO_HASH
        if phase.batch or job.witness is None
        else context.digest(job.witness.message),
        closed_at=max(beacon_time.known_moment(context), *stored_at),
    )
    slots = tuple(place.slot for place in by_try(phase.places))
    batch = Batch(
        phase.batch,
        tuple(lease.assignment_hash for lease in members),
        slots,
        context.seal(message),
        in_order(phase.skipped),
        stored_at,
    )
    job = _send(context, job, batch, members)
    context.note(
        job.id,
        "closed",
        f"batch {phase.batch}: {len(members)} commitments are in, results open now",
    )
    return job


def by_try(places: tuple[BatchPlace, ...]) -> list[BatchPlace]:
    """The draw's order, so that nobody chooses who comes first. A primary has the try -1."""
    return sorted(places, key=lambda place: place.attempt)


def in_order(skipped: tuple[SkippedPlace, ...]) -> tuple[SkippedPlace, ...]:
    return tuple(sorted(skipped, key=lambda skip: skip.attempt))


def reclose_if_slow(context: StepContext, job: Job) -> None:
    """Providers refuse one older than a beacon period, so a longer silence means that it was
    lost.
    """
    assert isinstance(job.phase, Revealing)
    closed_at = job.phase.batch.commit_set.message.closed_at
    if beacon_time.known_moment(context) > closed_at + context.rules.limits.beacon_period + 1:
        reclose(context, job)


def reclose(context: StepContext, job: Job) -> Job:
    """Signs the CommitSet of an open batch again for the members that have not revealed, at most
    `CLOSINGS_MAX` times. Only its `closedAt` changes.
    """
    assert isinstance(job.phase, Revealing)
    old = job.phase.batch
    missing = [
        lease for lease in members_of(context, old) if isinstance(lease.phase, leases.Closed)
    ]
    if not missing or old.closings >= CLOSINGS_MAX:
        return job
    renewed = context.seal(
        replace(
            old.commit_set.message, closed_at=max(beacon_time.known_moment(context), *old.stored_at)
        )
    )
    batch = replace(old, commit_set=renewed, closings=old.closings + 1)
    return _send(context, job, batch, missing)


def _send(context: StepContext, job: Job, batch: Batch, members: list[Lease]) -> Job:
    """Their time to reveal counts from the newest signing."""
    for lease in members:
        step_lease(context, lease, leases.BatchClosed(batch.commit_set.message.closed_at))
        escrowed = escrows.order_of(job, lease)
        frame = frames.CommitSetSent(lease.assignment_hash, batch.commit_set, escrowed)
        expires = UnixSeconds(context.at + context.rules.limits.reveal_within)
        context.emit(
            Send(
                f"close-{lease.assignment_hash.hex()}-{batch.closings}",
                lease.provider,
                frame,
                expires,
            )
        )
    others = tuple(item for item in job.batches if item.number != batch.number)
    return context.put(job, phase=Revealing(batch), batches=(*others, batch))


def was_cut_short(job: Job) -> bool:
    """Its batch is then closed without a draw. One that nobody verifies has none either, and a Stop
    that comes after its Commit changes nothing.
    """
    return job.stop is not None and job.batches[0].commit_set.message.beacon_round == 0


def members_of(context: StepContext, batch: Batch) -> list[Lease]:
    return [context.state.leases[digest] for digest in batch.members]


def drawn_leases(context: StepContext, job: Job) -> list[Lease]:
    drawn = (batch for batch in job.batches if not batch.is_repeat)
    return [lease for batch in drawn for lease in members_of(context, batch)]


def committed_leases(context: StepContext, job: Job) -> list[Lease]:
    return [lease for batch in job.batches for lease in members_of(context, batch)]


def stored_at_of(lease: Lease) -> UnixSeconds:
    assert isinstance(lease.phase, leases.Committed)
    return lease.phase.at


def commit_of(lease: Lease) -> Envelope[Commit]:
    phase = lease.phase
    assert isinstance(phase, leases.WithCommit), f"{type(phase).__name__} has no commit"
    return phase.commit
