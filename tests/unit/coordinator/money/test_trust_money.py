"""Shows each limit of money and trust that docs/trust.md states: nobody is protected against it."""

from itertools import product

import pytest

from quorate.trust.charge_verification import check_receipt
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import AwaitingRound, Ended, Job, MedianPrice
from quorate_coordinator.core.model.lease import Lease, Revealed
from quorate_protocol.limits import MAINNET
from quorate_protocol.messages.beacon_rounds import round_time
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.receipt import document
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.refusals import Refused
from quorate_protocol.rules import settlement
from quorate_protocol.units import Amount, Label, Milliseconds, Price, UnixSeconds
from quorate_protocol.values import replace
from support.markets.large_market import LargeMarket
from support.markets.scripted_market import CPUS, INFO, Market, Party
from support.receipt_readers import own_record
from vectors.generate import message_of

RAN_MS = 36_000  # the run time that the scripted providers claim


def _group(market: Market, job: Job) -> list[Lease]:
    return [market.core.state.leases[hashed] for hashed in market.verdict(job.id).group]


def _paid(job: Job, lease: Lease) -> int:
    paid = {credit.assignment_hash: credit.amount for credit in job.split.credits}
    return paid[lease.assignment_hash]


@pytest.mark.rule("4.14")
def test_a_provider_is_believed_how_long_a_program_ran() -> None:
    """The provider is paid for the second in which the run ended, although it took less. The
    coordinator believes any claim up to the time that passed.
    """
    market = Market(*[Party(number) for number in range(3)])
    market.ran_ms, market.claimed_ms = 35_000, RAN_MS
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    job = market.job(job_id)
    for lease in _group(market, job):
        assignment, phase = lease.assignment.message, lease.phase
        assert isinstance(phase, Revealed) and phase.commit.message.usage_ms == RAN_MS
        place = job.batches[0].members.index(lease.assignment_hash)
        passed = job.batches[0].stored_at[place] - (
            assignment.accept_by - market.core.rules.limits.accept_within
        )
        pay = RAN_MS * assignment.price_per_hour // 3_600_000
        assert passed * 1000 <= RAN_MS and _paid(job, lease) == pay


class MarketWithInflatedUsage(Market):
    """A market whose providers claim a run time equal to the limit of an hour."""

    limit = 3_600
    ran_ms = 0
    claimed_ms = 3_600_000


@pytest.mark.rule("4.18")
def test_usage_beyond_the_elapsed_time_is_not_paid() -> None:
    """Client and fund once paid for an hour although less than a minute had passed. The client
    computes the same charge, and needs only the receipt (I10).
    """
    market = MarketWithInflatedUsage(*[Party(number) for number in range(3)])
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    job = market.job(job_id)
    stored_at = job.batches[0].stored_at
    for number, lease in enumerate(_group(market, job)):
        assignment = lease.assignment.message
        passed = stored_at[number] - assignment.accept_by + market.core.rules.limits.accept_within
        assert passed < 2, "both commit at once"
        assert _paid(job, lease) == (passed + 1) * 1000 * assignment.price_per_hour // 3_600_000
    found = market.receipt()
    checked = check_receipt(own_record(market, found), document(found), found.verdict)
    assert checked.charged == job.split.charged > 0


TIMES = [(0, 1_000, 1_000), (0, 1_001, 1_000), (-200, 1, 0), (3_600, 3_601_001, 3_601_000)]


@pytest.mark.rule("4.18")
@pytest.mark.parametrize(("passed", "usage", "paid"), TIMES)
def test_a_claim_of_a_second_above_the_elapsed_time_is_paid(
    passed: int, usage: int, paid: int
) -> None:
    """`passed` is the time from the Assignment to the CommitReceipt."""
    within = MAINNET.accept_within
    assignment = replace(message_of(Assignment), accept_by=UnixSeconds(10_000 + within))
    by = UnixSeconds(10_000 + passed)
    assert settlement.payable_usage(Milliseconds(usage), assignment, by, within) == paid


