"""The lease machine: one provider's agreement to execute one order.

Assigned → Accepted → Committed → Closed → Revealed, or one of the ends Declined, Lapsed, Silent,
Stopped. A rental goes from Accepted to Live, and then to Returned. Deadlines come from the signed
messages. `step` gets the time as `at`.
"""

from enum import StrEnum
from typing import assert_never

from msgspec import Struct

from quorate_coordinator.core.model.events import (
    AcceptReceived,
    CommitReceived,
    DeclineReceived,
    RevealReceived,
    Tick,
)
from quorate_protocol.limits import Limits
from quorate_protocol.messages.commitment import check_opens
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.offer import BANDWIDTH_DEFAULT
from quorate_protocol.messages.signed import Accept, Assignment, Commit, Decline, Reveal
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules import quotes
from quorate_protocol.units import ZERO_HASH, Address, Hash32, Milliseconds, UnixSeconds
from quorate_protocol.values import replace

# ------------------------------------------------------------------------------------------- phases


QUOTED_SECONDS_MAX = quotes.FETCH_SECONDS_MAX + quotes.STORE_SECONDS_MAX


class Assigned(Struct, frozen=True, tag=True):
    """Sent, and not answered. It lapses at `acceptBy`."""


class Accepted(Struct, frozen=True, tag=True):
    """The provider works on it. It lapses if no commit comes by `commit_by`, if no heartbeat names
    it for long, or if one says that it still fetches after the quoted time (`lapses_after`).
    """

    accept: Envelope[Accept]
    commit_by: UnixSeconds
    heard_at: UnixSeconds  # when its provider accepted it, or named it last
    accepted_at: UnixSeconds
    is_fetching: bool = False  # by the last heartbeat that named it


class Live(Struct, frozen=True, tag=True):
    """The container of a rental runs. `usage_ms`: by its newest meter."""

    accept: Envelope[Accept]
    accepted_at: UnixSeconds
    usage_ms: Milliseconds


class Returned(Struct, frozen=True, tag=True):
    """A rental that ran has ended."""

    usage_ms: Milliseconds


class Committed(Struct, frozen=True, tag=True):
    """The provider has committed to a result that is still hidden. Its run slot is free again."""

    commit: Envelope[Commit]
    at: UnixSeconds  # the time in the CommitReceipt


class Closed(Struct, frozen=True, tag=True):
    """The execution is in a signed CommitSet, and its provider must reveal by `reveal_by`."""

    commit: Envelope[Commit]
    reveal_by: UnixSeconds
    committed_at: UnixSeconds = UnixSeconds(0)
    has_arrived: bool = False  # the reveal came in time, and its large ciphertext is being opened


class Revealed(Struct, frozen=True, tag=True):
    """The provider has opened its commitment. `result` is the result digest."""

    commit: Envelope[Commit]
    reveal: Reveal
    result: Hash32
    committed_at: UnixSeconds = UnixSeconds(0)


class Declined(Struct, frozen=True, tag=True):
    """The provider did not take it. With `start_by` > 0 it keeps its place until then."""

    start_by: UnixSeconds


class Lapsed(Struct, frozen=True, tag=True):
    """No answer or no commit in time, or given up after the Accept: unpaid. `is_excused`: nobody
    sent its provider the Assignment, so it counts for nothing.
    """

    was_accepted: bool
    has_given_up: bool = False
    is_excused: bool = False


class Silent(Struct, frozen=True, tag=True):
    """The execution was in a CommitSet, and its provider did not reveal in time."""

    commit: Envelope[Commit]
    committed_at: UnixSeconds = UnixSeconds(0)


class Stopped(Struct, frozen=True, tag=True):
    """The client stopped the job before the provider accepted it."""


Phase = (
    Assigned
    | Accepted
    | Live
    | Returned
    | Committed
    | Closed
    | Revealed
    | Declined
    | Lapsed
    | Silent
    | Stopped
)
WithCommit = Committed | Closed | Revealed | Silent
TERMINAL = (Returned, Revealed, Declined, Lapsed, Silent, Stopped)


