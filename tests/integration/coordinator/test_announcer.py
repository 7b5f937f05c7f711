"""The coordinator announces its peer key and addresses on a real chain, and anybody lists them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from quorate_contracts.announced_coordinators import announced_coordinators, newest_announcement
from quorate_contracts.calls import transact
from quorate_contracts.deploy import Contracts
from quorate_coordinator.chain.registration import ensure_registered, is_registered
from quorate_coordinator.market.p2p_service import Announcer, BootstrapList, fitting
from quorate_protocol.refusals import Refused
from quorate_protocol.units import Address, Hash32, Seconds
from quorate_runtime.chain import ChainClient, Rpc, Sender
from quorate_runtime.clock import SystemClock
from quorate_runtime.p2p.host.host_config import PeerAddress
from support.markets.coordinator_stage import Stage

PEER = Hash32(b"\x07" * 32)
HOME, ROAD = ("/ip4/203.0.113.7/tcp/7701",), ("/ip4/203.0.113.8/tcp/7701", "/dns4/a.example/tcp/1")


class StoppingClock(SystemClock):
    """The host listens during the first sleep. The third one does not end."""

    def __init__(self, addresses: list[tuple[str, ...]]) -> None:
        self.addresses, self.sleeps = addresses, 0
        self.has_slept_thrice = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.addresses.append(HOME)
        self.sleeps += 1
        if self.sleeps >= 3:
            self.has_slept_thrice.set()
            await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def announcer_of(stage: Stage, addresses: list[tuple[str, ...]]) -> AsyncIterator[Announcer]:
    """Yields the task of a registered coordinator, as after a start. Its records are kept."""
    chain, contracts = (
        ChainClient(Rpc(stage.chain_url, stage.session)),
        Contracts.of(stage.deployment),
    )
    clock, chain_id = SystemClock(), stage.deployment.chain_id
    stage.home.mkdir(exist_ok=True)
    path = stage.home / "posting.sqlite"
    sender = Sender(chain, stage.keys.posting, path, clock, chain_id=chain_id)
    account = stage.keys.account
    try:
        owner = Sender(chain, account, stage.home / "owner.sqlite", clock, chain_id=chain_id)
        await ensure_registered(chain, contracts, stage.keys, owner)
        owner.close()
        yield Announcer(
            chain, contracts, sender, clock, account.address, PEER, lambda: addresses[-1]
        )
    finally:
        sender.close()


@pytest.mark.rule("3.53")
async def test_a_change_is_announced_once_and_a_restart_announces_nothing(stage: Stage) -> None:
    async with announcer_of(stage, [HOME]) as first:
        chain, contracts = first.client, first.contracts
        assert await newest_announcement(chain, contracts, first.coordinator) is None
        assert await announced_coordinators(chain, contracts) == ()
        assert await first.announce(HOME) and not await first.announce(HOME)
    async with announcer_of(stage, [HOME]) as again:
        assert not await again.announce(HOME)
        assert await again.announce(ROAD) and not await again.announce(ROAD)
        assert await again.announce(HOME), "a content that returns is announced again"
        [found] = await announced_coordinators(again.client, contracts)
        assert (found.account, found.peer_key, found.addresses) == (first.coordinator, PEER, HOME)


@pytest.mark.rule("3.53")
async def test_the_task_waits_for_addresses_and_for_the_chain(stage: Stage) -> None:
    addresses: list[tuple[str, ...]] = [()]
    async with announcer_of(stage, addresses) as announcer:
        announcer.clock = clock = StoppingClock(addresses)
        task = asyncio.create_task(announcer.run())
        async with asyncio.timeout(60):
            await clock.has_slept_thrice.wait()
        task.cancel()
        found = await newest_announcement(
            announcer.client, announcer.contracts, announcer.coordinator
        )
        assert found is not None and found.addresses == HOME


@pytest.mark.rule("3.53")
async def test_a_coordinator_that_left_is_not_listed(stage: Stage) -> None:
    async with announcer_of(stage, [HOME]) as announcer:
        await announcer.announce(HOME)
        leave = announcer.contracts.stakes.exit()
        await stage.send(stage.keys.account, leave)
        assert await announced_coordinators(announcer.client, announcer.contracts) == ()


@pytest.mark.rule("3.53")
async def test_other_coordinators_are_dialled_where_they_announced(stage: Stage) -> None:
    async with announcer_of(stage, [HOME]) as announcer:
        await announcer.announce((*ROAD, "/not/an/address"))

        async def peers(own: Address, is_devnet: bool) -> tuple[PeerAddress, ...]:
            found = BootstrapList(
                announcer.client, announcer.contracts, own, SystemClock(), Seconds(1), is_devnet
            )
            await found.read()
            return found.peers

        other = Address(b"\x09" * 20)
        assert await peers(other, is_devnet=True) == (PeerAddress(PEER, ROAD),)
        public = (PeerAddress(PEER, ROAD[1:]),)
        assert await peers(other, is_devnet=False) == public, "no address of a private network"
        assert await peers(announcer.coordinator, is_devnet=True) == (), "and not itself"


def test_only_addresses_that_fit_are_announced() -> None:
    long = "/dns4/" + "a" * 240 + "/tcp/1"
    assert fitting((long, long + "2", long, HOME[0])) == (long, long + "2")
    assert fitting(HOME * 5) == HOME * 4


async def test_a_registration_that_reverted_once_is_sent_again(stage: Stage) -> None:
    """Its record refused each later start."""
    chain = ChainClient(Rpc(stage.chain_url, stage.session))
    contracts, keys = Contracts.of(stage.deployment), stage.keys
    stage.home.mkdir(exist_ok=True)
    sender = Sender(
        chain,
        keys.account,
        stage.home / "owner.sqlite",
        SystemClock(),
        chain_id=stage.deployment.chain_id,
    )
    call = contracts.stakes.register_coordinator(keys.statement.address, keys.posting.address)
    with pytest.raises(Refused):
        await transact(sender, "register/0", call)  # its bond is not approved yet
    assert await sender.known("register/0")
    await ensure_registered(chain, contracts, keys, sender)
    assert await is_registered(chain, contracts, keys.account.address)
    sender.close()
