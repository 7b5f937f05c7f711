"""A provider without stake goes on offer, and its daemon stakes what it has earned."""

import asyncio

import pytest

from quorate_contracts.calls import ask
from quorate_node import market_entry
from quorate_node.daemon import ProviderDaemon
from quorate_node.owner.account_state import stake_slots
from quorate_node.owner.registration import is_staked
from quorate_protocol.limits import USD
from quorate_protocol.messages import frames
from quorate_protocol.units import Address, Amount
from quorate_protocol.values import replace
from support.markets.scripted_coordinator import COORDINATOR, OWNER, Stage, running, until

SHORT = Amount(99 * USD)
ELSEWHERE = Address(b"\x13" * 20)


def on_probation(market: Stage, **changes: object) -> ProviderDaemon:
    daemon = market.daemon(market.coordinator.url)
    daemon.config = replace(daemon.config, probation=True, **changes)  # type: ignore[arg-type]
    return daemon


async def leave_only(market: Stage, amount: Amount) -> None:
    token = market.contracts.token
    held = await ask(market.client, token.balance_of(OWNER.address))
    async with market.fast():
        await market.send(OWNER, "away", token.transfer(ELSEWHERE, Amount(held - amount)))


async def open_slots(market: Stage, daemon: ProviderDaemon) -> int:
    assert daemon.core is not None
    pool = daemon.core.terms.slots[0].pool.id()
    found = await stake_slots(market.client, market.contracts, OWNER.address, pool)
    return len(found)


@pytest.mark.rule("5.92")
async def test_pay_becomes_the_first_stake_slot(
    market: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(market_entry, "PROBATION_SECONDS", 0.2)
    await leave_only(market, SHORT)
    async with running(market, on_probation(market)) as daemon:
        offer = await market.coordinator.first(frames.OfferSent)
        assert [slot.count for slot in offer.offer.offer.slots] == [1]
        assert await open_slots(market, daemon) == 0 and not is_staked(daemon.config)
        assert not daemon.board.has("stake"), "it is on offer all the same"
        earned = market.contracts.token.transfer(OWNER.address, Amount(USD))
        async with market.fast():
            await market.send(COORDINATOR, "pay", earned)
            await until(lambda: True if is_staked(daemon.config) else None, 30)
        assert await open_slots(market, daemon) == 1
        left = await ask(market.client, market.contracts.token.balance_of(OWNER.address))
        assert left == 0


@pytest.mark.rule("5.92")
async def test_more_than_one_run_slot_needs_stake(market: Stage) -> None:
    await leave_only(market, SHORT)
    daemon = on_probation(market, slots=2)
    task = asyncio.create_task(daemon.run())
    try:
        async with market.fast():
            await until(lambda: True if daemon.board.has("stake") else None, 40)
        [problem] = [item for item in daemon.board.problems() if item.name == "stake"]
        assert "2 run slots, and without stake one may be offered" in problem.text
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
