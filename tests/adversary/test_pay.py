"""Attacks by clients that want outputs for nothing, and by owners that want pay for nothing."""

import pytest

from quorate_coordinator.core import views
from quorate_coordinator.core.archived_run import committed_output
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import Decided, Running
from quorate_coordinator.core.model.lease import Lapsed
from quorate_coordinator.storage.output_access import Outputs
from quorate_coordinator.storage.run_reader import LogAccess, RunReader
from quorate_protocol.codec.eip712 import digest
from quorate_protocol.messages import job_spec
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Accept, Assignment, Decline
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import (
    Amount,
    DeclineReason,
    Hash32,
    Outcome,
    Price,
    Seconds,
    Small,
    UnixSeconds,
)
from support.markets.scripted_market import DOMAIN, Market, Party
from support.memory_archive import MemoryArchive
from support.offers import MACHINE

PAY = 900  # of each execution


def pays_of(market: Market) -> list[int]:
    """Returns what each owner has earned, final or held."""
    return [market.earned(owner) for owner in market.core.state.providers]


def outcome_of(market: Market, job_id: Hash32) -> Outcome:
    phase = market.job(job_id).phase
    assert isinstance(phase, Decided)
    return phase.verdict.message.outcome


@pytest.mark.rule("4.50", "4.11", "5.34", "5.35")
def test_a_client_cannot_get_outputs_for_nothing(attack) -> None:  # type: ignore[no-untyped-def]
    """A program that adds one random byte to its output gives each owner another result."""
    market = Market(*[Party(number, lies=True) for number in range(5)])
    with pytest.raises(Refused, match="maxExecutions 2 must be at least 3") as caught:
        market.order(0, 1, max_executions=Small(2))
    assert caught.value.code is Code.BAD_AMOUNT
    job_id = market.order(0, 1, max_executions=Small(3))
    market.until_decided(job_id)
    charged = market.core.state.clients[market.clients[0].address].charged
    assert outcome_of(market, job_id) is Outcome.UNRESOLVED
    assert sorted(pays_of(market)) == [0, 0, PAY, PAY, PAY] and charged == 3 * PAY + 54
    attack(
        name="maxExecutions 2 and one random byte",
        before="every output for 0; two honest owners unpaid",
        now=f"refused; with 3 it pays all three executions: {charged}",
        cost="the price of three executions",
    )


@pytest.mark.rule("4.50", "5.34")
def test_a_client_cannot_end_a_job_by_a_small_budget(attack) -> None:  # type: ignore[no-untyped-def]
    market = Market(*[Party(number, lies=True) for number in range(5)])
    market.ran_ms = 60_000  # as long as the job may run
    longest = 200_000 * 60 // 3_600  # at the order's price
    three = 3 * longest + 3 * longest // 50
    with pytest.raises(Refused, match="budget"):
        market.order(0, 1, budget=Amount(three - 1))
    job_id = market.order(0, 1, budget=Amount(three))
    market.until_decided(job_id)
    paid = [pay for pay in pays_of(market) if pay]
    assert outcome_of(market, job_id) is Outcome.UNRESOLVED
    assert len(set(paid)) == 1 and paid[0] == 90_000 * 60 // 3_600, "nobody's pay is cut"
    attack(
        name="a budget for one execution",
        before="of two executions that differ the second is unpaid",
        now=f"refused; with a budget for three, {len(paid)} executions are paid in full",
        cost="the price of three executions",
    )


def outputs_read(market: Market, job_id: Hash32) -> int:
    """Returns how many sealed outputs of a run its client may fetch. The receipt has their keys."""
    outputs = Outputs(market.core.state, MemoryArchive())
    outputs.load()
    leases = [market.core.state.leases[digest] for digest in market.job(job_id).leases]
    found = [digest for lease in leases if (digest := committed_output(lease)) is not None]
    return sum(outputs.may_read(digest, market.clients[0].address) for digest in found)


