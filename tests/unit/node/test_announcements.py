"""Offers and heartbeats to several coordinators, refreshes, and a price that changes."""

import asyncio
import itertools
from dataclasses import dataclass, field

import pytest

from quorate_node import periodic
from quorate_node.base.gpu_settings import GpuPrice
from quorate_node.base.operator_keys import OperatorKeys
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.core import events
from quorate_node.core.effects import SendOffer
from quorate_node.core.provider_core import OFFER_NUMBERS, ProviderCore
from quorate_node.core.terms import RunSlots
from quorate_node.market.announcements import Announcements, OfferDetails
from quorate_node.status.owner_requests import PriceChange
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import frames
from quorate_protocol.messages.classes import Pool
from quorate_protocol.messages.offer import WITHDRAWN, Offer
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import ZERO_HASH, Address, Price, Seconds, Sequence, Small, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import PeerKey
from support.markets.gpu_provider import PAIR, ROOM, gpu_driver, gpu_slots
from support.markets.provider_world import (
    COORDINATOR,
    OPERATOR,
    PROVIDER,
    STATEMENT_KEY,
    STRANGER,
    Driver,
    make_terms,
)
from support.offers import a_slot
from support.virtual_clock import VirtualClock, run_virtual

FIRST, SECOND = Address(b"\x21" * 20), Address(b"\x22" * 20)
ANSWER = frames.encode(frames.Ok())


@dataclass
class Connection:
    """A connection to one coordinator (`ports.Peers`). While it hangs, nothing is answered."""

    taken: list[frames.Frame] = field(default_factory=list)
    hangs: bool = False
    refusal: Refused | Unavailable | None = None

    async def request(self, peer: Address, frame: bytes, deadline: Seconds) -> bytes:
        if self.hangs:
            await asyncio.sleep(deadline)
            raise Unavailable("no answer", 1.0)
        if self.refusal is not None:
            raise self.refusal
        self.taken.append(frames.decode(frame))
        return ANSWER

    def connected(self) -> frozenset[Address]:
        """Not asked by these tests."""
        raise NotImplementedError

    async def close(self) -> None:
        """Holds nothing."""

    def offers(self) -> list[Offer]:
        return [item.offer.offer for item in self.taken if isinstance(item, frames.OfferSent)]

    def heartbeats(self) -> int:
        return sum(1 for item in self.taken if isinstance(item, frames.HeartbeatSent))


