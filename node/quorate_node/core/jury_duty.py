"""The machine of one jury duty at its provider (PROTOCOL §5, the court).

Waiting → Repeating → Voting → Voted → Opening → Served. A juror repeats the job of a case and votes
a ballot, the hash of its result digest and a salt. Once voting has ended it opens the ballot: it
reveals digest and salt. Both are in the state before the vote is sent, so a juror that restarts can
still open its ballot. The court on chain pays the juror.
"""

from collections.abc import Iterable
from typing import assert_never

from msgspec import Struct

from quorate_node.core import effects, events
from quorate_node.core.effects import CourtEffect
from quorate_node.core.terms import Terms
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.codec.tables import Table
from quorate_protocol.limits import DAY
from quorate_protocol.units import ZERO_HASH, Address, Hash32, UnixSeconds, usd
from quorate_protocol.values import replace


class Waiting(Struct, frozen=True, tag=True):
    """No run slot is free yet."""


class Repeating(Struct, frozen=True, tag=True):
    """The provider repeats the job, on the GPUs `gpus`."""

    gpus: tuple[str, ...] = ()


class Voting(Struct, frozen=True, tag=True):
    """The provider sends the ballot to the chain."""

    digest: Hash32
    salt: Hash32


class Voted(Struct, frozen=True, tag=True):
    """The ballot is on chain. The provider opens it once voting has ended."""

    digest: Hash32
    salt: Hash32


class Opening(Struct, frozen=True, tag=True):
    """The provider opens the ballot on chain, at the latest at `reveal_by`. `votes` are all
    ballots of the case, in order.
    """

    digest: Hash32
    salt: Hash32
    reveal_by: UnixSeconds
    votes: tuple[events.Vote, ...]


class Served(Struct, frozen=True, tag=True):
    """The case is decided, or it is too late for this juror (`why`)."""

    why: str
    forget_at: UnixSeconds


Phase = Waiting | Repeating | Voting | Voted | Opening | Served


class JuryDuty(Struct, frozen=True):
    """One case in which this provider is a juror. `jurors` are all that were drawn for it."""

    case: events.ChainCaseOpened
    juror: Address
    jurors: tuple[Address, ...]
    vote_by: UnixSeconds
    phase: Phase
    begin_by: UnixSeconds = UnixSeconds(0)  # a duty without a run slot then votes `void`; 0 = never
    drawn_at: UnixSeconds = UnixSeconds(0)
    declined: str = ""  # why the owner's policy did; "" = it did not

    @property
    def case_id(self) -> Hash32:
        return self.case.case_id

    @property
    def occupies_slot(self) -> bool:
        """Whether the duty takes a run slot: it does while it repeats the job (I2)."""
        return isinstance(self.phase, Repeating)

    @property
    def gpus(self) -> tuple[str, ...]:
        return self.phase.gpus if isinstance(self.phase, Repeating) else ()

    @property
    def pool(self) -> Hash32:
        return self.case.pool

    @property
    def is_ended(self) -> bool:
        return isinstance(self.phase, Served)

    def to(self, phase: Phase) -> "JuryDuty":
        return replace(self, phase=phase)


Stepped = tuple[JuryDuty, tuple[CourtEffect, ...]]
KEEP_SECONDS = 7 * DAY


def ballot(execution: Hash32, juror: Address, salt: Hash32, digest: Hash32) -> Hash32:
    """Returns the hash that a juror votes: H(execution, juror, salt, digest)."""
    return hash_tuple(execution, juror, salt, digest)


def begin(duty: JuryDuty, gpus: tuple[str, ...] = ()) -> Stepped:
    return _enter(duty, Repeating(gpus)) if isinstance(duty.phase, Waiting) else (duty, ())


def decline(duty: JuryDuty, why: str, random: bytes) -> Stepped:
    assert isinstance(duty.phase, Waiting) and len(random) == 32, "nothing ran; a salt is 32 bytes"
    return _enter(replace(duty, declined=why), Voting(ZERO_HASH, Hash32(random)))