@pytest.mark.rule("4.52", "5.36")
def test_a_client_cannot_read_what_it_does_not_pay(attack) -> None:  # type: ignore[no-untyped-def]
    """Two results differ, and no owner is left. The receipt of such a job shows both salts."""
    market = Market(Party(0, lies=True), Party(1), Party(2, is_deaf=True))
    job_id = market.order(0, 1)
    assert outputs_read(market, job_id) == 0, "nothing before the verdict"
    market.until_decided(job_id)
    job, state = market.job(job_id), market.core.state
    assert outcome_of(market, job_id) is Outcome.UNRESOLVED and not job.split.charged
    reader = RunReader(state, MemoryArchive())
    accesses = [reader.log_access(job_id, item) for batch in job.batches for item in batch.members]
    assert views.run_view(state, job, is_client=True).output is None
    assert set(accesses) == {LogAccess.NONE} and outputs_read(market, job_id) == 0
    attack(
        name="a job for which the market runs out of owners",
        before="two ciphertexts, and in the receipt their keys, for 0",
        now=f"{outputs_read(market, job_id)} outputs and no log lines",
        cost="nothing",
    )


@pytest.mark.rule("4.56", "4.52")
def test_a_client_cannot_read_logs_for_nothing(attack) -> None:  # type: ignore[no-untyped-def]
    market = Market(Party(0, lies=True), Party(1), Party(2, is_deaf=True))
    job_id = market.order(0, 1)
    phase = market.job(job_id).phase
    assert isinstance(phase, Running)
    primary = market.job(job_id).leases[0]
    reader = RunReader(market.core.state, MemoryArchive())
    assert reader.log_access(job_id, primary) is LogAccess.MARKED
    market.send(ev.LogRead(job_id, primary))
    market.send(ev.LogRead(job_id, primary))
    assert reader.log_access(job_id, primary) is LogAccess.FREE
    market.until_decided(job_id)
    job = market.job(job_id)
    verdict = job.phase.verdict.message  # type: ignore[union-attr]
    assert verdict.outcome is Outcome.UNRESOLVED and verdict.read == (primary,)
    assert [item.assignment_hash for item in job.split.credits] == [primary]
    assert job.split.charged == PAY + 18 and outputs_read(market, job_id) == 2
    other = next(item for item in job.batches[0].members if item != primary)
    assert reader.log_access(job_id, other) is LogAccess.FREE, "its output is readable then"
    attack(
        name="25 s of log lines of a job that nobody can audit",
        before="all lines for 0, the owner unpaid",
        now=f"the execution whose lines were read costs {job.split.charged}",
        cost="the price of that execution",
    )


def test_log_lines_of_an_execution_that_lapsed_are_free() -> None:
    """The last lines say why it gave no result, for example that its files were refused."""
    market = Market(Party(0, lies=True, is_deaf=True), Party(1), Party(2))  # its price is lowest
    job_id = market.order(0, 1)
    lapsed = market.job(job_id).leases[0]
    market.until_decided(job_id)
    reader = RunReader(market.core.state, MemoryArchive())
    assert isinstance(market.core.state.leases[lapsed].phase, Lapsed)
    assert reader.log_access(job_id, lapsed) is LogAccess.FREE
    market.send(ev.LogRead(job_id, lapsed))
    assert market.job(job_id).read == ()


def test_log_lines_of_an_uncharged_run_cannot_be_marked_afterwards() -> None:
    market = Market(Party(0, lies=True), Party(1), Party(2, is_deaf=True))
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    for assignment_hash in market.job(job_id).batches[0].members:
        with pytest.raises(Refused) as caught:
            market.send(ev.LogRead(job_id, assignment_hash))
        assert caught.value.code is Code.WRONG_PHASE
    with pytest.raises(Refused):
        market.send(ev.LogRead(job_id, Hash32(b"\x01" * 32)))


class QuittersMarket(Market):
    """A market in which all providers but the first accept each assignment and then decline it."""

    slots = 8
    quitters: tuple[int, ...] = (1, 2, 3, 4)

    def _run(self, party: Party, assignment: Assignment, spec: job_spec.JobSpec) -> None:
        if party.number not in self.quitters:
            super()._run(party, assignment, spec)
            return
        hashed, now = digest(DOMAIN, assignment), UnixSeconds(self.at)
        accept = Accept(hashed, MACHINE.digest(), Seconds(0), Seconds(1), Seconds(0), now)
        self.send(ev.AcceptReceived(seal(DOMAIN, accept, party.key.sign), party.key.address))
        decline = Decline(hashed, DeclineReason.GAVE_UP, UnixSeconds(0), now)
        self.send(ev.DeclineReceived(seal(DOMAIN, decline, party.key.sign), party.key.address))


