"""Peers and gossip with another implementation: a peer made of go-libp2p and its gossipsub.

The Go peer dials a coordinator and is dialled as one, gossips in both directions, forges
identities, and is killed. tests/interop/test_ipfs_network.py has the content that it serves.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import pytest
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import PUBSUB_SIGNING_PREFIX

from quorate_protocol.codec import canonical
from quorate_protocol.codec.peer_ids import peer_id
from quorate_protocol.messages.key_binding import SignedBinding
from quorate_protocol.messages.ports import Verdict
from quorate_protocol.refusals import Code, Unavailable
from quorate_protocol.units import Seconds
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.crypto import PeerKey
from quorate_runtime.p2p.binding_hello import HelloAnswer
from quorate_runtime.p2p.host.host_config import PEERS_PROTOCOL, PeerAddress
from quorate_runtime.p2p.libp2p_dialer import Libp2pDialer
from quorate_runtime.p2p.libp2p_gossip import Libp2pGossip
from quorate_runtime.p2p.p2p_node import P2pNode
from support.go_peer import GoPeer, go_peer
from support.p2p.p2p_nodes import (
    SERVER_SIGNER,
    TOPIC,
    P2pSite,
    binding_of,
    greeter_of,
    node_of,
    nodes_up,
    seed_of,
)
from support.p2p.strangers import MESHSUB, delimited
from support.peer_sites import ADA, BOB, SERVER, SIGNERS, TIMEOUT, EchoHandler, eventually, running

pytestmark = [pytest.mark.gopeer, pytest.mark.libp2p]
ECHO = "/quorate/echo/1"
SEED = seed_of(b"go")
SECONDS = 30.0
REQUEST = b"\1" + b"i" * 16
ANSWER = b"\2" + b"i" * 16
T = TypeVar("T")


def address_of(node: P2pNode) -> str:
    """What the Go peer dials."""
    return f"{node.address.addresses[0]}/p2p/{peer_id(node.peer_key)}"


def peer_of(go: GoPeer, seed: bytes = SEED) -> PeerAddress:
    """What our node dials."""
    addresses = tuple(address.partition("/p2p/")[0] for address in go.started.addresses)
    return PeerAddress(PeerKey(seed).public, addresses)


def hello(signed: SignedBinding) -> bytes:
    return canonical.encode(signed)


async def seen(read: Callable[[], Coroutine[None, None, T]], is_enough: Callable[[T], bool]) -> T:
    """Reads until it is enough."""
    async with asyncio.timeout(SECONDS):
        while not is_enough(found := await read()):
            await asyncio.sleep(0.02)
    return found


# ---------------------------------------------------------------------------------------- streams


@pytest.fixture
async def site() -> AsyncIterator[P2pSite]:
    site = P2pSite(EchoHandler(b"server"))
    async with nodes_up(site.node):
        yield site
        assert site.node.restarts == 0


@pytest.mark.rule("3.51")
async def test_a_go_peer_dials_as_a_provider_and_both_sides_ask(site: P2pSite) -> None:
    server = peer_id(site.node.peer_key)
    async with go_peer(SEED) as go:
        await go.connect(address_of(site.node))
        greeting = hello(binding_of(ADA, SEED, SIGNERS[ADA]))
        answers = await go.converse(server, PEERS_PROTOCOL, [greeting, REQUEST + b"x"], keep=True)
        welcome = canonical.decode(HelloAnswer, answers[0]).hello
        assert welcome is not None and welcome.binding.account == SERVER
        assert answers[1] == ANSWER + b"server:x"
        assert site.handler.seen == [("0x" + ADA.hex(), b"x")]
        assert site.peers.connected() == {ADA} and site.peers.network_of(ADA) == "127.0.0.1"
        big = os.urandom(1 << 20)
        assert await site.peers.request(ADA, big, TIMEOUT) == big, "the server asks too"
        go.process.kill()
        await eventually(lambda: site.peers.connected() == frozenset())
    with pytest.raises(Unavailable):
        await site.peers.request(ADA, b"x", TIMEOUT)


@pytest.mark.rule("3.51")
@pytest.mark.parametrize(
    ("signed", "code"),
    [
        (binding_of(ADA, seed_of(b"ada's own"), SIGNERS[ADA]), Code.WRONG_SIGNER),
        (binding_of(ADA, SEED, SIGNERS[BOB]), Code.WRONG_SIGNER),
        (
            binding_of(ADA, SEED, SIGNERS[ADA], peer_signer=PeerKey(seed_of(b"x"))),
            Code.BAD_SIGNATURE,
        ),
    ],
    ids=["a binding that was overheard", "another account's key", "a forged peer signature"],
)
async def test_a_go_peer_that_forges_an_identity_is_refused(
    site: P2pSite, signed: SignedBinding, code: Code
) -> None:
    async with go_peer(SEED) as go:
        await go.connect(address_of(site.node))
        server = peer_id(site.node.peer_key)
        answers = await go.converse(server, PEERS_PROTOCOL, [hello(signed), REQUEST + b"x"])
        assert len(answers) == 1, "the stream has ended"
        refusal = canonical.decode(HelloAnswer, answers[0])
        assert (refusal.hello, refusal.refused) == (None, code)
    assert site.peers.connected() == frozenset() and site.handler.seen == []


@pytest.mark.rule("3.51")
async def test_a_go_peer_is_dialled_as_a_coordinator_and_killed_and_comes_back() -> None:
    node, greeter = (
        node_of(b"provider", listen=()),
        greeter_of(ADA, seed_of(b"provider"), SIGNERS[ADA]),
    )
    welcome = canonical.encode(HelloAnswer(binding_of(SERVER, SEED, SERVER_SIGNER), None, ""))
    async with nodes_up(node), go_peer(SEED) as go:
        await go.welcome(welcome)
        server, handler = peer_of(go), EchoHandler(b"ada").handle
        dialer = Libp2pDialer(node, server, SERVER, greeter, handler, SystemClock(), lambda: 0.0)
        async with running(dialer):
            await eventually(lambda: bool(dialer.connected()))
            assert await dialer.request(SERVER, b"frame", TIMEOUT) == b"frame"
            go.process.kill()
            await eventually(lambda: not dialer.connected())
            with pytest.raises(Unavailable):
                await dialer.request(SERVER, b"frame", TIMEOUT)
            port = int(server.addresses[0].rpartition("/")[2])
            async with go_peer(SEED, port=port) as again:
                await again.welcome(welcome)
                await eventually(lambda: dialer.connections == 2)
                assert await dialer.request(SERVER, b"again", TIMEOUT) == b"again"
    assert node.restarts == 0


async def test_a_dialled_go_peer_with_another_key_or_account_is_no_coordinator() -> None:
    node, own = node_of(b"provider", listen=()), seed_of(b"provider")
    greeter = greeter_of(ADA, own, SIGNERS[ADA])
    async with nodes_up(node), go_peer(SEED) as go:
        elsewhere = PeerAddress(PeerKey(seed_of(b"another")).public, peer_of(go).addresses)
        with pytest.raises(ConnectionError):
            await node.open_stream(elsewhere, PEERS_PROTOCOL, Seconds(10))
        for lie in (binding_of(SERVER, own, SERVER_SIGNER), binding_of(BOB, SEED, SIGNERS[BOB])):
            await go.welcome(canonical.encode(HelloAnswer(lie, None, "")))
            handler = EchoHandler(b"ada").handle
            dialer = Libp2pDialer(node, peer_of(go), SERVER, greeter, handler, SystemClock())
            async with running(dialer):
                stream = await node.open_stream(peer_of(go), ECHO, TIMEOUT)
                await stream.send(b"the connection itself is good")
                assert await stream.receive() == b"the connection itself is good"
                await stream.close("")
                assert dialer.connections == 0 and dialer.connected() == frozenset()


async def test_large_messages_go_both_ways_over_one_connection(site: P2pSite) -> None:
    big = os.urandom(1 << 20)
    async with go_peer(SEED) as go:
        stream = await site.node.open_stream(peer_of(go), ECHO, TIMEOUT)
        for _ in range(8):
            await stream.send(big)
            assert await stream.receive() == big
        await stream.close("")


# ----------------------------------------------------------------------------------------- gossip


@asynccontextmanager
async def topic() -> AsyncIterator[tuple[P2pNode, Libp2pGossip, list[tuple[bytes, str]]]]:
    """Our member of the topic, and all that its validator was shown, with its forwarders."""
    node, shown = node_of(b"quorate", TOPIC), list[tuple[bytes, str]]()
    async with nodes_up(node):
        gossip = Libp2pGossip(node)

        def judge(data: bytes, forwarder: str) -> Verdict:
            shown.append((data, forwarder))
            return Verdict.REJECT if data.startswith(b"bad") else Verdict.ACCEPT

        gossip.subscribe(judge)
        yield node, gossip, shown
        await gossip.close()
        assert node.restarts == 0


@asynccontextmanager
async def members(*addresses: str) -> AsyncIterator[GoPeer]:
    """A Go peer in the topic, connected to these addresses."""
    async with go_peer(SEED) as go:
        await go.join(TOPIC)
        for address in addresses:
            await go.connect(address)
        yield go


async def published(gossip: Libp2pGossip, data: bytes) -> None:
    """Publishes as soon as a neighbour listens."""
    async with asyncio.timeout(SECONDS):
        while True:
            with suppress(Unavailable):
                return await gossip.publish(data)
            await asyncio.sleep(0.05)


async def heard(go: GoPeer, shown: list[tuple[bytes, str]], text: bytes) -> None:
    """Lets the Go peer publish until our validator has seen it. Before its first heartbeat with a
    new neighbour, gossipsub sends messages to nobody.
    """
    async with asyncio.timeout(SECONDS):
        while text not in {data.partition(b"/")[0] for data, _ in shown}:
            await go.publish(TOPIC, text + b"/" + os.urandom(4))
            await asyncio.sleep(0.2)


async def test_gossip_goes_both_ways_and_a_killed_neighbour_is_replaced() -> None:
    async with topic() as (node, gossip, shown):
        own = peer_id(node.peer_key)
        async with members(address_of(node)) as go:
            await seen(lambda: go.neighbours(TOPIC), lambda found: own in found)
            await heard(go, shown, b"first")
            for number in range(20):
                await published(gossip, b"ours %d" % number)
                await go.publish(TOPIC, b"theirs %d" % number)
            found = await seen(
                lambda: go.messages(TOPIC),
                lambda found: sum(item.signer == own for item in found) == 20,
            )
            ours = {item.data for item in found if item.signer == own}
            assert ours == {b"ours %d" % number for number in range(20)}
            theirs = [b"theirs %d" % number for number in range(20)]
            await eventually(lambda: set(theirs) <= {data for data, _ in shown})
            assert sorted(data for data, _ in shown if data in theirs) == sorted(theirs), "once"
            assert {forwarder for _, forwarder in shown} == {go.started.id}
            go.process.kill()
        async with members(address_of(node)) as again:
            await seen(lambda: again.neighbours(TOPIC), lambda found: own in found)
            await heard(again, shown, b"after the kill")


async def test_messages_pass_through_us_from_one_go_peer_to_another_unless_rejected() -> None:
    async with topic() as (node, _, shown), members(address_of(node)) as first, go_peer() as second:
        await second.join(TOPIC)
        await second.connect(address_of(node))
        own = peer_id(node.peer_key)
        for go in (first, second):
            await seen(lambda go=go: go.neighbours(TOPIC), lambda found: own in found)
        await heard(first, shown, b"bad")
        await heard(first, shown, b"good")
        found = await seen(lambda: second.messages(TOPIC), bool)
        assert {(item.data[:4], item.signer, item.via) for item in found} == {
            (b"good", first.started.id, own)
        }


def forged(signer: bytes, claimed: ID, data: bytes) -> bytes:
    """A gossip frame with a message that `signer` signed and that names `claimed` as its sender."""
    message = rpc_pb2.Message(
        data=data, topicIDs=[TOPIC], from_id=claimed.to_bytes(), seqno=os.urandom(8)
    )
    keys = create_new_key_pair(signer)
    message.signature = keys.private_key.sign(
        PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString()
    )
    message.key = keys.public_key.serialize()
    frame = rpc_pb2.RPC(publish=[message]).SerializeToString()
    return delimited(frame)


async def test_a_go_peer_that_forges_senders_is_not_heard() -> None:
    friend = ID.from_pubkey(create_new_key_pair(seed_of(b"friend")).public_key)
    true = ID.from_pubkey(create_new_key_pair(SEED).public_key)
    async with topic() as (node, _, shown), members(address_of(node)) as go:
        own = peer_id(node.peer_key)
        await seen(lambda: go.neighbours(TOPIC), lambda found: own in found)
        for _ in range(5):
            await go.send(own, MESHSUB, forged(SEED, friend, b"forged"))
        await go.send(own, MESHSUB, forged(SEED, true, b"true"))
        await eventually(lambda: bool(shown))
        async with go_peer() as other:
            await other.join(TOPIC)
            await other.connect(address_of(node))
            await seen(lambda: other.neighbours(TOPIC), lambda found: own in found)
            await heard(other, shown, b"the topic works")
        assert b"forged" not in {data for data, _ in shown}
