"""Placing executions: assignments out, and what comes back of them until the commit."""

from quorate_coordinator.core import lease as leases
from quorate_coordinator.core.audit import decline_rate, draw, verdicts
from quorate_coordinator.core.effects import Send
from quorate_coordinator.core.events import (
    AcceptReceived,
    CommitReceived,
    DeclineReceived,
    StopReceived,
    WitnessReceived,
)
from quorate_coordinator.core.lease import Effect, Lease
from quorate_coordinator.core.matching import offers
from quorate_coordinator.core.money.ledger import release_reservation
from quorate_coordinator.core.state import (
    AwaitingRound,
    Decided,
    Ended,
    Job,
    Matching,
    Place,
    Running,
)
from quorate_coordinator.core.step_context import StepContext
from quorate_protocol.codec.quick import replace
from quorate_protocol.crypto.commitment import assignment_id
from quorate_protocol.messages import frames
from quorate_protocol.messages.signed import Assignment, CommitReceipt, Witness
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.audit import StakeSlot
from quorate_protocol.units import ZERO_HASH, Address, Hash32, Price, UnixSeconds, usd

REMATCH_SECONDS = 1
ASK_AGAIN_SECONDS = 10


def place_primary(context: StepContext, job: Job) -> bool:
    """Tries to give a waiting job to the best free provider that fits."""
    assert isinstance(job.phase, Matching)
    found = offers.choose(context, job)
    if not found:
        if job.refused_by:
            # Whoever was silent or declined is asked again after a while: in a small market it may
            # be all there is.
            context.put(
                job, phase=Matching(UnixSeconds(context.at + ASK_AGAIN_SECONDS)), refused_by=()
            )
        return False
    provider = found[0].provider
    slot = StakeSlot(
        -1,
        provider.owner,
        provider.operator_key,
        provider.payout,
        provider.network,
        context.state.own.block,
    )
    job, lease = assign(context, job, slot, found[0].price, batch=0)
    context.put(job, phase=Running(0, 1, (Place(slot, -1, context.at, lease.hash),), 0, None, ()))
    return True


def assign(
    context: StepContext, job: Job, slot: StakeSlot, price: Price, batch: int
) -> tuple[Job, Lease]:
    """Signs and sends an assignment; the blind hides which job and role it is."""
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
    context.state.occupied[slot.owner] = (*(context.state.occupied.get(slot.owner) or ()), digest)
    frame = frames.AssignmentSent(lease.assignment, spec, context.rules.sources)
    context.emit(Send(f"assign-{digest.hex()}", slot.owner, frame, message.accept_by))
    context.note(job, "assigned", f"execution {index} to a provider at {usd(price)} USD/h")
    return context.put(job, leases=(*job.leases, digest)), lease


def move(
    context: StepContext, lease: Lease, event: leases.Event
) -> tuple[Lease, tuple[Effect, ...]]:
    """Steps a lease, stores it and frees its run slot when it gives it up."""
    moved, effects = leases.step(lease, event, context.at, context.rules.limits)
    context.state.leases[moved.hash] = moved
    if not moved.occupies_slot:
        held = context.state.occupied.get(moved.provider) or ()
        if moved.hash in held:
            context.state.occupied[moved.provider] = tuple(
                item for item in held if item != moved.hash
            )
    return moved, effects


def lease_of(context: StepContext, assignment_hash: Hash32, key: Address) -> Lease:
    """The lease of an assignment, for a message signed by its provider's operator key."""
    lease = context.state.leases.get(assignment_hash)
    if lease is None:
        raise Refused(Code.UNKNOWN, f"assignment 0x{assignment_hash.hex()}")
    accept_by = lease.assignment.message.accept_by
    if not context.state.providers[lease.provider].has_key(key, accept_by):
        owner = f"0x{lease.provider.hex()}"
        raise Refused(
            Code.WRONG_SIGNER,
            (
                f"signed by 0x{key.hex()}, which was no operator key of {owner} at the "
                f"assignment's "
                f"acceptBy"
            ),
        )
    return lease


