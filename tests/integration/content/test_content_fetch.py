"""Fetching over loopback HTTP: honest, cut, stalled, wrong and slow gateways, shared fetches, and
kill -9.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
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
from quorate_content.transfer.staging_routes import add_staging_routes, upload, upload_file
from quorate_protocol.refusals import Code, Refused, Unavailable
from support.http_server import on_loopback

MIB = 1 << 20
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def handling(handle: Handle) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/ipfs/{cid}", handle)
    async with on_loopback(app) as url:
        yield url + "/ipfs"


class Origin:
    """A store with content that counts what its CAR route sent; `cut_after` ends each answer
    early.
    """

    def __init__(self, store: ContentStore) -> None:
        self.store = store
        self.requests: list[str] = []
        self.sent = 0
        self.cut_after: int | None = None
        self.is_clean_cut = False
        self.knows_entries = True  # Kubo does not
        self.gate: asyncio.Event | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.query_string)
        response = web.StreamResponse(headers={"Content-Type": CAR_ANSWER_TYPE})
        await response.prepare(request)
        start = int(request.query.get("entity-bytes", "0:*").split(":")[0])
        answered, cid = 0, parse(request.match_info["cid"])
        place = next(iter((await self.store.locate(cid)).places), None)
        entry = request.query.get("from-entry", "") if self.knows_entries else ""
        path = tuple(entry.encode().split(b"/")) if entry else ()
        async for piece in self.store.export_car(cid, start, place=place, from_entry=path):
            await response.write(piece)
            answered += len(piece)
            self.sent += len(piece)
            if self.gate is not None:
                await self.gate.wait()
            if self.cut_after is not None and answered >= self.cut_after:
                if not self.is_clean_cut and request.transport is not None:
                    request.transport.close()
                return response
        return response


@pytest.fixture
async def origin(tmp_path: Path) -> AsyncIterator[Origin]:
    store = ContentStore(tmp_path / "origin", 256 * MIB)
    yield Origin(store)
    await store.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ContentStore]:
    made = ContentStore(tmp_path / "store", 128 * MIB)
    yield made
    await made.close()


async def test_file_and_directory_arrive_verified(
    origin: Origin, store: ContentStore, tmp_path: Path
) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "big").write_bytes(os.urandom(3 * MIB))
    (tmp_path / "tree" / "zeros").write_bytes(bytes(5 * MIB))
    told: list[int] = []
    app = web.Application()
    add_gateway_routes(app, origin.store)
    async with on_loopback(app) as url:
        for content in (os.urandom(7 * MIB + 1), b"tiny", b"", tmp_path / "tree"):
            stat = await origin.store.put(content, "a")
            async with await store.get(
                str(stat.cid), [url + "/ipfs"], 16 * MIB, 20.0, "a", told.append
            ) as lease:
                assert cid_of_path(lease.path) == stat.cid
                assert lease.size == stat.size
    assert max(told) == 8 * MIB
    assert list((tmp_path / "store" / "tmp").iterdir()) == []


@pytest.mark.parametrize("is_clean_cut", [True, False])
async def test_cut_file_is_resumed_and_nothing_is_fetched_twice(
    origin: Origin, store: ContentStore, is_clean_cut: bool
) -> None:
    stat = await origin.store.put(os.urandom(12 * MIB), "a")
    origin.cut_after, origin.is_clean_cut = 5 * MIB, is_clean_cut
    async with (
        handling(origin.handle) as url,
        await store.get(stat.cid, [url], 64 * MIB, 20.0, "a") as lease,
    ):
        assert cid_of_path(lease.path) == stat.cid
    assert len(origin.requests) >= 3
    assert all("entity-bytes" in query for query in origin.requests[1:])
    assert not is_clean_cut or origin.sent < 13 * MIB


def spoil(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"rot")


async def test_a_part_survives_the_deadline_and_the_next_get_continues(
    origin: Origin, store: ContentStore, tmp_path: Path
) -> None:
    stat = await origin.store.put(os.urandom(12 * MIB), "a")
    origin.cut_after, origin.is_clean_cut, origin.gate = 5 * MIB, True, None

    async def first_part(request: web.Request) -> web.StreamResponse:
        if origin.requests:
            return web.Response(status=404)
        return await origin.handle(request)

    async with handling(first_part) as url:
        with pytest.raises(Unavailable):
            await store.get(stat.cid, [url], 64 * MIB, 20.0, "a")
    part = tmp_path / "store" / "tmp" / str(stat.cid) / "tree"
    spoil(part, 3 * MIB + 7)  # a bad disk: what does not verify is fetched again, what does is not
    origin.requests.clear()
    origin.cut_after = None
    async with (
        handling(origin.handle) as url,
        await store.get(stat.cid, [url], 64 * MIB, 20.0, "a") as lease,
    ):
        assert cid_of_path(lease.path) == stat.cid
    assert origin.requests == [f"format=car&dag-scope=entity&entity-bytes={3 * MIB}:*"]


async def test_truncated_car_with_status_200_is_not_complete(
    origin: Origin, store: ContentStore
) -> None:
    stat = await origin.store.put(os.urandom(3 * MIB), "a")

    async def stub(request: web.Request) -> web.StreamResponse:
        raw = b"".join([piece async for piece in origin.store.export_car(stat.cid)])
        return web.Response(body=raw[: len(raw) // 3], headers={"Content-Type": CAR_ANSWER_TYPE})

    async with handling(stub) as url:
        with pytest.raises(Unavailable, match=r"cut|ends"):
            await store.get(stat.cid, [url], 64 * MIB, 20.0, "a")
    assert await store.stat(stat.cid) is None


async def test_bad_sources_are_dropped_and_the_next_is_used(
    origin: Origin, store: ContentStore
) -> None:
    stat = await origin.store.put(os.urandom(6 * MIB), "a")
    asked: list[str] = []

    async def wrong_bytes(request: web.Request) -> web.StreamResponse:
        asked.append("wrong")
        raw = bytearray(b"".join([piece async for piece in origin.store.export_car(stat.cid)]))
        raw[4 * MIB] ^= 1
        return web.Response(body=bytes(raw), headers={"Content-Type": CAR_ANSWER_TYPE})

    async def page(request: web.Request) -> web.StreamResponse:
        asked.append("page")
        return web.Response(text="<html>not found</html>", content_type="text/html")

    async def busy(request: web.Request) -> web.StreamResponse:
        asked.append("busy")
        return web.Response(status=503, headers={"Retry-After": "0"})

    async with (
        handling(wrong_bytes) as one,
        handling(page) as two,
        handling(busy) as three,
        handling(origin.handle) as four,
        await store.get(
            stat.cid, ["ftp://nowhere/x", one, two, three, four], 64 * MIB, 20.0, "a"
        ) as lease,
    ):
        assert cid_of_path(lease.path) == stat.cid
    assert asked == ["wrong", "page", "busy"]
    assert origin.requests == [f"format=car&dag-scope=entity&entity-bytes={3 * MIB}:*"]


async def test_deadline_and_cancellation_end_a_stalled_fetch(
    origin: Origin, store: ContentStore
) -> None:
    stat = await origin.store.put(os.urandom(3 * MIB), "a")
    origin.gate = asyncio.Event()
    async with handling(origin.handle) as url:
        with pytest.raises(Unavailable):
            await asyncio.wait_for(store.get(stat.cid, [url], 64 * MIB, 0.3, "a"), 20)
        before = len(origin.requests)  # none, if the deadline came before the request
        task = asyncio.create_task(store.get(stat.cid, [url], 64 * MIB, 60.0, "a"))
        async with asyncio.timeout(20):
            while len(origin.requests) == before:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)
        origin.gate.set()
        async with await store.get(stat.cid, [url], 64 * MIB, 20.0, "a") as lease:
            assert cid_of_path(lease.path) == stat.cid


async def test_too_large_is_refused_before_the_second_block(
    origin: Origin, store: ContentStore, tmp_path: Path
) -> None:
    stat = await origin.store.put(os.urandom(12 * MIB), "a")
    async with handling(origin.handle) as url:
        with pytest.raises(Refused) as refused:
            await store.get(stat.cid, [url], 10 * MIB, 20.0, "a")
    assert refused.value.code is Code.OVERSIZE
    assert list((tmp_path / "store" / "tmp").iterdir()) == []
    assert await store.used_bytes() == 0


async def test_many_readers_cause_one_fetch(
    origin: Origin, store: ContentStore, tmp_path: Path
) -> None:
    stat = await origin.store.put(os.urandom(4 * MIB), "a")
    second = ContentStore(tmp_path / "store", 128 * MIB)  # as another process would open it
    async with handling(origin.handle) as url:
        leases = await asyncio.gather(
            *(each.get(stat.cid, [url], 64 * MIB, 20.0, "a") for each in [store, second] * 3)
        )
    assert len(origin.requests) == 1
    for lease in leases:
        assert lease.path.exists()
        lease.release()
    await second.close()


async def test_a_cancelled_reader_does_not_end_the_fetch_of_another(
    origin: Origin, store: ContentStore
) -> None:
    """This holds for either reader: a job that ends during its fetch takes nothing from another
    job.
    """
    for is_first in (True, False):
        stat = await origin.store.put(os.urandom(8 * MIB), "a")
        origin.gate, before = asyncio.Event(), len(origin.requests)
        async with handling(origin.handle) as url:
            gets = [
                asyncio.create_task(store.get(stat.cid, [url], 64 * MIB, 20.0, name))
                for name in ("a", "b")
            ]
            while len(origin.requests) == before:
                await asyncio.sleep(0)
            gets[not is_first].cancel()
            await asyncio.wait([gets[not is_first]])
            origin.gate.set()
            lease = await gets[is_first]
        assert lease.path.stat().st_size == 8 * MIB
        lease.release()


GET = """
import asyncio, sys
from pathlib import Path
from quorate_content.store.content_store import ContentStore
async def main():
    store = ContentStore(Path(sys.argv[1]), 1 << 30)
    told = lambda done: print(done, flush=True)
    await store.get(sys.argv[3], [sys.argv[2]], 1 << 30, 60.0, "a", told)
