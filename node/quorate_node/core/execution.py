"""The machine of one execution at its provider: `step(execution, event, at, random, terms)`.

These rules hold at every step. The salt is journaled before anything uses it. One Assignment has
one Commit for ever. The provider reveals only for a CommitSet (the coordinator's signed list of a
batch's Commits) that is fresh, is signed by the coordinator and contains that Commit. It never
reveals for two sets with different members. A computer that fails commits nothing: the lease
lapses.
"""

from typing import assert_never

from quorate_node.core import bidding, effects, events
from quorate_node.core.effects import LeaseEffect
from quorate_node.core.phases import (
    PREPARING,
    Accepted,
    Committed,
    Declined,
    Done,
    Execution,
    Fetching,
    Lapsed,
    Live,
    Over,
    Phase,
    Publishing,
    Receipted,
    Revealed,
    Running,
    Starting,
)
from quorate_node.core.terms import Terms
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.limits import BEACON_AHEAD_MAX, BEACON_AHEAD_MIN, DAY
from quorate_protocol.messages.beacon_rounds import round_at, round_time
from quorate_protocol.messages.commitment import assignment_id, commitment, result_digest
from quorate_protocol.messages.offer import BANDWIDTH_DEFAULT
from quorate_protocol.messages.signed import Accept, Commit, CommitEntry, CommitSet, Decline, Reveal
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import quotes, settlement
from quorate_protocol.rules.receipts.receipt_dates import CLOCK_TOLERANCE_SECONDS
from quorate_protocol.units import (
    ZERO_HASH,
    DeclineReason,
    Hash32,
    Milliseconds,
    Round,
    Seconds,
    UnixSeconds,
)
from quorate_protocol.values import replace

# How long the node keeps the ciphertext after the verdict (PROTOCOL §4). An execution also waits
# this long for a verdict that does not come.
KEEP_SECONDS = 7 * DAY
FETCH_GRACE_SECONDS = 10  # a fetch may take so much longer than quoted
DONE_KEEP_SECONDS = 600  # the whole of an ended execution is kept; after that only its hash
# A CommitSet may be one beacon period old, plus this difference between honest clocks.
CLOCK_ALLOWANCE_SECONDS = 2
RESEND_FIRST_SECONDS = 2
RESEND_LONGEST_SECONDS = 60

Stepped = tuple[Execution, tuple[LeaseEffect, ...]]


# ---------------------------------------------------------------------------------------- beginning


def begin(
    event: events.AssignmentReceived,
    at: UnixSeconds,
    no: bidding.DeclineCause | None,
    start_by: UnixSeconds,
    quoted_run: int,
    terms: Terms,
    gpus: tuple[str, ...] = (),
    bandwidth: int = BANDWIDTH_DEFAULT,
) -> Stepped:
    """Accepts, or declines. `start_by` > 0: when a taken run slot will be free."""
    assignment, assignment_hash = (
        event.assignment.message,
        digest(terms.domain, event.assignment.message),
    )
    if no is not None:
        forget_at = UnixSeconds(at + terms.policy.declined_keep_seconds)
        phase = Declined(Decline(assignment_hash, no.reason, start_by, at), no.text, forget_at)
        declined = Execution(
            assignment=event.assignment,
            assignment_hash=assignment_hash,
            spec=event.spec,
            sources=event.sources,
            class_id=ZERO_HASH,
            accept=None,
            commit_by=assignment.accept_by,
            phase=phase,
        )
        return declined, duties(declined)
    slot = terms.slot(assignment.pool)
    assert slot is not None, "bidding declines an unknown pool"
    # The slowest that may be quoted: with a shorter quote an honest owner would lapse.
    fetch = quotes.fetch_seconds_max(event.spec, bandwidth)
    store = quotes.store_seconds_max(event.spec)
    accept = Accept(
        assignment_hash, slot.host.digest(), Seconds(fetch), Seconds(quoted_run), Seconds(store), at
    )
    commit_by = UnixSeconds(
        at + fetch + assignment.max_duration + store + terms.limits.commit_grace
    )
    class_id = terms.class_of(assignment.pool, event.spec)
    assert class_id is not None
    execution = Execution(
        assignment=event.assignment,
        assignment_hash=assignment_hash,
        spec=event.spec,
        sources=event.sources,
        class_id=class_id,
        accept=accept,
        commit_by=commit_by,
        phase=Accepted(),
        gpus=gpus,
    )
    return execution, duties(execution)


