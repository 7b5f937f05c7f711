"""Hostile content sources over raw sockets: drips, endless heads and bodies, wrong lengths,
redirects, compressed answers.

Each ends in a typed refusal by its deadline with constant memory, and an honest source beside it is
still used.
"""

import asyncio
import gzip
import os
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from quorate_content.dag.car import frame_head, header
from quorate_content.dag.cid import Cid, raw_cid
from quorate_content.dag.unixfs import V1_2025, build_directory, build_file
from quorate_content.store import fetch as fetching
from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import Source
from quorate_content.store.http_answer import CAR_TYPE
from quorate_content.transfer.gateway import add_gateway_routes
from quorate_protocol.refusals import Refused, Unavailable
from support.http_server import on_loopback

MIB = 1 << 20
HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: {CAR_TYPE}\r\n".encode()
BOMB = gzip.compress(bytes(64 * MIB))
Talk = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]
"""What a source does with the CAR that it was asked for."""


@asynccontextmanager
async def listening(talk: Talk, car: bytes) -> AsyncIterator[str]:
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
            await talk(writer, car)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/ipfs"
    finally:
        server.close()


async def drip_body(writer: asyncio.StreamWriter, car: bytes) -> None:
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(car))
    for at in range(len(car)):
        writer.write(car[at : at + 1])
        await writer.drain()
        await asyncio.sleep(0.02)


