"""The `Peers` port: WebSocket, libp2p and the hub in memory keep the same promises."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from quorate_protocol.limits import FRAME_BYTES_MAX
from quorate_protocol.messages.ports import Peers
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Seconds
from quorate_runtime.clock import SystemClock
from quorate_runtime.peers.channel import INFLIGHT_MAX
from support.p2p.memory_peers import MemoryHub
from support.peer_sites import (
    ADA,
    BOB,
    EVE,
    SERVER,
    SIGNERS,
    TIMEOUT,
    EchoHandler,
    Site,
    eventually,
    running,
)
from support.requirements import require


@dataclass
class Network:
    """A server and the peers that dialed it."""

    server: Peers
    handler: EchoHandler
    dialers: dict[Address, tuple[Peers, EchoHandler]]


@pytest.fixture(params=["ws", "libp2p", "memory"])
async def network(request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    handlers = {account: EchoHandler(b"dialer") for account in (ADA, BOB)}
    if request.param == "memory":
        async with MemoryHub(SystemClock()) as hub:
            handler = EchoHandler(b"server")
            yield Network(
                hub.join(SERVER, handler.handle),
                handler,
                {a: (hub.join(a, d.handle), d) for a, d in handlers.items()},
            )
        return
    if request.param == "libp2p":
        require("libp2p")
        async with libp2p_network(handlers) as found:
            yield found
        return
    site = Site(EchoHandler(b"server"))
    await site.start()
    dialers = {account: site.dialer(account, handler) for account, handler in handlers.items()}
    async with running(*dialers.values()):
        await eventually(
            lambda: (
                site.peers.connected() == {ADA, BOB}
                and all(d.connected() for d in dialers.values())
            )
        )
        yield Network(site.peers, site.handler, {a: (dialers[a], handlers[a]) for a in dialers})
    await site.stop()


@asynccontextmanager
async def libp2p_network(handlers: dict[Address, EchoHandler]) -> AsyncIterator[Network]:
    from support.p2p.p2p_nodes import P2pSite, greeter_of, node_of, nodes_up, seed_of

    site = P2pSite(EchoHandler(b"server"))
    nodes = {account: node_of(account) for account in handlers}
    async with nodes_up(site.node, *nodes.values()):
        dialers = {
            a: site.dialer(nodes[a], a, h, greeter_of(a, seed_of(a), SIGNERS[a]))
            for a, h in handlers.items()
        }
        async with running(*dialers.values()):
            await eventually(
                lambda: (
                    site.peers.connected() == set(handlers)
                    and all(d.connected() for d in dialers.values())
                )
            )
            yield Network(site.peers, site.handler, {a: (dialers[a], handlers[a]) for a in dialers})
            await site.peers.close()


async def test_both_sides_can_ask_and_see_the_sender(network: Network) -> None:
    ada, handler = network.dialers[ADA]
    assert await ada.request(SERVER, b"hello", TIMEOUT) == b"server:hello"
    assert await network.server.request(ADA, b"run", TIMEOUT) == b"dialer:run"
    assert network.handler.seen == [("0x" + ADA.hex(), b"hello")] and handler.seen == [
        ("0x" + SERVER.hex(), b"run")
    ]
    assert SERVER in ada.connected() and {ADA, BOB} <= network.server.connected()


async def test_refusals_and_failures_are_raised_at_the_sender_of_the_request(
    network: Network,
) -> None:
    ada, _ = network.dialers[ADA]
    with pytest.raises(Refused) as refused:
        await ada.request(SERVER, b"refuse", TIMEOUT)
    assert (refused.value.code, refused.value.detail) == (Code.EXPIRED, "too old: é")
    with pytest.raises(Unavailable, match="disk full") as failed:
        await network.server.request(ADA, b"fail", TIMEOUT)
    assert failed.value.retry_after == 2.5
    assert await ada.request(SERVER, b"next", TIMEOUT) == b"server:next"


async def test_answers_match_their_requests(network: Network) -> None:
    async def ask(peers: Peers, to: Address, frame: bytes) -> bytes:
        return await peers.request(to, frame, TIMEOUT)

    ada, bob = network.dialers[ADA][0], network.dialers[BOB][0]
    slow = asyncio.create_task(ask(ada, SERVER, b"wait"))
    questions = [b"%d" % n for n in range(INFLIGHT_MAX - 10)]
    answers = await asyncio.gather(*(ask(p, SERVER, q) for q in questions for p in (ada, bob)))
    assert answers == [b"server:" + q for q in questions for _ in range(2)]
    network.handler.released.set()
    assert await slow == b"server:wait"


async def test_peer_that_does_not_answer_is_unavailable_after_the_deadline(
    network: Network,
) -> None:
    ada, _ = network.dialers[ADA]
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="did not answer within 1 s"):
        await ada.request(SERVER, b"silence", Seconds(1))
    assert time.monotonic() - begun > 0.9
    assert await ada.request(SERVER, b"still there", TIMEOUT) == b"server:still there"


async def test_unknown_peer_is_unavailable(network: Network) -> None:
    for peers in (network.server, network.dialers[ADA][0]):
        with pytest.raises(Unavailable, match="not connected"):
            await peers.request(EVE, b"x", TIMEOUT)


async def test_frame_has_at_most_one_mebibyte(network: Network) -> None:
    ada, _ = network.dialers[ADA]
    answer = await ada.request(SERVER, bytes(FRAME_BYTES_MAX), TIMEOUT)
    assert len(answer) > FRAME_BYTES_MAX - 2000
    with pytest.raises(Refused) as refused:
        await ada.request(SERVER, bytes(FRAME_BYTES_MAX + 1), TIMEOUT)
    assert refused.value.code is Code.OVERSIZE


async def test_closed_peer_is_not_connected(network: Network) -> None:
    ada, _ = network.dialers[ADA]
    await ada.close()
    await eventually(lambda: not ada.connected() and ADA not in network.server.connected())
    with pytest.raises(Unavailable):
        await ada.request(SERVER, b"x", TIMEOUT)
    with pytest.raises(Unavailable):
        await network.server.request(ADA, b"x", TIMEOUT)