def duties(execution: Execution) -> tuple[LeaseEffect, ...]:
    """What the phase calls for, on entering it and after a restart; so it is not stored."""
    assignment_hash, coordinator = execution.assignment_hash, execution.coordinator
    phase, accept_by = execution.phase, execution.assignment.message.accept_by
    match phase:
        case Declined():
            return (effects.SendDecline(assignment_hash, coordinator, phase.decline, accept_by),)
        case Accepted():
            assert execution.accept is not None
            return (effects.SendAccept(assignment_hash, coordinator, execution.accept, accept_by),)
        case Fetching():
            spec, sources, give_up_at = execution.spec, execution.sources, _fetch_by(execution)
            return (effects.FetchInputs(assignment_hash, coordinator, spec, sources, give_up_at),)
        case Starting() if not execution.has_slot:
            return ()
        case Starting():
            spec, pool = execution.spec, execution.pool
            return (effects.StartTask(assignment_hash, spec, pool, execution.gpus),)
        case Running():
            watch = effects.WatchTask(assignment_hash, coordinator)
            return (watch, effects.StopTask(assignment_hash)) if phase.is_stopping else (watch,)
        case Publishing():
            status, salt = phase.exit_status, phase.salt
            return (
                effects.PublishOutput(assignment_hash, coordinator, status, salt),
                effects.RemoveTask(assignment_hash),
            )
        case Committed():
            commit, attempt = phase.commit, phase.attempts
            return (effects.SendCommit(assignment_hash, coordinator, commit, attempt),)
        case Revealed():
            closed_at = phase.commit_set.message.closed_at
            reveal = effects.SendReveal(assignment_hash, coordinator, phase.reveal, closed_at)
            if phase.escrowed is None:
                return (reveal,)
            order, index = phase.escrowed.order, phase.escrowed.index
            blind = _blind(phase.commit_set.message, assignment_hash)
            # First: once revealed, the result can be copied, and the Verdict may come at any time.
            keep = effects.KeepEvidence(assignment_hash, coordinator, order, index, blind)
            return keep, reveal
        case Receipted() | Done() | Live() | Over():
            return ()
        case Lapsed():
            end = effects.StopTask(assignment_hash), effects.RemoveTask(assignment_hash)
            if phase.decline is None:
                return end
            give_up_at = execution.commit_by
            return (
                *end,
                effects.SendDecline(assignment_hash, coordinator, phase.decline, give_up_at),
            )
        case _:
            assert_never(phase)


def next_due(execution: Execution) -> UnixSeconds:
    """Returns the time at which the next Tick changes this execution."""
    phase = execution.phase
    match phase:
        case Declined():
            return phase.forget_at
        case Accepted():
            # The coordinator chooses acceptBy. It must not keep a run slot in use after commitBy.
            return UnixSeconds(min(execution.assignment.message.accept_by, execution.commit_by) + 1)
        case Fetching():
            return UnixSeconds(_fetch_by(execution) + 1)
        case Committed():
            return min(phase.resend_at, UnixSeconds(execution.commit_by + KEEP_SECONDS))
        case Receipted() | Revealed():
            return UnixSeconds(execution.commit_by + KEEP_SECONDS)
        case Done():
            return UnixSeconds(phase.forget_at - KEEP_SECONDS + DONE_KEEP_SECONDS)
        case Lapsed():
            # Without a Commit there is no evidence to keep.
            return UnixSeconds(
                phase.forget_at - (0 if phase.commit else KEEP_SECONDS - DONE_KEEP_SECONDS)
            )
        case _:
            return UnixSeconds(execution.commit_by + 1)


def _fetch_by(execution: Execution) -> UnixSeconds:
    """The time that the Accept quotes, and a part of the grace, which the coordinator waits."""
    accept = execution.accept
    assert accept is not None, "a declined assignment fetches nothing"
    by = accept.time + accept.quoted_fetch_seconds + FETCH_GRACE_SECONDS
    return UnixSeconds(min(by, execution.commit_by))


# -------------------------------------------------------------------------------------------- steps


