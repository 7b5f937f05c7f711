"""No bytes of a stranger end a libp2p host, fill its memory, or pass for somebody else's.

Each test sends what ends stock libp2p 0.8.1, or passes its checks.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.peer.id import ID

from quorate_protocol.codec.peer_ids import peer_id_bytes
from quorate_protocol.messages.ports import Verdict
from quorate_protocol.units import Seconds
from quorate_runtime.clock import SystemClock
from quorate_runtime.p2p.host import guard, guarded_yamux
from quorate_runtime.p2p.host.guarded_yamux import BUFFER_BYTES_MAX, INBOUND_STREAMS_MAX
from quorate_runtime.p2p.host.host_config import HostConfig, PeerAddress
from quorate_runtime.p2p.host.host_session import HostSession, swarm_of
from quorate_runtime.p2p.host.stream_socket import StreamSocket
from quorate_runtime.p2p.libp2p_gossip import Libp2pGossip
from quorate_runtime.p2p.p2p_node import P2pNode
from support.p2p import strangers
from support.p2p.p2p_nodes import LOOPBACK, TOPIC, node_of, nodes_up, seed_of
from support.peer_sites import eventually

pytestmark = pytest.mark.libp2p
ECHO, SILENT = "/quorate/test/echo/1", "/quorate/test/silent/1"
KEPT = "/quorate/test/kept/1"
DEADLINE = Seconds(20)
PLACES = 32


async def echo(stream: StreamSocket) -> None:
    while (message := await stream.receive()) is not None:
        await stream.send(message)


async def echo_of_an_account(stream: StreamSocket) -> None:
    stream.keep_place(is_staked=True)
    await echo(stream)


@pytest.fixture
async def victim() -> AsyncIterator[P2pNode]:
    node = P2pNode(
        HostConfig(seed_of(b"victim"), LOOPBACK, topic=TOPIC, connections_max=PLACES), SystemClock()
    )
    node.serve(ECHO, echo)
    node.serve(KEPT, echo_of_an_account)
    gossip = Libp2pGossip(node)
    gossip.subscribe(lambda data, forwarder: Verdict.ACCEPT)
    async with nodes_up(node):
        yield node
        assert node.is_up and node.restarts == 0, "the host ended"


@pytest.fixture
async def stranger(victim: P2pNode) -> AsyncIterator[P2pNode]:
    node = node_of(b"stranger", TOPIC)
    async with nodes_up(node):
        await node.connect(victim.address, DEADLINE)
        yield node


def id_of(node: P2pNode) -> ID:
    return ID(peer_id_bytes(node.peer_key))


async def is_answered(node: P2pNode, victim: P2pNode) -> bool:
    """Whether the victim serves this node."""
    stream = await node.open_stream(victim.address, ECHO, DEADLINE)
    await stream.send(b"still there?")
    answer = await stream.receive()
    await stream.close("")
    return answer == b"still there?"


async def assert_alive(victim: P2pNode) -> None:
    """The victim serves a new peer, a few times, so that what was sent before has its effect."""
    other = node_of(b"somebody else")
    async with nodes_up(other):
        for _ in range(3):
            assert await is_answered(other, victim)


@pytest.mark.parametrize("kind", strangers.GARBAGE)
async def test_garbage_ends_at_most_its_own_connection(
    victim: P2pNode, stranger: P2pNode, kind: str
) -> None:
    attack = strangers.GARBAGE[kind]
    await stranger.call(lambda session: attack(session, id_of(victim)), DEADLINE)
    await assert_alive(victim)


async def test_bytes_that_are_no_handshake_end_at_most_their_connection(victim: P2pNode) -> None:
    port = int(victim.address.addresses[0].rpartition("/")[2])
    for data in strangers.RAW:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        await writer.drain()
        writer.close()
    await assert_alive(victim)


async def test_bug_in_a_stream_handler_ends_that_stream_only(victim: P2pNode) -> None:
    async def fail(stream: object) -> None:
        raise ValueError("a bug")

    async def install(session: HostSession) -> None:
        session.host.set_stream_handler(strangers.TProtocol(SILENT), fail)

    await victim.call(install, DEADLINE)
    before, other = guard.stopped["stream"], node_of(b"caller")
    async with nodes_up(other):
        with suppress(ConnectionError):  # the reset may come before the protocol is agreed
            stream = await other.open_stream(victim.address, SILENT, DEADLINE)
            assert await stream.receive() is None
        await eventually(lambda: guard.stopped["stream"] == before + 1)
        assert await is_answered(other, victim)


async def test_places_of_ended_connections_are_free_again(victim: P2pNode) -> None:
    """Stock libp2p keeps the place of each inbound connection until the host ends."""
    caller = node_of(b"caller", listen=())

    async def disconnect(session: HostSession) -> None:
        for connection in swarm_of(session.host).get_connections(id_of(victim)):
            await connection.muxed_conn.secured_conn.close()

    async with nodes_up(caller):
        for _ in range(2 * PLACES):
            await caller.connect(victim.address, DEADLINE)
            await caller.call(disconnect, DEADLINE)
            async with asyncio.timeout(DEADLINE):
                while await victim.call(places_taken, DEADLINE):
                    await asyncio.sleep(0.005)


async def places_taken(session: HostSession) -> int:
    swarm = swarm_of(session.host)
    return len(swarm.get_connections()) + swarm._inbound_limiter.borrowed_tokens


async def test_connection_with_too_many_streams_is_closed(
    victim: P2pNode, stranger: P2pNode
) -> None:
    opened = await stranger.call(
        lambda session: strangers.open_streams(session, id_of(victim)), Seconds(60)
    )
    assert INBOUND_STREAMS_MAX - 50 < opened < 10 * INBOUND_STREAMS_MAX
    await assert_alive(victim)


async def test_peer_that_sends_more_than_its_window_is_cut_off(
    victim: P2pNode, stranger: P2pNode
) -> None:
    async def never_read(stream: object) -> None:
        await strangers.trio.sleep_forever()

    async def install(session: HostSession) -> None:
        session.host.set_stream_handler(strangers.TProtocol(SILENT), never_read)

    await victim.call(install, DEADLINE)
    sent = await stranger.call(
        lambda session: strangers.ignore_the_window(session, id_of(victim), SILENT), Seconds(60)
    )
    assert BUFFER_BYTES_MAX / 2 < sent < 5 * BUFFER_BYTES_MAX
    await assert_alive(victim)


@pytest.mark.rule("3.75")
async def test_free_identities_of_one_address_hold_no_place_that_others_need(
    victim: P2pNode,
) -> None:
    bound, *strangers = [node_of(b"%d" % number, listen=()) for number in range(8)]
    async with nodes_up(bound, *strangers):
        kept = await bound.open_stream(victim.address, KEPT, DEADLINE)
        for stranger in strangers:  # none of them says hello
            assert await is_answered(stranger, victim)
        await until_connections(victim, 1 + PLACES // 8)
        await kept.send(b"mine")
        assert await kept.receive() == b"mine"


@pytest.mark.rule("3.75")
async def test_connection_without_a_hello_closes(
    victim: P2pNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BIND_SECONDS", 0.2)
    silent, listener = node_of(b"silent"), node_of(b"listener", TOPIC)
    Libp2pGossip(listener).subscribe(lambda data, forwarder: Verdict.ACCEPT)
    before = guard.stopped["stranger"]
    async with nodes_up(silent, listener):
        await listener.connect(victim.address, DEADLINE)
        await silent.connect(victim.address, DEADLINE)
        await eventually(lambda: guard.stopped["stranger"] > before)
        await until_connections(victim, 1)


async def until_connections(node: P2pNode, count: int) -> None:
    async def connections(session: HostSession) -> int:
        return len(swarm_of(session.host).get_connections())

    async with asyncio.timeout(DEADLINE):
        while await node.call(connections, DEADLINE) != count:
            await asyncio.sleep(0.01)


@pytest.mark.rule("3.75")
async def test_peer_that_reads_nothing_is_cut_off(
    victim: P2pNode, stranger: P2pNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hurry() -> None:
        monkeypatch.setattr(guarded_yamux, "STUCK_SECONDS", 0.3)

    await stranger.call(
        lambda session: strangers.never_read(session, id_of(victim), hurry), DEADLINE
    )
    await until_connections(victim, 0)
    monkeypatch.undo()  # else a busy machine ends connections that are well
    await assert_alive(victim)


async def test_plaintext_peer_cannot_claim_a_key(victim: P2pNode) -> None:
    """The stranger knows the friend's public key only. Stock libp2p would connect to it."""
    friend = create_new_key_pair(seed_of(b"friend")).public_key
    tried: list[str] = []
    arrived, leave = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    stranger = node_of(b"stranger")

    async def wait(address: str) -> None:
        tried.append(address)
        loop.call_soon_threadsafe(arrived.set)
        while not leave.is_set():
            await strangers.trio.sleep(0.01)

    async with nodes_up(stranger):
        task = asyncio.create_task(
            stranger.call(lambda _: strangers.impersonate(friend, wait), Seconds(60))
        )
        await arrived.wait()
        friend_key = strangers.key_of(friend)
        with pytest.raises(ConnectionError, match="no address answers"):
            await victim.open_stream(PeerAddress(friend_key, (tried[0],)), ECHO, DEADLINE)
        leave.set()
        await task


