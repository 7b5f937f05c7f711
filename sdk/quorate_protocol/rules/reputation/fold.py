"""Reputation: what the public log of a coordinator says of each provider (PROTOCOL §7).

A coordinator signs one `Summary` for each verdict and appends it to its log. The functions here
fold the lines, in order, into each provider's reputation. The coordinator keeps its own table with
the same functions, so that its numbers and everybody else's cannot differ (I10).
"""

from collections.abc import Mapping

from msgspec import Struct, field

from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.codec.merkle import merkle_root
from quorate_protocol.messages.signed import ExecutionSummary, Summary
from quorate_protocol.messages.views import ClassTrust, ReputationView
from quorate_protocol.rules import trust_record
from quorate_protocol.rules.trust_record import STRIKE_SECONDS, Trust
from quorate_protocol.units import (
    Address,
    ExecutionEnd,
    Hash32,
    Outcome,
    Role,
    Seconds,
    UnixSeconds,
)
from quorate_protocol.values import replace

KILLS_FOR_STRIKE = 3  # outvoted time-outs and memory kills; a slow machine may be honest
ANSWERS_KEPT = 20
EXECUTIONS_MAX = 64  # in one Summary; of more, the newest are in it
_KEPT_WORD = (
    ExecutionEnd.AGREED,
    ExecutionEnd.FAULTED,
    ExecutionEnd.KILLED,
    ExecutionEnd.UNDECIDED,
)
_COMMITTED = (*_KEPT_WORD, ExecutionEnd.UNREVEALED)


class CompletionTime(Struct, frozen=True):
    """How long an execution took, from Accept to Commit, beside what its Accept quoted."""

    quoted: Seconds
    took: Seconds


class Trusts(Struct, frozen=True):
    """A provider's reputation at one coordinator."""

    by_class: dict[Hash32, Trust] = field(default_factory=dict)  # by job class
    kills: tuple[
        UnixSeconds, ...
    ] = ()  # times of outvoted time-outs and memory kills since the last strike for them
    checked: int = 0  # how many of its executions an audit has checked
    audits_passed: int = 0  # how many of them agreed
    answers: tuple[bool, ...] = ()  # its last executions: True = it revealed a result
    times: tuple[CompletionTime, ...] = ()  # of its last executions with a Commit

    def availability(self) -> tuple[int, int]:
        """Returns (executions that it revealed, all executions) of its last 20."""
        return sum(self.answers), len(self.answers)

    def completion(self) -> CompletionTime:
        """Returns the sums of the quoted and of the real times of its last 20 commits."""
        return CompletionTime(
            Seconds(sum(item.quoted for item in self.times)),
            Seconds(sum(item.took for item in self.times)),
        )


def job_hash(job_id: Hash32) -> Hash32:
    """How a Summary names its job: H("summary", jobId)."""
    return hash_tuple("summary", job_id)


def after_summary(known: Mapping[Address, Trusts], summary: Summary) -> Mapping[Address, Trusts]:
    changed: dict[Address, Trusts] = {}
    for item in summary.executions:
        before = changed.get(item.provider) or known.get(item.provider) or Trusts()
        after = _after_answer(before, summary, item)
        changed[item.provider] = _after_audit(after, summary, item) if item.is_counted else after
    return changed


def _after_answer(known: Trusts, summary: Summary, item: ExecutionSummary) -> Trusts:
    """Counts whether an execution of an accepted job came to a result. A re-execution's line shows
    the primary again; it was counted before.
    """
    is_known = summary.is_again and item.role is Role.PRIMARY
    is_rented = item.end is ExecutionEnd.RENTED
    if is_known or is_rented or summary.outcome is not Outcome.ACCEPTED:
        return known
    known = replace(known, answers=(*known.answers, item.end in _KEPT_WORD)[-ANSWERS_KEPT:])
    if item.end not in _COMMITTED:
        return known
    time = CompletionTime(item.quoted_seconds, item.took_seconds)
    return replace(known, times=(*known.times, time)[-ANSWERS_KEPT:])


def _after_audit(known: Trusts, summary: Summary, item: ExecutionSummary) -> Trusts:
    has_passed = item.end is ExecutionEnd.AGREED
    if item.end is ExecutionEnd.UNDECIDED:
        before = (known.by_class.get(summary.trust_class) or Trust()).at(summary.time)
        doubted = {summary.trust_class: trust_record.after_doubt(before)}
        return replace(known, by_class={**known.by_class, **doubted})
    known = replace(
        known, checked=known.checked + 1, audits_passed=known.audits_passed + has_passed
    )
    at = summary.time
    if item.end is ExecutionEnd.KILLED:
        kills = (*(kill for kill in known.kills if at - kill < STRIKE_SECONDS), at)
        if len(kills) < KILLS_FOR_STRIKE:
            return replace(known, kills=kills)
        known = replace(known, kills=())
    before = (known.by_class.get(summary.trust_class) or Trust()).at(at)
    after = trust_record.after_audit(before, has_passed, at)
    return replace(known, by_class={**known.by_class, summary.trust_class: after})


def view_of(known: Trusts) -> ReputationView:
    completion = known.completion()
    answered, executions = known.availability()
    return ReputationView(
        checked=known.checked,
        audits_passed=known.audits_passed,
        executions=executions,
        answered=answered,
        quoted_seconds=completion.quoted,
        took_seconds=completion.took,
        classes=tuple(
            ClassTrust(trust_class, trust.passed, trust.strikes)
            for trust_class, trust in sorted(known.by_class.items())
        ),
    )


def trust_root(trusts: Mapping[Address, Trusts], trust_class: Hash32) -> Hash32:
    """Returns `Ack.stateRoot`: the Merkle root over the trust of all providers in a job class."""
    found = ((owner, item.by_class.get(trust_class)) for owner, item in trusts.items())
    return merkle_root(
        frozenset(trust.leaf(owner, trust_class) for owner, trust in found if trust is not None)
    )