def step(
    execution: Execution, event: events.ExecutionEvent, at: UnixSeconds, random: bytes, terms: Terms
) -> Stepped:
    """The only way an execution changes. A report that no longer fits the phase changes nothing.
    Raises Refused if a peer's message does not fit.
    """
    match event:
        case events.AcceptDelivered():
            return (
                _enter(execution, Fetching())
                if isinstance(execution.phase, Accepted)
                else (execution, ())
            )
        case events.InputsFetched():
            return (
                _enter(replace(execution, fetched_at=at), Starting())
                if isinstance(execution.phase, Fetching)
                else (execution, ())
            )
        case events.TaskStarted():
            return (
                _enter(execution, Running(at, execution.phase.is_stopping))
                if isinstance(execution.phase, Starting)
                else (execution, ())
            )
        case events.TaskExited():
            return _exited(execution, event, random)
        case events.OutputPublished():
            return _published(execution, event, at, terms)
        case events.TaskFailed():
            return _failed(execution, event, at)
        case events.CommitReceiptReceived():
            return _receipt(execution, event, at, terms)
        case events.CommitSetReceived():
            return _commit_set(execution, event, at, terms)
        case events.VerdictReceived():
            return _verdict(execution, event, at, terms)
        case events.StopReceived():
            return _stop(execution, at)
        case events.Tick():
            return _tick(execution, at)
        case events.MeterAnswered():
            return execution, ()
        case _:
            assert_never(event)


def _enter(execution: Execution, phase: Phase) -> Stepped:
    moved = execution.to(phase)
    return moved, duties(moved)


def _exited(execution: Execution, event: events.TaskExited, random: bytes) -> Stepped:
    if not isinstance(execution.phase, Running | Starting):
        return execution, ()
    assert len(random) == 32, "a salt is 32 fresh bytes"
    ran = max(settlement.USAGE_MS_MIN, event.usage_ms)
    usage = Milliseconds(ran + 1000 * _paid_fetch_seconds(execution))
    return _enter(execution, Publishing(event.status, usage, Hash32(random)))


def _paid_fetch_seconds(execution: Execution) -> int:
    """The time of its own fetch, at most what the job allows (PROTOCOL 4.17). Whole seconds of a
    clock may be one more than what passed, and 4.18 pays no second too many.
    """
    assert execution.accept is not None, "only an accepted execution runs"
    fetched = execution.fetched_at - execution.accept.time - 1
    return min(max(0, fetched), execution.spec.fetch_allowance())


def _published(
    execution: Execution, event: events.OutputPublished, at: UnixSeconds, terms: Terms
) -> Stepped:
    phase = execution.phase
    if not isinstance(phase, Publishing):
        return execution, ()
    if at > execution.commit_by:
        return _lapse(execution, "the output was stored after commitBy", at)
    provider = execution.assignment.message.provider
    reveal = Reveal(
        execution.assignment_hash, provider, phase.exit_status, event.output_digest, phase.salt
    )
    result = result_digest(reveal.exit_status, reveal.output_digest)
    commit = Commit(
        assignment_hash=execution.assignment_hash,
        class_id=execution.class_id,
        commitment=commitment(execution.assignment_hash, provider, reveal.salt, result),
        encrypted_output=event.ciphertext,
        usage_ms=phase.usage_ms,
        beacon_round=beacon_round(terms, at),
    )
    return _enter(execution, Committed(commit, reveal, UnixSeconds(at + RESEND_FIRST_SECONDS)))


def beacon_round(terms: Terms, at: UnixSeconds) -> Round:
    """One round more than the rule's two periods: the Commit takes time to reach the witness."""
    number = round_at(terms.beacon, at) + BEACON_AHEAD_MIN
    if (
        number < 1
        or round_time(terms.beacon, Round(max(1, number)))
        < at + BEACON_AHEAD_MIN * terms.beacon.period
    ):
        number += 1
    assert BEACON_AHEAD_MIN + 2 <= BEACON_AHEAD_MAX
    return Round(number + 1)


def _failed(execution: Execution, event: events.TaskFailed, at: UnixSeconds) -> Stepped:
    why = event.why
    match execution.phase:
        case Declined() | Done() | Lapsed() | Receipted() | Revealed():
            return execution, ()
        case Accepted() | Committed():
            # No Decline is due, because the coordinator itself refused the message.
            return _lapse(execution, why, at)
        case Fetching():
            return give_up(execution, why, DeclineReason.INPUT_UNAVAILABLE, at)
        case Starting() if event.is_impossible:
            return give_up(execution, why, DeclineReason.MISMATCH, at)
        case _:
            return give_up(execution, why, DeclineReason.GAVE_UP, at)


