"""Peers over libp2p: the hello binds accounts to peer keys, and connections replace each other."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator

import pytest

from quorate_protocol.codec import canonical
from quorate_protocol.messages.key_binding import SignedBinding
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Seconds
from quorate_runtime.keys.crypto import PeerKey
from quorate_runtime.p2p import binding_hello
from quorate_runtime.p2p.binding_hello import Greeter
from quorate_runtime.p2p.host import host_session
from quorate_runtime.p2p.host.host_config import PEERS_PROTOCOL
from quorate_runtime.p2p.host.stream_socket import RemotePeer, StreamSocket
from quorate_runtime.p2p.p2p_node import P2pNode
from quorate_runtime.peers import peer_connections
from quorate_runtime.peers.channel import MESSAGE_BYTES_MAX
from quorate_runtime.peers.peer_connections import JoinedPeers
from support.p2p.p2p_nodes import (
    DOMAIN,
    P2pSite,
    binding_of,
    greeter_of,
    node_of,
    nodes_up,
    seed_of,
)
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

pytestmark = pytest.mark.libp2p


@pytest.fixture
async def site() -> AsyncIterator[P2pSite]:
    site = P2pSite(EchoHandler(b"server"))
    async with nodes_up(site.node):
        yield site
        assert site.node.restarts == 0


@pytest.fixture
async def node(site: P2pSite) -> AsyncIterator[P2pNode]:
    node = node_of(b"dialer", listen=())
    async with nodes_up(node):
        yield node


SEED = seed_of(b"dialer")


async def refusal_of(site: P2pSite, node: P2pNode, message: bytes) -> tuple[Code | None, str]:
    """The server's answer to a hello."""
    stream = await node.open_stream(site.node.address, PEERS_PROTOCOL, TIMEOUT)
    with contextlib.suppress(ConnectionError):
        # The server may have refused already. Its answer can still be received.
        await stream.send(message)
    answer = await stream.receive()
    assert answer is not None
    assert await stream.receive() is None, "the server ends the stream"
    await stream.close("")
    read = canonical.decode(binding_hello.HelloAnswer, answer)
    assert read.hello is None
    return read.refused, read.detail


def changed(good: SignedBinding, kind: str) -> bytes:
    if kind == "garbage":
        return b"\xff" * 100
    if kind == "large":
        return b"1" * 3000
    return canonical.encode(good)


@pytest.mark.rule("3.51")
@pytest.mark.parametrize(
    ("kind", "hello", "code"),
    [
        ("", binding_of(EVE, SEED, SIGNERS[EVE]), Code.WRONG_SIGNER),
        ("", binding_of(ADA, SEED, SIGNERS[EVE]), Code.WRONG_SIGNER),
        ("", binding_of(ADA, seed_of(b"another"), SIGNERS[ADA]), Code.WRONG_SIGNER),
        (
            "",
            binding_of(ADA, SEED, SIGNERS[ADA], peer_signer=PeerKey(seed_of(b"x"))),
            Code.BAD_SIGNATURE,
        ),
        ("garbage", binding_of(ADA, SEED, SIGNERS[ADA]), Code.MALFORMED),
        ("large", binding_of(ADA, SEED, SIGNERS[ADA]), Code.OVERSIZE),
    ],
    ids=["account", "operator key", "peer key", "peer signature", "garbage", "large"],
)
async def test_false_hello_is_refused_with_its_reason(
    site: P2pSite, node: P2pNode, kind: str, hello: SignedBinding, code: Code
) -> None:
    assert (await refusal_of(site, node, changed(hello, kind)))[0] is code
    assert site.peers.connected() == frozenset() and site.handler.seen == []


async def test_dialer_refuses_another_account_and_another_servers_key(
    site: P2pSite, node: P2pNode
) -> None:
    async def nobody(account: Address, key: Address) -> bool:
        return False

    for expected, greeter in (
        (EVE, greeter_of(ADA, SEED, SIGNERS[ADA])),
        (SERVER, greeter_of(ADA, SEED, SIGNERS[ADA], allow=nobody)),
    ):
        stream = await node.open_stream(site.node.address, PEERS_PROTOCOL, TIMEOUT)
        with pytest.raises(Refused) as refused:
            await greeter.dial(stream, expected)
        assert refused.value.code is Code.WRONG_SIGNER
        await stream.close("")


