"""The machine of one jury duty at its provider (PROTOCOL §5, the court).

Waiting → Repeating → Voting → Voted → Opening → Served. A juror repeats the executions that a case
names and votes a ballot, the hash of their result digests and a salt. Once voting has ended it
opens the ballot: it reveals digests and salt. Both are in the state before the vote is sent, so a
juror that restarts can still open its ballot. The court on chain pays the juror.
"""

from typing import assert_never

from msgspec import Struct

from quorate_node.core import effects, events
from quorate_node.core.effects import CourtEffect
from quorate_protocol.crypto.hashing import hash_tuple
from quorate_protocol.limits import CASE_EXECUTIONS_MAX, DAY
from quorate_protocol.units import ZERO_HASH, Address, Hash32, Nonce, UnixSeconds
from quorate_protocol.values import replace


class Waiting(Struct, frozen=True, tag=True):
    """No run slot is free yet."""


class Repeating(Struct, frozen=True, tag=True):
    """The provider repeats execution number `len(digests)` of the case, on the GPUs `gpus`."""

    digests: tuple[Hash32, ...]
    gpus: tuple[str, ...] = ()


class Voting(Struct, frozen=True, tag=True):
    """The provider sends the ballot to the chain."""

    digests: tuple[Hash32, ...]
    salt: Hash32


class Voted(Struct, frozen=True, tag=True):
    """The ballot is on chain. The provider opens it once voting has ended."""

    digests: tuple[Hash32, ...]
    salt: Hash32


class Opening(Struct, frozen=True, tag=True):
    """The provider opens the ballot on chain, at the latest at `reveal_by`."""

    digests: tuple[Hash32, ...]
    salt: Hash32
    reveal_by: UnixSeconds


class Served(Struct, frozen=True, tag=True):
    """The case is decided, or it is too late for this juror (`why`)."""

    why: str
    forget_at: UnixSeconds


Phase = Waiting | Repeating | Voting | Voted | Opening | Served


class JuryDuty(Struct, frozen=True):
    """One case in which this provider is a juror."""

    case_id: Nonce
    juror: Address
    executions: tuple[events.CaseExecution, ...]
    vote_by: UnixSeconds
    phase: Phase
    begin_by: UnixSeconds = UnixSeconds(0)  # a duty without a run slot then votes `void`; 0 = never
    drawn_at: UnixSeconds = UnixSeconds(0)
    declined: str = ""  # why the owner's policy did; "" = it did not

    @property
    def occupies_slot(self) -> bool:
        """Whether the duty takes a run slot: it does while it repeats an execution (I2)."""
        return isinstance(self.phase, Repeating)

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that the duty has now."""
        return self.phase.gpus if isinstance(self.phase, Repeating) else ()

    @property
    def host_class(self) -> Hash32:
        """The host class of the case."""
        return self.executions[0].host_class

    @property
    def is_ended(self) -> bool:
        """Whether nothing is left to do."""
        return isinstance(self.phase, Served)

    def to(self, phase: Phase) -> "JuryDuty":
        """Returns the same duty in another phase."""
        return replace(self, phase=phase)


Stepped = tuple[JuryDuty, tuple[CourtEffect, ...]]
KEEP_SECONDS = 7 * DAY


def ballot(case_id: Nonce, juror: Address, salt: Hash32, digests: tuple[Hash32, ...]) -> Hash32:
    """Returns the hash that a juror votes: H(caseId, juror, salt, digests).

    The digests are padded to three with zeros (`messages.JuryVote`).
    """
    padded = digests + (ZERO_HASH,) * (CASE_EXECUTIONS_MAX - len(digests))
    return hash_tuple(case_id, juror, salt, *padded)


def new_duty(case: events.ChainCaseOpened, vote_by: UnixSeconds, juror: Address) -> JuryDuty:
    """Returns a new duty that waits for a run slot."""
    assert 1 <= len(case.executions) <= CASE_EXECUTIONS_MAX, "a case names two or three executions"
    return JuryDuty(case.case_id, juror, case.executions, vote_by, Waiting())


def begin(duty: JuryDuty, gpus: tuple[str, ...] = ()) -> Stepped:
    """Starts to repeat the executions, once a run slot is free. `gpus` are those of the slot."""
    return _enter(duty, Repeating((), gpus)) if isinstance(duty.phase, Waiting) else (duty, ())


def decline(duty: JuryDuty, why: str, random: bytes) -> Stepped:
    """Votes `void` on the whole case without executing anything."""
    assert isinstance(duty.phase, Waiting) and len(random) == 32, "nothing ran; a salt is 32 bytes"
    digests = (ZERO_HASH,) * len(duty.executions)
    return _enter(replace(duty, declined=why), Voting(digests, Hash32(random)))


def lose_gpus(duty: JuryDuty, random: bytes) -> Stepped:
    """Votes "unavailable" on what is not repeated yet, because a GPU of the duty is gone.

    A result of a broken GPU would be a wrong vote, and no vote would be a no-show.
    """
    phase = duty.phase
    assert isinstance(phase, Repeating) and len(random) == 32, "it holds GPUs; a salt is 32 bytes"
    missing = len(duty.executions) - len(phase.digests)
    digests = (*phase.digests, *[ZERO_HASH] * missing)
    return _enter(duty, Voting(digests, Hash32(random)))


def duties(duty: JuryDuty) -> tuple[CourtEffect, ...]:
    """Returns the effects that the phase calls for, also after a restart."""
    phase = duty.phase
    match phase:
        case Waiting() | Voted() | Served():
            return ()
        case Repeating():
            index = len(phase.digests)
            named = duty.executions[index]
            return (
                effects.Reexecute(
                    duty.case_id, index, named.spec_hash, named.host_class, duty.vote_by, phase.gpus
                ),
            )
        case Voting():
            return (
                effects.SendVote(
                    duty.case_id, ballot(duty.case_id, duty.juror, phase.salt, phase.digests)
                ),
            )
        case Opening():
            return (effects.SendJuryReveal(duty.case_id, phase.digests, phase.salt),)
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
    duty: JuryDuty, event: events.JuryEvent | events.Tick, at: UnixSeconds, random: bytes
) -> Stepped:
    """Applies one event. This is the only way a duty changes.

    An event that no longer fits the phase changes nothing.
    """
    match event:
        case events.Reexecuted():
            return _reexecuted(duty, event, random)
        case events.VoteConfirmed():
            return (
                _enter(duty, Voted(duty.phase.digests, duty.phase.salt))
                if isinstance(duty.phase, Voting)
                else (duty, ())
            )
        case events.ChainVotingEnded():
            return _open(duty, event.reveal_by, at)
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
    phase = duty.phase
    if not isinstance(phase, Repeating) or event.index != len(phase.digests):
        return duty, ()
    digests = (*phase.digests, event.digest)
    if len(digests) < len(duty.executions):
        return _enter(duty, Repeating(digests, phase.gpus))
    assert len(random) == 32, "a salt is 32 fresh bytes"
    return _enter(duty, Voting(digests, Hash32(random)))


def _open(duty: JuryDuty, reveal_by: UnixSeconds, at: UnixSeconds) -> Stepped:
    """Opens the ballot when the court says that voting has ended.

    Before that, other jurors could copy the revealed digests.
    """
    match duty.phase:
        case Voted(digests, salt) | Voting(digests, salt):
            return _enter(duty, Opening(digests, salt, reveal_by))
        case Waiting() | Repeating():
            return _serve(duty, "voting ended before this juror was ready", at)
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