def on_accept(context: StepContext, event: AcceptReceived) -> None:
    """A provider takes it."""
    lease = lease_of(context, event.accept.message.assignment_hash, event.key)
    moved, _ = move(context, lease, leases.AcceptReceived(event.accept))
    if moved is not lease:
        context.state.accepts[lease.hash] = event.accept
        decline_rate.accepted(context, lease)
        context.note(context.state.jobs[lease.job_id], "accepted", f"execution {lease.index}")


def on_decline(context: StepContext, event: DeclineReceived) -> None:
    """A provider does not take it, or not yet, or gives up what it took."""
    lease = lease_of(context, event.decline.message.assignment_hash, event.key)
    moved, effects = move(context, lease, leases.DeclineReceived(event.decline))
    if not effects:
        return
    reason = event.decline.message.reason.name.lower()
    job = context.state.jobs[lease.job_id]
    phase = moved.phase
    if isinstance(phase, leases.Lapsed):
        # Counted as a lapse and not as a draw declined: else whoever says nothing would be better
        # off.
        context.note(job, "lapsed", f"execution {lease.index}: {reason}")
        reopen(context, job, moved, UnixSeconds(0))
        return
    assert isinstance(phase, leases.Declined)
    context.note(job, "declined", f"execution {lease.index}: {reason}")
    if not phase.start_by:
        decline_rate.declined(context, lease, event.decline.message.reason)
    reopen(context, job, moved, phase.start_by)


def reopen(context: StepContext, job: Job, lease: Lease, retry_at: UnixSeconds) -> None:
    """A place without its lease: kept until `retry_at`, or (0) given to the next."""
    if not isinstance(job.phase, Running):
        return
    place = next((item for item in job.phase.places if item.lease == lease.hash), None)
    if place is None:
        return
    if place.attempt < 0 and job.stop is not None:
        end(context, job, "stopped by its client before it gave a result")
        return
    if place.attempt < 0:
        # Also one that is only busy, for it may say so for ever: others are asked, and it again
        # when everybody was.
        refused = (*job.refused_by, lease.provider)
        context.put(
            job, phase=Matching(UnixSeconds(context.at + REMATCH_SECONDS)), refused_by=refused
        )
        return
    others = tuple(item for item in job.phase.places if item is not place)
    if retry_at:
        context.put(
            job,
            phase=replace(
                job.phase, places=(*others, replace(place, lease=None, retry_at=retry_at))
            ),
        )
        return
    phase = replace(job.phase, places=others, skipped=(*job.phase.skipped, lease.hash))
    draw.fill(context, context.put(job, phase=phase))


def on_commit(context: StepContext, event: CommitReceived) -> None:
    """A result nobody can read is bound; its ciphertext must be stored before it counts."""
    message = event.commit.message
    lease = lease_of(context, message.assignment_hash, event.key)
    if not event.is_stored:
        raise Refused(
            Code.NOT_STORED,
            (
                f"commit: ciphertext 0x{message.encrypted_output.hex()} is not in the staging "
                f"store; "
                f"upload it first"
            ),
        )
    moved, _ = move(context, lease, leases.CommitReceived(event.commit))
    commit_hash = context.digest(message)
    receipt = context.seal(
        CommitReceipt(
            commit_hash, moved.phase.at if isinstance(moved.phase, leases.Committed) else context.at
        )
    )
    expires = UnixSeconds(context.at + 600)
    context.emit(
        Send(
            f"receipt-{commit_hash.hex()}-{context.at}",
            lease.provider,
            frames.ReceiptSent(receipt),
            expires,
        )
    )
    if moved is lease:
        return
    job = context.state.jobs[lease.job_id]
    # Only a primary's commit is to be witnessed: nobody asks the client to countersign an
    # auditor's.
    is_primary = (
        isinstance(job.phase, Running) and job.phase.batch == 0 and job.phase.beacon is None
    )
    context.note(job, "committed", f"execution {lease.index}", event.commit if is_primary else None)
    _after_commit(context, job, moved)