@pytest.mark.rule("5.110")
def test_auditors_cannot_starve_an_honest_primary(attack) -> None:  # type: ignore[no-untyped-def]
    market = QuittersMarket(Party(0, lies=True), *[Party(number) for number in range(1, 5)])
    honest = next(iter(market.parties))  # a liar's price is the lowest
    outcomes = []
    for number in range(1, 11):
        job_id = market.order(number % 2, number, accept_unverified=True)
        market.until_decided(job_id)
        outcomes.append(outcome_of(market, job_id))
    assert set(outcomes) <= {Outcome.CANNOT_VERIFY, Outcome.ACCEPTED}
    answered = outcomes.count(Outcome.CANNOT_VERIFY)
    assert market.earned(honest) == PAY * len(outcomes), "each execution is paid"
    attack(
        name="drawn auditors that Accept, then Decline",
        before="unresolved without end, the honest primary unpaid",
        now=f"all 10 jobs paid, {answered} as cannot-verify",
        cost="the audits' pay",
    )


@pytest.mark.rule("5.110", "5.36")
def test_a_result_that_nobody_confirms_is_paid_by_the_fund() -> None:
    """Its client did not accept an unverified result, so it pays nothing and reads nothing."""
    market = QuittersMarket(Party(0, lies=True), *[Party(number) for number in range(1, 5)])
    market.quitters = ()
    market.until_decided(market.order(0, 1))  # fills the fund with a tenth of a fee
    for _ in range(3):
        market.beat()
    before = market.core.state.own.fund
    market.quitters = (1, 2, 3, 4)
    job_id = market.order(0, 2)
    market.until_decided(job_id)
    job = market.job(job_id)
    assert outcome_of(market, job_id) is Outcome.CANNOT_VERIFY and not job.split.charged
    assert before == 4 and market.core.state.own.fund == 0, "as far as it reaches"
    assert outputs_read(market, job_id) == 0 and not job.is_readable


@pytest.mark.rule("4.57", "4.15", "4.71")
def test_a_client_cannot_order_at_a_price_that_one_owner_meets(attack) -> None:  # type: ignore[no-untyped-def]
    """The cheapest owner worked, nobody could audit it at that price, and nobody paid it."""
    market = Market(Party(0, lies=True), *[Party(number) for number in range(1, 5)])
    with pytest.raises(Refused, match=r"2 do from 0\.10 USD an hour on") as caught:
        market.order(0, 1, max_price_per_hour=Price(95_000), accept_unverified=True)
    assert caught.value.code is Code.PRICE_TOO_HIGH
    spec = market.job(market.order(0, 2)).submission.spec
    view = market.plan(spec, 95_000, accept_unverified=True)
    assert "2 do from 0.10 USD an hour on" in view.nearest
    assert view.refusal == caught.value.code.value, "the plan has the code of the refusal"
    market.order(0, 3, max_price_per_hour=Price(100_000))
    attack(
        name="a price that one owner of the class meets",
        before="25 s of work and all its logs for 0, the owner told nothing",
        now="refused, with the price that would do",
        cost="nothing",
    )


@pytest.mark.rule("4.14")
@pytest.mark.parametrize(("claimed", "billed"), [(0, 1_000), (1, 1_000), (1_001, 1_001)])
def test_an_execution_is_billed_a_second_at_least(claimed: int, billed: int) -> None:
    market = Market(*[Party(number) for number in range(4)])
    market.ran_ms = claimed
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    pays = [credit.amount for credit in market.job(job_id).split.credits]
    assert pays == [billed * 100_000 // 3_600_000] * 2


@pytest.mark.rule("4.18")
def test_a_primary_is_not_paid_for_the_wait_for_its_beacon_round(attack) -> None:  # type: ignore[no-untyped-def]
    """Both commit in the second of their Assignment, and claim the whole minute and more."""
    market = Market(*[Party(number) for number in range(4)])
    market.limit, market.ran_ms, market.claimed_ms = 3_600, 0, 3_600_000
    job_id = market.order(0, 1)
    market.until_decided(job_id)
    pays = [credit.amount for credit in market.job(job_id).split.credits]
    most = 2 * 100_000 // 3_600  # a frame takes a second at most, and times are whole seconds
    assert 0 < max(pays) <= most
    attack(
        name="an owner claims more time than it had",
        before="paid from acceptBy to its CommitReceipt, plus 120 s",
        now="paid from its Assignment to its CommitReceipt",
        cost="nothing",
    )
