"""The hello of a WebSocket connection: a peer proves its account to this server only."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from quorate_protocol.codec import canonical
from quorate_protocol.units import Address, Hash32, Signature
from quorate_runtime.peers.websocket_peers import Challenge, Hello, hello_digest
from support.peer_sites import (
    ADA,
    BOB,
    EVE,
    SERVER,
    SIGNERS,
    EchoHandler,
    Site,
    close_of,
    raw_connection,
)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site(EchoHandler(b"server"))
    await site.start()
    yield site
    await site.stop()


async def test_unknown_account_and_false_signature_are_refused_in_the_hello(site: Site) -> None:
    async with raw_connection(site, EVE) as ws:
        assert await close_of(ws) == (4003, "wrong-signer")
    async with raw_connection(site, ADA, SIGNERS[EVE]) as ws:
        assert await close_of(ws) == (4003, "bad-signature")
    async with aiohttp.ClientSession() as session, session.ws_connect(site.url) as ws:
        await ws.receive_str()
        await ws.send_str('{"account":"0x00"}')
        assert await close_of(ws) == (4003, "malformed")
    async with aiohttp.ClientSession() as session, session.ws_connect(site.url) as ws:
        await ws.receive_str()
        await ws.send_bytes(b"no text")
        assert (await close_of(ws))[0] == 1000
    assert site.peers.connected() == frozenset() and site.handler.seen == []


async def test_hello_for_another_server_is_refused(site: Site) -> None:
    """A false server can pass on the real server's challenge. The signature names the false one."""
    other = Address(b"\xdd" * 20)
    async with aiohttp.ClientSession() as session, session.ws_connect(site.url) as ws:
        challenge = canonical.decode(Challenge, (await ws.receive_str()).encode())
        sig = SIGNERS[ADA].sign(hello_digest(challenge.challenge, other, ADA))
        await ws.send_str(canonical.encode(Hello(ADA, SIGNERS[ADA].address, sig)).decode())
        assert await close_of(ws) == (4003, "bad-signature")


def test_hello_digest_differs_for_each_server_and_account() -> None:
    challenge = Hash32(bytes(32))
    assert (
        len(
            {
                hello_digest(challenge, SERVER, ADA),
                hello_digest(challenge, ADA, SERVER),
                hello_digest(challenge, SERVER, BOB),
            }
        )
        == 3
    )
    assert Signature(SIGNERS[ADA].sign(hello_digest(challenge, SERVER, ADA)))
