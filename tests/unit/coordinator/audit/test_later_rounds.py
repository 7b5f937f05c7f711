"""Tests which beacon round draws the further executions of a dispute.

Nobody may choose that round (I9, PROTOCOL §5 Batches and Holding).
"""

from collections.abc import Callable

import pytest

from quorate_coordinator.core.audit.batches import CLOSINGS_MAX
from quorate_coordinator.core.coordinator_core import CoordinatorCore
from quorate_coordinator.core.model import beacon_time
from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import AwaitingRound, Job, Revealing
from quorate_coordinator.core.model.step_context import StepContext
from quorate_coordinator.core.money import held_pay
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.beacon_rounds import Timing, round_time
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.job_spec import JobSpec
from quorate_protocol.messages.receipt import Receipt
from quorate_protocol.messages.signed import Assignment
from quorate_protocol.rules.receipts.receipt_bill import paid_by_client
from quorate_protocol.units import (
    ZERO_HASH,
    DeclineReason,
    Hash32,
    Outcome,
    Round,
    Seconds,
    Small,
    UnixSeconds,
)
from quorate_protocol.values import replace
from support.markets.large_market import LargeMarket
from support.markets.scripted_market import DOMAIN, INFO, STATEMENT, Market, Party
from support.receipts import failures, verdict_again, with_batch


def closed_at(job: Job, batch: int) -> int:
    return job.batches[batch].commit_set.message.closed_at


def disputed() -> tuple[Market, Job]:
    """Returns a market and a decided job, whose first batch has a liar."""
    market = Market(Party(0, lies=True), *[Party(number) for number in range(1, 5)])
    market.ran_ms = 0
    job_id = market.order(0, 1)
    market.until_decided(job_id, seconds=400)
    return market, market.job(job_id)


@pytest.mark.rule("5.49")
@pytest.mark.parametrize(
    ("closing", "expected"), [(0, 1), (100 - 63, 1), (101 - 63, 2), (103 - 63, 2), (104 - 63, 3)]
)
def test_a_later_batch_uses_the_first_round_a_period_after_its_reveals_were_due(
    closing: int, expected: int
) -> None:
    timing = Timing(100, Seconds(3), Seconds(60), Seconds(1000), Seconds(30))
    assert timing.later_round(closing) == expected
    assert timing.appears_at(expected) >= closing + 63 and (
        expected == 1 or timing.appears_at(expected - 1) < closing + 63
    )


@pytest.mark.rule("5.28")
@pytest.mark.parametrize("seconds", [-6, -2, 2, 20, 3600])
def test_receipt_with_another_round_for_a_later_batch_is_refused(seconds: int) -> None:
    market, job = disputed()
    body = market.receipt()
    moved = with_batch(body, 0, closed_at=UnixSeconds(closed_at(job, 0) + seconds))
    before_its_round = closed_at(job, 0) + seconds < round_time(
        INFO, body.batches[0].message.beacon_round
    )
    found = failures(moved)
    assert "round[1]" in found and ("closedAt[0]" in found or not before_its_round)