async def drip_head(writer: asyncio.StreamWriter, car: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def continue_for_ever(writer: asyncio.StreamWriter, car: bytes) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
        await writer.drain()


async def headers_without_end(writer: asyncio.StreamWriter, car: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: 1\r\n" * 100)
        await writer.drain()


async def chunks_without_end(writer: asyncio.StreamWriter, car: bytes) -> None:
    writer.write(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(car[:-1]) + car[:-1] + b"\r\n"
    )
    while True:
        writer.write(b"1\r\nx\r\n" * 1000)
        await writer.drain()


async def empty_blocks_without_end(writer: asyncio.StreamWriter, car: bytes) -> None:
    writer.write(HEAD + b"Connection: close\r\n\r\n" + car[: -len(car) // 3])
    while True:
        writer.write((frame_head(raw_cid(b""), 0)) * 1000)
        await writer.drain()


async def too_short(writer: asyncio.StreamWriter, car: bytes) -> None:
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % (len(car) // 2) + car)


async def lie_in_the_last_block(writer: asyncio.StreamWriter, car: bytes) -> None:
    lie = car[:-1] + bytes([car[-1] ^ 1])
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(lie) + lie)


async def too_long(writer: asyncio.StreamWriter, car: bytes) -> None:
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % (10 * len(car)) + car[:-1])


async def negative(writer: asyncio.StreamWriter, car: bytes) -> None:
    writer.write(HEAD + b"Content-Length: -5\r\n\r\n" + car[:-7])


async def redirect(writer: asyncio.StreamWriter, car: bytes) -> None:
    writer.write(
        b"HTTP/1.1 302 Found\r\nLocation: "
        b"http://169.254.169.254/latest/meta-data\r\nContent-Length: 0\r\n\r\n"
    )


async def packed(writer: asyncio.StreamWriter, car: bytes) -> None:
    writer.write(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB)


async def other_bytes(writer: asyncio.StreamWriter, car: bytes) -> None:
    writer.write(HEAD + b"Connection: close\r\n\r\n" + car[:80] + os.urandom(len(car)))


async def no_http(writer: asyncio.StreamWriter, car: bytes) -> None:
    writer.write(b"\x16\x03\x01" + os.urandom(2000))


async def silence(writer: asyncio.StreamWriter, car: bytes) -> None:
    await asyncio.sleep(60)


LIARS: list[Talk] = [
    drip_body,
    drip_head,
    continue_for_ever,
    headers_without_end,
    chunks_without_end,
    empty_blocks_without_end,
    too_short,
    lie_in_the_last_block,
    too_long,
    negative,
    redirect,
    packed,
    other_bytes,
    no_http,
    silence,
]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ContentStore]:
    made = ContentStore(tmp_path / "store", 64 * MIB)
    yield made
    await made.close()


async def a_car(tmp_path: Path) -> tuple[Cid, bytes, ContentStore]:
    """Makes a file of two blocks, its CAR, and a store that has it."""
    origin = ContentStore(tmp_path / "origin", 64 * MIB)
    stat = await origin.put(os.urandom(MIB + 50_000), "a")
    return stat.cid, b"".join([piece async for piece in origin.export_car(stat.cid)]), origin


@pytest.mark.parametrize("talk", LIARS, ids=lambda talk: talk.__name__)
async def test_a_lying_source_alone_ends_by_its_deadline(
    talk: Talk, tmp_path: Path, store: ContentStore
) -> None:
    cid, car, origin = await a_car(tmp_path)
    await origin.close()
    tracemalloc.start()
    async with listening(talk, car) as url:
        with pytest.raises((Unavailable, Refused)):
            await asyncio.wait_for(store.get(cid, [url], 16 * MIB, 1.5, "a"), 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 * MIB
    assert await store.stat(cid) is None


@pytest.mark.parametrize("talk", LIARS, ids=lambda talk: talk.__name__)
async def test_an_honest_source_beside_it_is_used(
    talk: Talk, tmp_path: Path, store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "STALL_SECONDS", 0.4)
    cid, car, origin = await a_car(tmp_path)
    app = web.Application()
    add_gateway_routes(app, origin)
    async with (
        on_loopback(app) as honest,
        listening(talk, car) as url,
        await asyncio.wait_for(
            store.get(cid, [url, f"{honest}/ipfs"], 16 * MIB, 20.0, "a"), 25
        ) as lease,
    ):
        assert lease.size == MIB + 50_000
    await origin.close()


async def test_false_sizes_and_repeated_names_are_refused_early(
    tmp_path: Path, store: ContentStore
) -> None:
    """A directory of a few kilobytes that declares terabytes is refused at its first file."""
    nodes: list[tuple[Cid, bytes]] = []
    leaf = build_file([b"x"])
    huge = type(leaf)(leaf.cid, 1 << 50, 1 << 50)
    root = build_directory(
        {b"f%d" % number: huge for number in range(200)},
        V1_2025,
        lambda cid, block: nodes.append((cid, block)),
    )
    car = (
        header(root.cid)
        + b"".join(frame_head(cid, len(block)) + block for cid, block in nodes)
        + frame_head(leaf.cid, 1)
        + b"x"
    )

    async def talk(writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(data) + data)

    async with listening(talk, car) as url:
        with pytest.raises((Unavailable, Refused)):
            # One leaf for two hundred names: those that follow are not sent again, and only the
            # first is asked for.
            async with await store.get(root.cid, [url], 100, 5.0, "a"):
                pass
    assert await store.used_bytes() == 0


@pytest.mark.parametrize(
    "url",
    [
        "http://h:99999/x",
        "http://[bad/x",
        "http://a..b/x",
        f"http://{'a' * 70}/x",
        "http://127.0.0.1:-1/",
        "http://exa\u2100mple/",
        "file:///etc/passwd",
        "http://ho st/",
        "http:///x",
        "",
    ],
)
async def test_a_wrong_url_counts_as_a_failed_source(url: str, store: ContentStore) -> None:
    """A coordinator names sources, and none of its texts may crash the daemon."""
    with pytest.raises(Unavailable, match="no source had"):
        await store.get(raw_cid(b"x"), [url], 100, 5.0, "a")


async def test_paths_with_any_characters_are_requested(tmp_path: Path, store: ContentStore) -> None:
    cid, car, origin = await a_car(tmp_path)
    await origin.close()

    async def talk(writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(data) + data)

    async with (
        listening(talk, car) as url,
        await store.get(cid, [f"{url}/größe %41\ud800"], 16 * MIB, 5.0, "a") as lease,
    ):
        assert lease.size == MIB + 50_000


async def test_sources_in_private_networks_get_no_request(store: ContentStore) -> None:
    """Otherwise a stranger could direct requests to a path behind the owner's firewall."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        for host in ("127.0.0.1", "localhost"):
            source = Source(
                f"http://{host}:{server.sockets[0].getsockname()[1]}/admin/reboot",
                may_be_private=False,
            )
            with pytest.raises(Unavailable, match="private network"):
                await store.get(raw_cid(b"x"), [source], 100, 5.0, "a")
    assert b"".join(heard) == b""
