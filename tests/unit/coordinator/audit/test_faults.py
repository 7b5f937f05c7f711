"""Tests what a fault costs a provider in addition to its pay, and for how long.

The rules are in PROTOCOL §5: Rate, Batches, Holding, Faults.
"""

import pytest

from quorate_coordinator.core.audit import faults, trust
from quorate_coordinator.core.audit.assignment import assign
from quorate_coordinator.core.audit.draw import audit_ppm
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.accusations import Fault
from quorate_coordinator.core.model.effects import Effect, OpenCase, Send
from quorate_coordinator.core.model.entities import AwaitingRound, Job
from quorate_coordinator.core.model.lease import Revealed
from quorate_coordinator.core.model.tables import NEWEST_ROUND
from quorate_coordinator.core.money import held_pay
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.codec.hashing import keccak256
from quorate_protocol.limits import DAY, DEVNET
from quorate_protocol.messages import frames
from quorate_protocol.messages.classes import Host
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.rules.trust_record import Trust
from quorate_protocol.units import (
    ZERO_HASH,
    Address,
    Amount,
    BlockNumber,
    Comparator,
    Hash32,
    Outcome,
    Price,
    UnixSeconds,
)
from quorate_protocol.values import replace
from support.markets.large_market import LargeMarket
from support.markets.scripted_market import CPUS, DOMAIN, Market, Party
from support.receipts import failures

NO_FEES = replace(DEVNET, strike_fees=Amount(0))


@pytest.mark.rule("5.55")
def test_a_strike_counts_for_ninety_days() -> None:
    """A strike once raised the audit rate of a provider for ever."""
    market = LargeMarket()
    market.ran_ms = 0
    job = market.job(market.order(0, 1, accept_unwitnessed=True))
    owner = next(iter(market.parties))
    clean = Trust(100)
    struck = replace(clean, strikes=(UnixSeconds(market.at),))
    with market.core.state.transaction():
        market.core.state.trust[owner] = Trusts({trust.trust_class_of(job): struck})
    last = trust.trust_of(market.context(90 * DAY - 1), job, owner)
    assert last == struck and last.error_ppm() > 2 * clean.error_ppm()
    assert last.suspicion_ppm() > clean.suspicion_ppm()
    assert trust.trust_of(market.context(90 * DAY), job, owner) == clean


class MarketWithoutSecondCommitSet(Market):
    """A market that never delivers the CommitSet of a job's second batch."""

    def _perform(self, effect: Effect) -> None:
        frame = effect.frame if isinstance(effect, Send) else None
        if not isinstance(frame, frames.CommitSetSent) or frame.commit_set.message.batch != 1:
            super()._perform(effect)


@pytest.mark.rule("5.62")
def test_silent_member_of_a_batch_of_one_is_unpaid_and_not_faulted() -> None:
    market = MarketWithoutSecondCommitSet(
        Party(0, lies=True), *[Party(number) for number in range(1, 6)]
    )
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    job, verdict = market.job(job_id), market.verdict(job_id)
    (silent,), liar = job.batches[1].members, job.batches[0].members[0]
    assert verdict.outcome is Outcome.ACCEPTED
    assert verdict.faulted == (liar,) and silent not in verdict.group
    state, owner = market.core.state, market.core.state.leases[silent].provider
    assert (
        not state.faults.get(owner) and not state.trust[owner].checked and not market.earned(owner)
    )
    assert not failures(market.receipt())


def test_a_repeat_is_not_assigned_before_what_it_repeats_was_closed() -> None:
    """A closing is dated ahead of a slow clock, because its receipts pay whole runs. A receipt with
    an older repeat does not verify.
    """
    market = Market(Party(0, lies=True), *[Party(number) for number in range(1, 6)])
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    job = market.job(job_id)
    closed_at = job.batches[-1].commit_set.message.closed_at
    slow = market.context(closed_at - 100 - market.at)
    with market.core.state.transaction():
        market.core.state.counters[NEWEST_ROUND] = 1
        _, lease = assign(slow, job, job.batches[0].slots[0], Price(1), batch=3)
    assert lease.assignment.message.accept_by == closed_at + market.core.rules.limits.accept_within


@pytest.mark.rule("5.119")
def test_a_fault_counts_once_its_client_has_paid_enough_fees() -> None:
    """A provider lies in five jobs of one client, and in one of another that never paid before."""
    market = Market(Party(0, lies=True), *[Party(number) for number in range(1, 5)])
    market.ran_ms = 0
    liar, seen = next(iter(market.parties)), []
    for nonce in range(1, 6):
        market.until_decided(market.order(0, nonce))
        market.beat()
        seen.append(market.core.state.trust[liar].checked)
    assert seen == [0, 1, 1, 1, 1], "none before it has paid, and one in 90 days"
    job_id = market.order(1, 6)
    market.until_decided(job_id)
    assert market.verdict(job_id).faulted, "unpaid all the same"
    assert not market.earned(liar) and market.core.state.trust[liar].checked == 1
    market.at += 90 * DAY
    market.beat()
    context, job = market.context(), market.core.state.jobs.get(job_id) or market.job(job_id)
    lease = next(item for item in market.core.state.leases.values() if item.provider == liar)
    assert faults.counted(context, job, [lease]) == [lease]