@pytest.mark.rule("3.51")
async def test_peer_key_of_another_account_and_older_bindings_are_refused(
    site: P2pSite, node: P2pNode
) -> None:
    ada = greeter_of(ADA, SEED, SIGNERS[ADA], seq=5)
    async with running(site.dialer(node, ADA, EchoHandler(b"ada"), ada)):
        await eventually(lambda: ADA in site.peers.connected())
        older = canonical.encode(binding_of(ADA, SEED, SIGNERS[ADA], seq=4))
        assert (await refusal_of(site, node, older))[0] is Code.STALE
        foreign = canonical.encode(binding_of(BOB, SEED, SIGNERS[BOB]))
        code, detail = await refusal_of(site, node, foreign)
        assert code is Code.NOT_YOURS and "0x" + ADA.hex() in detail
        assert site.peers.connected() == {ADA}


async def test_newer_connection_of_an_account_replaces_the_older_one(
    site: P2pSite, node: P2pNode
) -> None:
    greeter = greeter_of(ADA, SEED, SIGNERS[ADA])
    first = site.dialer(node, ADA, EchoHandler(b"first"), greeter)
    second = site.dialer(node, ADA, EchoHandler(b"second"), greeter)
    async with running(first):
        await eventually(lambda: first.connections == 1 and bool(first.connected()))
        stream = first._stream
        assert stream is not None
        async with running(second):
            await eventually(lambda: bool(second.connected()) and stream.has_ended)
            await first.close()
            assert await site.peers.request(ADA, b"x", TIMEOUT) == b"second:x"


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", (1 << 21).to_bytes(4, "big")])
async def test_message_that_is_too_long_ends_the_stream(
    site: P2pSite, node: P2pNode, length: bytes
) -> None:
    stream = await node.open_stream(site.node.address, PEERS_PROTOCOL, TIMEOUT)
    stream.outbox.append(length + b"x")
    await stream.send(b"x")
    assert await stream.receive() is None


async def test_silent_streams_do_not_take_all_places(
    site: P2pSite, node: P2pNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_connections, "NETWORK_HELLOS_MAX", 3)
    silent = [await node.open_stream(site.node.address, PEERS_PROTOCOL, TIMEOUT) for _ in range(3)]
    await eventually(lambda: site.peers._hellos.is_crowded("127.0.0.1"))
    good = canonical.encode(binding_of(ADA, SEED, SIGNERS[ADA]))
    assert (await refusal_of(site, node, good))[0] is Code.BUSY
    early = await node.open_stream(site.node.address, PEERS_PROTOCOL, TIMEOUT)
    await eventually(lambda: early.has_ended)
    with pytest.raises(Refused) as refused:
        await greeter_of(ADA, SEED, SIGNERS[ADA]).dial(early, SERVER)
    assert refused.value.code is Code.BUSY, "the dialer reads a refusal that came before its hello"
    await asyncio.gather(*(stream.close("") for stream in silent))
    await eventually(lambda: not site.peers._hellos.is_crowded("127.0.0.1"))
    dialer = site.dialer(node, ADA, EchoHandler(b"ada"), greeter_of(ADA, SEED, SIGNERS[ADA]))
    async with running(dialer):
        await eventually(lambda: ADA in site.peers.connected())


class SlowLook(deque[bytes]):
    """After a look at it, the other thread has time to send its last message and to close."""

    def __bool__(self) -> bool:
        is_filled = len(self) > 0
        time.sleep(0.1)
        return is_filled


class SlowSocket(StreamSocket):
    def __init__(self, remote: RemotePeer) -> None:
        super().__init__(remote)
        self.outbox = SlowLook()