def give_up(execution: Execution, why: str, reason: DeclineReason, at: UnixSeconds) -> Stepped:
    """Ends the execution without a Commit, with a Decline so that the coordinator does not wait."""
    assert execution.commit() is None, "an execution with a Commit is never given up"
    return _lapse(
        execution, why, at, Decline(execution.assignment_hash, reason, UnixSeconds(0), at)
    )


def lose_gpus(execution: Execution, gone: tuple[str, ...], at: UnixSeconds) -> Stepped:
    """Without a Commit: what ran on lost GPUs may be wrong, even if it ended."""
    why = f"GPU {', '.join(gone)} is gone: the driver does not list it any more"
    return give_up(execution, why, DeclineReason.GAVE_UP, at)


def _lapse(
    execution: Execution, why: str, at: UnixSeconds, decline: Decline | None = None
) -> Stepped:
    return _enter(
        execution, Lapsed(why[:200], execution.commit(), UnixSeconds(at + KEEP_SECONDS), decline)
    )


def _receipt(
    execution: Execution, event: events.CommitReceiptReceived, at: UnixSeconds, terms: Terms
) -> Stepped:
    """Keeps the result closed if the receipt does not pay the whole run, or is from the future."""
    phase = execution.phase
    _check_signer(execution, event.signer, terms)
    commit = execution.commit()
    if commit is None or digest(terms.domain, commit) != event.receipt.message.commit_hash:
        raise Refused(Code.UNKNOWN, "receipt: this provider signed no such Commit")
    if not isinstance(phase, Committed):
        return execution, ()
    dated, within = event.receipt.message.time, terms.limits.accept_within
    paid = settlement.payable_usage(commit.usage_ms, execution.assignment.message, dated, within)
    if paid < commit.usage_ms or dated > at + CLOCK_TOLERANCE_SECONDS:
        return execution.to(replace(phase, is_misdated=True)), ()
    return _enter(execution, Receipted(phase.commit, phase.reveal, event.receipt))


def _commit_set(
    execution: Execution, event: events.CommitSetReceived, at: UnixSeconds, terms: Terms
) -> Stepped:
    """Reveals the result. This is the only event that does."""
    phase, closed = execution.phase, event.commit_set.message
    if not isinstance(phase, Committed | Receipted | Revealed):
        raise Refused(Code.WRONG_PHASE, f"commitSet: the execution is {type(phase).__name__}")
    _check_signer(execution, event.signer, terms)
    if execution.closed():
        raise Refused(Code.STALE, f"commitSet: {execution.closed()}")
    entry = CommitEntry(
        execution.assignment_hash, terms.provider, digest(terms.domain, phase.commit)
    )
    if entry not in closed.ordered:
        raise Refused(Code.UNKNOWN, "commitSet: it lacks the Commit of this provider")
    if isinstance(phase, Revealed) and not is_same_set(phase.commit_set.message, closed):
        raise Refused(
            Code.EQUIVOCATION, "commitSet: the coordinator signed another one for this batch"
        )
    age = at - closed.closed_at
    if age > terms.limits.beacon_period + CLOCK_ALLOWANCE_SECONDS:
        raise Refused(
            Code.STALE, f"commitSet: closedAt was {age} s ago; sign it again with a new closedAt"
        )
    if age < -CLOCK_ALLOWANCE_SECONDS:
        raise Refused(Code.TOO_EARLY, f"commitSet: closedAt lies {-age} s ahead")
    receipt = None if isinstance(phase, Committed) else phase.receipt
    escrowed = event.escrowed if _fits(execution, event, terms) else None
    if escrowed is not None and receipt is None:
        # Without it the chain takes no evidence. The Commit is sent again, and its answer has it.
        raise Refused(Code.WRONG_PHASE, "commitSet: the receipt of this Commit has not come yet")
    return _enter(
        execution, Revealed(phase.commit, phase.reveal, event.commit_set, receipt, escrowed)
    )


