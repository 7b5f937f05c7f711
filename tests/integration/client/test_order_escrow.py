"""An order's own escrow on a devnet chain: funded once, taken back if nobody earned it."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from quorate.base.errors import RefusedError, UsageError
from quorate.client.base.client_ledger import OrderRecord
from quorate.client.base.signed_requests import draft_order, job_id_of
from quorate.client.money.balances import read_balances
from quorate.client.money.chain_url import remember_chain_url
from quorate.client.money.funding import fund
from quorate.client.money.order_escrow import check_balance, fund_order, reclaim
from quorate.job.job import Job
from quorate.job.packing import pack
from quorate_protocol.codec import canonical
from quorate_protocol.limits import USD
from quorate_protocol.units import Amount, Bps, Nonce, UnixSeconds
from quorate_runtime.clock import SystemClock
from support.chain.client_money import COORDINATOR, ClientMoney, client_money

JOB = Job(
    image="python@sha256:" + "0" * 64, command=("true",), max_price="1", budget="5", escrow=True
)
BALANCE, BUDGET = Amount(8 * USD), 5 * USD
CLOCK = SystemClock()


async def recorded(money: ClientMoney, seconds: int) -> OrderRecord:
    """Records an order as `place_order` does, with an escrow of so many seconds."""
    spec = pack(JOB, {}).spec
    client, now = money.profile.account.address, (await money.node.client.head()).time
    draft = draft_order(JOB, spec, client, COORDINATOR.address, Bps(200))
    order = draft.stamped(Nonce(1 << 70), now)
    job_id, until = job_id_of(money.identity.domain, order), UnixSeconds(now + seconds)
    row = (job_id, "job", order, spec.encode(), b"session", 1, None, None, None)
    entry = OrderRecord(*row, reserved=draft.reserved, funded_until=until)
    assert money.ledger.record(entry) and draft.reserved == 0
    return entry


async def funded(money: ClientMoney, entry: OrderRecord) -> None:
    await fund_order(money.profile, money.identity, money.chain.url, CLOCK, entry)


@pytest.mark.rule("6.74", "6.79")
async def test_a_budget_is_funded_once_and_comes_back_after_its_time(tmp_path: Path) -> None:
    async with client_money(tmp_path, Amount(USD)) as money:
        profile, identity, url = money.profile, money.identity, money.chain.url
        profile.pins_path.write_bytes(canonical.encode(identity))
        remember_chain_url(profile.home, url)
        account = profile.account.address
        with pytest.raises(RefusedError, match="--into-balance"):
            await check_balance(identity, url, account, BALANCE)
        await fund(profile, identity, url, BALANCE, "a", CLOCK, into_balance=True, mint=True)
        await check_balance(identity, url, account, BALANCE)
        entry = await recorded(money, 90)
        killed = asyncio.create_task(funded(money, entry))
        sender = money.chain.sender(profile.account, profile.home, CLOCK)
        while not await sender.known(f"fund/{entry.job_id.hex()}/0"):
            await asyncio.sleep(0.01)
        killed.cancel()
        await asyncio.gather(killed, return_exceptions=True)
        await funded(money, entry)
        found = await read_balances(money.chain, account, money.ledger)
        assert found.balance == BALANCE - BUDGET and [each.budget for each in found.funded] == [
            BUDGET
        ]
        assert len(await money.events("Funded")) == 1

        digits = entry.job_id.hex()[:8]
        with pytest.raises(RefusedError, match="executions can be shown until"):
            await reclaim(profile, money.ledger, CLOCK, digits)
        await money.later(100)
        assert "in your balance" in await reclaim(profile, money.ledger, CLOCK, digits)
        with pytest.raises(UsageError, match="no order"):
            await reclaim(profile, money.ledger, CLOCK, digits)
        found = await read_balances(money.chain, account, money.ledger)
        assert found.balance == BALANCE and not found.funded


async def test_an_order_whose_funding_never_arrived_is_dropped_after_its_time(
    tmp_path: Path,
) -> None:
    async with client_money(tmp_path, Amount(USD)) as money:
        money.profile.pins_path.write_bytes(canonical.encode(money.identity))
        remember_chain_url(money.profile.home, money.chain.url)
        entry = await recorded(money, 90)
        with pytest.raises(RefusedError, match="holds nothing yet"):
            await reclaim(money.profile, money.ledger, CLOCK, entry.name)
        await money.later(100)
        assert "never funded" in await reclaim(money.profile, money.ledger, CLOCK, entry.name)


def test_only_results_that_are_compared_byte_by_byte_have_an_escrow() -> None:
    with pytest.raises(UsageError, match="leave accept_unverified and"):
        replace(JOB, accept_unverified=True)
