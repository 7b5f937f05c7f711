"""Fetching from several kinds of sources: owners' gateways, a coordinator's store, and nobody."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from quorate_content.dag.car import frame_head, header
from quorate_content.dag.cid import Cid, inline_cid, node_cid, parse, raw_cid
from quorate_content.dag.dagpb import Link, encode_node, file_data
from quorate_content.dag.disk_tree import cid_of_path
from quorate_content.store import fetch_order
from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import Source
from quorate_content.transfer.gateway import CAR_ANSWER_TYPE, add_gateway_routes
from quorate_protocol.refusals import Unavailable
from support.http_server import on_loopback

MIB = 1 << 20


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ContentStore]:
    made = ContentStore(tmp_path / "store", 128 * MIB)
    yield made
    await made.close()


@pytest.fixture
async def origin(tmp_path: Path) -> AsyncIterator[ContentStore]:
    made = ContentStore(tmp_path / "origin", 128 * MIB)
    yield made
    await made.close()


class Searching:
    """An IPFS gateway: what it has at hand, what its network has, and what it was asked."""

    def __init__(self, at_hand: ContentStore | None, network: ContentStore | None) -> None:
        self.at_hand, self.network = at_hand, network
        self.asked: list[str] = []
        self.has_ended = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        is_probe = "only-if-cached" in request.headers.get("Cache-Control", "")
        self.asked.append("probe" if is_probe else "read")
        store = self.at_hand if is_probe else self.at_hand or self.network
        if is_probe:
            return web.Response(status=412 if store is None else 200)
        if store is None:
            await self.has_ended.wait()  # it searches for half a minute
            return web.Response(status=504)
        cid = parse(request.match_info["cid"])
        car = b"".join([piece async for piece in store.export_car(cid)])
        return web.Response(body=car, headers={"Content-Type": CAR_ANSWER_TYPE})


@asynccontextmanager
async def searching(
    at_hand: ContentStore | None, network: ContentStore | None
) -> AsyncIterator[tuple[Source, Searching]]:
    gateway = Searching(at_hand, network)
    app = web.Application()
    app.router.add_get("/ipfs/{cid}", gateway.handle)
    async with on_loopback(app) as url:
        yield Source(f"{url}/ipfs", name="gateway", searches=True), gateway
        gateway.has_ended.set()


@asynccontextmanager
async def serving(store: ContentStore, name: str) -> AsyncIterator[Source]:
    app = web.Application()
    add_gateway_routes(app, store)
    async with on_loopback(app) as url:
        yield Source(f"{url}/ipfs", name=name)


async def test_a_gateway_that_has_the_content_at_hand_is_read_and_counted(
    store: ContentStore, origin: ContentStore
) -> None:
    stat = await origin.put(os.urandom(3 * MIB), "a")
    async with searching(origin, None) as (gateway, asked), serving(origin, "coordinator") as own:
        (await store.get(stat.cid, [gateway, own], 8 * MIB, 20.0, "a")).release()
    assert asked.asked == ["probe", "read"]
    assert store.fetched.by_source() == {"gateway": 3 * MIB}


async def test_a_gateway_searches_only_when_all_others_lack_the_content(
    store: ContentStore, origin: ContentStore, tmp_path: Path
) -> None:
    stat = await origin.put(os.urandom(MIB), "a")
    async with searching(None, origin) as (gateway, asked), serving(origin, "coordinator") as own:
        (await store.get(stat.cid, [gateway, own], 8 * MIB, 20.0, "a")).release()
        assert asked.asked == ["probe"]
        other = ContentStore(tmp_path / "other", 128 * MIB)
        async with serving(store, "coordinator") as empty_handed:
            rare = await origin.put(os.urandom(MIB), "a")
            (await other.get(rare.cid, [gateway, empty_handed], 8 * MIB, 20.0, "a")).release()
        await other.close()
    assert asked.asked == ["probe", "probe", "read"]
    assert other.fetched.by_source() == {"gateway": MIB}


async def test_content_that_nobody_has_fails_in_seconds_and_each_source_is_quoted(
    store: ContentStore, origin: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_order, "FIND_SECONDS", 1.5)
    absent = raw_cid(b"nobody has this")
    begun = time.monotonic()
    async with searching(None, None) as (gateway, _), serving(origin, "coordinator") as own:
        with pytest.raises(Unavailable) as error:
            await store.get(absent, [gateway, own], MIB, 60.0, "a")
    assert time.monotonic() - begun < 5
    assert "gateway: timed out" in str(error.value)
    assert "coordinator: status 404" in str(error.value)


async def test_a_file_with_an_inline_tail_arrives_and_is_served(
    store: ContentStore, origin: ContentStore
) -> None:
    """Kubo makes such files with `--inline`; they also resume after the tail was not written."""
    data = os.urandom(MIB)
    stat = await origin.put(data, "a")
    node = encode_node(
        [Link(stat.cid, b"", MIB), Link(inline_cid(b"tail"), b"", 4)], file_data([MIB, 4])
    )
    root, block = node_cid(node), await origin.block(stat.cid)
    car = header(root) + frame_head(root, len(node)) + node + frame_head(stat.cid, MIB) + block

    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=car, headers={"Content-Type": CAR_ANSWER_TYPE})

    app = web.Application()
    app.router.add_get("/ipfs/{cid}", handle)
    async with (
        on_loopback(app) as url,
        await store.get(root, [f"{url}/ipfs"], 8 * MIB, 20.0, "a") as lease,
    ):
        assert lease.path.read_bytes() == data + b"tail"
    whole = b"".join([piece async for piece in store.export_car(root)])
    assert whole == car


async def test_the_gateway_serves_every_block_at_any_depth(
    store: ContentStore, origin: ContentStore, tmp_path: Path
) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "big").write_bytes(os.urandom(2 * MIB + 5))
    (tmp_path / "tree" / "small").write_bytes(b"small")
    stat = await origin.put(tmp_path / "tree", "a")
    car = b"".join([piece async for piece in origin.export_car(stat.cid)])
    app = web.Application()
    hidden: set[Cid] = set()

    async def may_read(_: web.Request, cid: Cid) -> bool:
        return cid not in hidden

    add_gateway_routes(app, origin, may_read=may_read)
    async with on_loopback(app) as url, aiohttp.ClientSession(url) as session:

        async def ask(cid: Cid, query: str) -> tuple[int, bytes]:
            async with session.get(f"/ipfs/{cid}{query}") as answer:
                return answer.status, await answer.read()

        big = cid_of_path(tmp_path / "tree" / "sub" / "big")
        small, folder = raw_cid(b"small"), cid_of_path(tmp_path / "tree" / "sub")
        for cid in (stat.cid, folder, big, small):
            status, block = await ask(cid, "?format=raw")
            assert status == 200 and block in car
            assert raw_cid(block).digest == cid.digest
        leaf = raw_cid((tmp_path / "tree" / "sub" / "big").read_bytes()[MIB : 2 * MIB])
        assert (await ask(leaf, "?format=raw"))[1] in car
        assert await ask(inline_cid(b""), "?format=raw") == (200, b"")
        assert b"raw only" in (await ask(big, ""))[1]
        hidden.add(stat.cid)
        assert (await ask(leaf, "?format=raw"))[0] == 404
        hidden.clear()
        # A file inside a directory is a CAR source of its own, so a cut directory continues in it.
        async with await store.get(big, [f"{url}/ipfs"], 8 * MIB, 20.0, "a") as lease:
            assert cid_of_path(lease.path) == big


async def test_blocks_of_a_store_without_their_list_are_listed_when_it_opens(
    tmp_path: Path,
) -> None:
    first = ContentStore(tmp_path / "old", 64 * MIB)
    data = os.urandom(2 * MIB)
    stat = await first.put(data, "a")
    await first.close()
    for name in ("blocks.sqlite", "blocks.sqlite-wal", "blocks.sqlite-shm"):
        (tmp_path / "old" / name).unlink(missing_ok=True)
    (tmp_path / "old" / "blocks.sqlite").write_bytes(b"not a database, but long enough" * 9)
    again = ContentStore(tmp_path / "old", 64 * MIB)
    (place,) = (await again.locate(raw_cid(data[MIB:]))).places
    assert place.root == stat.cid
    assert await again.inner_block(raw_cid(data[MIB:]), place) == data[MIB:]
    await again.gc(0)
    await again.unpin(stat.cid, "a")
    await again.gc(0)
    assert (await again.locate(raw_cid(data[MIB:]))).places == ()
    await again.close()
