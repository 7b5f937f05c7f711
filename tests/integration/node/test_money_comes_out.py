"""The owner's stake and earnings come out, whatever is killed in between."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from quorate_contracts.calls import ask
from quorate_node.base.config import Config
from quorate_node.cli.departure import Departure, JobsLeft, free_surplus, leave
from quorate_node.cli.owner_desk import OwnerDesk, earnings, owner_desk
from quorate_node.cli.withdrawal import FILE, withdraw
from quorate_node.daemon import ProviderDaemon
from quorate_node.owner import leaving, stake_classes
from quorate_node.owner.account_state import stake_slots
from quorate_node.owner.senders import owner_lock
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import DEVNET, USD
from quorate_protocol.messages import frames
from quorate_protocol.messages.offer import WITHDRAWN
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import ZERO_ADDRESS, Address, Amount, Hash32
from quorate_protocol.values import replace
from quorate_runtime.clock import SystemClock
from quorate_runtime.process import crash_points
from support.markets.scripted_coordinator import OWNER, Stage, running, until

FRIEND = Address(b"\x12" * 20)
QUIET = JobsLeft(True)


async def travel(market: Stage, seconds: int) -> None:
    head = await market.client.head()
    await market.client.rpc.request("evm_mine", hex(head.time + seconds))


async def leave_now(market: Stage, config: Config, jobs: JobsLeft = QUIET) -> Departure:
    async with owner_desk(config, market.keys(), SystemClock()) as desk, market.fast():
        return await leave(desk, jobs)


async def tokens_of(market: Stage, account: Address) -> int:
    return await ask(market.client, market.contracts.token.balance_of(account))


def with_slots(daemon: ProviderDaemon, slots: int) -> ProviderDaemon:
    daemon.config = replace(daemon.config, slots=slots)
    return daemon


def cpu_class(daemon: ProviderDaemon) -> Hash32:
    assert daemon.core is not None
    return daemon.core.terms.slots[0].pool.id()


async def opened(market: Stage, pool: Hash32) -> list[bool]:
    slots = await stake_slots(market.client, market.contracts, OWNER.address, pool)
    return [not slot.back_at for slot in slots]


async def test_leaving_provider_gets_its_stake_back_and_never_stakes_again(market: Stage) -> None:
    before = await tokens_of(market, OWNER.address)
    async with running(market, market.daemon(market.coordinator.url)) as daemon:
        config, pool = daemon.config, cpu_class(daemon)
    assert await tokens_of(market, OWNER.address) == before - 100 * USD
    leaving.begin_leaving(config.home)
    for jobs in (JobsLeft(is_known=False), JobsLeft(True, jobs=1, until=7), JobsLeft(True, 0, 1)):
        waiting = await leave_now(market, config, jobs)
        assert not waiting.done and not waiting.is_over and len(waiting.waits) == 1
    assert await opened(market, pool) == [True], "no slot is closed while a job may run"

    closed = await leave_now(market, config)
    assert closed.done == ("sent close slot",) and not closed.is_over
    [wait] = closed.waits
    head = await market.client.head()
    assert head.time < wait.until <= head.time + DEVNET.unbond_after and "100.00 USD" in wait.what
    assert not (await leave_now(market, config)).done, "typed again too early it sends nothing"

    await travel(market, DEVNET.unbond_after)
    left = await leave_now(market, config)
    assert left.is_over and left.tokens == before == await tokens_of(market, OWNER.address)
    assert (await leave_now(market, config)).is_over

    task = asyncio.create_task(market.daemon(market.coordinator.url).run())

    def is_withdrawn() -> bool | None:
        sent = market.coordinator.got(frames.OfferSent)
        return (bool(sent) and sent[-1].offer.offer.expires == WITHDRAWN) or None

    await until(is_withdrawn)
    task.cancel()
    assert await tokens_of(market, OWNER.address) == before


async def test_owner_whose_key_is_elsewhere_is_told_which_calls_to_make(market: Stage) -> None:
    async with running(market, market.daemon(market.coordinator.url)) as daemon:
        config, pool = daemon.config, cpu_class(daemon)
    keys = dataclasses.replace(market.keys(), owner=None)
    async with owner_desk(config, keys, SystemClock()) as desk:
        found = await leave(desk, QUIET)
        assert [call.split(" of ")[0] for call in found.calls] == [f"close_slot(0x{pool.hex()}, 0)"]
        assert not found.done and not found.is_over
        sent = await withdraw(desk, FRIEND, Amount(5))
        [call] = sent.calls
        assert call.startswith(f"transfer(0x{FRIEND.hex()}, 5) of 0x")


async def test_fewer_slots_free_stake_at_the_next_start(market: Stage) -> None:
    before = await tokens_of(market, OWNER.address)
    url = market.coordinator.url
    async with running(market, with_slots(market.daemon(url), 3)) as daemon:
        pool = cpu_class(daemon)
        assert await opened(market, pool) == [True] * 3
    async with running(market, with_slots(market.daemon(url), 1)), market.fast():

        async def closed() -> bool:
            return sorted(await opened(market, pool)) == [False, False, True]

        while not await closed():
            await asyncio.sleep(0.05)
    await travel(market, DEVNET.unbond_after)
    async with running(market, with_slots(market.daemon(url), 1)), market.fast():
        while await tokens_of(market, OWNER.address) != before - 100 * USD:
            await asyncio.sleep(0.05)
    assert await opened(market, pool) == [True]


async def test_stake_that_no_run_slot_uses_is_freed(market: Stage) -> None:
    """For example that of GPU slots which the owner no longer wants."""
    url = market.coordinator.url
    async with running(market, with_slots(market.daemon(url), 3)) as daemon:
        config, pool = daemon.config, cpu_class(daemon)
    async with owner_desk(config, market.keys(), SystemClock()) as desk, market.fast():
        for jobs in (
            JobsLeft(is_known=False),
            JobsLeft(True, 3, 0, 7, {pool: 3}, {pool: 2}),
            JobsLeft(True, 0, 0, 0, {}, {pool: 3}),
        ):
            assert not (await free_surplus(desk, jobs)).done
        found = await free_surplus(desk, JobsLeft(True, 2, 0, 7, {pool: 2}, {pool: 2}))
        assert found.done == ("sent close slot",)
        found = await free_surplus(desk, JobsLeft(True))
        assert found.done == ("sent close slot (2 times)",), "of a class that is not offered now"
    assert not leaving.is_leaving(config.home)


async def test_stake_in_an_old_host_class_is_freed(market: Stage) -> None:
    """Pools took the place of host classes. The home remembers where it had staked."""
    old, c = hash_tuple("cpu", "x86_64", "v3", "AuthenticAMD"), market.contracts
    async with running(market, market.daemon(market.coordinator.url)) as daemon:
        config, pool = daemon.config, cpu_class(daemon)
    approval = c.token.approve(c.stakes.address, Amount(100 * USD))
    await market.send(OWNER, "old", approval, c.stakes.open_slots(old, 1))
    stake_classes.remember(config.home, [old])
    async with owner_desk(config, market.keys(), SystemClock()) as desk, market.fast():
        found = await free_surplus(desk, JobsLeft(True, offered={pool: 1}))
        assert found.done == ("sent close slot",)
        assert (await opened(market, old), await opened(market, pool)) == ([False], [True])
        before = await tokens_of(market, OWNER.address)
        await travel(market, DEVNET.unbond_after)
        found = await free_surplus(desk, JobsLeft(True, offered={pool: 1}))
        assert found.done == ("sent unbond slot",)
    assert await tokens_of(market, OWNER.address) == before + 100 * USD


async def test_stake_that_is_whole_is_not_topped_up(market: Stage) -> None:
    async with (
        running(market, market.daemon(market.coordinator.url)) as daemon,
        owner_desk(daemon.config, market.keys(), SystemClock()) as desk,
    ):
        assert (await desk.state()).lacks == 0 and await desk.top_up() == (0, [])


async def test_withdrawal_that_was_killed_is_sent_once(
    market: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(market, market.daemon(market.coordinator.url)) as daemon:
        config = daemon.config

    async def once(desk: OwnerDesk) -> tuple[str, ...]:
        async with market.fast():
            return (await withdraw(desk, FRIEND, Amount(5 * USD))).done

    class Killed(Exception):
        """The process ends here."""

    def kill(name: str, event: object = None) -> None:
        if name == "chain.after-send":
            raise Killed

    async with owner_desk(config, market.keys(), SystemClock()) as desk:
        with monkeypatch.context() as patch:
            patch.setattr(crash_points, "crash_point", kill)
            patch.setattr("quorate_runtime.chain.sender.crash_point", kill)
            with pytest.raises(Killed):
                await once(desk)
        assert (config.home / FILE).exists()
        assert await once(desk) == (f"sent 5.00 USD to 0x{FRIEND.hex()}",)
        assert await tokens_of(market, FRIEND) == 5 * USD
        await once(desk)
        assert await tokens_of(market, FRIEND) == 10 * USD, "a new command sends again"
        with pytest.raises(Refused, match="the wallet 0x") as refused:
            await withdraw(desk, FRIEND, Amount(10**12))
        assert refused.value.code is Code.BAD_AMOUNT
        with (
            owner_lock(config.home),
            pytest.raises(Unavailable, match="another command or the daemon sends"),
        ):
            await once(desk)


@pytest.mark.rule("6.63", "6.87")
async def test_withdraw_redeems_draws_and_empties_the_balance(market: Stage) -> None:
    """It takes the newest voucher from the daemon's status. Pay that only a payroll can bring
    waits, and keeps nobody from leaving.
    """
    escrow, token = market.contracts.escrow, market.contracts.token
    async with running(market, market.daemon(market.coordinator.url)) as daemon:
        config = daemon.config
        await market.coordinator.send(market.voucher(Amount(150)))
        await until(lambda: [item for item in earnings(config.home) if item.voucher] or None)
    async with market.fast():
        await market.open_tab("tab", Amount(100))
        pocket = token.approve(escrow.address, Amount(9)), escrow.deposit(Amount(9), ZERO_ADDRESS)
        await market.send(OWNER, "pocket", *pocket)
    before = await tokens_of(market, OWNER.address)
    async with owner_desk(config, market.keys(), SystemClock()) as desk, market.fast():
        found = await withdraw(desk, None, None)
        collected, emptied = found.done
        assert collected.startswith("collected 0.0001 USD from coordinator 0x")
        assert emptied.startswith("withdrew 0.000009 USD of your balance in Escrow")
        assert await tokens_of(market, OWNER.address) == before + 109
        [wait] = found.waits
        assert wait.what.startswith("0.00005 USD wait for the next payroll of coordinator 0x")
        assert not (await withdraw(desk, None, None)).done
        leaving.begin_leaving(config.home)
        await leave(desk, QUIET)
        await travel(market, DEVNET.unbond_after)
        left = await leave(desk, QUIET)
        assert left.is_over and [item.what for item in left.behind] == [wait.what]


async def test_chain_that_is_away_is_named(market: Stage, tmp_path: Path) -> None:
    async with running(market, market.daemon(market.coordinator.url)) as daemon:
        config = replace(daemon.config, chain_url="http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="127.0.0.1:9"):
        await leave_now(market, config)