def _after_commit(context: StepContext, job: Job, lease: Lease) -> None:
    phase = job.phase
    if not isinstance(phase, Running) or all(place.lease != lease.hash for place in phase.places):
        return
    if phase.batch == 0 and phase.beacon is None and job.stop is not None:
        # Nobody can repeat what was cut short, so there is no draw: it is opened alone, and pays
        # its elapsed time.
        verdicts.close_if_complete(context, job)
        return
    if phase.batch == 0 and phase.beacon is None:
        assert isinstance(lease.phase, leases.Committed)
        commit_hash = context.digest(lease.phase.commit.message)
        context.state.commits[commit_hash] = job.id
        first = draw.first_usable_round(context, lease.phase.commit.message.beacon_round)
        context.put(
            job, phase=AwaitingRound(0, 0, first, phase.places), commits=(*job.commits, commit_hash)
        )
        return
    verdicts.close_if_complete(context, job)


def on_witness(context: StepContext, event: WitnessReceived) -> None:
    """The client's session or the named watcher countersigns a primary's commit before its round
    appears.
    """
    message: Witness = event.witness.message
    job = _job_of_commit(context, message.commit_hash)
    order = job.submission.order.message
    wanted = (
        {order.witness}
        if order.witness != bytes(20)
        else {job.submission.session.message.session_key}
    )
    if event.key not in wanted:
        raise Refused(
            Code.WRONG_SIGNER,
            "witness: neither the client's session nor the watcher that the order names",
        )
    if job.witness == event.witness:
        return
    is_awaited = (
        isinstance(job.phase, AwaitingRound)
        and not job.phase.batch
        and message.beacon_round == job.phase.round
    )
    if not is_awaited or draw.newest_round(context) >= message.beacon_round:
        raise Refused(Code.TOO_LATE, "witness: the commit's beacon round is not awaited any more")
    context.put(job, witness=event.witness)
    context.note(job, "witnessed", f"before beacon round {message.beacon_round}")


def _job_of_commit(context: StepContext, commit_hash: Hash32) -> Job:
    job_id = context.state.commits.get(commit_hash)
    if job_id is None:
        raise Refused(Code.UNKNOWN, f"witness: no primary's commit 0x{commit_hash.hex()}")
    return context.state.jobs[job_id]


def on_stop(context: StepContext, event: StopReceived) -> None:
    """The client ends a job. What runs commits its elapsed time; what was not accepted ends
    unpaid.
    """
    job = context.state.jobs.get(event.stop.message.job_id)
    if job is None:
        raise Refused(Code.UNKNOWN, f"job 0x{event.stop.message.job_id.hex()}")
    if event.key != job.submission.session.message.session_key:
        raise Refused(Code.NOT_YOURS, "stop: not signed by the job's session key")
    if isinstance(job.phase, Matching):
        end(context, job, "stopped by its client before it ran")
        return
    if isinstance(job.phase, Decided | Ended):
        return
    if job.stop is None:
        job = context.put(job, stop=event.stop)
        context.note(job, "stopped", "by its client")
    if not isinstance(job.phase, Running) or job.phase.batch or job.phase.beacon is not None:
        return  # committed or beyond: it ends by its verdict, soon
    for place in job.phase.places:
        lease = context.state.leases.get(place.lease or ZERO_HASH)
        if lease is None:
            continue
        if isinstance(lease.phase, leases.Assigned):
            move(context, lease, leases.ClientStopped())
            end(context, context.state.jobs[job.id], "stopped by its client before it ran")
        frame = frames.StopSent(lease.hash, event.stop)
        context.emit(
            Send(f"stop-{lease.hash.hex()}", lease.provider, frame, UnixSeconds(context.at + 600))
        )


def end(context: StepContext, job: Job, reason: str) -> None:
    """A job ends with nothing charged."""
    release_reservation(context, job)
    ended = context.put(context.state.jobs[job.id], phase=Ended(reason))
    context.set_live(job, False)
    context.state.finished[job.id] = context.at
    context.note(ended, "ended", reason)


def retry_places(context: StepContext, job: Job, freed: Address | None = None) -> None:
    """Gives kept places a new assignment once their provider said it would be free, or is
    (`freed`); fills what was skipped.
    """
    assert isinstance(job.phase, Running)
    due = [
        place
        for place in job.phase.places
        if place.lease is None and (place.retry_at <= context.at or place.slot.owner == freed)
    ]
    for place in due:
        job = draw.assign_place(context, job, place)
    if due:
        draw.fill(context, job)
