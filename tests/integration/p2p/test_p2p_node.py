"""The supervisor of a libp2p host: stop, restart, ports, dialing, and calls across threads."""

import asyncio
import os
import threading
import time
from contextlib import suppress

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID

from quorate_protocol.codec.peer_ids import peer_id, peer_id_bytes
from quorate_protocol.messages.ports import Verdict
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Hash32, Seconds
from quorate_runtime.p2p.host.host_config import PeerAddress
from quorate_runtime.p2p.host.host_session import HostSession
from quorate_runtime.p2p.libp2p_gossip import Libp2pGossip
from support.p2p.p2p_nodes import TOPIC, node_of, nodes_up, seed_of
from support.peer_sites import eventually

pytestmark = pytest.mark.libp2p
DEADLINE = Seconds(20)


def sockets() -> set[str]:
    """Open sockets of this process. Those that an earlier test left may be closed meanwhile."""
    found = set()
    for entry in os.scandir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the folder's own, which is closed meanwhile
            found.add(os.readlink(entry.path))
    return {name for name in found if name.startswith("socket:")}


def threads() -> list[str]:
    """Threads of libp2p. Those of trio's own pool go later, by themselves."""
    return [
        thread.name
        for thread in threading.enumerate()
        if "libp2p" in thread.name or "_background_cleanup" in thread.name
    ]


async def test_stop_leaves_no_socket_and_no_thread() -> None:
    before = sockets()
    first, second = node_of(b"first", "topic"), node_of(b"second", "topic")
    async with nodes_up(first, second):
        await first.connect(second.address, DEADLINE)
        assert sockets() - before and len(threads()) == 4
    assert not sockets() - before and not threads()


async def test_crashed_host_is_restarted_with_its_key_and_port() -> None:
    node, other = node_of(b"first"), node_of(b"second")

    async def fail() -> None:
        raise RuntimeError("injected")

    async def crash(session: HostSession) -> None:
        session.nursery.start_soon(fail)

    async with nodes_up(node, other):
        before = node.address
        await node.call(crash, DEADLINE)
        await eventually(lambda: node.restarts == 1)
        await node.wait_until_up()
        assert node.address == before
        await other.connect(before, DEADLINE)


async def test_port_of_another_program_is_named_with_the_remedy() -> None:
    first = node_of(b"first")
    async with nodes_up(first):
        second = node_of(b"second", listen=first.address.addresses)
        with pytest.raises(ExceptionGroup) as raised:
            await second.run()
        (error,) = raised.value.exceptions
        assert isinstance(error, Unavailable)
        assert "cannot listen on /ip4/127.0.0.1/tcp/" in str(error)
        assert "choose another port" in str(error)


async def test_dialer_uses_the_address_that_answers_and_may_try_again_at_once() -> None:
    node, other = node_of(b"first", listen=()), node_of(b"second")
    async with nodes_up(node, other):
        (good,) = other.address.addresses
        closed = "/ip4/127.0.0.1/tcp/1"
        with pytest.raises(ConnectionError, match=f"no address answers: {closed}: "):
            await node.connect(PeerAddress(other.peer_key, (closed,)), DEADLINE)
        begun = time.monotonic()
        await node.connect(PeerAddress(other.peer_key, (closed, closed, good)), DEADLINE)
        assert time.monotonic() - begun < DEADLINE
        await node.connect(PeerAddress(other.peer_key, ()), DEADLINE)


async def test_peer_with_another_key_is_refused() -> None:
    node, other = node_of(b"first"), node_of(b"second")
    async with nodes_up(node, other):
        false = PeerAddress(Hash32(os.urandom(32)), other.address.addresses)
        with pytest.raises(ConnectionError):
            await node.open_stream(false, "/quorate/test/1", DEADLINE)
        with pytest.raises(ConnectionError, match="no stream of /quorate/test/1"):
            await node.open_stream(other.address, "/quorate/test/1", DEADLINE)


async def test_calls_end_at_their_deadline_when_cancelled_and_when_the_host_stops() -> None:
    node, seen = node_of(b"first"), []

    async def wait(session: HostSession) -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            seen.append("cancelled")
            raise

    async with nodes_up(node):
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            await node.call(wait, Seconds(1))
        assert time.monotonic() - begun < DEADLINE and seen == ["cancelled"]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await node.call(wait, DEADLINE)
        await eventually(lambda: seen == ["cancelled"] * 2)
        waiting = asyncio.create_task(node.call(wait, DEADLINE))
    with pytest.raises(ConnectionError):
        await waiting
    with pytest.raises(ConnectionError, match="does not run"):
        await node.call(wait, DEADLINE)


def test_peer_ids_are_those_of_libp2p() -> None:
    node = node_of(b"first")
    theirs = ID.from_pubkey(create_new_key_pair(seed_of(b"first")).public_key)
    assert theirs.to_bytes() == peer_id_bytes(node.peer_key)
    assert theirs.to_base58() == peer_id(node.peer_key)


async def test_subscription_made_while_the_host_starts_gets_messages() -> None:
    node = node_of(b"late", TOPIC)
    running_node = asyncio.create_task(node.run())
    await asyncio.sleep(0)  # it has begun to start its host
    Libp2pGossip(node).subscribe(lambda data, forwarder: Verdict.ACCEPT)
    await node.wait_until_up()

    async def has_intake(session: HostSession) -> bool:
        return session.pubsub is not None and session.pubsub.intake is not None

    async with asyncio.timeout(10):
        while not await node.call(has_intake, Seconds(5)):
            await asyncio.sleep(0.01)
    await node.close()
    await running_node