asyncio.run(main())
"""


@asynccontextmanager
async def killing(folder: Path, url: str, cid: str) -> AsyncIterator[asyncio.StreamReader]:
    """Yields what a fetch in a process of its own prints, and then kills the process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GET, str(folder), url, cid, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(20):
        yield process.stdout
    process.send_signal(signal.SIGKILL)
    await process.wait()
    assert list((folder / "objects").glob("*/*")) == []


async def test_kill_nine_during_a_fetch_shows_nothing_and_keeps_the_part(
    origin: Origin, tmp_path: Path
) -> None:
    stat = await origin.store.put(os.urandom(12 * MIB), "a")
    async with handling(origin.handle) as url:
        origin.gate = asyncio.Event()  # an answer stops after its first piece
        origin.cut_after = None
        for _ in range(4):
            async with killing(tmp_path / "store", url, str(stat.cid)) as told:
                while (await told.readline()).strip() == b"0":
                    pass
        origin.gate.set()
        store = ContentStore(tmp_path / "store", 1 << 30)
        async with await store.get(stat.cid, [url], 64 * MIB, 20.0, "a") as lease:
            assert cid_of_path(lease.path) == stat.cid
        await store.close()
    starts = [
        int(query.split("entity-bytes=")[1].split(":")[0]) if "entity" in query else 0
        for query in origin.requests
    ]
    assert starts == sorted(starts)
    assert starts[-1] >= 3 * MIB


