"""What the client signs for: vouchers follow the evidence, sessions and nonces are shared."""

import pytest

from quorate.client.client_ledger import Ledger
from quorate.client.market import Market
from quorate.client.profile import Profile
from quorate.errors import EvidenceError, UsageError
from quorate_protocol.rules import settlement
from quorate_protocol.units import Amount, Bps, Label
from quorate_protocol.values import replace
from support.markets.client_jobs import job, until
from support.markets.fake_market import Cheat, FakeMarket


async def test_the_signed_order_matches_the_plan(fake: FakeMarket, profile: Profile) -> None:
    async with Market(profile) as market:
        plan = await market.plan(job(budget="1"))
        run = await market.submit(job(budget="1"), plan)
        order = fake.jobs[run.job_id].submission.order.message
        assert order.max_fee_bps == plan.view.fee_bps and order.budget == plan.budget
        worst = settlement.worst_charge(order, Label.QUORUM_2, 60, order.max_fee_bps)
        assert worst == plan.worst_charge, (
            "no fee that may still be chosen makes it dearer than was shown"
        )
        fake.cheat = Cheat(plan_fee=0)
        with pytest.raises(EvidenceError, match="its fee as 0 bps in the plan but 500"):
            await market.plan(job())


async def test_a_changed_fee_is_read_again(fake: FakeMarket, profile: Profile) -> None:
    """Once every plan failed after a fee change until the program was restarted."""
    async with Market(profile) as market:
        told = market.info
        market.info = replace(
            told, fee_bps=Bps(told.fee_bps - 100)
        )  # as it was when the program began
        plan = await market.plan(job())
        assert plan.view.fee_bps == market.info.fee_bps == told.fee_bps
        run = await market.submit(job(), plan)
        assert (
            fake.jobs[run.job_id].submission.order.message.budget
            == plan.budget
            == plan.worst_charge
        )


@pytest.mark.rule("6.9")
async def test_the_voucher_covers_exactly_what_the_evidence_allows(
    fake: FakeMarket, profile: Profile
) -> None:
    async with Market(profile) as market:
        for run in [await market.submit(job()) for _ in range(3)]:
            await run.result()
        orders = [item.submission.order.message for item in fake.jobs.values()]
        pay = 2 * (7_200 * 300_000 // 3_600_000)
        assert fake.charged == 3 * (pay + pay * 500 // 10_000)
        await until(lambda: fake.vouched == fake.charged)
    last = fake.vouchers[-1].message
    assert last.cumulative == fake.charged
    assert last.nonce_floor == max(order.nonce for order in orders) + 1
    assert [v.message.cumulative for v in fake.vouchers] == sorted(
        v.message.cumulative for v in fake.vouchers
    )


@pytest.mark.rule("7.1")
async def test_an_overcharge_is_reported_and_not_signed(fake: FakeMarket, profile: Profile) -> None:
    fake.cheat = Cheat(charge_extra=1_000)
    notices: list[str] = []
    async with Market(profile, notice=notices.append) as market:
        result = await (await market.submit(job())).result()
        await until(lambda: fake.vouched > 0)
    assert fake.vouched == fake.charged - 1_000 == result.charged
    assert any("charge" in notice for notice in notices)


async def test_a_voucher_of_an_ending_session_is_sent_again_under_a_new_one(
    fake: FakeMarket, profile: Profile
) -> None:
    fake.cheat = Cheat(is_session_ending=True)
    async with Market(profile) as market:
        await (await market.submit(job())).result()
        await until(lambda: fake.vouched == fake.charged > 0)
    assert fake.posts["POST sessions"] == 1 and fake.posts["POST vouchers"] == 2


@pytest.mark.rule("4.32")
async def test_a_charge_checked_before_a_kill_is_vouched_for_at_the_next_contact(
    fake: FakeMarket, profile: Profile
) -> None:
    """Once a kill between charge and voucher delayed the voucher until the next charge, and
    providers waited for their pay.
    """
    fake.auto_finish = False
    async with Market(profile) as market:
        run = await market.submit(job())
    fake.jobs[run.job_id].hold.set()
    await until(lambda: fake.jobs[run.job_id].verdict is not None)
    books = Ledger(profile.ledger_path)
    books.settle(run.job_id, fake.charged)
    books.close()
    async with Market(profile) as market:
        await market.attach()
        await until(lambda: fake.vouched == fake.charged > 0)


async def test_a_copied_profile_is_told_that_its_vouchers_are_stale(
    fake: FakeMarket, profile: Profile
) -> None:
    """Once a stale voucher was taken for another program's, so the user never learned of it and
    providers waited for their pay.
    """
    notices: list[str] = []
    async with Market(profile, notice=notices.append) as market:
        fake.vouched = Amount(10**9)  # what the other copy has signed
        await (await market.submit(job())).result()
        await until(lambda: any("profile was copied" in notice for notice in notices))


@pytest.mark.rule("4.32")
async def test_another_program_of_the_profile_settles_open_runs(
    fake: FakeMarket, profile: Profile
) -> None:
    fake.auto_finish = False
    async with Market(profile) as market:
        run = await market.submit(job())
    next(iter(fake.jobs.values())).hold.set()
    await until(lambda: next(iter(fake.jobs.values())).verdict is not None)
    assert not fake.vouchers
    async with Market(profile) as market:
        again = await market.run(run.id[:12])
        await again.result()
        await until(lambda: fake.vouched == fake.charged)


async def test_sessions_are_shared_and_nonces_grow(fake: FakeMarket, profile: Profile) -> None:
    async with Market(profile) as market:
        for run in [await market.submit(job()) for _ in range(4)]:
            await run.result()
    orders = [item.submission for item in fake.jobs.values()]
    assert len({item.session.sig for item in orders}) == 1
    nonces = [item.order.message.nonce for item in orders]
    assert nonces == sorted(set(nonces))
    session = orders[0].session.message
    assert session.up_to >= sum(item.order.message.budget for item in orders)


async def test_budget_must_cover_the_worst_case(fake: FakeMarket, profile: Profile) -> None:
    async with Market(profile) as market:
        with pytest.raises(UsageError, match="budget"):
            await market.plan(job(budget="0.001"))
        plan = await market.plan(job())
        await market.submit(job())
    order = next(iter(fake.jobs.values())).submission.order.message
    assert (
        order.budget
        == plan.budget
        == settlement.worst_charge(
            order, fake.jobs[next(iter(fake.jobs))].ack.message.rule, 60, 500
        )
    )  # type: ignore[arg-type]
