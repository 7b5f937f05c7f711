"""The provider's whole machine: all executions, all jury duties, statements, offers. One writer, one state, `step`.

It dispatches to `execution` and `jury`, and decides what only the whole can decide: whether a run slot is free.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from quorate_protocol.eip712 import digest
from quorate_protocol.envelope import Envelope
from quorate_protocol.messages import Statement
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    Address,
    Amount,
    DeclineReason,
    Hash32,
    Nonce,
    Sequence,
    UnixSeconds,
)

from quorate_node.core import bidding, capacity, effects, events, execution, jury
from quorate_node.core.effects import Effect
from quorate_node.core.events import Event
from quorate_node.core.jury import Duty
from quorate_node.core.phases import Accepted, Committed, Declined, Execution
from quorate_node.core.terms import Terms

EXECUTIONS_KEPT_MAX = 100_000
FIRST = Sequence(0)
NEVER = UnixSeconds(2**63)


@dataclass(frozen=True, slots=True)
class ProviderState:
    """Everything the provider must not forget. `commits` finds the lease of a Commit's digest."""

    executions: dict[Hash32, Execution] = field(default_factory=dict)
    commits: dict[Hash32, Hash32] = field(default_factory=dict)
    jury: dict[Nonce, Duty] = field(default_factory=dict)
    statements: dict[Address, Envelope[Statement]] = field(default_factory=dict)
    claimed: dict[Address, Amount] = field(default_factory=dict)
    offer_seq: Sequence = FIRST
    is_draining: bool = False
    recent_ms: tuple[int, ...] = ()

    @property
    def running(self) -> tuple[Execution, ...]:
        """Executions that take a run slot."""
        return tuple(item for item in self.executions.values() if item.occupies_slot)


Stepped = tuple[ProviderState, tuple[Effect, ...]]


def step(state: ProviderState, event: Event, at: UnixSeconds, random: bytes, terms: Terms) -> Stepped:
    """The only way the provider's state changes."""
    state, done = _step(state, event, at, random, terms)
    state, begun = _begin_duties(state, terms)
    return state, (*done, *begun)


def next_due(state: ProviderState) -> UnixSeconds:
    """When a Tick changes something next."""
    leases = (execution.next_due(item) for item in state.executions.values())
    duties = (jury.next_due(item) for item in state.jury.values())
    return min((*leases, *duties), default=NEVER)


def _step(state: ProviderState, event: Event, at: UnixSeconds, random: bytes, terms: Terms) -> Stepped:
    match event:
        case events.AssignmentArrived():
            return _assigned(state, event, at, terms)
        case events.ReceiptArrived():
            lease = state.commits.get(event.receipt.message.commit_hash)
            if lease is None:
                raise Refused(Code.UNKNOWN, "receipt: of a Commit that was not signed here")
            return _on_execution(state, lease, event, at, random, terms)
        case events.CommitSetArrived() | events.VerdictArrived() | events.StopArrived():
            if event.lease not in state.executions:
                raise Refused(Code.UNKNOWN, "no such assignment here")
            if isinstance(event, events.StopArrived) and state.executions[event.lease].coordinator != event.coordinator:
                raise Refused(Code.NOT_YOURS, "stop: of another coordinator's assignment")
            return _on_execution(state, event.lease, event, at, random, terms)
        case (
            events.AcceptDelivered()
            | events.Fetched()
            | events.Started()
            | events.Failed()
            | events.Exited()
            | events.Collected()
            | events.Sealed()
            | events.Uploaded()
        ):
            return _on_execution(state, event.lease, event, at, random, terms)
        case events.StatementArrived():
            return _statement(state, event, terms)
        case events.Tick():
            return _tick(state, at, random, terms)
        case events.OfferDue():
            seq = Sequence(state.offer_seq + 1)
            return replace(state, offer_seq=seq), (effects.SendOffer(seq, UnixSeconds(at + terms.limits.offer_ttl)),)
        case events.DrainRequested():
            return replace(state, is_draining=event.is_on), ()
        case events.JuryDrawn():
            return _summoned(state, event, terms)
        case events.Reexecuted() | events.VoteStood() | events.VotingEnded() | events.CaseDecided():
            return _on_duty(state, event.case_id, event, at, random)
        case events.EpochFinal():
            return _epoch(state, event)
        case events.ClaimStood():
            amount = Amount(max(event.amount, state.claimed.get(event.coordinator, 0)))
            return replace(state, claimed={**state.claimed, event.coordinator: amount}), ()
        case _:
            assert_never(event)