async def test_directory_is_resumed_after_a_cut(
    origin: Origin, store: ContentStore, tmp_path: Path
) -> None:
    (tmp_path / "tree").mkdir()
    for index in range(6):
        (tmp_path / "tree" / f"file-{index}").write_bytes(os.urandom(2 * MIB))
    stat = await origin.store.put(tmp_path / "tree", "a")
    cuts = [5 * MIB, 9 * MIB]

    async def cutting(request: web.Request) -> web.StreamResponse:
        origin.cut_after = cuts.pop(0) if cuts else None
        return await origin.handle(request)

    async with (
        handling(cutting) as url,
        await store.get(stat.cid, [url], 64 * MIB, 20.0, "a") as lease,
    ):
        assert cid_of_path(lease.path) == stat.cid
    # Each file after the first cut is asked for by its own CID, so nothing comes twice.
    assert len(origin.requests) == 5
    assert origin.sent < 13 * MIB


def small_files(folder: Path, count: int, name_bytes: int) -> Path:
    (folder / "a folder").mkdir(parents=True)
    for index in range(count):
        (folder / "a folder" / f"{index:0{name_bytes}}").write_bytes(os.urandom(16 * 1024))
    (folder / "z").write_bytes(b"after it")
    return folder


@pytest.mark.parametrize("name_bytes", [8, 250], ids=["flat", "sharded"])
@pytest.mark.parametrize(("knows_entries", "most"), [(True, 1.1), (False, 1.5)])
async def test_a_directory_of_small_files_continues_after_every_cut(
    origin: Origin,
    store: ContentStore,
    tmp_path: Path,
    name_bytes: int,
    knows_entries: bool,
    most: float,
) -> None:
    stat = await origin.store.put(small_files(tmp_path / "tree", 1000, name_bytes), "a")
    origin.cut_after, origin.is_clean_cut = 6 * MIB, True
    origin.knows_entries = knows_entries
    async with (
        handling(origin.handle) as url,
        await store.get(stat.cid, [url], 64 * MIB, 60.0, "a") as lease,
    ):
        assert cid_of_path(lease.path) == stat.cid
    assert origin.sent < most * stat.size
    assert not knows_entries or len(origin.requests) == 3


