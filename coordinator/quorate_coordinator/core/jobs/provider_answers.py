"""Applies providers' answers to an assignment: Accept, Decline, Commit and Reveal, and what the
shell found when it compared their outputs.
"""

from quorate_coordinator.core.audit import comparisons
from quorate_coordinator.core.audit.assignment import lease_of, step_lease
from quorate_coordinator.core.jobs import places
from quorate_coordinator.core.jobs.advance import advance
from quorate_coordinator.core.jobs.job_queue import JobQueue
from quorate_coordinator.core.matching import heartbeats
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model.effects import ProveEquivocation, Send, StoreSpec
from quorate_coordinator.core.model.entities import Running
from quorate_coordinator.core.model.events import (
    AcceptReceived,
    CommitReceived,
    DeclineReceived,
    EquivocationSeen,
    OutputsCompared,
    RevealReceived,
)
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.market_index import slot_offer
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import payees, receipts
from quorate_protocol.messages import frames
from quorate_protocol.messages.classes import determinism_class
from quorate_protocol.messages.job_spec import image_digest
from quorate_protocol.messages.signed import Accept, Commit
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import quotes
from quorate_protocol.units import Address, DeclineReason, Label, UnixSeconds
from quorate_protocol.values import replace

RECEIPT_SECONDS = 600


def on_accept(context: StepContext, event: AcceptReceived) -> None:
    """Raises Refused if it quotes more than what the job declares can take."""
    lease = lease_of(context, event.accept.message.assignment_hash, event.key)
    # The provider may have measured another bandwidth between its offer and its Accept.
    offer = context.state.providers[lease.provider].offer
    bandwidth = min(lease.bandwidth, offer.bandwidth if offer is not None else lease.bandwidth)
    spec = context.state.jobs[lease.job_id].submission.spec
    quotes.check(event.accept.message, spec, bandwidth)
    _check_host(context, lease, event.accept.message)
    moved, _ = step_lease(context, lease, event)
    if moved is not lease:
        others = context.state.jobs[lease.job_id].leases
        if not any(other in context.state.accepts for other in others):
            context.emit(StoreSpec(f"spec-{lease.job_id.hex()}", lease.job_id))
        context.state.accepts[lease.assignment_hash] = event.accept
        heartbeats.note_accept(context, lease.assignment.message, event.accept.message)
        context.note(lease.job_id, "accepted", f"execution {lease.index}")


def _check_host(context: StepContext, lease: Lease, accept: Accept) -> None:
    """Raises Refused if it names another machine than the offer, whose facts are known."""
    offer = context.state.providers[lease.provider].offer
    slot = slot_offer(offer, lease.assignment.message.pool) if offer is not None else None
    if slot is not None and slot.host.digest() != accept.host:
        raise Refused(
            Code.WRONG_CLASS,
            f"accept.host: your offer says {slot.host}, whose digest is "
            f"0x{slot.host.digest().hex()}; send the new offer first",
        )


def on_decline(context: StepContext, event: DeclineReceived) -> None:
    """The provider declines, postpones, or gives up what it had accepted."""
    lease = lease_of(context, event.decline.message.assignment_hash, event.key)
    moved, effects = step_lease(context, lease, event)
    if not effects:
        return
    context.state.declines[lease.assignment_hash] = event
    reason = event.decline.message.reason.name.lower()
    job = context.state.jobs[lease.job_id]
    phase = moved.phase
    if isinstance(phase, leases.Lapsed):
        context.note(job.id, "lapsed", f"execution {lease.index}: {reason}")
        advance(context, places.reopen(context, job, moved, UnixSeconds(0)))
        return
    assert isinstance(phase, leases.Declined)
    if event.decline.message.reason is DeclineReason.UNSECURED:
        _leave_out(context, lease.provider)
    context.note(job.id, "declined", f"execution {lease.index}: {reason}")
    advance(context, places.reopen(context, job, moved, phase.start_by))


def _leave_out(context: StepContext, owner: Address) -> None:
    """A guarantee does not cover it: it is not matched until its tab or its voucher changes, or for
    a while. A tick looks whether a lock is due.
    """
    until = UnixSeconds(context.at + context.rules.limits.decline_ahead_max)
    provider = context.state.providers[owner]
    context.state.providers[owner] = replace(provider, unsecured_until=until)
    payees.wake(context)