# ------------------------------------------------------------------------------------------------------------ executions


def _assigned(state: ProviderState, event: events.AssignmentArrived, at: UnixSeconds, terms: Terms) -> Stepped:
    assignment = event.assignment.message
    if terms.statement_keys.get(assignment.coordinator) != event.signer:
        raise Refused(Code.WRONG_SIGNER, "assignment: not signed by the statement key of a coordinator served here")
    if assignment.provider != terms.provider:
        raise Refused(Code.NOT_YOURS, "assignment: for another provider")
    known = state.executions.get(digest(terms.domain, assignment))
    if known is not None:
        # A repeat: the answer may have been lost, anything later is under way by itself.
        return state, execution.duties(known) if isinstance(known.phase, Accepted | Declined) else ()
    if at > assignment.accept_by:
        raise Refused(Code.TOO_LATE, f"assignment: was to be accepted by {assignment.accept_by}, now {at}")
    if len(state.executions) >= EXECUTIONS_KEPT_MAX:
        raise Refused(Code.BUSY, "assignment: too many executions are kept here")
    quoted = capacity.quoted_run_seconds(state.recent_ms, assignment.max_duration)
    no, start_by = _answer(state, event, at, quoted, terms)
    begun, done = execution.begin(event, at, no, start_by, quoted, terms)
    state = _put(state, begun, terms)
    used = capacity.taken(assignment.host_class, state.executions.values(), state.jury.values())
    assert not begun.occupies_slot or used <= terms.count(assignment.host_class), "I2: more running leases than slots"
    return state, done


def _answer(
    state: ProviderState, event: events.AssignmentArrived, at: UnixSeconds, quoted_run: int, terms: Terms
) -> tuple[bidding.No | None, UnixSeconds]:
    assignment = event.assignment.message
    if state.is_draining:
        return bidding.No(DeclineReason.DRAINING, "the owner wants no new work"), UnixSeconds(0)
    no = bidding.decide(bidding.Bid(assignment, event.spec, terms))
    if no is not None:
        return no, UnixSeconds(0)
    running, duties = state.executions.values(), state.jury.values()
    if capacity.free(terms, assignment.host_class, running, duties) > 0:
        return None, UnixSeconds(0)
    start_by = capacity.slot_frees_at(terms, assignment.host_class, running, quoted_run, at)
    return bidding.No(DeclineReason.BUSY, f"every run slot is taken until about {start_by}"), start_by


def _on_execution(
    state: ProviderState, lease: Hash32, event: events.ExecutionEvent, at: UnixSeconds, random: bytes, terms: Terms
) -> Stepped:
    found = state.executions.get(lease)
    if found is None:
        return state, ()  # forgotten in the meantime
    moved, done = execution.step(found, event, at, random, terms)
    if isinstance(event, events.Exited) and moved is not found:
        state = replace(state, recent_ms=(*state.recent_ms, int(event.usage_ms))[-capacity.RECENT_RUNS :])
    return _put(state, moved, terms), done


def _put(state: ProviderState, moved: Execution, terms: Terms) -> ProviderState:
    before = state.executions.get(moved.hash)
    commit = moved.commit()
    was = before.commit() if before else None
    assert was is None or was == commit, "two Commits for one assignment"
    commits = state.commits
    if commit is not None and was is None and isinstance(moved.phase, Committed):
        commits = {**commits, digest(terms.domain, commit): moved.hash}
    return replace(state, executions={**state.executions, moved.hash: moved}, commits=commits)