@pytest.mark.rule("5.119")
def test_every_checked_execution_is_counted() -> None:
    market = Market(Party(0, lies=True), Party(1), Party(2))
    market.core.rules = replace(market.core.rules, limits=NO_FEES)
    market.until_decided(market.order(0, 1))
    assert [trusts.checked for trusts in market.core.state.trust.values()] == [1, 1, 1]


def market_with_held_jobs() -> tuple[LargeMarket, Address]:
    """Returns a large market, and a provider that has several held jobs of both clients."""
    market = LargeMarket()
    market.ran_ms = 0
    first = market.order(0, 1, accept_unwitnessed=True)
    market.trust_all(market.job(first))
    market.until_decided(first)
    for number in range(2, 60):
        market.until_decided(market.order(number % 2, number, accept_unwitnessed=True))
        for owner in market.parties:
            mine = held_pay.held_jobs_of(market.context(), owner)
            if len(mine) > 3 and len({job.submission.order.message.client for job in mine}) == 2:
                return market, owner
    raise AssertionError("nobody has enough jobs that are held")


def accuse(market: Market, owner: Address) -> None:
    """Records faults for the newest held jobs of a provider."""
    jobs = held_pay.held_jobs_of(market.context(), owner)
    one = jobs[-1].submission.order.message.client
    other = next(job for job in jobs if job.submission.order.message.client != one)
    for job in (other, jobs[-1]):
        contradict(market, job)
    clients = ((job, job.submission.order.message.client) for job in (other, jobs[-1]))
    market.core.state.faults[owner] = tuple(
        Fault(job.batches[0].members[0], job.id, who, UnixSeconds(market.at))
        for job, who in clients
    )


def contradict(market: Market, job: Job, execution: Hash32 | None = None) -> None:
    """Adds another owner's execution to a job, with another result."""
    state = market.core.state
    lease = state.leases[execution or job.batches[0].members[0]]
    other = next(party for party in market.parties if party != lease.provider)
    body = replace(lease.assignment.message, provider=other)
    place = keccak256(b"contradiction" + lease.assignment_hash)
    assert isinstance(lease.phase, Revealed)
    state.leases[place] = replace(
        lease,
        assignment=Envelope(body, lease.assignment.sig),
        assignment_hash=place,
        phase=replace(lease.phase, result=keccak256(b"another result")),
    )
    state.jobs[job.id] = replace(job, leases=(*job.leases, place))


def stopped(market: Market, owner: Address) -> list[Effect]:
    with market.core.state.transaction():
        accuse(market, owner)
        context = market.context()
        faults._accuse_if_due(context, owner)
    return context.effects


@pytest.mark.rule("5.157")
def test_a_provider_with_faults_of_two_clients_is_accused_and_its_held_jobs_run_again() -> None:
    market, owner = market_with_held_jobs()
    jobs = held_pay.held_jobs_of(market.context(), owner)
    (case,) = stopped(market, owner)
    assert isinstance(case, OpenCase)
    assert not held_pay.held_jobs_of(market.context(), owner)
    assert all(isinstance(market.job(job.id).phase, AwaitingRound) for job in jobs)
    found = market.core.state.cases[digest(DOMAIN, case.execution.run.assignment.message)]
    assert found.burned == 7 * (case.pay + DEVNET.jury_gas_fee)
    assert case.execution.run.assignment.message.provider == owner
    assert case.execution.contradiction.assignment.message.provider != owner


@pytest.mark.rule("5.157")
def test_a_fault_too_old_for_the_court_still_counts_for_its_client() -> None:
    market, owner = market_with_held_jobs()
    with market.core.state.transaction():
        accuse(market, owner)
        older, newest = market.core.state.faults[owner]
        archived = replace(older, job_id=Hash32(bytes(32)), at=UnixSeconds(market.at - 80 * DAY))
        market.core.state.faults[owner] = (archived, newest)
        context = market.context()
        faults._accuse_if_due(context, owner)
        assert set(market.core.state.cases) == {newest.assignment_hash}


@pytest.mark.rule("5.157")
def test_a_coordinator_accuses_within_its_budget() -> None:
    """A case over a small job costs 7 x 0.55 USD. A case that the chain refused costs nothing."""
    market, owner = market_with_held_jobs()
    market.core.rules = replace(market.core.rules, accuse_budget=Amount(5_000_000))
    (case,) = stopped(market, owner)
    assert isinstance(case, OpenCase)

    def accuse_again() -> list[Effect]:
        with market.core.state.transaction():
            earlier = [fault.assignment_hash for fault in market.core.state.faults[owner]]
            context = market.context()
            faults._accuse_if_due(context, owner)
        assert all(digest in earlier for digest in market.core.state.cases)
        return context.effects

    assert not accuse_again(), "twice 3.85 USD is more than the budget"
    market.send(ev.TransactionRefused(case.key, "owners"))
    (other,) = accuse_again()
    assert isinstance(other, OpenCase) and other.execution != case.execution