class Lease(Struct, frozen=True):
    """One execution. `assignment_hash` is the digest of the whole Assignment. `index` and `blind`
    (a random value) open its `assignmentId`, which hides the job.
    """

    assignment: Envelope[Assignment]
    assignment_hash: Hash32
    job_id: Hash32
    index: int
    blind: Hash32
    batch: int
    phase: Phase
    is_drawn: bool = False  # the beacon drew its provider; the matcher chose the others
    bandwidth: int = BANDWIDTH_DEFAULT  # of its provider's offer, when it was assigned

    @property
    def provider(self) -> Address:
        return self.assignment.message.provider

    @property
    def is_terminal(self) -> bool:
        return isinstance(self.phase, TERMINAL)

    @property
    def occupies_slot(self) -> bool:
        """From the assignment until the commit or the end (I2)."""
        return isinstance(self.phase, Assigned | Accepted | Live)


def class_of(lease: Lease) -> Hash32:
    """The determinism class of its Commit; zero without one."""
    phase = lease.phase
    return phase.commit.message.class_id if isinstance(phase, WithCommit) else ZERO_HASH


def result_of(lease: Lease) -> Hash32 | None:
    return lease.phase.result if isinstance(lease.phase, Revealed) else None


# ------------------------------------------------------------------------------------------- events


class ProgressReported(Struct, frozen=True):
    """The provider's heartbeat names the lease, or the coordinator was away and did not hear."""

    is_fetching: bool


class BatchClosed(Struct, frozen=True):
    """The coordinator signed a CommitSet with this lease, for the first time or again."""

    closed_at: UnixSeconds


class UsageTaken(Struct, frozen=True):
    """A meter of a rental was checked, and counts."""

    usage_ms: Milliseconds


class RentalEnded(Struct, frozen=True):
    """A rental that runs ends, for whatever reason."""


class ClientStopped(Struct, frozen=True):
    """The client's Stop arrived, and counts from now on."""


Event = (
    AcceptReceived
    | DeclineReceived
    | CommitReceived
    | ProgressReported
    | BatchClosed
    | RevealReceived
    | ClientStopped
    | UsageTaken
    | RentalEnded
    | Tick
)


class Effect(StrEnum):
    """What the caller must do after a step."""

    SLOT_FREED = "slot-freed"
    RECEIPT_DUE = "receipt-due"
    PLACE_KEPT = "place-kept"
    PLACE_OPEN = "place-open"  # another provider must get the execution
    RESULT_OPEN = "result-open"
    SILENCE = "silence"


def step(
    lease: Lease, event: Event, at: UnixSeconds, limits: Limits, known: int = 0
) -> tuple[Lease, tuple[Effect, ...]]:
    """Applies one event to a lease; nothing else changes a lease. A repeated message changes
    nothing. `known` is the time by the newest beacon round, if it is later than `at`.

    Raises Refused if a message does not fit the lease's phase.
    """
    match event:
        case AcceptReceived(accept):
            return _accept(lease, accept, at, limits)
        case DeclineReceived(decline):
            return _decline(lease, decline, at, limits)
        case CommitReceived(commit):
            return _commit(lease, commit, at, known, limits)
        case ProgressReported(is_fetching):
            return _progress(lease, is_fetching, at)
        case BatchClosed(closed_at):
            return _close(lease, closed_at, limits)
        case RevealReceived():
            return _reveal(lease, event, at)
        case ClientStopped():
            return _stop(lease, at, limits)
        case UsageTaken(usage_ms):
            assert isinstance(lease.phase, Accepted | Live), "only an accepted rental is metered"
            return _to(lease, Live(lease.phase.accept, lease.phase.accepted_at, usage_ms))
        case RentalEnded():
            assert isinstance(lease.phase, Live), "only a rental that runs ends"
            return _to(lease, Returned(lease.phase.usage_ms), Effect.SLOT_FREED)
        case Tick():
            return _tick(lease, at, limits)
        case _:
            assert_never(event)


def _to(lease: Lease, phase: Phase, *effects: Effect) -> tuple[Lease, tuple[Effect, ...]]:
    return replace(lease, phase=phase), effects