@pytest.mark.rule("4.18")
def test_execution_that_used_all_its_time_is_paid_in_full() -> None:
    """I3: a run that begins at the Assignment and ends at the receipt is paid whole, wherever in
    their seconds these lie.
    """
    within = MAINNET.accept_within
    for sent_ms, ran_ms in product((0, 1, 500, 999), (1, 999, 1_000, 1_001, 7_200_999)):
        sent, by = sent_ms // 1000, UnixSeconds((sent_ms + ran_ms) // 1000)
        assignment = replace(message_of(Assignment), accept_by=UnixSeconds(sent + within))
        usage = Milliseconds(ran_ms)
        assert settlement.payable_usage(usage, assignment, by, within) == ran_ms


class MarketWithLateCommits(MarketWithInflatedUsage):
    """A market whose client stops each run, and whose providers then take a quarter of an hour to
    commit.
    """

    def _run(self, party: Party, assignment: Assignment, spec: JobSpec) -> None:
        send = self.send

        def slowly(event: ev.Event) -> object:
            if isinstance(event, ev.CommitReceived):
                self.stop(self.core.state.leases[event.commit.message.assignment_hash].job_id)
                self.at += 900
            return send(event)

        self.send = slowly  # type: ignore[method-assign]
        try:
            super()._run(party, assignment, spec)
        finally:
            self.send = send  # type: ignore[method-assign]


@pytest.mark.rule("4.43")
def test_a_stop_frees_the_money_of_the_rest_at_once_and_a_late_commit_is_not_paid() -> None:
    market = MarketWithLateCommits(*[Party(number) for number in range(3)])
    market.limit = 24 * 3600
    job_id = market.order(0, 1, budget=Amount(20_000_000))
    before = market.client().reserved
    with pytest.raises(Refused, match="was due by"):
        market.deliver()
    assert market.job(job_id).stop is not None
    assert market.client().reserved < before // 100
    market.pending.clear()
    market.beat()
    ended = market.job(job_id).phase
    assert isinstance(ended, Ended) and "stopped by its client" in ended.reason
    assert not market.client().reserved
    assert not market.client().charged


@pytest.mark.rule("5.8", "5.9")
def test_an_audit_counts_for_trust_whatever_its_pay_is() -> None:
    market = Market(*[Party(number) for number in range(3)])
    with market.core.state.transaction():
        market.core.state.median_prices[CPUS.id()] = MedianPrice(
            Price(10**9), UnixSeconds(2**40)
        )  # ten thousand times the pay of this job
    market.until_decided(market.order(0, 1))
    passed = [
        trust.passed
        for trusts in market.core.state.trust.values()
        for trust in trusts.by_class.values()
    ]
    assert passed == [1, 1]


@pytest.mark.rule("I3", "4.21", "5.99")
def test_auditors_are_paid_as_far_as_the_fund_reaches() -> None:
    market = LargeMarket()
    job_id = market.order(0, 1, accept_unwitnessed=True)
    market.until_decided(job_id)
    job = market.job(job_id)
    assert job.ack.message.rule is Label.ADAPTIVE, (
        "and its premium came into the empty fund after the audit"
    )
    primary, *auditors = _group(market, job)
    assert auditors and market.earned(primary.provider) > 0
    assert not any(market.earned(lease.provider) for lease in auditors)


@pytest.mark.rule("4.18", "I3")
def test_a_run_is_paid_whole_although_the_coordinators_clock_is_behind() -> None:
    """The beacon dates the Assignments of auditors: its newest round is 10 s ahead of the clock."""
    market = Market(*[Party(number) for number in range(3)])
    job_id = market.order(0, 1)
    market.deliver()
    phase = market.until(job_id, AwaitingRound)
    market.at = max(market.at, round_time(INFO, phase.round) - 10)
    market.appears(phase.round)
    market.until_decided(job_id)
    pays = [credit.amount for credit in market.job(job_id).split.credits]
    assert pays == [RAN_MS * 100_000 // 3_600_000] * 2
