"""The provider's newest offer goes out by gossip, as soon as a neighbour takes it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from quorate_node.market.p2p_transport import OfferPublisher
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.messages import offer_gossip
from quorate_protocol.messages.classes import CPUS, Pool
from quorate_protocol.messages.envelope import seal
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.ports import Verdict
from quorate_protocol.units import Hash32, Small
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.markets.scripted_market import DOMAIN
from support.offers import a_slot, an_offer
from support.p2p.memory_gossip import MemoryGossipHub
from support.virtual_clock import VirtualClock, run_virtual

OPERATOR = KeySigner(b"\x01" * 32)


def offer(seq: int) -> OfferEnvelope:
    made = an_offer(OPERATOR.address, seq, 1_700_000_900, (a_slot(CPUS, 100_000),))
    return OfferEnvelope(made, seal(DOMAIN, made.signed(), OPERATOR.sign))


def attested_offer(seq: int, records: tuple[Hash32, ...]) -> OfferEnvelope:
    slots = tuple(
        replace(a_slot(pool, 100_000), attestation_level=Small(1), record=record)
        for pool, record in zip((CPUS, Pool("L40S", "", Small(1))), records, strict=False)
    )
    made = an_offer(OPERATOR.address, seq, 1_700_000_900, slots)
    return OfferEnvelope(made, seal(DOMAIN, made.signed(), OPERATOR.sign))


class Heard:
    """A neighbour that hears the topic."""

    def __init__(self, hub: MemoryGossipHub) -> None:
        self.seqs: list[int] = []
        self._messages = hub.join("neighbour").subscribe(lambda data, forwarder: Verdict.ACCEPT)

    async def run(self) -> None:
        async for data in self._messages:
            self.seqs.append(int(offer_gossip.decode(data).offer.offer.seq))


@asynccontextmanager
async def publishing(hub: MemoryGossipHub, clock: VirtualClock) -> AsyncIterator[OfferPublisher]:
    publisher = OfferPublisher(hub.join("provider"), clock)
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def on_hub(
    test: Callable[[OfferPublisher, MemoryGossipHub, VirtualClock], Awaitable[None]],
) -> None:
    async def main(clock: VirtualClock) -> None:
        async with MemoryGossipHub(clock) as hub, publishing(hub, clock) as publisher:
            await test(publisher, hub, clock)

    run_virtual(main)


def test_documents_that_slots_name_travel_with_the_offer_as_far_as_they_fit() -> None:
    async def test(publisher: OfferPublisher, hub: MemoryGossipHub, clock: VirtualClock) -> None:
        data = {sha256(item): item for item in (b"x" * 2_700, b"y" * 2_700)}
        small, large = data

        async def document(record: Hash32) -> bytes | None:
            return data.get(record)

        publisher.bind(document)
        messages = hub.join("neighbour").subscribe(lambda data, forwarder: Verdict.ACCEPT)
        for number, names in enumerate([(small,), (small, large), (Hash32(b"\x01" * 32),)]):
            publisher.put(attested_offer(number + 1, names))
            heard = offer_gossip.decode(await anext(messages))
            assert len(heard.records) == (1 if small in names else 0)
            assert all(sha256(item) in names for item in heard.records)

    on_hub(test)


def test_newest_offer_waits_for_the_first_neighbour() -> None:
    async def test(publisher: OfferPublisher, hub: MemoryGossipHub, clock: VirtualClock) -> None:
        publisher.put(offer(1))
        await clock.sleep(10)
        publisher.put(offer(2))
        await clock.sleep(10)
        heard = Heard(hub)
        reading = asyncio.create_task(heard.run())
        await clock.sleep(2)
        assert heard.seqs == [2], "older offers are not sent any more"
        publisher.put(offer(3))
        await clock.sleep(1)
        assert heard.seqs == [2, 3]
        await clock.sleep(100)
        assert heard.seqs == [2, 3], "each offer goes out once"
        reading.cancel()

    on_hub(test)