def _fits(execution: Execution, event: events.CommitSetReceived, terms: Terms) -> bool:
    """Whether an order with an escrow is that of this execution, as the chain checks it."""
    if event.escrowed is None:
        return False
    order, assignment = event.escrowed.order, execution.assignment.message
    job_id, blind = (
        digest(terms.domain, order),
        _blind(event.commit_set.message, execution.assignment_hash),
    )
    named = assignment_id(job_id, event.escrowed.index, blind)
    return (
        job_id == event.commit_set.message.job_id
        and named == assignment.assignment_id
        and (order.coordinator, order.spec_hash) == (assignment.coordinator, assignment.spec_hash)
    )


def _blind(closed: CommitSet, assignment_hash: Hash32) -> Hash32:
    names = [entry.assignment_hash for entry in closed.ordered]
    place = names.index(assignment_hash)
    return closed.blinds[place] if place < len(closed.blinds) else ZERO_HASH


def is_same_set(one: CommitSet, other: CommitSet) -> bool:
    """A coordinator signs a set again, with a new closedAt, after a failed delivery."""
    return replace(one, closed_at=other.closed_at) == other


def _check_signer(execution: Execution, signer: bytes, terms: Terms) -> None:
    if terms.statement_keys.get(execution.coordinator) != signer:
        raise Refused(
            Code.WRONG_SIGNER, "not signed by the statement key of the coordinator that assigned it"
        )


def _verdict(
    execution: Execution, event: events.VerdictReceived, at: UnixSeconds, terms: Terms
) -> Stepped:
    phase = execution.phase
    _check_signer(execution, event.signer, terms)
    match phase:
        case Revealed():
            if event.verdict.message.job_id != phase.commit_set.message.job_id:
                raise Refused(Code.UNKNOWN, "verdict: it is about another job")
            forget_at = UnixSeconds(at + KEEP_SECONDS)
            return _enter(execution, Done(phase.commit, event.verdict, forget_at, phase.commit_set))
        case Committed() | Receipted():
            return _enter(
                execution, Done(phase.commit, event.verdict, UnixSeconds(at + KEEP_SECONDS))
            )
        case Done():
            newer = event.verdict.message.seq > phase.verdict.message.seq
            return (
                (execution.to(replace(phase, verdict=event.verdict)), ())
                if newer
                else (execution, ())
            )
        case Lapsed() | Declined():
            return execution, ()
        case _:
            # The job ended without this execution: it was stopped, or this provider was too slow.
            return _lapse(execution, "the job ended before the commit", at)


def _stop(execution: Execution, at: UnixSeconds) -> Stepped:
    """The client pays elapsed time: a running task is committed, one not started lapses."""
    match execution.phase:
        case Accepted() | Fetching():
            return give_up(
                execution, "stopped by the client before it ran", DeclineReason.GAVE_UP, at
            )
        case Starting() as phase:
            # The core does not know yet whether the task runs. It orders the stop once it does.
            return execution.to(replace(phase, is_stopping=True)), ()
        case Running() as phase if not phase.is_stopping:
            return execution.to(replace(phase, is_stopping=True)), (
                effects.StopTask(execution.assignment_hash),
            )
        case _:
            return execution, ()


def _tick(execution: Execution, at: UnixSeconds) -> Stepped:
    if at < next_due(execution):
        return execution, ()
    phase = execution.phase
    match phase:
        case Committed() if at < execution.commit_by + KEEP_SECONDS:
            wait = min(RESEND_LONGEST_SECONDS, RESEND_FIRST_SECONDS << min(phase.attempts, 6))
            again = replace(phase, resend_at=UnixSeconds(at + wait), attempts=phase.attempts + 1)
            return _enter(execution, again)
        case Committed() | Receipted() | Revealed():
            return _lapse(execution, "no verdict within seven days", at)
        case Accepted():
            return _lapse(execution, "the Accept could not be delivered in time", at)
        case Declined() | Done() | Lapsed():
            return execution, (effects.ForgetLease(execution.assignment_hash),)
        case Fetching():
            quoted = execution.accept.quoted_fetch_seconds if execution.accept else 0
            why = f"image and inputs were not fetched within the {quoted} s quoted"
            return give_up(execution, why, DeclineReason.INPUT_UNAVAILABLE, at)
        case _:
            assert isinstance(phase, (*PREPARING, Running, Publishing))
            return _lapse(execution, f"commitBy passed while {type(phase).__name__}", at)