def _accept(
    lease: Lease, accept: Envelope[Accept], at: UnixSeconds, limits: Limits
) -> tuple[Lease, tuple[Effect, ...]]:
    message, assignment = accept.message, lease.assignment.message
    if isinstance(lease.phase, Accepted) and lease.phase.accept == accept:
        return lease, ()
    if not isinstance(lease.phase, Assigned):
        raise Refused(Code.WRONG_PHASE, f"accept: the lease is {type(lease.phase).__name__}")
    if at > assignment.accept_by:
        raise Refused(Code.TOO_LATE, f"accept: was due by {assignment.accept_by}, now {at}")
    if not assignment.accept_by - limits.accept_within - 60 <= message.time <= assignment.accept_by:
        raise Refused(Code.STALE, "accept: its time is not within the assignment's")
    quoted = message.quoted_fetch_seconds + message.quoted_store_seconds
    if quoted > QUOTED_SECONDS_MAX:
        raise Refused(
            Code.BAD_AMOUNT,
            f"accept: fetch and store are quoted at more than {QUOTED_SECONDS_MAX} s",
        )
    commit_by = UnixSeconds(message.time + quoted + assignment.max_duration + limits.commit_grace)
    return _to(lease, Accepted(accept, commit_by, at, at))


def lapses_after(phase: Accepted, limits: Limits) -> UnixSeconds:
    if _fetches_too_long(phase, limits):
        return UnixSeconds(phase.heard_at - 1)
    return UnixSeconds(min(phase.commit_by, phase.heard_at + limits.lease_silence))


def why_lapsed(phase: Accepted, at: UnixSeconds, limits: Limits) -> str:
    if at > phase.commit_by:
        return "no commit in time"
    if _fetches_too_long(phase, limits):
        return "image and inputs were not fetched in time"
    return f"its provider did not name it for {limits.lease_silence} s"


def _fetches_too_long(phase: Accepted, limits: Limits) -> bool:
    accept = phase.accept.message
    fetch_by = accept.time + accept.quoted_fetch_seconds + limits.commit_grace
    return phase.is_fetching and phase.heard_at > fetch_by


def _progress(lease: Lease, is_fetching: bool, at: UnixSeconds) -> tuple[Lease, tuple[Effect, ...]]:
    phase = lease.phase
    if not isinstance(phase, Accepted):
        return lease, ()
    return _to(lease, replace(phase, heard_at=at, is_fetching=is_fetching))


def _decline(
    lease: Lease, decline: Envelope[Decline], at: UnixSeconds, limits: Limits
) -> tuple[Lease, tuple[Effect, ...]]:
    if isinstance(lease.phase, Declined):
        return lease, ()
    if isinstance(lease.phase, Lapsed) and lease.phase.was_accepted:
        return lease, ()
    if isinstance(lease.phase, Accepted):  # no Commit will come, so nothing waits for commitBy
        given_up = Lapsed(True, has_given_up=True)
        return _to(lease, given_up, Effect.SLOT_FREED, Effect.PLACE_OPEN)
    if not isinstance(lease.phase, Assigned):
        raise Refused(Code.WRONG_PHASE, f"decline: the lease is {type(lease.phase).__name__}")
    start_by = decline.message.start_by
    keeps = at < start_by <= at + limits.decline_ahead_max
    return _to(
        lease,
        Declined(start_by if keeps else UnixSeconds(0)),
        Effect.SLOT_FREED,
        Effect.PLACE_KEPT if keeps else Effect.PLACE_OPEN,
    )


