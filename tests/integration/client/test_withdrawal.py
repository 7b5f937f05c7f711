"""`quorate withdraw` on a real devnet chain: money comes out once, and vouchers stay payable."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from quorate.client.client_ledger import OrderRecord
from quorate.client.money.withdrawal import WithdrawalFlow
from quorate.client.session import ignore_notice
from quorate.client.signed_requests import draft_order
from quorate.errors import RefusedError, UsageError
from quorate.job.job import Job
from quorate.job.packing import pack
from quorate_protocol.limits import USD
from quorate_protocol.units import Address, Amount, Bps, Hash32, Nonce
from quorate_runtime.clock import SystemClock
from support.chain.client_money import ClientMoney, client_money

JOB = Job(image="python@sha256:" + "0" * 64, command=("true",), max_price="1", max_duration="1h")
SAFE = Address(b"\x77" * 20)
DEPOSIT = Amount(50 * USD)


def flow_of(market: ClientMoney, said: list[str] | None = None) -> WithdrawalFlow:
    """Returns what a new process of `quorate withdraw` would work with."""
    notice = ignore_notice if said is None else said.append
    return WithdrawalFlow(market.chain, market.profile, market.ledger, SystemClock(), notice)


def order(market: ClientMoney, number: int) -> OrderRecord:
    """Records an order that the coordinator may still charge."""
    spec = pack(JOB, {}).spec
    client, coordinator = market.profile.account.address, market.identity.coordinator
    draft = draft_order(JOB, spec, client, coordinator, Bps(200))
    signed = draft.stamped(Nonce(number << 70), SystemClock().now())
    job_id = Hash32(bytes([number]) * 32)
    entry = OrderRecord(
        job_id, "job", signed, spec.encode(), b"session", 1, None, None, None, draft.reserved
    )
    market.ledger.record(entry)
    return entry


def vouch(market: ClientMoney, number: int, charged: int) -> None:
    """Signs a voucher for one more order."""
    market.ledger.settle(order(market, number).job_id, Amount(charged))
    coordinator = market.identity.coordinator
    account, lead = market.profile.account.address, Amount(0)
    assert market.ledger.draft_voucher(account, coordinator, lead, DEPOSIT, DEPOSIT)


@pytest.mark.rule("4.38", "4.39")
async def test_money_comes_out_and_what_is_promised_stays(tmp_path: Path) -> None:
    async with client_money(tmp_path, DEPOSIT) as market:
        vouch(market, 1, 3 * USD)
        open_order = order(market, 2)
        promised = 3 * USD + open_order.reserved
        record = await flow_of(market).begin(None, SAFE)
        assert record.amount == DEPOSIT - promised
        for _ in range(2):  # the command is repeated too early
            state = await flow_of(market).advance(record)
            assert state.paid is None
            assert state.ready_at >= (await market.node.client.head()).time + 50
        with pytest.raises(UsageError, match="is under way"):
            await flow_of(market).begin(Amount(USD), SAFE)

        await market.later(61)
        again = await flow_of(market).begin(None, None)
        state = await flow_of(market).advance(again)
        assert again == record and state.paid == DEPOSIT - promised
        assert await market.chain.ask(market.chain.token.balance_of(SAFE)) == state.paid
        left = (await flow_of(market).balances()).coordinators[0]
        assert left.left == promised and left.withdrawable == 0
        assert len(await market.events("WithdrawalRequested")) == 1
        with pytest.raises(RefusedError, match=r"at most 0\.00 USD .* 3\.00 USD is owed"):
            await flow_of(market).begin(None, None)


@pytest.mark.rule("4.39")
async def test_withdrawal_that_was_killed_is_announced_once(tmp_path: Path) -> None:
    async with client_money(tmp_path, DEPOSIT) as market:
        record = await flow_of(market).begin(Amount(20 * USD), None)
        killed = asyncio.create_task(flow_of(market).advance(record))
        while not await flow_of(market)._sender.known(f"{record.id}/announce"):
            await asyncio.sleep(0.01)
        killed.cancel()
        await asyncio.gather(killed, return_exceptions=True)
        assert await flow_of(market).begin(Amount(20 * USD), None) == record
        await flow_of(market).advance(record)
        await market.later(61)
        state = await flow_of(market).advance(record)
        assert state.paid == 20 * USD
        for name in ("WithdrawalRequested", "ReleaseRequested", "Withdrawn", "Released"):
            assert len(await market.events(name)) == 1, name
        # A profile that was restored from an older backup finds that nothing is under way.
        assert (await flow_of(market).advance(record)).paid == 20 * USD


@pytest.mark.rule("4.38")
async def test_voucher_that_was_signed_after_the_announcement_stays_payable(tmp_path: Path) -> None:
    async with client_money(tmp_path, DEPOSIT) as market:
        record = await flow_of(market).begin(None, None)
        await flow_of(market).advance(record)
        vouch(market, 1, 4 * USD)
        await market.later(61)
        said: list[str] = []
        state = await flow_of(market, said).advance(record)
        assert state.paid is None and "only 46.00 USD is released" in said[0]
        await market.later(61)
        state = await flow_of(market).advance(record)
        assert state.paid == 46 * USD
        assert (await flow_of(market).balances()).coordinators[0].left == 4 * USD


async def test_withdrawal_from_another_machine_is_continued(tmp_path: Path) -> None:
    async with client_money(tmp_path, DEPOSIT) as market:
        record = await flow_of(market).begin(Amount(5 * USD), None)
        await flow_of(market).advance(record)
        market.ledger.end_withdrawal(record)  # as if this ledger had never known of it
        found = await flow_of(market).begin(None, None)
        assert found == replace(record, id=found.id, is_announced=True)
        await market.later(61)
        assert (await flow_of(market).advance(found)).paid == 5 * USD
        assert len(await market.events("WithdrawalRequested")) == 1