async def test_forged_gossip_is_not_delivered_and_its_sender_is_cut_off(victim: P2pNode) -> None:
    stranger, reader, heard = node_of(b"forger", TOPIC), node_of(b"reader", TOPIC), []
    gossip = Libp2pGossip(reader)
    subscription = gossip.subscribe(lambda data, forwarder: Verdict.ACCEPT)

    async def publish(session: HostSession) -> None:
        messages = [
            strangers.forged(session, kind, b"%d %s" % (turn, kind.encode()))
            for turn in range(4)
            for kind in strangers.FORGERIES
        ]
        honest = strangers.forged(session, "none", b"9")
        for message in (*messages, honest):
            data = strangers.rpc(publish=[message])
            await strangers.send(session, id_of(reader), strangers.MESHSUB, data)

    async with nodes_up(stranger, reader):
        await stranger.connect(reader.address, DEADLINE)

        async def first(session: HostSession) -> None:
            message = strangers.forged(session, "none", b"1")
            data = strangers.rpc(publish=[message])
            await strangers.send(session, id_of(reader), strangers.MESHSUB, data)

        await stranger.call(first, DEADLINE)
        heard.append(await anext(subscription))
        await stranger.call(publish, DEADLINE)

        async def score(session: HostSession) -> float:
            assert session.pubsub is not None
            router = session.pubsub.router
            return float(router.scorer.score(id_of(stranger), [TOPIC]))  # type: ignore[attr-defined]

        async with asyncio.timeout(DEADLINE):
            while await reader.call(score, DEADLINE) > -100:
                await asyncio.sleep(0.01)
        await gossip.close()
        heard += [message async for message in subscription]
    assert heard[0] == b"forged: none" and not set(heard) - {b"forged: none"}


async def test_host_ends_and_is_restarted_without_the_guard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the tests above can fail."""
    monkeypatch.setattr(guard, "install", lambda: None)
    monkeypatch.setattr(SwarmConn, "_handle_muxed_stream", guard._handle_stream)
    monkeypatch.setattr(guard.TrioManager, "run_task", guard._run_task)
    monkeypatch.setattr(guard.MultiselectCommunicator, "read", guard._read_protocol)
    attack = strangers.GARBAGE["protocol name"]
    victim, stranger = node_of(b"victim"), node_of(b"stranger")
    victim.serve(ECHO, echo)
    async with nodes_up(victim, stranger):
        before = victim.address
        await stranger.connect(victim.address, DEADLINE)
        await stranger.call(lambda session: attack(session, id_of(victim)), DEADLINE)
        await eventually(lambda: victim.restarts == 1)
        monkeypatch.undo()
        await victim.wait_until_up()
        assert victim.address == before
        await assert_alive(victim)
