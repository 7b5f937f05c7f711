"""What the client signs for: vouchers follow the evidence, sessions and nonces are shared."""

import asyncio
import dataclasses
from typing import Any

import pytest

from quorate.base.errors import EvidenceError, RefusedError, UsageError
from quorate.client.base.profile import Profile
from quorate.client.market import Market
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Voucher
from quorate_protocol.rules import settlement
from quorate_protocol.units import Amount, Bps, Label, UnixSeconds
from quorate_protocol.values import replace
from support.markets.client_jobs import job, until
from support.markets.fake_market import Cheat, FakeMarket, key


async def test_the_signed_order_matches_the_plan(fake: FakeMarket, profile: Profile) -> None:
    async with Market(profile) as market:
        plan = await market.plan(job(budget="1"))
        run = await market.submit(job(budget="1"), plan)
        order = fake.jobs[run.job_id].submission.order.message
        assert order.max_fee_bps == plan.view.fee_bps and order.budget == plan.budget
        worst = settlement.worst_charge(order, Label.QUORUM_2, order.max_fee_bps)
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


@pytest.mark.rule("6.65")
async def test_vouchers_cover_what_orders_reserve_and_what_the_evidence_allows(
    fake: FakeMarket, profile: Profile
) -> None:
    async with Market(profile) as market:
        for run in [await market.submit(job()) for _ in range(3)]:
            await run.result()
        pay = 2 * (7_200 * 300_000 // 3_600_000)
        assert market.debt().charged == fake.charged == 3 * (pay + pay * 500 // 10_000)
        plan = await market.plan(job())
        assert plan.lead.in_use == 0 and plan.reserved == plan.worst_charge
    assert fake.vouched <= 3 * plan.reserved
    assert [v.message.cumulative for v in fake.vouchers] == sorted(
        v.message.cumulative for v in fake.vouchers
    )


@pytest.mark.rule("7.1")
async def test_an_overcharge_is_reported_and_not_signed(fake: FakeMarket, profile: Profile) -> None:
    fake.cheat = Cheat(charge_extra=1_000)
    notices: list[str] = []
    async with Market(profile, notice=notices.append) as market:
        result = await (await market.submit(job())).result()
        assert market.debt().charged == fake.charged - 1_000 == result.charged
        with pytest.raises(RefusedError, match="no-voucher"):
            await market.submit(job())
    assert any("charge" in notice for notice in notices)


async def test_a_voucher_of_an_ending_session_is_sent_again_under_a_new_one(
    fake: FakeMarket, profile: Profile
) -> None:
    fake.cheat = Cheat(is_session_ending=True)
    async with Market(profile) as market:
        await (await market.submit(job())).result()
    assert fake.posts["POST sessions"] == 2 and fake.posts["POST vouchers"] == 2


@pytest.mark.rule("4.32")
async def test_a_voucher_that_did_not_arrive_is_sent_at_the_next_contact(
    fake: FakeMarket, profile: Profile
) -> None:
    fake.auto_finish = False
    async with Market(profile) as market:
        await market.submit(job())
    signed = fake.vouchers.pop().message.cumulative
    fake.vouched = Amount(0)
    async with Market(profile) as market:
        await market.attach()
        await until(lambda: fake.vouched > 0)
    assert fake.vouched == signed


@pytest.mark.rule("4.75")
async def test_orders_beyond_the_lead_wait_until_runs_are_checked(
    fake: FakeMarket, profile: Profile
) -> None:
    fake.auto_finish = False
    notices: list[str] = []
    async with Market(profile) as market:
        reserved = (await market.plan(job())).reserved
    lent = dataclasses.replace(profile, lead=Amount(2 * reserved))
    async with Market(lent, notice=notices.append) as market:
        runs = asyncio.gather(*(market.submit(job()) for _ in range(3)))
        await until(lambda: len(fake.jobs) == 2 and any("lead" in one for one in notices))
        assert fake.vouched == 2 * reserved and not runs.done()
        fake.auto_finish = True
        for item in list(fake.jobs.values()):
            item.hold.set()
        for run in await runs:
            await run.result()
        assert fake.vouched <= market.debt().charged + 2 * reserved
    (notice,) = [one for one in notices if one.startswith("lead: ")]
    assert "the order waits until open runs end" in notice


@pytest.mark.rule("4.75")
async def test_a_job_above_the_lead_is_refused_before_anything_is_uploaded(
    fake: FakeMarket, profile: Profile
) -> None:
    small = dataclasses.replace(profile, lead=Amount(1_000))
    async with Market(small) as market:
        with pytest.raises(
            UsageError, match=r"at most 0\.001 USD ahead .*`quorate lead 0\.026248`"
        ):
            await market.submit(job())
        assert "too little" in (plan := await market.plan(job())).lead.text(plan.reserved)
    assert not fake.jobs and not fake.vouchers and "PUT content" not in fake.posts


@pytest.mark.rule("6.88")
async def test_a_restored_profile_goes_on_from_the_newest_voucher_of_its_key(
    fake: FakeMarket, profile: Profile
) -> None:
    """Once it signed lower sums, which the coordinator refused for ever."""
    notices: list[str] = []
    async with Market(profile) as market:
        await (await market.submit(job())).result()
    backup = profile.ledger_path.read_bytes()
    async with Market(profile) as market:
        await (await market.submit(job())).result()
        known = market.debt()
    profile.ledger_path.write_bytes(backup)
    async with Market(profile, notice=notices.append) as market:
        await (await market.submit(job())).result()
        assert any("profile was copied" in notice for notice in notices)
        assert market.debt().charged == fake.charged and market.debt().signed > known.signed
        stranger = Voucher(profile.account.address, market.info.coordinator, Amount(10**9))
        fake.vouchers.append(seal(fake.domain, stranger, key("a stranger").sign))
        await (await market.submit(job())).result()
        assert market.debt().signed < 10**9, "a stranger's voucher counts for nothing"


@pytest.mark.rule("6.72")
@pytest.mark.parametrize("state", [{"closes_at": UnixSeconds(2**40)}, {"locked": Amount(1)}])
async def test_nothing_is_signed_ahead_beyond_a_small_or_closing_tab(
    fake: FakeMarket, profile: Profile, state: dict[str, Any]
) -> None:
    for name, value in state.items():
        setattr(fake, name, value)
    async with Market(profile) as market:
        with pytest.raises(RefusedError, match="no-voucher"):
            await market.submit(job())
    assert fake.vouched <= 1


@pytest.mark.rule("4.32")
async def test_another_program_of_the_profile_settles_open_runs(
    fake: FakeMarket, profile: Profile
) -> None:
    fake.auto_finish = False
    async with Market(profile) as market:
        run = await market.submit(job())
    next(iter(fake.jobs.values())).hold.set()
    await until(lambda: next(iter(fake.jobs.values())).verdict is not None)
    async with Market(profile) as market:
        assert market.debt().promised and not market.debt().charged
        again = await market.run(run.id[:12])
        await again.result()
        assert market.debt().charged == fake.charged and not market.debt().promised


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
        == settlement.worst_charge(order, fake.jobs[next(iter(fake.jobs))].ack.message.rule, 500)
    )  # type: ignore[arg-type]
