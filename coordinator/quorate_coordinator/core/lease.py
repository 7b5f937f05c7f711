"""The lease machine: one provider's agreement to execute one order.

Assigned → Accepted → Committed → Closed → Revealed, or one of the ends Declined, Lapsed, Silent,
Stopped. Deadlines come from the signed messages, never from a clock: `Tick(at)` brings time in.
"""

from enum import StrEnum
from typing import assert_never

from msgspec import Struct

from quorate_protocol.crypto.commitment import check_opens
from quorate_protocol.limits import Limits
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Accept, Assignment, Commit, Decline, Reveal
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32, UnixSeconds

# ------------------------------------------------------------------------------------------- phases


class Assigned(Struct, frozen=True, tag=True):
    """The assignment is sent and not answered yet. It lapses at acceptBy."""


class Accepted(Struct, frozen=True, tag=True):
    """The provider runs it. Without a commit by `commit_by` it lapses."""

    accept: Envelope[Accept]
    commit_by: UnixSeconds


class Committed(Struct, frozen=True, tag=True):
    """The provider is bound to a hidden result. Its run slot is free again."""

    commit: Envelope[Commit]
    at: UnixSeconds


class Closed(Struct, frozen=True, tag=True):
    """It is in a signed CommitSet, and must reveal by `reveal_by`."""

    commit: Envelope[Commit]
    reveal_by: UnixSeconds


class Revealed(Struct, frozen=True, tag=True):
    """The commitment is opened. `result` is the result digest."""

    commit: Envelope[Commit]
    reveal: Reveal
    result: Hash32


class Declined(Struct, frozen=True, tag=True):
    """The provider did not take it. If `start_by` > 0, it keeps its place until then."""

    start_by: UnixSeconds


class Lapsed(Struct, frozen=True, tag=True):
    """There was no answer or no commit in time, or the provider gave up after its Accept. It is
    unpaid, and counts against availability only.
    """

    was_accepted: bool


class Silent(Struct, frozen=True, tag=True):
    """It was in a CommitSet and did not reveal in time."""

    commit: Envelope[Commit]


class Stopped(Struct, frozen=True, tag=True):
    """The client ended it before the commit."""


Phase = Assigned | Accepted | Committed | Closed | Revealed | Declined | Lapsed | Silent | Stopped
TERMINAL = (Revealed, Declined, Lapsed, Silent, Stopped)


class Lease(Struct, frozen=True):
    """One execution. `assignment_hash` is the digest of the whole Assignment; `index` and `blind`
    open its id.
    """

    assignment: Envelope[Assignment]
    assignment_hash: Hash32
    job_id: Hash32
    index: int
    blind: Hash32
    batch: int
    class_id: Hash32
    phase: Phase

    @property
    def provider(self) -> Address:
        """The owner of the provider that executes it."""
        return self.assignment.message.provider

    @property
    def is_terminal(self) -> bool:
        """Whether no event can change it any more."""
        return isinstance(self.phase, TERMINAL)

    @property
    def occupies_slot(self) -> bool:
        """Whether it takes a run slot: from the assignment until commit or end (I2)."""
        return isinstance(self.phase, Assigned | Accepted)


# ------------------------------------------------------------------------------------------- events


class AcceptReceived(Struct, frozen=True, tag=True):
    """Signed by the provider."""

    accept: Envelope[Accept]


class DeclineReceived(Struct, frozen=True, tag=True):
    """Signed by the provider."""

    decline: Envelope[Decline]


class CommitReceived(Struct, frozen=True, tag=True):
    """Signed by the provider; its ciphertext is stored."""

    commit: Envelope[Commit]


class BatchClosed(Struct, frozen=True):
    """The coordinator signed a CommitSet with this lease, perhaps again."""

    closed_at: UnixSeconds


class RevealReceived(Struct, frozen=True, tag=True):
    """The provider opened its commitment. The stored ciphertext opens to the digest."""

    reveal: Reveal


class ClientStopped(Struct, frozen=True):
    """The client signed a Stop."""


class Tick(Struct, frozen=True, tag=True):
    """The time is now `at`."""


Event = (
    AcceptReceived
    | DeclineReceived
    | CommitReceived
    | BatchClosed
    | RevealReceived
    | ClientStopped
    | Tick
)


class Effect(StrEnum):
    """What must follow from a step."""

    SLOT_FREED = "slot-freed"
    RECEIPT_DUE = "receipt-due"
    PLACE_KEPT = "place-kept"
    PLACE_OPEN = "place-open"  # the execution must be placed with somebody else
    RESULT_OPEN = "result-open"
    SILENCE = "silence"


