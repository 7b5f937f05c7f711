"""`quorate withdraw` on a real devnet chain: money comes out once, and vouchers stay payable."""

import asyncio
from pathlib import Path

import pytest

from quorate.base.errors import RefusedError, UsageError
from quorate.client.base.client_ledger import OrderRecord
from quorate.client.base.session import ignore_notice
from quorate.client.base.signed_requests import draft_order
from quorate.client.money.withdrawal import GiveBack, WithdrawalFlow
from quorate.job.job import Job
from quorate.job.packing import pack
from quorate.trust.settlement_check import PAYROLL, REDEMPTION, Settlement, read_settlement
from quorate_contracts.calls import ask
from quorate_contracts.encodings import pairs, read_pair
from quorate_contracts.encodings import session as shown_session
from quorate_contracts.encodings import voucher as shown_voucher
from quorate_protocol.limits import USD
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.signed import Session, Voucher
from quorate_protocol.units import ZERO_HASH, Address, Amount, Bps, Hash32, Nonce, UnixSeconds
from quorate_runtime.clock import SystemClock
from support.chain.client_money import COORDINATOR, ClientMoney, client_money

JOB = Job(image="python@sha256:" + "0" * 64, command=("true",), max_price="1", max_duration="1h")
SAFE = Address(b"\x77" * 20)
DEPOSIT = Amount(50 * USD)
CLOSE = 61  # seconds after which a client's tab has ended


def flow_of(
    market: ClientMoney, give_back: GiveBack | None = None, said: list[str] | None = None
) -> WithdrawalFlow:
    """Returns what a new process of `quorate withdraw` would work with."""
    notice = ignore_notice if said is None else said.append
    known = market.profile, market.ledger, SystemClock()
    return WithdrawalFlow(market.chain, *known, notice, give_back)


def giving(market: ClientMoney, at_most: int) -> GiveBack:
    """Returns a coordinator that gives back so much at most, and does it."""

    async def give_back(amount: Amount) -> Amount:
        given = Amount(min(amount, at_most))
        if given:
            account = market.profile.account.address
            call = market.chain.escrow.give_back(account, COORDINATOR.address, given)
            await market.call_as_coordinator(call)
        return given

    return give_back


def order(market: ClientMoney, number: int) -> OrderRecord:
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


def vouch(market: ClientMoney, number: int, charged: int) -> Voucher:
    market.ledger.settle(order(market, number).job_id, Amount(charged))
    coordinator = market.identity.coordinator
    account, lead = market.profile.account.address, Amount(0)
    signed = market.ledger.draft_voucher(account, coordinator, lead, DEPOSIT, DEPOSIT)
    assert signed is not None
    return signed


async def redeem(market: ClientMoney, voucher: Voucher, root: Hash32 = ZERO_HASH) -> Hash32:
    profile, domain = market.profile, market.identity.domain
    until = UnixSeconds((await market.node.client.head()).time + 1_000)
    key, account = profile.session.address, profile.account.address
    session = Session(account, key, voucher.payee, DEPOSIT, until)
    sessions = [shown_session(seal(domain, session, profile.account.sign))]
    vouchers = [shown_voucher(seal(domain, voucher, profile.session.sign))]
    call = market.chain.escrow.redeem(voucher.payee, root, sessions, vouchers)
    return await market.call_as_coordinator(call)


@pytest.mark.rule("6.89")
async def test_what_the_coordinator_gives_back_is_paid_at_once(tmp_path: Path) -> None:
    async with client_money(tmp_path, DEPOSIT) as market:
        vouch(market, 1, 3 * USD)
        promised = 3 * USD + order(market, 2).reserved
        flow = flow_of(market, giving(market, DEPOSIT))
        record = await flow.begin(None, SAFE)
        assert record.amount == DEPOSIT - promised
        state = await flow.advance(record)
        assert state.paid == DEPOSIT - promised
        assert await ask(market.chain.client, market.chain.token.balance_of(SAFE)) == state.paid
        left = (await flow.balances()).coordinators[0]
        assert left.free == promised and left.withdrawable == 0 and not left.tab.closes_at
        with pytest.raises(RefusedError, match=r"at most 0\.00 USD .* 3\.00 USD is promised"):
            await flow.begin(None, None)