def test_coordinator_that_dates_a_closing_later_gets_another_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This is a known limit (docs/trust.md): a receipt has no second source for the closing time.
    Only providers that revealed hold the CommitSet that they received.
    """
    rounds = set()
    for later in (0, 20, 40):
        with monkeypatch.context() as patch:
            patch.setattr(
                beacon_time,
                "known_moment",
                lambda context, later=later: UnixSeconds(context.at + later),
            )
            market, job = disputed()
        rounds.add(job.batches[1].commit_set.message.beacon_round)
        assert not failures(market.receipt())
    assert len(rounds) == 3


@pytest.mark.rule("5.29")
def test_a_commit_set_is_signed_three_times_at_most_and_the_newest_closing_counts() -> None:
    market = Market(*[Party(number, lies=not number, is_mute=True) for number in range(5)])
    job_id = market.order(0, 1)
    closings = set()
    for _ in range(60):
        market.beat()
        job = market.job(job_id)
        if isinstance(job.phase, Revealing):
            closings.add(closed_at(job, 0))
        if isinstance(job.phase, AwaitingRound) and job.phase.batch:
            break
    assert isinstance(job.phase, AwaitingRound) and len(closings) == CLOSINGS_MAX
    assert job.phase.round == market.core.rules.timing.later_round(max(closings))


class MarketWithDecliningAuditors(Market):
    """A market in which each provider after the first two declines `declines` times in a row."""

    asked = 0
    declines = 1

    def _run(self, party: Party, assignment: Assignment, spec: JobSpec) -> None:
        self.asked += 1
        if self.asked in (1, 2) or self.asked > 2 + 2 * self.declines:
            super()._run(party, assignment, spec)
            return
        self.decline(party, assignment, DeclineReason.DRAINING)


@pytest.mark.rule("5.21", "5.30")
def test_an_empty_draw_is_retried_while_the_beacon_is_away() -> None:
    """The later round is only a clock: the round of the first try draws."""
    market = MarketWithDecliningAuditors(*[Party(number, lies=not number) for number in range(4)])
    job_id = market.order(0, 1)
    while not (isinstance(phase := market.job(job_id).phase, AwaitingRound) and phase.is_again):
        market.beat()
    missing = market.core.rules.timing.appears_at(phase.round) + DEVNET.beacon_missing_after
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CoordinatorCore, "rounds_wanted", lambda _: ())
        while market.at < missing - 1:
            market.beat()
        assert market.job(job_id).phase == phase, "the round may still come"
        market.until_decided(job_id)
    assert len(market.job(job_id).beacons) == 2
    assert market.verdict(job_id).outcome is Outcome.ACCEPTED
    assert not failures(market.receipt())


def test_a_decline_hidden_in_the_last_empty_draw_still_verifies() -> None:
    """This is a known limit (docs/trust.md): no CommitSet binds the skips of the last draw, if it
    found nobody. Who declined looks silent, and need not be asked again.
    """
    market = MarketWithDecliningAuditors(*[Party(number, lies=not number) for number in range(4)])
    market.declines = 2
    market.until_decided(market.order(0, 1), seconds=400)
    body = market.receipt()
    assert body.exhausted_by and not failures(body)
    assert [skip.batch for skip in body.skips if skip.decline is not None] == [1, 1, 1, 1]
    silent = tuple(replace(skip, decline=None) for skip in body.skips[:2])
    hidden = verdict_again(replace(body, skips=silent), DOMAIN, STATEMENT.sign)
    assert not failures(hidden)


@pytest.mark.rule("5.29")
def test_with_a_late_clock_a_commit_set_is_dated_by_the_newest_round_seen() -> None:
    market = Market(*[Party(number) for number in range(3)])
    market.ran_ms = 0
    job_id = market.order(0, 1)
    phase = market.until(job_id, AwaitingRound)
    market.appears(phase.round)  # it is public before the coordinator's clock expects it
    market.deliver()
    assert closed_at(market.job(job_id), 0) == round_time(INFO, phase.round) > market.at


def held_job(nonce: int = 1) -> tuple[LargeMarket, Job]:
    """Returns a market and a job that was not audited and whose pay is held."""
    market = LargeMarket()
    for number in range(nonce, nonce + 40):
        job_id = market.order(0, number, accept_unwitnessed=True)
        market.trust_all(market.job(job_id))
        market.until_decided(job_id)
        job = market.job(job_id)
        if job_id in market.core.state.held:
            return market, job
    raise AssertionError("every job was audited")


@pytest.mark.rule("5.49", "5.50")
def test_a_held_job_is_drawn_again_by_a_round_that_follows_from_signed_times() -> None:
    """The draw once used the newest round plus two at the time that the coordinator chose."""
    market, job = held_job()
    before, timing, closed = market.core.snapshot(), market.core.rules.timing, closed_at(job, 0)
    first, last = timing.later_round(closed), timing.later_round(closed + timing.max_hold)
    for since, expected in (
        (0, first),
        (closed + 500, timing.later_round(closed + 500)),
        (closed + 10**7, last),
    ):
        for later in (1, 30):
            market.core.restore(before)
            with market.core.state.transaction():
                context = market.context(later)
                held_pay._await_redraw(context, market.job(job.id), wanted=1, since=since)
            phase = market.job(job.id).phase
            assert isinstance(phase, AwaitingRound) and phase.round == expected


@pytest.mark.rule("5.49")
def test_rounds_of_held_jobs_follow_from_fault_or_exit() -> None:
    """The round depends on the time of the fault or exit, and not on when the coordinator looks at
    the job.
    """
    market, job = held_job()
    _, faulty = disputed()
    before, timing = market.core.snapshot(), market.core.rules.timing
    owner = market.core.state.held[job.id].owner

    def of(act: Callable[[StepContext], None]) -> Round:
        market.core.restore(before)
        with market.core.state.transaction():
            act(market.context(9))
        phase = market.job(job.id).phase
        assert isinstance(phase, AwaitingRound)
        return phase.round

    closed, block = closed_at(job, 0), market.core.state.own.block_time
    moved = seal(
        DOMAIN,
        replace(faulty.batches[-1].commit_set.message, closed_at=UnixSeconds(closed + 40)),
        STATEMENT.sign,
    )
    faulty = replace(
        faulty, batches=(*faulty.batches[:-1], replace(faulty.batches[-1], commit_set=moved))
    )
    assert of(
        lambda context: held_pay.reexecute_after_fault(context, owner, faulty)
    ) == timing.later_round(closed + 40)
    assert of(lambda context: held_pay.draw_at_provider_exit(context, market.job(job.id))) == max(
        timing.later_round(block), timing.later_round(closed)
    )
    assert of(
        lambda context: held_pay.draw_at_hold_end(context, market.job(job.id))
    ) == timing.later_round(closed + timing.max_hold)


def executed_again() -> tuple[Job, Receipt]:
    """Returns a held job that was executed again, and its receipt."""
    market, job = held_job()
    context = market.context()
    with market.core.state.transaction():
        held_pay.reexecute_all(context, market.core.state.held[job.id].owner)
    market.until_decided(job.id)
    return job, market.receipt()


@pytest.mark.rule("5.50")
def test_a_receipt_of_a_held_job_shows_a_round_of_its_holding_time() -> None:
    job, body = executed_again()
    assert len(body.batches) == 2 and not failures(body)
    shorter = replace(body, timing=replace(body.timing, max_hold=Seconds(0)))
    shorter = verdict_again(shorter, DOMAIN, STATEMENT.sign)
    assert not failures(shorter), "at the first round it may be"
    assert "round[1]" in failures(
        with_batch(shorter, 0, closed_at=UnixSeconds(closed_at(job, 0) - 2))
    ), "after its hold"
    assert failures(with_batch(body, 0, closed_at=UnixSeconds(closed_at(job, 0) + 2))) == {
        "round[1]"
    }, "before its reveals were due"


@pytest.mark.rule("5.111")
def test_a_receipt_shows_whether_held_pay_was_lost() -> None:
    _, body = executed_again()
    first, second = body.executions
    assert first.reveal is not None and second.reveal is not None
    primary, auditor = (item.commit.message.assignment_hash for item in body.executions)
    other = replace(second, reveal=replace(second.reveal, output_digest=ZERO_HASH))
    differing = replace(body, executions=(first, other))

    def paid(found: Receipt, **changes: object) -> list[Hash32]:
        verdict = replace(found.verdict.message, **changes)  # type: ignore[arg-type]
        return list(paid_by_client(replace(found, verdict=replace(found.verdict, message=verdict))))

    assert paid(body) == [primary]
    assert paid(differing, group=(auditor,)) == []
    assert paid(differing, outcome=Outcome.UNRESOLVED, group=()) == [], "the market ran out"
    at_its_limit = replace(
        differing,
        order=replace(body.order, message=replace(body.order.message, max_executions=Small(2))),
    )
    assert paid(at_its_limit, outcome=Outcome.UNRESOLVED, group=()) == [primary]
    assert paid(body, outcome=Outcome.CANNOT_VERIFY, group=()) == [primary]


@pytest.mark.rule("5.103")
def test_who_could_not_be_heard_during_a_restart_is_not_silent() -> None:
    """Heartbeats are old after a restart. A draw waits for new ones, and skips nobody meanwhile."""
    market = Market(*[Party(number) for number in range(5)])
    job_id = market.order(0, 1)
    market.until(job_id, AwaitingRound)
    market.at += market.core.rules.limits.heartbeat_alive + 1
    market.send(ev.Restarted())
    (wanted,) = market.core.rounds_wanted()
    market.appears(wanted)
    assert not market.core.state.jobs[job_id].phase.skipped  # type: ignore[union-attr]
    market.until_decided(job_id)
    assert market.verdict(job_id).outcome is Outcome.ACCEPTED
    assert not [skip for batch in market.job(job_id).batches for skip in batch.skips]