def step(
    lease: Lease, event: Event, at: UnixSeconds, limits: Limits
) -> tuple[Lease, tuple[Effect, ...]]:
    """Steps a lease; nothing else changes one. A repeated message changes nothing. Any other
    message that does not fit the phase is Refused.
    """
    match event:
        case AcceptReceived(accept):
            return _accept(lease, accept, at, limits)
        case DeclineReceived(decline):
            return _decline(lease, decline, at, limits)
        case CommitReceived(commit):
            return _commit(lease, commit, at)
        case BatchClosed(closed_at):
            return _close(lease, closed_at, limits)
        case RevealReceived(reveal):
            return _reveal(lease, reveal, at)
        case ClientStopped():
            return _stop(lease)
        case Tick():
            return _tick(lease, at)
        case _:
            assert_never(event)


def _to(lease: Lease, phase: Phase, *effects: Effect) -> tuple[Lease, tuple[Effect, ...]]:
    moved = Lease(
        lease.assignment,
        lease.assignment_hash,
        lease.job_id,
        lease.index,
        lease.blind,
        lease.batch,
        lease.class_id,
        phase,
    )
    return moved, effects


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
    if quoted > 24 * 3600:
        raise Refused(Code.BAD_AMOUNT, "accept: fetch and store are quoted at more than a day")
    commit_by = UnixSeconds(message.time + quoted + assignment.max_duration + limits.commit_grace)
    return _to(lease, Accepted(accept, commit_by))


def _decline(
    lease: Lease, decline: Envelope[Decline], at: UnixSeconds, limits: Limits
) -> tuple[Lease, tuple[Effect, ...]]:
    if isinstance(lease.phase, Declined) or lease.phase == Lapsed(was_accepted=True):
        return lease, ()
    if isinstance(lease.phase, Accepted):  # no Commit will come, so commitBy need not pass
        return _to(lease, Lapsed(was_accepted=True), Effect.SLOT_FREED, Effect.PLACE_OPEN)
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
    lease: Lease, commit: Envelope[Commit], at: UnixSeconds
) -> tuple[Lease, tuple[Effect, ...]]:
    phase = lease.phase
    if isinstance(phase, Committed | Closed | Revealed | Silent):
        if phase.commit == commit:
            return lease, (Effect.RECEIPT_DUE,)
        raise Refused(Code.EQUIVOCATION, "commit: another one was signed for this assignment")
    if not isinstance(phase, Accepted):
        raise Refused(Code.WRONG_PHASE, f"commit: the lease is {type(phase).__name__}")
    if at > phase.commit_by:
        raise Refused(Code.TOO_LATE, f"commit: was due by {phase.commit_by}, now {at}")
    if commit.message.class_id != lease.class_id:
        raise Refused(Code.WRONG_CLASS)
    return _to(lease, Committed(commit, at), Effect.SLOT_FREED, Effect.RECEIPT_DUE)


def _close(
    lease: Lease, closed_at: UnixSeconds, limits: Limits
) -> tuple[Lease, tuple[Effect, ...]]:
    phase = lease.phase
    if isinstance(phase, Revealed):
        return lease, ()
    if not isinstance(phase, Committed | Closed):
        raise Refused(Code.WRONG_PHASE, f"close: the lease is {type(phase).__name__}")
    return _to(lease, Closed(phase.commit, UnixSeconds(closed_at + limits.reveal_within)))


def _reveal(lease: Lease, reveal: Reveal, at: UnixSeconds) -> tuple[Lease, tuple[Effect, ...]]:
    phase = lease.phase
    if isinstance(phase, Revealed) and phase.reveal == reveal:
        return lease, ()
    if not isinstance(phase, Closed):
        raise Refused(Code.WRONG_PHASE, f"reveal: the lease is {type(phase).__name__}")
    if reveal.provider != lease.provider:
        raise Refused(Code.WRONG_SIGNER, "reveal: names another provider")
    if at > phase.reveal_by:
        raise Refused(Code.TOO_LATE, f"reveal: was due by {phase.reveal_by}, now {at}")
    result = check_opens(phase.commit.message, reveal)
    return _to(lease, Revealed(phase.commit, reveal, result), Effect.RESULT_OPEN)


def _stop(lease: Lease) -> tuple[Lease, tuple[Effect, ...]]:
    if isinstance(lease.phase, Assigned | Accepted):
        return _to(lease, Stopped(), Effect.SLOT_FREED)
    return lease, ()


def _tick(lease: Lease, at: UnixSeconds) -> tuple[Lease, tuple[Effect, ...]]:
    match lease.phase:
        case Assigned() if at > lease.assignment.message.accept_by:
            return _to(lease, Lapsed(was_accepted=False), Effect.SLOT_FREED, Effect.PLACE_OPEN)
        case Accepted(_, commit_by) if at > commit_by:
            return _to(lease, Lapsed(was_accepted=True), Effect.SLOT_FREED, Effect.PLACE_OPEN)
        case Closed(commit, reveal_by) if at > reveal_by:
            return _to(lease, Silent(commit), Effect.SILENCE)
        case _:
            return lease, ()