async def test_kill_nine_during_a_directory_sends_only_what_is_not_on_disk(
    origin: Origin, tmp_path: Path
) -> None:
    stat = await origin.store.put(small_files(tmp_path / "tree", 700, 8), "a")
    async with handling(origin.handle) as url:
        async with killing(tmp_path / "store", url, str(stat.cid)) as lines:
            async for line in lines:
                if int(line) >= 7 * MIB:
                    break
        origin.sent = 0
        store = ContentStore(tmp_path / "store", 1 << 30)
        async with await store.get(stat.cid, [url], 64 * MIB, 20.0, "a") as lease:
            assert cid_of_path(lease.path) == stat.cid
        await store.close()
    assert origin.sent < stat.size - 6 * MIB


async def test_directory_is_sent_again_by_a_source_that_serves_only_roots(
    origin: Origin, store: ContentStore, tmp_path: Path
) -> None:
    (tmp_path / "tree").mkdir()
    for index in range(4):
        (tmp_path / "tree" / f"file-{index}").write_bytes(os.urandom(2 * MIB))
    stat = await origin.store.put(tmp_path / "tree", "a")
    origin.cut_after = 3 * MIB

    async def roots_only(request: web.Request) -> web.StreamResponse:
        if request.match_info["cid"] != str(stat.cid):
            return web.Response(status=404)
        answer = await origin.handle(request)
        origin.cut_after = None
        return answer

    async with (
        handling(roots_only) as url,
        await store.get(stat.cid, [url], 64 * MIB, 20.0, "a") as lease,
    ):
        assert cid_of_path(lease.path) == stat.cid
    assert len(origin.requests) == 2


async def test_staging_takes_files_and_cars_under_a_quota(origin: Origin, tmp_path: Path) -> None:
    staging = ContentStore(tmp_path / "staging", 64 * MIB, owner_quota_bytes=16 * MIB)

    async def authorize(request: web.Request) -> str:
        account = request.headers.get("X-Account", "")
        if not account:
            raise Refused(Code.WRONG_SIGNER, "no account")
        return account

    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(os.urandom(3 * MIB))
    tree = await origin.store.put(tmp_path / "tree", "a")
    (tmp_path / "sealed").write_bytes(os.urandom(2 * MIB))
    app = web.Application()
    add_staging_routes(app, staging, authorize, bytes_max=32 * MIB)
    async with on_loopback(app) as url, aiohttp.ClientSession() as session:
        place, headers = url + "/v1/content", {"X-Account": "0xa"}
        assert await upload(session, place, origin.store, tree.cid, headers) == tree
        sealed_cid = cid_of_path(tmp_path / "sealed")
        assert (
            await upload_file(session, place, tmp_path / "sealed", sealed_cid, headers)
        ).size == 2 * MIB
        with pytest.raises(Refused) as refused:
            await upload_file(session, place, tmp_path / "sealed", sealed_cid)
        assert refused.value.code is Code.WRONG_SIGNER
        (tmp_path / "large").write_bytes(bytes(17 * MIB))
        with pytest.raises(Refused) as refused:
            await upload_file(
                session, place, tmp_path / "large", cid_of_path(tmp_path / "large"), headers
            )
        assert refused.value.code is Code.QUOTA
        reader = ContentStore(tmp_path / "reader", 64 * MIB)
        async with await reader.get(tree.cid, [place], 8 * MIB, 10.0, "b") as lease:
            assert cid_of_path(lease.path) == tree.cid
        await reader.close()
    assert list((tmp_path / "staging" / "tmp").iterdir()) == []
    await staging.close()