def _commit(
    lease: Lease, commit: Envelope[Commit], at: UnixSeconds, known: int, limits: Limits
) -> tuple[Lease, tuple[Effect, ...]]:
    """The CommitReceipt gets a later time than `at` if the clock is behind.

    The beacon may have dated the Assignment. The time since the Accept is added to that date, so
    that a run is paid whole although the clock is behind.
    """
    phase = lease.phase
    if isinstance(phase, WithCommit):
        if phase.commit == commit:
            return lease, (Effect.RECEIPT_DUE,)
        raise Refused(Code.EQUIVOCATION, "commit: another one was signed for this assignment")
    if not isinstance(phase, Accepted):
        raise Refused(Code.WRONG_PHASE, f"commit: the lease is {type(phase).__name__}")
    sent = lease.assignment.message.accept_by - limits.accept_within
    stored_at = UnixSeconds(max(at, known, sent + at - phase.accepted_at))
    if stored_at > phase.commit_by:  # no longer run is paid than was reserved
        raise Refused(Code.TOO_LATE, f"commit: was due by {phase.commit_by}, now {stored_at}")
    if at > phase.heard_at + limits.lease_silence:
        raise Refused(
            Code.TOO_LATE,
            f"commit: no heartbeat named this lease since {phase.heard_at}, and after "
            f"{limits.lease_silence} s it goes to another provider",
        )
    return _to(lease, Committed(commit, stored_at), Effect.SLOT_FREED, Effect.RECEIPT_DUE)


def _close(
    lease: Lease, closed_at: UnixSeconds, limits: Limits
) -> tuple[Lease, tuple[Effect, ...]]:
    phase = lease.phase
    if isinstance(phase, Revealed):
        return lease, ()
    if not isinstance(phase, Committed | Closed):
        raise Refused(Code.WRONG_PHASE, f"close: the lease is {type(phase).__name__}")
    if isinstance(phase, Closed) and phase.has_arrived:
        return lease, ()
    at = phase.at if isinstance(phase, Committed) else phase.committed_at
    return _to(lease, Closed(phase.commit, UnixSeconds(closed_at + limits.reveal_within), at))


def _reveal(
    lease: Lease, event: RevealReceived, at: UnixSeconds
) -> tuple[Lease, tuple[Effect, ...]]:
    phase, reveal = lease.phase, event.reveal
    if isinstance(phase, Revealed) and phase.reveal == reveal:
        return lease, ()
    if not isinstance(phase, Closed):
        raise Refused(Code.WRONG_PHASE, f"reveal: the lease is {type(phase).__name__}")
    if reveal.provider != lease.provider:
        raise Refused(Code.WRONG_SIGNER, "reveal: names another provider")
    if at > phase.reveal_by:
        raise Refused(Code.TOO_LATE, f"reveal: was due by {phase.reveal_by}, now {at}")
    result = check_opens(phase.commit.message, reveal)
    if event.opens_within:
        if phase.has_arrived:  # a ciphertext that does not open gives no more time
            return lease, ()
        by = UnixSeconds(max(phase.reveal_by, at + event.opens_within))
        return _to(lease, replace(phase, reveal_by=by, has_arrived=True))
    return _to(
        lease, Revealed(phase.commit, reveal, result, phase.committed_at), Effect.RESULT_OPEN
    )


def _stop(lease: Lease, at: UnixSeconds, limits: Limits) -> tuple[Lease, tuple[Effect, ...]]:
    phase = lease.phase
    if isinstance(phase, Assigned):
        return _to(lease, Stopped(), Effect.SLOT_FREED)
    if not isinstance(phase, Accepted):
        return lease, ()
    stored_by = at + phase.accept.message.quoted_store_seconds + limits.commit_grace
    commit_by = UnixSeconds(min(phase.commit_by, stored_by))
    return _to(lease, replace(phase, commit_by=commit_by))


def _tick(lease: Lease, at: UnixSeconds, limits: Limits) -> tuple[Lease, tuple[Effect, ...]]:
    match lease.phase:
        case Assigned() if at > lease.assignment.message.accept_by:
            return _to(lease, Lapsed(was_accepted=False), Effect.SLOT_FREED, Effect.PLACE_OPEN)
        case Accepted() as phase if at > lapses_after(phase, limits):
            return _to(lease, Lapsed(True), Effect.SLOT_FREED, Effect.PLACE_OPEN)
        case Closed(commit, reveal_by, committed_at) if at > reveal_by:
            return _to(lease, Silent(commit, committed_at), Effect.SILENCE)
        case _:
            return lease, ()
