"""Hostile clients hold connections open: slow readers, idle ones, many requests, bad WebSockets.

The server still serves a well-behaved client, and frees what the hostile clients held.
"""

import asyncio
import base64
import contextlib
import dataclasses
import os
import resource
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

import quorate_node.status.node_gateway as node_gateway
from quorate_content.store.content_store import ContentStore
from quorate_content.transfer import gateway as content_gateway
from quorate_coordinator.base.request_limits import DEVNET_BOUNDS
from quorate_coordinator.service import Service
from quorate_node.status.node_gateway import Gateway
from quorate_protocol.values import replace
from quorate_runtime.http.listener_limits import ListenerLimits
from quorate_runtime.peers import peer_connections, websocket_peers
from quorate_runtime.peers.channel import MESSAGE_BYTES_MAX
from support.markets.coordinator_stage import Stage, deployed_stage, running
from support.requirements import FILES_MIN, require

pytestmark = pytest.mark.asyncio(loop_scope="module")
MIB = 1 << 20
BOUNDS = dataclasses.replace(
    DEVNET_BOUNDS,
    address_per_second=5_000.0,
    address_burst=50_000.0,
    address_connections_max=200,
    head_and_idle_seconds=15.0,
    body_seconds=1.0,
    write_seconds=0.6,
)
Market = tuple[Stage, Service]
Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def market(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Market]:
    async with deployed_stage(tmp_path_factory.mktemp("streams")) as stage:
        service = stage.service()
        service.config = replace(service.config, bounds=BOUNDS)
        async with running(service):
            yield stage, service


async def dial(url: str, from_address: str = "127.0.0.1", buffer: int | None = None) -> Pipe:
    """Opens a connection. `buffer` bounds how many unread bytes it takes."""
    host, port = url.removeprefix("http://").split(":")
    if buffer is None:
        return await asyncio.open_connection(host, int(port), local_addr=(from_address, 0))
    reader, writer = await asyncio.open_connection(
        host, int(port), local_addr=(from_address, 0), limit=buffer
    )
    return reader, writer


async def seconds_to_serve(market: Market) -> float:
    """Measures how long another client waits for an answer."""
    stage, service = market
    begun = time.monotonic()
    async with stage.session.get(f"{service.url}/v1/info") as response:
        assert response.status == 200
    return time.monotonic() - begun


async def is_hung_up(pipe: Pipe, seconds: float) -> bool:
    """Whether the other side closes the connection in time."""
    try:
        async with asyncio.timeout(seconds):
            while await pipe[0].read(1 << 16):
                pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


# ------------------------------------------------------------------------------------------ readers


@contextlib.asynccontextmanager
async def a_provider(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Gateway, ContentStore]]:
    monkeypatch.setattr(
        node_gateway,
        "LISTENER_LIMITS",
        ListenerLimits(write_seconds=1.0, head_and_idle_seconds=2.0, address_connections_max=300),
    )
    store = ContentStore(folder / "store", 256 * MIB)

    async def drain(_: bool) -> None:
        return

    gateway = Gateway(
        store, folder, lambda: pytest.fail("no test asks for the status"), drain, drain, drain
    )
    await gateway.listen("127.0.0.1", 0)
    try:
        yield gateway, store
    finally:
        await gateway.close()
        await store.close()