@pytest.fixture
async def holder(tmp_path: Path) -> AsyncIterator[ContentStore]:
    made = ContentStore(tmp_path / "holder", 128 * MIB)
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
    store: ContentStore, holder: ContentStore
) -> None:
    stat = await holder.put(os.urandom(3 * MIB), "a")
    async with searching(holder, None) as (gateway, asked), serving(holder, "coordinator") as own:
        (await store.get(stat.cid, [gateway, own], 8 * MIB, 20.0, "a")).release()
    assert asked.asked == ["probe", "read"]
    assert store.fetched.by_source() == {"gateway": 3 * MIB}


async def test_a_gateway_searches_only_when_all_others_lack_the_content(
    store: ContentStore, holder: ContentStore, tmp_path: Path
) -> None:
    stat = await holder.put(os.urandom(MIB), "a")
    async with searching(None, holder) as (gateway, asked), serving(holder, "coordinator") as own:
        (await store.get(stat.cid, [gateway, own], 8 * MIB, 20.0, "a")).release()
        assert asked.asked == ["probe"]
        other = ContentStore(tmp_path / "other", 128 * MIB)
        async with serving(store, "coordinator") as empty_handed:
            rare = await holder.put(os.urandom(MIB), "a")
            (await other.get(rare.cid, [gateway, empty_handed], 8 * MIB, 20.0, "a")).release()
        await other.close()
    assert asked.asked == ["probe", "probe", "read"]
    assert other.fetched.by_source() == {"gateway": MIB}


async def test_content_that_nobody_has_fails_in_seconds_and_each_source_is_quoted(
    store: ContentStore, holder: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_order, "FIND_SECONDS", 1.5)
    absent = raw_cid(b"nobody has this")
    begun = time.monotonic()
    async with searching(None, None) as (gateway, _), serving(holder, "coordinator") as own:
        with pytest.raises(Unavailable) as error:
            await store.get(absent, [gateway, own], MIB, 60.0, "a")
    assert time.monotonic() - begun < 30
    assert "gateway: timed out" in str(error.value)
    assert "coordinator: status 404" in str(error.value)


async def test_a_file_with_an_inline_tail_arrives_and_is_served(
    store: ContentStore, holder: ContentStore
) -> None:
    """Kubo makes such files with `--inline`; they also resume after the tail was not written."""
    data = os.urandom(MIB)
    stat = await holder.put(data, "a")
    node = encode_node(
        [Link(stat.cid, b"", MIB), Link(inline_cid(b"tail"), b"", 4)], file_data([MIB, 4])
    )
    root, block = node_cid(node), await holder.block(stat.cid)
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
    store: ContentStore, holder: ContentStore, tmp_path: Path
) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "big").write_bytes(os.urandom(2 * MIB + 5))
    (tmp_path / "tree" / "small").write_bytes(b"small")
    stat = await holder.put(tmp_path / "tree", "a")
    car = b"".join([piece async for piece in holder.export_car(stat.cid)])
    app = web.Application()
    hidden: set[Cid] = set()

    async def may_read(_: web.Request, cid: Cid) -> bool:
        return cid not in hidden

    add_gateway_routes(app, holder, may_read=may_read)
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