def lose_gpus(duty: JuryDuty, random: bytes) -> Stepped:
    """Votes `void`: a broken GPU's result would be a wrong vote, and no vote earns nothing."""
    assert isinstance(duty.phase, Repeating) and len(random) == 32, "it holds GPUs"
    return _enter(duty, Voting(ZERO_HASH, Hash32(random)))


def duties(duty: JuryDuty) -> tuple[CourtEffect, ...]:
    """Returns the effects that the phase calls for, also after a restart."""
    phase = duty.phase
    match phase:
        case Waiting() | Voted() | Served():
            return ()
        case Repeating():
            case = duty.case
            return (
                effects.Reexecute(
                    case.case_id, case.spec_hash, case.pool, case.class_id, duty.vote_by, phase.gpus
                ),
            )
        case Voting():
            voted = ballot(duty.case.execution, duty.juror, phase.salt, phase.digest)
            return (effects.SendVote(duty.case_id, duty.case.execution, duty.jurors, voted),)
        case Opening():
            execution, votes = duty.case.execution, phase.votes
            return (
                effects.SendJuryReveal(duty.case_id, execution, votes, phase.digest, phase.salt),
            )
        case _:
            assert_never(phase)


def next_due(duty: JuryDuty) -> UnixSeconds:
    """Returns the time at which the next Tick changes this duty."""
    phase = duty.phase
    match phase:
        case Waiting() if duty.begin_by:
            return duty.begin_by
        case Waiting() | Repeating() | Voting():
            return UnixSeconds(duty.vote_by + 1)
        case Voted():
            return UnixSeconds(duty.vote_by + KEEP_SECONDS)
        case Opening():
            return UnixSeconds(phase.reveal_by + 1)
        case Served():
            return phase.forget_at
        case _:
            assert_never(phase)


def step(
    duty: JuryDuty,
    event: events.JuryEvent | events.Tick,
    at: UnixSeconds,
    random: bytes,
    votes: tuple[events.Vote, ...] = (),
) -> Stepped:
    """The only way a duty changes. `votes`: all of the case. A late event changes nothing."""
    match event:
        case events.Reexecuted():
            return _reexecuted(duty, event, random)
        case events.VoteConfirmed():
            return (
                _enter(duty, Voted(duty.phase.digest, duty.phase.salt))
                if isinstance(duty.phase, Voting)
                else (duty, ())
            )
        case events.ChainVotingEnded():
            return _open(duty, event.reveal_by, votes, at)
        case events.ChainCaseDecided():
            return (duty, ()) if duty.is_ended else _serve(duty, "decided", at)
        case events.Tick():
            return _tick(duty, at, random)
        case _:
            assert_never(event)


def _enter(duty: JuryDuty, phase: Phase) -> Stepped:
    moved = duty.to(phase)
    return moved, duties(moved)


def _serve(duty: JuryDuty, why: str, at: UnixSeconds) -> Stepped:
    return duty.to(Served(why, UnixSeconds(at + KEEP_SECONDS))), ()


def _reexecuted(duty: JuryDuty, event: events.Reexecuted, random: bytes) -> Stepped:
    if not isinstance(duty.phase, Repeating):
        return duty, ()
    assert len(random) == 32, "a salt is 32 fresh bytes"
    return _enter(duty, Voting(event.digest, Hash32(random)))


def _open(
    duty: JuryDuty, reveal_by: UnixSeconds, votes: tuple[events.Vote, ...], at: UnixSeconds
) -> Stepped:
    """Opens the ballot once voting has ended; before, other jurors could copy the digest."""
    has_voted = any(vote.juror == duty.juror for vote in votes)
    match duty.phase:
        case Voted(digest, salt) | Voting(digest, salt) if has_voted:
            return _enter(duty, Opening(digest, salt, reveal_by, votes))
        case Waiting() | Repeating() | Voting() | Voted():
            return _serve(duty, "voting ended before this juror's vote was on chain", at)
        case _:
            return duty, ()


