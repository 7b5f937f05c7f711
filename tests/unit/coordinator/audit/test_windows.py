"""Tests the audit window: held pay becomes final after W further jobs of its provider.

Small jobs, and many jobs of one client, count only in part.
"""

import pytest

from quorate_coordinator.core.audit import trust, windows
from quorate_coordinator.core.coordinator_core import CoordinatorCore, on_tick
from quorate_coordinator.core.model.entities import Decided
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.limits import DEVNET, MAINNET
from quorate_protocol.rules.hold_window import Window, after_job, window_jobs
from quorate_protocol.units import (
    PPM_ONE,
    ZERO_HASH,
    Address,
    Hash32,
    Label,
    Price,
    UnixSeconds,
    VerifyTier,
)
from quorate_protocol.values import replace
from support.markets.large_market import LargeMarket

CLIENTS = [Address(bytes([number]) * 20) for number in range(1, 9)]
MEDIAN = Price(100)


def after(*jobs: tuple[Address, int], length: int = 8) -> Window:
    window = Window()
    for client, price in jobs:
        window = after_job(window, client, Price(price), MEDIAN, length)
    return window


@pytest.mark.rule("5.8")
def test_a_tiny_job_advances_the_window_by_a_tiny_part() -> None:
    assert after((CLIENTS[0], 100)).progress_ppm == PPM_ONE
    assert after((CLIENTS[0], 5_000)).progress_ppm == PPM_ONE, "never more than one job a job"
    assert after((CLIENTS[0], 1)).progress_ppm == PPM_ONE // 100
    assert after_job(Window(), CLIENTS[0], Price(1), Price(0), 8).progress_ppm == PPM_ONE, (
        "without an offer there is no median"
    )


@pytest.mark.rule("5.9")
def test_one_client_is_at_most_a_quarter_once_four_were_served() -> None:
    """If all of eight jobs come from one client, two of them count. Three clients may still be a
    provider's only clients.
    """
    four = [(client, 100) for client in CLIENTS[:4]]
    known = after(*four, *four)
    assert known.progress_ppm == 8 * PPM_ONE and known.served == 0, "a stretch is over"
    window = known
    for _ in range(8):
        window = after_job(window, CLIENTS[5], Price(100), MEDIAN, 8)
    assert window.progress_ppm - known.progress_ppm == 2 * PPM_ONE
    alone = after(*[(CLIENTS[0], 100)] * 20)
    assert alone.progress_ppm == 20 * PPM_ONE


@pytest.mark.rule("5.47")
def test_the_window_length_is_that_of_the_tier_or_of_the_deployment() -> None:
    assert [
        window_jobs(tier, MAINNET)
        for tier in (VerifyTier.LEAN, VerifyTier.STANDARD, VerifyTier.STRICT)
    ] == [400, 200, 400]
    assert window_jobs(VerifyTier.LEAN, DEVNET) == 5


def run_until_held(market: LargeMarket, number: int) -> Hash32 | None:
    """Runs one more job until its verdict. Returns its id if its pay is held, else None."""
    job_id = market.order(number % 2, number, accept_unwitnessed=True)
    for _ in range(60):
        job = market.core.state.jobs.get(job_id)
        if job is None or isinstance(job.phase, Decided):
            break
        market.beat()
    return job_id if job_id in market.core.state.held else None


@pytest.fixture
def market() -> LargeMarket:
    made = LargeMarket()
    first = made.order(0, 1, accept_unwitnessed=True)
    made.trust_all(made.job(first))
    assert made.job(first).ack.message.rule is Label.ADAPTIVE
    made.until_decided(first)
    return made


@pytest.mark.rule("5.26", "5.47")
def test_a_held_job_is_final_after_w_further_ones_long_before_its_time(market: LargeMarket) -> None:
    state = market.core.state
    held_at: dict[Hash32, tuple[Address, int]] = {}
    finals: list[int] = []
    for number in range(2, 120):
        job_id = run_until_held(market, number)
        if job_id is not None:
            hold = state.held[job_id]
            assert (
                hold.ends_at - state.windows[hold.owner].by_class[hold.trust_class].progress_ppm
                == 5 * PPM_ONE
            )
            held_at[job_id] = (hold.owner, hold.ends_at)
        market.beat()
        for passed in [item for item in held_at if item not in state.held]:
            owner, ends_at = held_at.pop(passed)
            (window,) = state.windows[owner].by_class.values()
            assert window.progress_ppm >= ends_at, "not before"
            finals.append(number)
            over = market.archive.run(passed)
            lines = state.events.get(passed) or (over.lines if over is not None else ())
            assert [line.name for line in lines].count("confirmed") == 1
        if len(finals) >= 3:
            break
    assert len(finals) >= 3, "W further jobs were served"
    for job_id, (owner, ends_at) in held_at.items():
        (window,) = state.windows[owner].by_class.values()
        assert window.progress_ppm < ends_at, (
            f"{job_id.hex()} is held although W further jobs were served"
        )


@pytest.mark.rule("5.58")
def test_a_tick_and_a_restart_lose_no_held_job_that_became_final(market: LargeMarket) -> None:
    """A restored core makes the same jobs final. Jobs beyond what one tick handles wait for the
    next tick.
    """
    state = market.core.state
    ran = [run_until_held(market, number) for number in range(2, 40)]
    left = [job_id for job_id in ran if job_id is not None and job_id in state.held][:2]
    assert left, "some of them are held still"
    with state.transaction():
        for job_id in left:
            state.held[job_id] = replace(state.held[job_id], ends_at=0)
    taken = market.core.snapshot()
    again = CoordinatorCore(market.core.rules)
    again.restore(taken)
    for core in (market.core, again):
        found = [job.id for job in windows.HoldQueue(core.state).over(1)]
        assert len(found) == min(1, len(left))
        passing = windows.HoldQueue(core.state)
        with core.state.transaction():
            context = StepContext(core.state, core.rules, UnixSeconds(market.at), ZERO_HASH)
            on_tick(context, core.queue, passing)
        assert not any(job_id in core.state.held for job_id in left)
    assert market.core.snapshot() == again.snapshot()


def test_an_order_of_another_tier_does_not_restart_the_window() -> None:
    """A critical order has no W. Such an order once reset its client's share of the window."""
    market = LargeMarket()
    market.until_decided(market.order(0, 1))
    job = next(iter(market.core.state.jobs.values()))
    order = replace(
        job.submission.order,
        message=replace(job.submission.order.message, verify_tier=VerifyTier.CRITICAL),
    )
    critical = replace(job, submission=replace(job.submission, order=order))
    primary = market.core.state.leases[job.batches[0].members[0]]
    context = StepContext(
        market.core.state,
        replace(market.core.rules, limits=MAINNET),
        UnixSeconds(market.at),
        ZERO_HASH,
    )
    with market.core.state.transaction():
        for _ in range(3):
            windows.advance(context, critical, primary)
    window = market.core.state.windows[primary.provider].by_class[trust.trust_class_of(job)]
    assert window.served >= 3 and window.shares