async def test_message_just_before_a_close_is_sent(
    node: P2pNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_session, "StreamSocket", SlowSocket)

    async def brief(stream: StreamSocket) -> None:
        await stream.send(b"last")

    server = node_of(b"brief")
    server.serve("/quorate/test/brief/1", brief)
    async with nodes_up(server):
        stream = await node.open_stream(server.address, "/quorate/test/brief/1", TIMEOUT)
        assert await stream.receive() == b"last"
        await stream.close("")


async def test_reader_that_falls_behind_slows_the_sender_and_nobody_else(
    site: P2pSite, node: P2pNode
) -> None:
    got: list[bytes] = []
    released = asyncio.Event()

    async def slow(stream: StreamSocket) -> None:
        await released.wait()
        while (message := await stream.receive()) is not None:
            got.append(message)

    server = node_of(b"slow")
    server.serve("/quorate/test/slow/1", slow)
    async with nodes_up(server):
        stream = await node.open_stream(server.address, "/quorate/test/slow/1", TIMEOUT)
        blocks = [bytes([n]) * (MESSAGE_BYTES_MAX // 2) for n in range(40)]

        async def send_all() -> None:
            for block in blocks:
                await stream.send(block)

        sending = asyncio.create_task(send_all())
        await eventually(lambda: stream.unsent.is_full)
        greeter = greeter_of(ADA, SEED, SIGNERS[ADA])
        dialer = site.dialer(node, ADA, EchoHandler(b"ada"), greeter)
        async with running(dialer):
            await eventually(lambda: bool(dialer.connected()))
            assert await dialer.request(SERVER, b"x", TIMEOUT) == b"server:x"
        assert not sending.done()
        released.set()
        await sending
        await eventually(lambda: len(got) == len(blocks))
        assert got == blocks
        await stream.close("")


async def test_servers_of_two_transports_answer_as_one(site: P2pSite, node: P2pNode) -> None:
    web = Site(site.handler)
    await web.start()
    joined = JoinedPeers(web.peers, site.peers)
    greeter = greeter_of(ADA, SEED, SIGNERS[ADA])
    old, other = web.dialer(ADA, EchoHandler(b"web")), web.dialer(BOB, EchoHandler(b"bob"))
    new = site.dialer(node, ADA, EchoHandler(b"libp2p"), greeter)
    async with running(old, other):
        await eventually(lambda: joined.connected() == {ADA, BOB})
        assert await joined.request(ADA, b"x", TIMEOUT) == b"web:x"
        async with running(new):
            await eventually(lambda: ADA in site.peers.connected() and bool(new.connected()))
            assert await joined.request(ADA, b"x", TIMEOUT) == b"libp2p:x", "the newest"
            assert await joined.request(BOB, b"x", TIMEOUT) == b"bob:x"
            assert joined.network_of(ADA) == joined.network_of(BOB) == "127.0.0.1"
            assert joined.network_of(EVE) == "" and joined.connected() == {ADA, BOB}
            await new.close()
            await eventually(lambda: ADA not in site.peers.connected())
        assert await joined.request(ADA, b"x", TIMEOUT) == b"web:x", "the other is still there"
        await joined.close()
    await web.stop()


async def test_dialer_reconnects_after_the_server_was_away() -> None:
    site, node = P2pSite(EchoHandler(b"server")), node_of(b"dialer", listen=())
    greeter: Greeter = greeter_of(ADA, SEED, SIGNERS[ADA])
    assert greeter.domain == DOMAIN
    async with nodes_up(node):
        async with nodes_up(site.node):
            dialer = site.dialer(node, ADA, EchoHandler(b"ada"), greeter)
            address = site.node.address
            task = asyncio.create_task(dialer.run())
            await eventually(lambda: bool(dialer.connected()))
        await eventually(lambda: not dialer.connected())
        again = P2pSite(EchoHandler(b"again"), address.addresses)
        async with nodes_up(again.node):
            await eventually(lambda: bool(dialer.connected()) and dialer.connections > 1)
            assert await dialer.request(SERVER, b"x", Seconds(5)) == b"again:x"
            task.cancel()
            await asyncio.wait([task])
