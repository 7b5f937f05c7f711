"""Signs and sends assignments, and changes the leases that follow from them."""

from quorate_coordinator.core import lease as leases
from quorate_coordinator.core.effects import Send
from quorate_coordinator.core.entities import Ended, Job
from quorate_coordinator.core.lease import Effect, Lease
from quorate_coordinator.core.money.ledger import release_reservation
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.crypto.commitment import assignment_id
from quorate_protocol.messages import frames
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.audit_draw import StakeSlot
from quorate_protocol.units import Address, Hash32, Price, UnixSeconds, usd


def assign(
    context: StepContext, job: Job, slot: StakeSlot, price: Price, batch: int
) -> tuple[Job, Lease]:
    """Signs and sends an assignment. A random value, the blind, hides in `assignmentId` which job
    and role it is.
    """
    index = len(job.leases)
    blind = context.derive("blind")
    spec = job.submission.spec
    message = Assignment(
        assignment_id=assignment_id(job.id, index, blind),
        coordinator=context.rules.coordinator,
        provider=slot.owner,
        spec_hash=job.submission.order.message.spec_hash,
        host_class=job.ack.message.host_class,
        price_per_hour=price,
        max_duration=spec.max_duration,
        accept_by=UnixSeconds(context.at + context.rules.limits.accept_within),
    )
    digest = context.digest(message)
    lease = Lease(
        context.seal(message), digest, job.id, index, blind, batch, job.class_id, leases.Assigned()
    )
    context.state.leases[digest] = lease
    context.state.leases_in_slots[slot.owner] = (
        *(context.state.leases_in_slots.get(slot.owner) or ()),
        digest,
    )
    frame = frames.AssignmentSent(lease.assignment, spec, context.rules.sources)
    context.emit(Send(f"assign-{digest.hex()}", slot.owner, frame, message.accept_by))
    context.note(job.id, "assigned", f"execution {index} to a provider at {usd(price)} USD/h")
    return context.put(job, leases=(*job.leases, digest)), lease


def step_lease(
    context: StepContext, lease: Lease, event: leases.Event
) -> tuple[Lease, tuple[Effect, ...]]:
    """Applies an event to a lease and stores the lease. Frees its run slot when the lease no longer
    needs it.
    """
    moved, effects = leases.step(lease, event, context.at, context.rules.limits)
    context.state.leases[moved.assignment_hash] = moved
    if not moved.occupies_slot:
        held = context.state.leases_in_slots.get(moved.provider) or ()
        if moved.assignment_hash in held:
            context.state.leases_in_slots[moved.provider] = tuple(
                item for item in held if item != moved.assignment_hash
            )
    return moved, effects


def lease_of(context: StepContext, assignment_hash: Hash32, key: Address) -> Lease:
    """Returns the lease of an assignment, for a message that `key` signed.

    Raises Refused if the assignment is unknown, or if `key` was not its provider's operator key at
    `acceptBy`.
    """
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
    """Ends a job without charging its client."""
    job = context.put(release_reservation(context, job), phase=Ended(reason))
    context.set_live(job, False)
    context.state.finished[job.id] = context.at
    context.note(job.id, "ended", reason)
    return job
