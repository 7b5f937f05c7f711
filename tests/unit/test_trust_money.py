"""What docs/trust.md says of money and trust that nobody is protected from: each limit shown once."""

from large_market import LargeMarket
from quorate_coordinator.core.state import Decided, Job, Median
from quorate_protocol.lease import Lease, Revealed
from quorate_protocol.units import Label, Price, UnixSeconds
from scripted_market import HOST, Market, Party

RAN_MS = 36_000  # what the scripted providers claim


def _group(market: Market, job: Job) -> list[Lease]:
    assert isinstance(job.phase, Decided)
    return [market.core.state.leases[hashed] for hashed in job.phase.verdict.message.group]


def test_a_provider_is_believed_how_long_a_program_ran() -> None:
    """It is paid for 36 seconds of which not one has passed: within the limit that the client set, its word is taken."""
    market = Market(*[Party(number) for number in range(3)])
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    job = market.job(job_id)
    for lease in _group(market, job):
        assignment, phase = lease.assignment.message, lease.phase
        assert isinstance(phase, Revealed) and phase.commit.message.usage_ms == RAN_MS
        passed = job.batches[0].commit_set.message.closed_at - (assignment.accept_by - market.core.rules.limits.accept_within)
        paid = next(item.amount for item in job.split.credits if item.assignment_hash == lease.hash)
        assert passed * 1000 < RAN_MS and paid == RAN_MS * assignment.price_per_hour // 3_600_000


def test_an_audit_counts_for_trust_whatever_it_paid() -> None:
    market = Market(*[Party(number) for number in range(3)])
    with market.core.state.transaction():
        market.core.state.medians[HOST.id()] = Median(Price(10**9), UnixSeconds(2**40))  # ten thousand times of what is paid here
    market.until_decided(market.order(0, 1))
    passed = [trust.passed for trusts in market.core.state.trust.values() for trust in trusts.by_class.values()]
    assert passed == [1, 1]


def test_whoever_audits_is_paid_as_far_as_the_fund_reaches() -> None:
    market = LargeMarket()
    job_id = market.order(0, 1, accept_unwitnessed=True)
    market.until_decided(job_id)
    job = market.job(job_id)
    assert job.ack.message.rule is Label.ADAPTIVE, "and its premium came into the empty fund after the audit"
    primary, *auditors = _group(market, job)
    owed = market.core.state.providers
    assert auditors and owed[primary.provider].held + owed[primary.provider].final > 0
    assert [owed[lease.provider].held + owed[lease.provider].final for lease in auditors] == [0] * len(auditors)
