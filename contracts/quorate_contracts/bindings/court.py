"""The Court contract: cases, juries, votes, reveals and decisions (PROTOCOL §5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, NewType

from msgspec import Struct

from quorate_contracts.bindings.calls import Call, Contract, Query, words
from quorate_protocol.crypto.hashing import hash_tuple
from quorate_protocol.limits import CASE_EXECUTIONS_MAX
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import (
    Assignment,
    Commit,
    JuryReveal,
    JuryVote,
    Order,
    Reveal,
    Session,
)
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    Hash32,
    Nonce,
    Round,
    Seconds,
    UnixSeconds,
)

CaseId = NewType("CaseId", int)  # from 1


class Phase(IntEnum):
    """The phase of a case."""

    NONE = 0
    DRAWING = 1  # waits for its beacon round
    VOTING = 2
    REVEALING = 3
    DECIDING = 4  # all reveals are in; the providers' commitments must be opened
    DECIDED = 5


class CaseOutcome(IntEnum):
    """How a case ended."""

    OPEN = 0
    CONVICTED = 1
    ACQUITTED = 2
    VOID = 3  # too few jurors or reveals, or half of them found something unavailable
    UNOPENED = 4  # the providers' commitments were not opened
    NO_BEACON = 5


class CaseRun(Struct, frozen=True):
    """Evidence that a provider executed a job. `index` and `blind` open the assignmentId."""

    index: int
    blind: Hash32
    assignment: Envelope[Assignment]
    commit: Envelope[Commit]


class CaseJob(Struct, frozen=True):
    """Evidence that a client ordered a job."""

    session: Envelope[Session]
    order: Envelope[Order]


class CaseExecution(Struct, frozen=True):
    """Evidence of one execution of the accused, and of another owner's of the same job, whose
    result contradicts it.
    """

    job: CaseJob
    run: CaseRun
    contradiction: CaseRun
    path: tuple[Hash32, ...] = ()  # from assignment.specHash up to order.specHash; () = equal


@dataclass(frozen=True, slots=True)
class Case:
    """The state of a case on chain."""

    phase: Phase
    executions: int
    jurors: tuple[Address, ...]
    voted: int  # one bit for each seat; seats are in the jurors' order unless some were replaced
    revealed: int
    is_redrawn: bool
    outcome: CaseOutcome
    deadline: UnixSeconds  # of the phase
    max_durations: Seconds  # of all executions together
    round: Round  # its randomness draws the jury
    accused: Address
    accuser: Address
    host_class: Hash32
    bond: Amount
    opened_at: UnixSeconds
    ended_at: UnixSeconds  # zero while it is open


@dataclass(frozen=True, slots=True)
class Court(Contract):
    """Decides cases. Only it can take stake for a wrong result."""

    NAME: ClassVar[str] = "Court"

    def draw_jury(self, case: CaseId) -> Call:
        """Draws the jury, once Beacon has proven the case's round. If an attacker has made the list
        of slots long, it may take ten times the usual gas.
        """
        return self._call("draw_jury", 6_000_000, case)

    def vote(self, case: CaseId, votes: Sequence[Envelope[JuryVote]]) -> Call:
        """Sends votes of one or more jurors, each signed by the juror's operator key."""
        listed = [(vote.message.juror, vote.message.ballot, words(vote.sig)) for vote in votes]
        return self._call("vote", 120_000 + 60_000 * len(listed), case, listed)

    def reveal(self, case: CaseId, reveals: Sequence[JuryReveal]) -> Call:
        """Opens ballots of one or more jurors."""
        listed = [(each.juror, each.salt, padded(each.digests)) for each in reveals]
        return self._call("reveal", 120_000 + 110_000 * len(listed), case, listed)

    def advance(self, case: CaseId) -> Call:
        """Advances a case after a missed deadline: draws again, goes on with the jurors that voted,
        or gives up a missing beacon round.
        """
        return self._call("advance", 250_000, case)

    def decide(self, case: CaseId, reveals: Sequence[Reveal]) -> Call:
        """Ends the case with the providers' reveals. For each execution, in the case's order, the
        accused's comes first and then the contradicting one. Without reveals a case ends only one
        window after the jurors' reveals.
        """
        listed = [
            (each.assignment_hash, each.provider, each.exit_status, each.output_digest, each.salt)
            for each in reveals
        ]
        return self._call("decide", 700_000, case, listed)

    def withdraw(self, account: Address) -> Call:
        """Pays an account's credit to its payout address."""
        return self._call("withdraw", 150_000, account)

    def case(self, case: CaseId) -> Query[Case]:
        """One case; phase NONE when it was never opened."""
        return self._query("case_of", _case, case)

    def case_count(self) -> Query[int]:
        """Number of the newest case."""
        return self._query("case_count", int)

    def credit_of(self, account: Address) -> Query[Amount]:
        """The amount that `withdraw` would pay."""
        return self._query("credit_of", Amount, account)

    def burned(self) -> Query[Amount]:
        """Everything the court has burned so far."""
        return self._query("burned", Amount)


def ballot(case: CaseId, juror: Address, salt: Hash32, digests: Sequence[Hash32]) -> Hash32:
    """Returns H(caseId, juror, salt, digests), to which a JuryVote commits. Zeros fill the digests
    up to three.
    """
    return hash_tuple(case, juror, salt, *padded(digests))


def jury_vote(case: CaseId, juror: Address, salt: Hash32, digests: Sequence[Hash32]) -> JuryVote:
    """Returns the vote that a later `JuryReveal(case, juror, digests, salt)` opens."""
    return JuryVote(Nonce(case), juror, ballot(case, juror, salt, digests))


def padded(digests: Sequence[Hash32]) -> tuple[Hash32, ...]:
    """Returns the digests in the case's order, filled up to three with zeros."""
    assert len(digests) <= CASE_EXECUTIONS_MAX, "at most three digests"
    return (*digests, *[ZERO_HASH] * (CASE_EXECUTIONS_MAX - len(digests)))


def _case(
    state: tuple[int, ...],
    accused: Address,
    accuser: Address,
    host_class: Hash32,
    bond: int,
    opened_at: int,
    ended_at: int,
    jurors: tuple[Address, ...],
) -> Case:
    phase, count, _, voted, revealed, redrawn, outcome, *rest = state
    _, _, deadline, duration, _, round_ = rest
    return Case(
        phase=Phase(phase),
        executions=count,
        jurors=jurors,
        voted=voted,
        revealed=revealed,
        is_redrawn=redrawn == 1,
        outcome=CaseOutcome(outcome),
        deadline=UnixSeconds(deadline),
        max_durations=Seconds(duration),
        round=Round(round_),
        accused=accused,
        accuser=accuser,
        host_class=host_class,
        bond=Amount(bond),
        opened_at=UnixSeconds(opened_at),
        ended_at=UnixSeconds(ended_at),
    )