def _tick(state: ProviderState, at: UnixSeconds, random: bytes, terms: Terms) -> Stepped:
    done: list[Effect] = []
    for lease in [item.hash for item in state.executions.values() if execution.next_due(item) <= at]:
        was_ended = state.executions[lease].is_ended
        state, more = _on_execution(state, lease, events.Tick(), at, random, terms)
        done.extend(more)
        if was_ended:
            state = _forget(state, lease, terms)
    for case_id in [item.case_id for item in state.jury.values() if jury.next_due(item) <= at]:
        was_ended = state.jury[case_id].is_ended
        state, court = _on_duty(state, case_id, events.Tick(), at, random)
        done.extend(court)
        if was_ended:
            state = replace(state, jury={key: item for key, item in state.jury.items() if key != case_id})
    return state, tuple(done)


def _forget(state: ProviderState, lease: Hash32, terms: Terms) -> ProviderState:
    commit = state.executions[lease].commit()
    gone = digest(terms.domain, commit) if commit else None
    executions = {key: item for key, item in state.executions.items() if key != lease}
    return replace(state, executions=executions, commits={key: item for key, item in state.commits.items() if key != gone})


# ------------------------------------------------------------------------------------------------------------------ jury


def _summoned(state: ProviderState, event: events.JuryDrawn, terms: Terms) -> Stepped:
    if event.case_id in state.jury:
        return state, ()
    return replace(state, jury={**state.jury, event.case_id: jury.summoned(event, terms.provider)}), ()


def _on_duty(
    state: ProviderState, case_id: Nonce, event: events.JuryEvent | events.Tick, at: UnixSeconds, random: bytes
) -> Stepped:
    found = state.jury.get(case_id)
    if found is None:
        return state, ()  # not a juror there
    moved, done = jury.step(found, event, at, random)
    return replace(state, jury={**state.jury, case_id: moved}), done


def _begin_duties(state: ProviderState, terms: Terms) -> Stepped:
    """Waiting duties come before new leases: their window is short and missing it is a no-show."""
    done: list[Effect] = []
    for duty in tuple(state.jury.values()):
        if not isinstance(duty.phase, jury.Waiting):
            continue
        # A class that is not offered any more takes no slot; it is still a juror's duty.
        is_offered = terms.count(duty.host_class) > 0
        if is_offered and capacity.free(terms, duty.host_class, state.executions.values(), state.jury.values()) == 0:
            continue
        moved, more = jury.begin(duty)
        state = replace(state, jury={**state.jury, duty.case_id: moved})
        done.extend(more)
    return state, tuple(done)


# ----------------------------------------------------------------------------------------------------------------- money


def _statement(state: ProviderState, event: events.StatementArrived, terms: Terms) -> Stepped:
    message = event.statement.message
    if terms.statement_keys.get(event.coordinator) != event.signer:
        raise Refused(Code.WRONG_SIGNER, "statement: not signed by the coordinator's statement key")
    if message.provider != terms.provider:
        raise Refused(Code.NOT_YOURS, "statement: for another provider")
    before = state.statements.get(event.coordinator)
    if before is not None:
        if message.seq < before.message.seq:
            raise Refused(Code.STALE, f"statement: number {before.message.seq} is known")
        if message.seq == before.message.seq:
            if message != before.message:
                raise Refused(Code.EQUIVOCATION, f"statement: another number {message.seq} is known")
            return state, ()
        if message.final < before.message.final:
            raise Refused(Code.BAD_AMOUNT, f"statement: final fell from {before.message.final} to {message.final}")
    return replace(state, statements={**state.statements, event.coordinator: event.statement}), ()


def _epoch(state: ProviderState, event: events.EpochFinal) -> Stepped:
    if event.final <= state.claimed.get(event.coordinator, 0):
        return state, ()
    return state, (effects.SendClaim(event.coordinator, event.epoch, event.final),)


def resume(state: ProviderState) -> tuple[Effect, ...]:
    """Everything that is due in this state: what a daemon does again after a restart."""
    done: list[Effect] = []
    for item in state.executions.values():
        if not item.is_ended:
            done.extend(execution.duties(item))
    for duty in state.jury.values():
        done.extend(jury.duties(duty))
    return tuple(done)


def coordinators(state: ProviderState) -> Mapping[Address, Statement]:
    """The newest statement of each coordinator."""
    return {address: envelope.message for address, envelope in state.statements.items()}
