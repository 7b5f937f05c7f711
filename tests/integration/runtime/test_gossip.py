"""The `Gossip` port: libp2p and the hub in memory keep the same promises."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from quorate_protocol.messages.ports import GOSSIP_BYTES_MAX, Gossip, Verdict
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.clock import SystemClock
from support.p2p.memory_gossip import MemoryGossipHub
from support.peer_sites import eventually
from support.requirements import require

NAMES = (b"ada", b"bob", b"eve")


@dataclass
class Topic:
    """Three members that are connected to each other."""

    ada: Gossip
    bob: Gossip
    eve: Gossip
    name_of_ada: str  # as a forwarder


@asynccontextmanager
async def libp2p_topic() -> AsyncIterator[Topic]:
    from quorate_protocol.codec.peer_ids import peer_id
    from quorate_protocol.units import Seconds
    from quorate_runtime.p2p.libp2p_gossip import Libp2pGossip
    from support.p2p.p2p_nodes import TOPIC, node_of, nodes_up

    nodes = [node_of(name, TOPIC) for name in NAMES]
    async with nodes_up(*nodes), AsyncExitStack() as stack:
        for number, node in enumerate(nodes):
            for other in nodes[:number]:
                await node.connect(other.address, Seconds(10))
        members = [Libp2pGossip(node) for node in nodes]
        for member in members:
            stack.push_async_callback(member.close)
        yield Topic(*members, peer_id(nodes[0].peer_key))


@pytest.fixture(params=["libp2p", "memory"])
async def topic(request: pytest.FixtureRequest) -> AsyncIterator[Topic]:
    if request.param == "libp2p":
        require("libp2p")
        async with libp2p_topic() as found:
            yield found
    else:
        async with MemoryGossipHub(SystemClock()) as hub:
            ada, bob, eve = (hub.join(name.decode()) for name in NAMES)
            yield Topic(ada, bob, eve, "ada")


def accept(data: bytes, forwarder: str) -> Verdict:
    return Verdict.ACCEPT


async def retried(publish: Callable[[], Awaitable[None]]) -> None:
    """Publishes as soon as a neighbour listens."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await publish()
            except Unavailable as failure:
                await asyncio.sleep(failure.retry_after / 20)


async def test_message_reaches_all_others_once(topic: Topic) -> None:
    own = topic.ada.subscribe(accept)
    others = [topic.bob.subscribe(accept), topic.eve.subscribe(accept)]
    for number in range(5):
        await retried(lambda n=number: topic.ada.publish(b"%d" % n))  # type: ignore[misc]
    for other in others:
        async with asyncio.timeout(20):
            found = [await anext(other) for _ in range(5)]
        assert sorted(found) == [b"0", b"1", b"2", b"3", b"4"]
    await retried(lambda: topic.bob.publish(b"last"))
    async with asyncio.timeout(20):
        assert await anext(own) == b"last", "and not its own messages"


async def test_sender_need_not_listen(topic: Topic) -> None:
    heard = topic.bob.subscribe(accept)
    await retried(lambda: topic.ada.publish(b"x"))
    async with asyncio.timeout(20):
        assert await anext(heard) == b"x"


async def test_nobody_listens(topic: Topic) -> None:
    with pytest.raises(Unavailable, match="no neighbour listens"):
        await topic.ada.publish(b"x")


async def test_validator_decides_what_is_heard_and_sees_who_passed_it_on(topic: Topic) -> None:
    seen: list[tuple[bytes, str]] = []

    def validate(data: bytes, forwarder: str) -> Verdict:
        seen.append((data, forwarder))
        if data == b"bug":
            raise ZeroDivisionError
        return Verdict(data.decode())

    heard = topic.bob.subscribe(validate)
    for data in (b"ignore", b"reject", b"bug", b"accept"):
        await retried(lambda d=data: topic.ada.publish(d))  # type: ignore[misc]
    async with asyncio.timeout(20):
        assert await anext(heard) == b"accept"
    await eventually(lambda: len(seen) >= 4)
    assert {data for data, _ in seen} == {b"ignore", b"reject", b"bug", b"accept"}
    assert {forwarder for _, forwarder in seen} == {topic.name_of_ada}


async def test_message_has_at_most_eight_kibibytes(topic: Topic) -> None:
    heard = topic.bob.subscribe(accept)
    await retried(lambda: topic.ada.publish(bytes(GOSSIP_BYTES_MAX)))
    async with asyncio.timeout(20):
        assert await anext(heard) == bytes(GOSSIP_BYTES_MAX)
    with pytest.raises(Refused) as refused:
        await topic.ada.publish(bytes(GOSSIP_BYTES_MAX + 1))
    assert refused.value.code is Code.OVERSIZE


async def test_closed_subscription_ends(topic: Topic) -> None:
    heard = topic.bob.subscribe(accept)
    await retried(lambda: topic.ada.publish(b"x"))
    async with asyncio.timeout(20):
        assert await anext(heard) == b"x"
        await topic.bob.close()
        assert [data async for data in heard] == []