def _tick(duty: JuryDuty, at: UnixSeconds, random: bytes) -> Stepped:
    if at < next_due(duty):
        return duty, ()
    match duty.phase:
        case Waiting() if at <= duty.vote_by:
            return decline(duty, "no run slot was free in time", random)
        case Waiting() | Repeating():
            return _serve(duty, "the voting window passed", at)
        case Voting():
            return _serve(duty, "no block included the vote in time", at)
        case Voted():
            return _serve(duty, "the court never opened the ballots", at)
        case Opening():
            return _serve(duty, "the reveal window passed", at)
        case Served():
            return duty, ()
        case _:
            assert_never(duty.phase)


CASES_KEPT_MAX = 1_000
_SEND_PART = 4  # of the voting window, the last such part is left to send the vote


class Case(Struct, frozen=True):
    """A case that is open, with its ballots in the order of the chain."""

    opened: events.ChainCaseOpened
    votes: tuple[events.Vote, ...] = ()


def note_case(cases: Table[Hash32, Case], event: events.ChainCaseOpened, terms: Terms) -> None:
    """Keeps a case until its decision, unless it is against this provider or of a class that it
    does not offer. An execution has one open case, so a new one replaces the last.
    """
    is_irrelevant = event.accused == terms.provider or terms.slot(event.pool) is None
    known = cases.get(event.execution)
    if is_irrelevant or (known is not None and known.opened.case_id == event.case_id):
        return
    if known is not None or len(cases) < CASES_KEPT_MAX:
        cases[event.execution] = Case(event)


def note_vote(cases: Table[Hash32, Case], event: events.ChainVoted) -> None:
    case = cases.get(event.execution)
    if case is not None:
        others = tuple(vote for vote in case.votes if vote.juror != event.vote.juror)
        cases[event.execution] = replace(case, votes=(*others, event.vote))


def seat(
    cases: Table[Hash32, Case],
    jury: Table[Hash32, JuryDuty],
    event: events.ChainJuryDrawn,
    terms: Terms,
    at: UnixSeconds,
    random: bytes,
) -> tuple[CourtEffect, ...]:
    """Takes or declines the duty, by price, room, and a number a day (PROTOCOL §5).

    The chain draws a juror without asking. One that declines votes `void` at once: it earns its gas
    if most do so, and no seat stays empty. `random`: 32 bytes for a salt. Nobody votes twice.
    """
    case = cases.get(event.execution)
    is_seated = case is not None and case.opened.case_id in jury
    if case is None or not event.vote_by or is_seated or terms.provider not in event.jurors:
        return ()
    # An execution rarely takes its maxDuration, so a slot that frees later is still worth waiting
    # for.
    begin_by = UnixSeconds(event.vote_by - terms.limits.jury_window // _SEND_PART)
    duty = JuryDuty(
        case=case.opened,
        juror=terms.provider,
        jurors=event.jurors,
        vote_by=event.vote_by,
        phase=Waiting(),
        begin_by=begin_by,
        drawn_at=at,
    )
    why = _refusal(duty, jury.values(), terms, at)
    jury[duty.case_id], due = decline(duty, why, random) if why else (duty, ())
    return due


def has_room(jury: Iterable[JuryDuty], terms: Terms) -> bool:
    """Returns whether one more duty may take a free run slot. Duties never take a lease's slot."""
    return sum(duty.occupies_slot for duty in jury) < terms.policy.jury_slots


def _refusal(duty: JuryDuty, jury: Iterable[JuryDuty], terms: Terms, at: UnixSeconds) -> str:
    """Returns why the owner's policy declines a duty; "" if it does not."""
    policy = terms.policy
    named = duty.case
    if named.pay * 3600 < policy.jury_price * named.max_duration:
        return (
            f"an execution of {named.max_duration} s pays {usd(named.pay)}, less than your "
            f"--jury-price of {usd(policy.jury_price)} an hour"
        )
    if not policy.jury_slots:
        return "no room: --jury-slots is 0"
    taken = sum(not other.declined and other.drawn_at > at - DAY for other in jury)
    if taken >= policy.jury_cases:
        return f"{taken} cases in 24 hours reached --jury-cases"
    return ""
