"""Tests that runs that end by time-out or memory kill are always audited.

A provider could claim either without running anything (PROTOCOL §5 Batches).
"""

import pytest

from quorate_coordinator.core.model.entities import Decided
from quorate_protocol.limits import DAY
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.rules.verdict import Accepted, Execution, More, decide
from quorate_protocol.units import (
    EXIT_MEMORY_KILL,
    EXIT_TIMEOUT,
    Address,
    ExitStatus,
    Hash32,
    Label,
    Outcome,
    UnixSeconds,
    VerifyTier,
)
from support.markets.large_market import LargeMarket


def _trusted_market(status: ExitStatus, everybody: bool = False) -> LargeMarket:
    """Returns a large market with a very low audit rate. The first provider is the cheapest, and
    each of its runs ends with `status`.
    """
    market = LargeMarket()
    for number, party in enumerate(market.parties.values()):
        party.status = status if everybody or number == 0 else party.status
    first = market.order(0, 1, accept_unwitnessed=True)
    market.trust_all(market.job(first))
    market.until_decided(first)
    return market


@pytest.mark.rule("5.33")
@pytest.mark.parametrize("status", [EXIT_TIMEOUT, EXIT_MEMORY_KILL])
def test_unconfirmed_time_out_is_not_paid(status: ExitStatus) -> None:
    """Otherwise a provider could run nothing, claim a time-out, and be paid the full time in
    nineteen of twenty jobs.
    """
    market = _trusted_market(status)
    liar = next(iter(market.parties))
    for number in range(2, 40):
        job_id = market.order(number % 2, number, accept_unwitnessed=True)
        market.until_decided(job_id)
        job = market.core.state.jobs.get(job_id)
        primary = market.core.state.leases[job.batches[0].members[0]] if job is not None else None
        if job is not None and primary is not None and primary.provider == liar:
            verdict = market.verdict(job_id)
            assert verdict.outcome is Outcome.ACCEPTED
            assert len(job.batches) > 1 or len(job.batches[0].members) > 1, (
                "somebody else has run it"
            )
            assert primary.assignment_hash in verdict.faulted
    assert not market.earned(liar)
    found = market.core.state.faults.get(liar) or ()
    assert all(fault.is_in_no_case for fault in found), "it is never part of a case"


@pytest.mark.rule("5.33")
def test_every_third_outvoted_time_out_is_a_strike() -> None:
    market = _trusted_market(EXIT_TIMEOUT)
    liar = next(iter(market.parties))

    def strikes() -> int:
        trusts = market.core.state.trust.get(liar) or Trusts()
        return sum(len(trust.strikes) for trust in trusts.by_class.values())

    seen = []
    for number in range(2, 120):
        with market.core.state.transaction():
            market.core.state.faults.pop(liar, None)  # as if each job had another client
        market.until_decided(market.order(number % 2, number, accept_unwitnessed=True))
        seen.append((len((market.core.state.trust.get(liar) or Trusts()).kills), strikes()))
        if strikes():
            break
    assert seen[-1] == (0, 1) and [kills for kills, _ in dict.fromkeys(seen)][-4:] in (
        [0, 1, 2, 0],
        [1, 2, 0],
    )


@pytest.mark.rule("5.33")
def test_time_outs_of_ninety_days_ago_do_not_count() -> None:
    market = _trusted_market(EXIT_TIMEOUT)
    liar = next(iter(market.parties))
    with market.core.state.transaction():
        known = market.core.state.trust[liar]
        old = UnixSeconds(market.at - 90 * DAY)
        market.core.state.trust[liar] = Trusts(known.by_class, (old, old))
    for number in range(2, 60):
        market.until_decided(market.order(number % 2, number, accept_unwitnessed=True))
        if old not in market.core.state.trust[liar].kills:
            break
    assert len(market.core.state.trust[liar].kills) == 1


@pytest.mark.rule("I4")
def test_a_program_that_needs_too_long_is_paid_for() -> None:
    """A time-out that a second execution confirms is a result like any other (I4). The client pays
    one execution.
    """
    market = _trusted_market(EXIT_TIMEOUT, everybody=True)
    job_id = market.order(0, 2, accept_unwitnessed=True)
    market.until_decided(job_id)
    job = market.job(job_id)
    verdict = market.verdict(job_id)
    assert isinstance(job.phase, Decided) and job.phase.is_final and len(verdict.group) == 2
    assert job.split.charged > 0 and not verdict.faulted


@pytest.mark.rule("5.33")
def test_unconfirmed_time_outs_are_never_accepted_alone() -> None:
    def run(number: int, result: bytes, is_killed: bool) -> Execution:
        return Execution(
            Hash32(bytes([number]) * 32),
            Address(bytes([number]) * 20),
            Hash32(result * 32),
            1_000,
            is_killed,
        )

    killed, ran, again = run(1, b"k", True), run(2, b"r", False), run(3, b"k", True)
    for cap in (3, 7):
        assert decide(
            Label.ADAPTIVE, VerifyTier.STANDARD, [killed], cap, is_exhausted=False
        ) == More(1)
        for label in (Label.ADAPTIVE, Label.QUORUM_2):
            assert decide(
                label, VerifyTier.STANDARD, [killed, again], cap, is_exhausted=False
            ) == Accepted((0, 1), ())
    assert decide(Label.ADAPTIVE, VerifyTier.STANDARD, [ran], 1, is_exhausted=False) == Accepted(
        (0,), ()
    )
    assert decide(
        Label.UNVERIFIED, VerifyTier.STANDARD, [killed], 1, is_exhausted=False
    ) == Accepted((0,), ())