@dataclass
class Node:
    """A core with announcements to two coordinators, and the actor that the loops need."""

    clock: VirtualClock
    driver: Driver = field(default_factory=lambda: Driver(ProviderCore(make_terms())))
    first: Connection = field(default_factory=Connection)
    second: Connection = field(default_factory=Connection)
    journaled: list[events.Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        keys = ProviderKeys(PROVIDER, PROVIDER, OPERATOR, PeerKey(ZERO_HASH), ZERO_HASH, STRANGER)
        peers = {FIRST: self.first, SECOND: self.second}
        self.announcements = Announcements(self.core, peers, OperatorKeys(keys), self.clock)
        self.announcements.bind(OfferDetails(ZERO_HASH, "eu", ZERO_HASH, ZERO_HASH, ()))

    @property
    def core(self) -> ProviderCore:
        return self.driver.core

    async def submit(self, event: events.Event) -> object:
        """Steps an event and sends its offer, as actor and performer do."""
        self.journaled.append(event)
        self.driver.now = UnixSeconds(int(self.clock.now()))
        for effect in self.driver.do(event):
            if isinstance(effect, SendOffer):
                try:
                    newest = self.core.scalars.offer_seq
                    await self.announcements.send_offer(effect.seq, effect.expires, newest)
                except Unavailable:
                    pass  # the outbox would try again
        return None


@pytest.mark.rule("3.52")
def test_a_coordinator_that_does_not_answer_delays_no_other() -> None:
    async def main(clock: VirtualClock) -> None:
        node = Node(clock)
        node.first.hangs = True
        async with asyncio.timeout(60):
            task = asyncio.create_task(node.submit(events.OfferDue()))
            await asyncio.sleep(0.1)
            assert len(node.second.offers()) == 1
            await task
            beats = asyncio.create_task(node.announcements.send_heartbeat(()))
            await asyncio.sleep(0.1)
            assert node.second.heartbeats() >= 1
            assert await beats == 1

    run_virtual(main)


@pytest.mark.rule("3.52")
@pytest.mark.parametrize(
    "refusal",
    [Refused(Code.NOT_REGISTERED, ""), Refused(Code.OVER_STAKE, ""), Unavailable("away", 1.0)],
)
def test_only_the_coordinator_that_lacks_an_offer_gets_it_again(
    refusal: Refused | Unavailable,
) -> None:
    async def main(clock: VirtualClock) -> None:
        node, expires = Node(clock), UnixSeconds(int(clock.now()) + 900)
        node.first.refusal = refusal
        for _ in range(3):
            with pytest.raises(Unavailable):
                await node.announcements.send_offer(Sequence(1), expires, 1)
        assert len(node.second.offers()) == 1 and node.second.heartbeats() >= 1
        node.first.refusal = None
        await node.announcements.send_offer(Sequence(1), expires, 1)
        assert len(node.first.offers()) == len(node.second.offers()) == 1

    run_virtual(main)


@pytest.mark.rule("3.47")
def test_a_heartbeat_follows_the_first_offer_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        node = Node(clock)
        await node.submit(events.OfferDue())
        for connection in (node.first, node.second):
            kinds = [type(item).__name__ for item in connection.taken]
            assert kinds == ["OfferSent", "HeartbeatSent"]

    run_virtual(main)


@pytest.mark.rule("3.48")
@pytest.mark.parametrize("coordinators", [1, 2])
def test_several_coordinators_hear_soon_that_a_slot_was_taken(coordinators: int) -> None:
    async def main(clock: VirtualClock) -> None:
        keys = {COORDINATOR: STATEMENT_KEY.address, FIRST: STRANGER.address}
        chosen = dict(list(keys.items())[:coordinators])
        core = ProviderCore(replace(make_terms(), statement_keys=chosen))
        node = Node(clock, Driver(core))
        task = asyncio.create_task(periodic.send_heartbeats(core, node.announcements, clock))
        await asyncio.sleep(0.1)
        assert node.second.heartbeats() == 1
        node.driver.assign(1)
        await asyncio.sleep(1.1)
        assert node.second.heartbeats() == coordinators
        last = node.second.taken[-1]
        assert isinstance(last, frames.HeartbeatSent)
        assert [item.free for item in last.heartbeat.message.free_slots] == [2 - coordinators]
        await asyncio.sleep(10 * DEVNET.heartbeat_every)
        assert 10 <= node.second.heartbeats() <= 13
        task.cancel()

    run_virtual(main)


@pytest.mark.rule("3.46")
def test_a_provider_journals_its_first_offer_and_no_refresh() -> None:
    async def main(clock: VirtualClock) -> None:
        node = Node(clock)
        loop = periodic.renew_offer(node.core, node, node.announcements, clock)
        task = asyncio.create_task(loop)
        await asyncio.sleep(10 * DEVNET.offer_ttl)
        task.cancel()
        assert node.journaled == [events.OfferDue()]
        numbers = [offer.seq for offer in node.first.offers()]
        assert len(numbers) > 20 and numbers == sorted(set(numbers))
        assert numbers[0] == OFFER_NUMBERS and numbers[-1] < 2 * OFFER_NUMBERS
        ends = [offer.expires for offer in node.first.offers()]
        assert all(later - sooner < DEVNET.offer_ttl for sooner, later in itertools.pairwise(ends))
        restarted = Node(clock, Driver(node.core))
        await restarted.submit(events.OfferDue())
        assert restarted.first.offers()[0].seq > numbers[-1]

    run_virtual(main)


@pytest.mark.rule("3.46")
def test_a_refresh_is_sent_until_it_is_taken_and_not_while_draining() -> None:
    async def main(clock: VirtualClock) -> None:
        node = Node(clock)
        loop = periodic.renew_offer(node.core, node, node.announcements, clock)
        task = asyncio.create_task(loop)
        await asyncio.sleep(1)
        node.first.refusal = Unavailable("away", 1.0)
        while len(node.second.offers()) < 2:
            await asyncio.sleep(0.5)
        await asyncio.sleep(3)
        node.first.refusal = None
        await asyncio.sleep(5)
        assert [item.seq for item in node.first.offers()] == [
            item.seq for item in node.second.offers()
        ]
        await node.submit(events.DrainRequested(True))
        await node.submit(events.OfferDue())
        await asyncio.sleep(3 * DEVNET.offer_ttl)
        task.cancel()
        assert node.first.offers()[-1].expires == WITHDRAWN

    run_virtual(main)


async def test_a_new_price_is_journaled_and_offered() -> None:
    node, is_on_offer = Node(VirtualClock()), asyncio.Event()
    change = PriceChange(node.core, node, is_on_offer)
    await change.set_by_owner(Price(70_000))
    assert node.core.terms.slots[0].on_demand == 70_000 and not node.first.offers()
    is_on_offer.set()
    await change.set_by_owner(Price(80_000))
    assert [item.slots[0].on_demand for item in node.first.offers()] == [80_000]


@pytest.mark.parametrize("price", [0, 49_999, 10**12 + 1])
async def test_a_price_out_of_bounds_changes_nothing(price: int) -> None:
    node = Node(VirtualClock())
    before = node.core.snapshot()
    with pytest.raises(Refused, match="is not between 0.05 and") as caught:
        await PriceChange(node.core, node, asyncio.Event()).set_by_owner(Price(price))
    assert caught.value.code is Code.BAD_AMOUNT
    assert node.core.snapshot() == before and not node.journaled


async def test_a_new_price_of_gpus_changes_their_slots_alone() -> None:
    other = Pool("H100 SXM", "", Small(1))
    slots = (gpu_slots(PAIR, ("A", "B")), RunSlots(a_slot(other, 9), ROOM, (("C",),)))
    node = Node(VirtualClock(), gpu_driver(*slots))
    change = PriceChange(node.core, node, asyncio.Event(), (GpuPrice(Price(9), "H100"),))

    def prices() -> list[int]:
        return [int(slot.on_demand) for slot in node.core.terms.slots]

    await change.set_by_owner(Price(200_000), "all")
    assert prices()[1:] == [400_000, 9], "a slot of two costs twice; H100 has its own price"
    await change.set_by_owner(Price(300_000), "H100")
    assert prices()[1:] == [400_000, 300_000]
    await change.set_by_owner(Price(60_000))
    assert prices() == [60_000, 400_000, 300_000]
    with pytest.raises(Refused, match="no slot with a GPU called 'T4'"):
        await change.set_by_owner(Price(70_000), "T4")
    assert prices() == [60_000, 400_000, 300_000]