@pytest.mark.parametrize("form", ["", "?format=car"], ids=["file", "car"])
async def test_clients_that_do_not_read_lose_their_places(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        a_provider(tmp_path, monkeypatch) as (gateway, store),
        aiohttp.ClientSession() as session,
    ):
        stat = await store.put(os.urandom(24 * MIB), "inventory")
        request = f"GET /ipfs/{stat.cid}{form} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        pipes = [
            await dial(gateway.url, "127.0.0.9", 1 << 10)
            for _ in range(content_gateway.NETWORK_RESPONSES_MAX + 20)
        ]
        for reader, writer in pipes:
            writer.write(request)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            del reader
        await asyncio.sleep(0)
        async with (
            asyncio.timeout(10),
            session.get(f"{gateway.url}/ipfs/{stat.cid}?format=raw") as response,
        ):
            assert response.status == 200, "another network is served meanwhile"
        deadline = time.monotonic() + 20
        while True:
            # After the next check of idle connections, the same network is served again.
            reader, writer = await dial(gateway.url, "127.0.0.9")
            writer.write(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            status = int((await reader.readline()).split()[1])
            writer.close()
            if status == 200:
                break
            assert status == 503 and time.monotonic() < deadline
            await asyncio.sleep(0.2)
        for _, writer in pipes:
            writer.close()
        await store.unpin(stat.cid, "inventory")
        # The store's leases on the files that were sent have ended too, so the file can be evicted.
        deadline = time.monotonic() + 20
        while await store.gc(0) == 0:
            assert time.monotonic() < deadline, "a lease is left behind"
            await asyncio.sleep(0.2)


async def test_slow_but_steady_reader_is_served_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_provider(tmp_path, monkeypatch) as (gateway, store):
        stat = await store.put(os.urandom(12 * MIB), "inventory")
        reader, writer = await dial(gateway.url, buffer=1 << 16)
        writer.write(
            f"GET /ipfs/{stat.cid} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        )
        got = 0
        while piece := await reader.read(1 << 18):
            got += len(piece)
            await asyncio.sleep(0.05)  # the pace of the reader itself, some megabytes a second
        assert got > 12 * MIB
        writer.close()


async def test_provider_gateway_answers_bad_requests_with_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        a_provider(tmp_path, monkeypatch) as (gateway, _),
        aiohttp.ClientSession() as session,
    ):
        for token in ("", "x" * 64, "\udcff\udce9", "é"):
            reader, writer = await dial(gateway.url)
            head = (
                f"GET /v1/status HTTP/1.1\r\nHost: x\r\nX-Quorate-Token: "
                f"{token}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode("utf-8", "surrogateescape"))
            answer = await reader.read()
            assert b" 403 " in answer.split(b"\r\n")[0] and b'"not-yours"' in answer, answer[:200]
            writer.close()
        async with session.get(f"{gateway.url}/nowhere") as response:
            assert (response.status, (await response.json())["code"]) == (404, "unknown")
        pipe = await dial(gateway.url)
        pipe[1].write(b"GET /ipfs/x HTTP/1.1\r\nHost:")
        assert await is_hung_up(pipe, 8), "a head that does not end"
        pipe[1].close()


# --------------------------------------------------------------------------------------------- many


async def test_client_is_served_beside_two_thousand_idle_connections(market: Market) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    require("files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES_MIN), hard))
    _, service = market
    pipes: list[Pipe] = []
    try:
        for block in range(20):
            source = f"127.0.2.{block + 1}"
            pipes += await asyncio.gather(*(dial(service.url, source) for _ in range(100)))
        worst = max([await seconds_to_serve(market) for _ in range(20)])
        assert len(pipes) == 2_000 and worst < 10
        assert sum(not reader.at_eof() for reader, _ in pipes) > 1_000, (
            "they are held, not turned away"
        )
        deadline = time.monotonic() + 60
        while any(not reader.at_eof() for reader, _ in pipes):
            assert time.monotonic() < deadline, "the idle ones end by themselves"
            await asyncio.sleep(0.1)
    finally:
        for _, writer in pipes:
            writer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert await seconds_to_serve(market) < 10


async def test_client_is_served_beside_request_floods_and_endless_bodies(market: Market) -> None:
    _, service = market
    heap = b"GET /v1/info HTTP/1.1\r\nHost: x\r\n\r\n" * 2_000
    endless = b"POST /v1/plan HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    deep = (
        b"POST /v1/plan HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + b'{"a":[' * 33_333
    )
    pipes = [await dial(service.url, f"127.0.3.{number + 1}") for number in range(8)]
    for number, (_, writer) in enumerate(pipes):
        writer.write((heap, endless, deep, endless)[number % 4])

    async def pour(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)

    pouring = [
        asyncio.create_task(pour(writer)) for number, (_, writer) in enumerate(pipes) if number % 2
    ]
    worst = max([await seconds_to_serve(market) for _ in range(15)])
    assert worst < 10, "others do not notice"
    for number, pipe in enumerate(pipes):
        if number % 4 == 1:
            assert await is_hung_up(pipe, 30), "a body without end"
    for task in pouring:
        task.cancel()
    await asyncio.gather(*pouring, return_exceptions=True)
    for _, writer in pipes:
        writer.close()


# --------------------------------------------------------------------------------------- WebSockets


def frame(opcode: int, payload: bytes, is_final: bool = True, reserved: int = 0) -> bytes:
    """Builds one masked frame of RFC 6455."""
    size = len(payload)
    head = bytes([(0x80 if is_final else 0) | reserved | opcode])
    if size < 126:
        length = bytes([0x80 | size])
    else:
        length = (
            b"\xfe" + struct.pack(">H", size)
            if size < 1 << 16
            else b"\xff" + struct.pack(">Q", size)
        )
    return head + length + bytes(4) + payload  # a mask of zeros


async def upgraded(market: Market, from_address: str, extra: str = "") -> tuple[Pipe, bytes]:
    """Opens a WebSocket; returns it after the handshake, with the server's response head."""
    pipe = await dial(market[1].url, from_address)
    key = base64.b64encode(os.urandom(16)).decode()
    pipe[1].write(
        f"GET /v1/peers HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: "
        f"Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\n{extra}\r\n".encode()
    )
    async with asyncio.timeout(10):
        return pipe, await pipe[0].readuntil(b"\r\n\r\n")


HOSTILE_FRAMES = {
    "oversize": [frame(2, bytes(MESSAGE_BYTES_MAX + 2))],
    "a length of exabytes": [bytes([0x82, 0xFF]) + struct.pack(">Q", 1 << 62) + bytes(100)],
    "fragments without end": [frame(2, bytes(60_000), is_final=False)]
    + [frame(0, bytes(60_000), is_final=False)] * 40,
    "empty fragments": [frame(1, b"", is_final=False)] + [frame(0, b"", is_final=False)] * 5_000,
    "reserved bits": [frame(1, b"{}", reserved=0x40)],
    "a long ping": [frame(9, bytes(4_000))],
    "no mask": [bytes([0x81, 2]) + b"{}"],
    "binary for text": [frame(2, b"{}")],
    "half a surrogate": [frame(1, b"\xed\xa0\x80")],
    "deep": [frame(1, b"[" * 200_000)],
    "pings": [frame(9, b"x" * 125)] * 3_000,
}


@pytest.mark.parametrize("frames", HOSTILE_FRAMES.values(), ids=HOSTILE_FRAMES.keys())
async def test_malformed_frames_end_only_their_own_connection(
    market: Market, frames: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_peers, "HELLO_SECONDS", 1.0)
    pipe, head = await upgraded(market, "127.0.4.1")
    assert b" 101 " in head.split(b"\r\n")[0]
    with contextlib.suppress(ConnectionError):
        for data in frames:
            pipe[1].write(data)
        await asyncio.wait_for(pipe[1].drain(), 10)
    assert await seconds_to_serve(market) < 10
    assert await is_hung_up(pipe, 15)
    pipe[1].close()


async def test_compression_is_not_negotiated(market: Market) -> None:
    pipe, head = await upgraded(
        market, "127.0.4.2", "Sec-WebSocket-Extensions: permessage-deflate\r\n"
    )
    assert b"permessage-deflate" not in head.lower()
    pipe[1].close()


async def test_connections_without_a_hello_do_not_take_all_places(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_peers, "HELLO_SECONDS", 3.0)
    monkeypatch.setattr(peer_connections, "NETWORK_HELLOS_MAX", 20)
    found = [await upgraded(market, "127.0.4.3") for _ in range(40)]
    heads = [head.split(b"\r\n")[0] for _, head in found]
    assert (
        sum(b" 101 " in head for head in heads) == 20
        and sum(b" 429 " in head for head in heads) == 20
    )
    pipe, head = await upgraded(market, "127.0.4.4")
    assert b" 101 " in head, "another network gets in"
    for other, answer in found:
        if b" 101 " in answer:
            assert await is_hung_up(other, 10), "silence ends"
    last, head = await upgraded(market, "127.0.4.3")
    assert b" 101 " in head, "and the places are free again"
    for writer in [pipe[1], last[1], *(other[1] for other, _ in found)]:
        writer.close()
