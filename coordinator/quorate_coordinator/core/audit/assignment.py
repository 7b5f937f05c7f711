"""Signs and sends assignments, and changes the leases that follow from them."""

from quorate_coordinator.core.matching import fetched_content
from quorate_coordinator.core.model import beacon_time
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import Send
from quorate_coordinator.core.model.entities import Ended, Job, Matching
from quorate_coordinator.core.model.lease import Effect, Lease
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import escrows
from quorate_coordinator.core.money.ledger import release_reservation
from quorate_protocol.messages import frames
from quorate_protocol.messages.commitment import assignment_id
from quorate_protocol.messages.offer import BANDWIDTH_DEFAULT
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, Price, UnixSeconds, usd
from quorate_protocol.values import replace


def assign(
    context: StepContext,
    job: Job,
    slot: StakeSlot,
    price: Price,
    batch: int,
    is_drawn: bool = False,
) -> tuple[Job, Lease]:
    job, lease = _sign(context, job, slot, price, batch, leases.Assigned(), is_drawn)
    context.state.leases_in_slots[slot.owner] = (
        *(context.state.leases_in_slots.get(slot.owner) or ()),
        lease.assignment_hash,
    )
    spec, message = job.submission.spec, lease.assignment.message
    frame = frames.AssignmentSent(lease.assignment, spec, context.rules.sources)
    context.emit(
        Send(f"assign-{lease.assignment_hash.hex()}", slot.owner, frame, message.accept_by)
    )
    context.note(job.id, "assigned", f"execution {lease.index} to a provider at {usd(price)} USD/h")
    return job, lease


def assign_in_vain(
    context: StepContext, job: Job, slot: StakeSlot, price: Price, batch: int, is_drawn: bool
) -> tuple[Job, Lease]:
    """Signs an assignment that nobody sends: its provider is away or leaves, or the job has had all
    its assignments. The receipt shows it, and the batch is not closed before the provider could
    have answered.
    """
    phase = leases.Lapsed(was_accepted=False, is_excused=True)
    return _sign(context, job, slot, price, batch, phase, is_drawn)


def _sign(
    context: StepContext,
    job: Job,
    slot: StakeSlot,
    price: Price,
    batch: int,
    phase: leases.Phase,
    is_drawn: bool,
) -> tuple[Job, Lease]:
    """A random value, the blind, hides in `assignmentId` which job and role it is."""
    index = len(job.leases)
    blind = context.derive("blind")
    spec = job.submission.spec
    closed_at = job.batches[-1].commit_set.message.closed_at if job.batches else UnixSeconds(0)
    # A slow clock may be behind a closing, whose time follows the receipts that pay whole runs.
    sent_at = max(beacon_time.known_moment(context), closed_at)
    answer_by = sent_at + context.rules.limits.accept_within
    if isinstance(job.phase, Matching):
        # No first execution may begin once the order has expired.
        answer_by = min(answer_by, job.order.expiry - 1)
    message = Assignment(
        assignment_id=assignment_id(job.id, index, blind),
        coordinator=context.rules.coordinator,
        provider=slot.owner,
        spec_hash=job.order.spec_hash,
        pool=job.place_of(slot)[0],
        price_tier=job.order.price_tier,
        price_per_hour=price,
        max_duration=spec.paid_seconds(),
        accept_by=UnixSeconds(answer_by),
    )
    digest = context.digest(message)
    provider = context.state.providers.get(slot.owner)
    offer = provider.offer if provider is not None else None
    lease = Lease(
        assignment=context.seal(message),
        assignment_hash=digest,
        job_id=job.id,
        index=index,
        blind=blind,
        batch=batch,
        phase=phase,
        is_drawn=is_drawn,
        bandwidth=offer.bandwidth if offer is not None else BANDWIDTH_DEFAULT,
    )
    context.state.leases[digest] = lease
    if provider is not None and is_newer(context.state, message):
        context.state.providers[slot.owner] = replace(provider, assigned_until=message.accept_by)
    return context.put(job, leases=(*job.leases, digest)), lease


def is_newer(state: State, assignment: Assignment) -> bool:
    """Then a newer journal has it, or another coordinator with the same key."""
    provider = state.providers.get(assignment.provider)
    return provider is None or assignment.accept_by > provider.assigned_until


def step_lease(
    context: StepContext, lease: Lease, event: leases.Event
) -> tuple[Lease, tuple[Effect, ...]]:
    """Also frees the run slot when the lease no longer needs it."""
    # An open batch has no time but what its CommitSet gives, and once a round after revealBy is
    # known, a late reveal could be chosen by it (I9). So there the newest round counts too.
    known = beacon_time.known_moment(context)
    at = known if isinstance(lease.phase, leases.Closed) else context.at
    moved, effects = leases.step(lease, event, at, context.rules.limits, known)
    context.state.leases[moved.assignment_hash] = moved
    if not moved.occupies_slot:
        held = context.state.leases_in_slots.get(moved.provider) or ()
        if moved.assignment_hash in held:
            context.state.leases_in_slots[moved.provider] = tuple(
                item for item in held if item != moved.assignment_hash
            )
            if isinstance(moved.phase, leases.Committed):
                spec = context.state.jobs[moved.job_id].submission.spec
                fetched_content.note_commit(context, moved.provider, spec)
    return moved, effects


def lease_of(context: StepContext, assignment_hash: Hash32, key: Address) -> Lease:
    """Raises Refused if `key` was not its provider's operator key at `acceptBy`."""
    lease = context.state.leases.get(assignment_hash)
    if lease is None:
        raise Refused(Code.UNKNOWN, f"assignment 0x{assignment_hash.hex()}")
    accept_by = lease.assignment.message.accept_by
    if not context.state.providers[lease.provider].has_key(key, accept_by):
        owner = f"0x{lease.provider.hex()}"
        raise Refused(
            Code.WRONG_SIGNER,
            f"signed by 0x{key.hex()}, which was no operator key of {owner} at the assignment's "
            f"acceptBy",
        )
    return lease


def end_unpaid(context: StepContext, job: Job, reason: str) -> Job:
    job = context.put(release_reservation(context, job), phase=Ended(reason))
    context.set_live(job, False)
    context.state.finished[job.id] = context.at
    context.note(job.id, "ended", reason)
    escrows.release(context, job)
    return job