@pytest.mark.rule("6.72", "6.89")
@pytest.mark.parametrize("given", [None, 4 * USD])
async def test_a_tab_whose_payee_gives_back_too_little_is_closed(
    tmp_path: Path, given: int | None
) -> None:
    async with client_money(tmp_path, DEPOSIT) as market:
        voucher = vouch(market, 1, 3 * USD)
        give_back = None if given is None else giving(market, given)
        record = await flow_of(market).begin(Amount(20 * USD), None)
        for _ in range(2):  # the command is repeated too early
            state = await flow_of(market, give_back).advance(record)
            assert state.paid is None
            assert state.ready_at >= (await market.node.client.head()).time + CLOSE - 5
        with pytest.raises(UsageError, match="is under way"):
            await flow_of(market).begin(Amount(USD), SAFE)
        await redeem(market, voucher)
        await market.later(CLOSE)
        assert await flow_of(market).begin(None, None) == record
        state = await flow_of(market).advance(record)
        assert state.paid == 20 * USD and len(await market.events("Closing")) == 1
        found = await flow_of(market).balances()
        assert found.balance == 27 * USD and found.coordinators[0].tab.paid == 3 * USD


async def test_withdrawal_that_was_killed_goes_on_and_sends_nothing_twice(tmp_path: Path) -> None:
    async with client_money(tmp_path, DEPOSIT) as market:
        record = await flow_of(market).begin(Amount(20 * USD), None)
        killed = asyncio.create_task(flow_of(market).advance(record))
        while not await flow_of(market)._sender.known(f"{record.id}/close/0"):
            await asyncio.sleep(0.01)
        killed.cancel()
        await asyncio.gather(killed, return_exceptions=True)
        assert await flow_of(market).begin(Amount(20 * USD), None) == record
        await flow_of(market).advance(record)
        await market.later(CLOSE)
        assert (await flow_of(market).advance(record)).paid == 20 * USD
        # A profile restored from an older backup finds what it sent before.
        assert (await flow_of(market).advance(record)).paid == 20 * USD
        for name in ("Closing", "Closed", "Withdrawn"):
            assert len(await market.events(name)) == 1, name


async def test_vouchers_may_take_what_was_to_be_withdrawn(tmp_path: Path) -> None:
    async with client_money(tmp_path, DEPOSIT) as market:
        record = await flow_of(market).begin(None, None)
        await flow_of(market).advance(record)
        await redeem(market, vouch(market, 1, DEPOSIT))
        await market.later(CLOSE)
        said: list[str] = []
        assert (await flow_of(market, said=said).advance(record)).paid == 0
        assert "nothing is left" in said[0]


@pytest.mark.rule("6.73")
async def test_a_stranger_reads_what_payrolls_and_redemptions_paid(tmp_path: Path) -> None:
    async with client_money(tmp_path, DEPOSIT) as market:
        escrow, root = market.chain.escrow, Hash32(b"\x05" * 32)
        owner, coordinator = Address(b"\x11" * 20), COORDINATOR.address
        pays = pairs([(owner, Amount(3 * USD)), (SAFE, Amount(USD))])
        call = escrow.payroll(coordinator, root, pays)
        sent = await market.call_as_coordinator(call, is_posting=True)
        client, made = market.node.client, market.deployment
        found = await read_settlement(client, made, sent)
        assert found == Settlement(PAYROLL, coordinator, root, dict(map(read_pair, pays)), True)
        sent = await redeem(market, vouch(market, 1, 2 * USD), root)
        paid = {market.profile.account.address: Amount(2 * USD)}
        found = await read_settlement(client, made, sent)
        assert found == Settlement(REDEMPTION, coordinator, root, paid, False)
        sent = await market.call_as_coordinator(escrow.set_limits(1, 1))
        with pytest.raises(RefusedError, match="no payroll and no redemption"):
            await read_settlement(client, made, sent)
