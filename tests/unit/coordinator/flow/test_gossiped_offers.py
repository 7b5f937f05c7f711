"""Offers by gossip: in the book without a connection, never matched without one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from quorate_coordinator.core.model import events as ev
from quorate_coordinator.core.model.entities import Provider, Running
from quorate_coordinator.market.gossiped_offers import SNAPSHOT_SECONDS, GossipedOffers
from quorate_protocol.codec.hashing import hash_tuple
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages import offer_gossip
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import OfferEnvelope, validate
from quorate_protocol.messages.offer_gossip import OfferGossip
from quorate_protocol.messages.ports import Verdict
from quorate_protocol.messages.signed import Heartbeat
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.rules.offer_gate import OFFERS_BURST
from quorate_protocol.units import Address, BlockNumber, Sequence, UnixSeconds
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner, recover
from support.markets.scripted_market import CPUS, DOMAIN, Market
from support.offers import a_slot, an_offer
from support.p2p.memory_gossip import MemoryGossip, MemoryGossipHub
from support.virtual_clock import VirtualClock, run_virtual

OWNER, OPERATOR = KeySigner(b"\x61" * 32).address, KeySigner(b"\x62" * 32)
STRANGER = KeySigner(b"\x63" * 32)


class Gossiped:
    """A coordinator that hears gossip, a registered provider that is not connected to it, and the
    member of the topic who passes messages on.
    """

    def __init__(self, clock: VirtualClock, hub: MemoryGossipHub) -> None:
        self.clock, self.hub, self.market = clock, hub, Market()
        self.member: MemoryGossip = hub.join("forwarder")
        self.clock.forward(max(0.0, self.market.at - clock.now()))
        self.market.at = int(clock.now())
        self.offers = GossipedOffers(
            hub.join("coordinator"), self.market.core.state, DOMAIN, DEVNET, clock, self.take
        )
        self.taken: list[OfferEnvelope] = []
        self.is_busy = False
        self.open_slots(1)

    def open_slots(self, first: int) -> None:
        """Registers the provider with one more stake slot."""
        note = ev.ChainProviderRegistered(OWNER, OPERATOR.address, OWNER, hash_tuple("net"))
        slot = ev.ChainSlotOpened(CPUS.id(), first - 1, OWNER, BlockNumber(1))
        self.market.chain_says(*((note, slot) if first == 1 else (slot,)))

    async def take(self, envelope: OfferEnvelope) -> None:
        """Takes an offer as the frame handler does."""
        if self.is_busy:
            raise Unavailable("effects wait to be performed", 1.0)
        key = validate(envelope, DOMAIN, recover, UnixSeconds(self.market.at), DEVNET.offer_ttl)
        self.taken.append(envelope)
        self.market.send(ev.OfferReceived(envelope, key))

    async def publish(
        self, seq: int = 1, slots: int = 1, key: KeySigner = OPERATOR, owner: Address = OWNER
    ) -> None:
        """Publishes an offer, and lets it arrive."""
        expires = int(self.clock.now()) + 800
        offer = an_offer(owner, seq, expires, (a_slot(CPUS, 100_000, slots),))
        envelope = OfferEnvelope(offer, seal(DOMAIN, offer.signed(), key.sign))
        await self.member.publish(offer_gossip.encode(OfferGossip(envelope)))
        await self.clock.sleep(0.1)

    def verdicts(self) -> dict[Verdict, int]:
        """How often the coordinator gave each verdict."""
        return {verdict: count for (_, verdict), count in self.hub.verdicts.items()}

    @property
    def provider(self) -> Provider:
        """The provider as the core knows it."""
        return self.market.core.state.providers[OWNER]

    def heartbeat(self) -> None:
        """What the provider sends over a connection of its own."""
        beat = Heartbeat(OWNER, Sequence(self.market.at), (), (), UnixSeconds(self.market.at))
        self.market.send(ev.HeartbeatReceived(seal(DOMAIN, beat, OPERATOR.sign), OPERATOR.address))


@asynccontextmanager
async def gossiped(clock: VirtualClock) -> AsyncIterator[Gossiped]:
    async with MemoryGossipHub(clock) as hub:
        stage = Gossiped(clock, hub)
        tasks = [
            asyncio.create_task(stage.offers.run()),
            asyncio.create_task(stage.offers.refresh()),
        ]
        await clock.sleep(SNAPSHOT_SECONDS + 0.1)
        yield stage
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends


def on_stage(test: Callable[[Gossiped], Awaitable[None]]) -> None:
    async def main(clock: VirtualClock) -> None:
        async with gossiped(clock) as stage:
            await test(stage)

    run_virtual(main, VirtualClock(2_000.0))


@pytest.mark.rule("3.54")
def test_gossiped_offer_is_in_the_book_and_is_matched_only_after_a_heartbeat() -> None:
    async def test(stage: Gossiped) -> None:
        await stage.publish()
        market = stage.market
        assert stage.provider.offer is not None and len(stage.taken) == 1
        assert not stage.provider.is_alive(UnixSeconds(market.at))
        with pytest.raises(Refused, match="no provider is alive"):
            market.order(0, 1, accept_unverified=True)
        stage.heartbeat()
        job = market.order(0, 2, accept_unverified=True)
        assert isinstance(market.job(job).phase, Running)

    on_stage(test)


@pytest.mark.rule("3.50", "3.54")
def test_offers_of_strangers_and_forgers_do_not_reach_the_core() -> None:
    async def test(stage: Gossiped) -> None:
        await stage.publish(key=STRANGER)
        await stage.publish(key=STRANGER, owner=STRANGER.address)
        await stage.publish(slots=2)
        assert stage.taken == [] and stage.verdicts() == {Verdict.IGNORE: 3}
        await stage.member.publish(b"{}")
        await stage.clock.sleep(0.1)
        assert stage.verdicts()[Verdict.REJECT] == 1

    on_stage(test)


@pytest.mark.rule("3.50")
def test_rates_are_charged_to_the_owner_and_not_to_the_forwarder() -> None:
    async def test(stage: Gossiped) -> None:
        for seq in range(1, int(OFFERS_BURST) + 10):
            await stage.publish(seq)
        assert 0 < len(stage.taken) <= OFFERS_BURST + 1
        for number in range(1, 50):
            await stage.publish(seq=number, key=STRANGER)
        await stage.clock.sleep(60)
        stage.market.at = int(stage.clock.now())
        before = len(stage.taken)
        await stage.publish(seq=100)
        assert len(stage.taken) == before + 1, "the same forwarder brings a good offer"

    on_stage(test)


@pytest.mark.rule("3.50")
def test_stake_of_new_blocks_counts_for_gossip() -> None:
    async def test(stage: Gossiped) -> None:
        await stage.publish(slots=2)
        assert stage.taken == []
        stage.open_slots(2)
        await stage.clock.sleep(SNAPSHOT_SECONDS + 0.1)
        await stage.publish(slots=2)
        assert len(stage.taken) == 1

    on_stage(test)


def test_an_offer_that_finds_the_coordinator_busy_does_not_end_the_intake() -> None:
    async def test(stage: Gossiped) -> None:
        stage.is_busy = True
        await stage.publish(seq=1)
        stage.is_busy = False
        assert stage.taken == []
        await stage.publish(seq=2)
        assert len(stage.taken) == 1

    on_stage(test)


def test_an_offer_that_the_core_refuses_does_not_end_the_intake() -> None:
    async def test(stage: Gossiped) -> None:
        # The core has taken a newer offer over a connection, of which the gate does not know.
        await stage.publish(seq=1)
        newer = replace(stage.taken[0].offer, seq=Sequence(5))
        envelope = OfferEnvelope(newer, seal(DOMAIN, newer.signed(), OPERATOR.sign))
        stage.market.send(ev.OfferReceived(envelope, OPERATOR.address))
        await stage.publish(seq=2)
        assert stage.provider.offer == newer
        await stage.publish(seq=6)
        assert stage.provider.offer is not None and stage.provider.offer.seq == 6

    on_stage(test)