@pytest.mark.rule("5.149", "5.151")
@pytest.mark.parametrize("is_convicted", [True, False])
def test_a_conviction_has_held_jobs_executed_again_and_changes_nothing_else(
    is_convicted: bool,
) -> None:
    market, owner = market_with_held_jobs()
    with market.core.state.transaction():
        accuse(market, owner)
    state = market.core.state
    named = state.faults[owner][0].assignment_hash
    other = keccak256(b"contradiction" + named)
    opening = ev.ChainCaseOpened(named, other, owner, keccak256(b"filing"))
    jury = ev.ChainJuryDrawn(named, (owner,))
    market.chain_says(opening, jury)
    case = state.cases[named]
    assert case.evidence is not None and case.jurors == (owner,) and not case.key
    assert case.job_id in faults.in_court(market.context()), "jurors read its inputs"
    assert held_pay.held_jobs_of(market.context(), owner), "a case alone changes nothing"
    end = ev.ChainCaseDecided(named, is_convicted, Amount(5))
    market.chain_says(opening, end)
    assert (not held_pay.held_jobs_of(market.context(), owner)) == is_convicted
    assert not faults.in_court(market.context())


def test_case_with_an_unknown_execution_is_only_recorded() -> None:
    market, owner = Market(Party(0)), Party(0).owner
    note = ev.ChainCaseOpened(ZERO_HASH, ZERO_HASH, owner, keccak256(b"filing"))
    market.send(ev.ChainStateQueried((note,)))
    case = market.core.state.cases[ZERO_HASH]
    assert case.evidence is None and case.job_id is None and case.is_convicted is None


@pytest.mark.rule("5.56", "5.57")
def test_beacon_chooses_which_held_jobs_are_executed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice once used the coordinator's own random bytes. The coordinator could then spare a
    job, and no one could check.
    """
    monkeypatch.setattr(held_pay, "OTHERS_MAX", 1)
    market, owner = market_with_held_jobs()
    before = market.core.snapshot()
    jobs = held_pay.held_jobs_of(market.context(), owner)
    by_client = [
        [job for job in jobs if job.submission.order.message.client == client.address]
        for client in market.clients
    ]
    (faulty, *_), others = sorted(by_client, key=len)
    assert len(others) > 1
    drawn = set()
    for random in range(8):
        market.core.restore(before)
        with market.core.state.transaction():
            held_pay.reexecute_after_fault(
                market.context(random=Hash32(bytes([random]) * 32)), owner, faulty
            )
        drawn.add(frozenset(job.id for job in held_pay.held_jobs_of(market.context(), owner)))
    assert len(drawn) == 1 and len(min(drawn)) == len(others) - 1


@pytest.mark.rule("5.48")
def test_held_jobs_of_an_exiting_provider_get_their_draw_at_once() -> None:
    market, owner = market_with_held_jobs()
    slots = market.core.state.pool_slots[CPUS.id()].slots
    count = len(held_pay.held_jobs_of(market.context(), owner))
    other = next(party for party in market.parties if party != owner)
    for leaver in (other, owner):
        held = held_pay.held_jobs_of(market.context(), owner)
        assert len(held) == count, "somebody else's exit changes nothing"
        left = [slot.index for slot in slots if slot.owner == leaver]
        closed = BlockNumber(market.next_block + 1)
        market.chain_says(*(ev.ChainSlotClosed(CPUS.id(), index, closed) for index in left))
    assert not held_pay.held_jobs_of(market.context(), owner)


@pytest.mark.rule("5.5")
def test_stake_lowers_the_audit_rate_only_of_jobs_that_a_court_judges() -> None:
    market = LargeMarket()
    job_id = market.order(0, 1, accept_unwitnessed=True)
    market.deliver()
    job = market.job(job_id)
    market.trust_all(job)
    sealed = job.submission.order
    order = replace(sealed, message=replace(sealed.message, comparator=Comparator.NUMERIC))
    other = replace(job, submission=replace(job.submission, order=order))
    context = market.context()
    assert audit_ppm(context, job) < 400_000
    assert audit_ppm(context, other) == 950_000, "nothing is held, so nothing would be lost"
    primary = market.core.state.leases[job.leases[-1]].provider
    provider = market.core.state.providers[primary]
    assert provider.offer is not None
    slots = tuple(replace(slot, host=Host("x86_64", "v1")) for slot in provider.offer.slots)
    with market.core.state.transaction():
        market.core.state.providers[primary] = replace(
            provider, offer=replace(provider.offer, slots=slots)
        )
        said = market.core.state.accepts[job.leases[-1]]
        accept = replace(said.message, host=slots[0].host.digest())
        market.core.state.accepts[job.leases[-1]] = replace(said, message=accept)
    assert audit_ppm(market.context(), job) == 950_000, "nobody else is in its class"