def on_commit(context: StepContext, event: CommitReceived) -> None:
    """Raises Refused if the staging store does not have the ciphertext."""
    message = event.commit.message
    lease = lease_of(context, message.assignment_hash, event.key)
    if not event.is_stored:
        raise Refused(
            Code.NOT_STORED,
            f"commit: ciphertext 0x{message.encrypted_output.hex()} is not in the staging store; "
            f"upload it first",
        )
    if context.state.jobs[lease.job_id].is_rental:
        raise Refused(Code.WRONG_PHASE, "commit: a rental has no result; send its last meter")
    _check_class(context, lease, message)
    moved, _ = step_lease(context, lease, event)
    _send_receipt(context, moved, event)
    if moved is lease:
        return
    job = context.state.jobs[lease.job_id]
    if not job.is_started:
        job = context.put(job, is_started=True)
    # Only a primary's commit is to be witnessed: clients are not asked to countersign an
    # auditor's, nor one that no draw follows.
    is_primary = (
        isinstance(job.phase, Running) and job.phase.batch == 0 and job.phase.beacon is None
    )
    is_drawing = is_primary and job.ack.message.rule is not Label.UNVERIFIED
    shown = event.commit if is_drawing else None
    context.note(job.id, "committed", f"execution {lease.index}", shown)
    advance(context, job)


def _check_class(context: StepContext, lease: Lease, commit: Commit) -> None:
    """Raises Refused if it is of another class than its Accept said."""
    accept = context.state.accepts.get(lease.assignment_hash)
    spec = context.state.jobs[lease.job_id].submission.spec
    if accept is not None and commit.class_id != determinism_class(
        lease.assignment.message.pool,
        accept.message.host,
        image_digest(spec.image),
        spec.profile().digest(),
    ):
        raise Refused(Code.WRONG_CLASS, "commit.classId: your Accept named another class")


def on_equivocation(context: StepContext, event: EquivocationSeen) -> None:
    """Proves two Commits on chain. Raises Refused if there are no two."""
    message = event.commit.message
    lease = lease_of(context, message.assignment_hash, event.key)
    phase = lease.phase
    if not isinstance(phase, leases.WithCommit) or phase.commit.message == message:
        raise Refused(Code.WRONG_PHASE, "commit: it contradicts no other one")
    key = f"equivocation-{message.assignment_hash.hex()}"
    context.emit(ProveEquivocation(key, lease.assignment, phase.commit, event.commit))


def _send_receipt(context: StepContext, lease: Lease, event: CommitReceived) -> None:
    commit_hash = context.digest(event.commit.message)
    phase = lease.phase
    assert isinstance(phase, leases.WithCommit)
    at = phase.at if isinstance(phase, leases.Committed) else phase.committed_at
    frame = frames.ReceiptSent(receipts.commit_receipt(context.rules, event.commit, at))
    key, expires = f"receipt-{commit_hash.hex()}-{context.at}", context.at + RECEIPT_SECONDS
    context.emit(Send(key, lease.provider, frame, UnixSeconds(expires)))


def hand_over(context: StepContext, queue: JobQueue, committed: CommitReceived) -> None:
    """Gives the run slot that a commit freed to a drawn execution that waits for this provider.

    Primaries may run anywhere. If they came first, a busy provider would never be free for a drawn
    execution, and the job of that execution would not end.
    """
    owner = context.state.leases[committed.commit.message.assignment_hash].provider
    job = queue.kept_for(owner)
    if job is not None:
        advance(context, places.retry_places(context, job, owner))


def on_reveal(context: StepContext, event: RevealReceived) -> None:
    """Raises Refused if the ciphertext does not open. A Reveal counts from its arrival, however
    long that takes.
    """
    lease = context.state.leases.get(event.reveal.assignment_hash)
    if lease is None:
        raise Refused(Code.UNKNOWN, f"assignment 0x{event.reveal.assignment_hash.hex()}")
    if not event.has_opened and not event.opens_within:
        raise Refused(
            Code.DOES_NOT_OPEN,
            "reveal: the stored ciphertext does not open to outputDigest under this salt",
        )
    moved, _ = step_lease(context, lease, event)
    if moved is lease or event.opens_within:
        return
    context.note(lease.job_id, "revealed", f"execution {lease.index}")
    advance(context, context.state.jobs[lease.job_id])


def on_compared(context: StepContext, event: OutputsCompared) -> None:
    job = comparisons.note(context, event)
    if job is not None:
        apart = "beyond any tolerance" if event.ppb is None else f"{event.ppb} ppb"
        context.note(job.id, "compared", f"two outputs are {apart} apart")
        advance(context, job)
