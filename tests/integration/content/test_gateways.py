"""Tests what gateways answer: that of an owner, and the one that stands for IPFS peers."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from quorate_content.dag.cid import Cid, raw_cid
from quorate_content.dag.disk_tree import cid_of_path
from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import gateway_source
from quorate_content.transfer.gateway import CAR_ANSWER_TYPE, add_gateway_routes
from quorate_devnet.market import ipfs_peer
from quorate_devnet.market.content_origin import ContentOrigin, content_origin
from quorate_devnet.market.ipfs_peer import built_program
from quorate_protocol.refusals import Unavailable
from support.http_server import on_loopback
from support.requirements import GO_PEER, require

MIB = 1 << 20
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def test_the_gateway_serves_raw_blocks_cars_and_files(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store", 128 * MIB)
    data = os.urandom(3 * MIB)
    stat, secret = await store.put(data, "a"), await store.put(b"secret", "a")
    (tmp_path / "tree").mkdir()
    folder = await store.put(tmp_path / "tree", "a")
    app = web.Application()

    async def may_read(_: web.Request, cid: Cid) -> bool:
        return cid != secret.cid

    add_gateway_routes(app, store, may_read=may_read)
    async with on_loopback(app) as url, aiohttp.ClientSession(url) as session:

        async def ask(
            cid: Cid | str, query: str = "", method: str = "GET", **headers: str
        ) -> tuple[int, bytes, str]:
            named = {key.replace("_", "-"): value for key, value in headers.items()}
            async with session.request(method, f"/ipfs/{cid}{query}", headers=named) as answer:
                return answer.status, await answer.read(), answer.headers.get("Content-Type", "")

        assert await ask(stat.cid) == (200, data, "application/octet-stream")
        assert (await ask(stat.cid, Range="bytes=5-8"))[:2] == (206, data[5:9])
        status, block, kind = await ask(stat.cid, "?format=raw")
        assert (status, kind, raw_cid(block).digest) == (
            200,
            "application/vnd.ipld.raw",
            stat.cid.digest,
        )
        assert (await ask(stat.cid, Accept="application/vnd.ipld.raw"))[1] == block
        status, whole, kind = await ask(stat.cid, Accept="application/vnd.ipld.car;version=1")
        assert (status, kind) == (200, CAR_ANSWER_TYPE)
        assert whole == b"".join([piece async for piece in store.export_car(stat.cid)])
        tail = (await ask(stat.cid, f"?format=car&entity-bytes={2 * MIB}:*"))[1]
        assert MIB < len(tail) < MIB + 1000
        assert len((await ask(stat.cid, "?format=car&dag-scope=block"))[1]) < 1000
        assert (await ask(stat.cid, "?format=car", "HEAD"))[:2] == (200, b"")
        assert (await ask(stat.cid, "?format=raw", "HEAD"))[0] == 200
        assert (await ask(folder.cid, "?format=car"))[0] == 200
        assert (await ask(folder.cid))[0] == 501
        assert (await ask(secret.cid))[0] == 404
        assert (await ask(raw_cid(b"absent"), "?format=car"))[0] == 404
        assert (await ask(raw_cid(b"absent"), Cache_Control="only-if-cached"))[0] == 412
        for bad in ("Qmnonsense", "..%2f..%2fetc%2fpasswd"):
            assert (await ask(bad))[0] in (400, 404)
        for query in (
            "?format=tar",
            "?format=car&car-version=2",
            "?format=car&dag-scope=x",
            "?format=car&entity-bytes=x:*",
        ):
            assert (await ask(stat.cid, query))[0] == 400
        assert (await ask(stat.cid, method="POST"))[0] == 405
    await store.close()


async def test_a_reader_that_goes_away_is_no_error_of_the_gateway(tmp_path: Path) -> None:
    """A fetch closes its connection as soon as it has every block, before the answer's end."""
    store, errors, ended = ContentStore(tmp_path / "store", 64 * MIB), [], asyncio.Event()
    cid = (await store.put(os.urandom(32 * MIB), "a")).cid

    @web.middleware
    async def watched(request: web.Request, handler: Handle) -> web.StreamResponse:
        try:
            return await handler(request)
        except Exception as error:
            errors.append(error)
            raise
        finally:
            ended.set()

    app = web.Application(middlewares=[watched])
    add_gateway_routes(app, store)
    async with on_loopback(app) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET /ipfs/%s?format=car HTTP/1.1\r\nHost: h\r\n\r\n" % str(cid).encode())
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.transport.abort()
        async with asyncio.timeout(20):
            await ended.wait()
    assert errors == []
    await store.close()


SECONDS = 60.0


@pytest.fixture(params=["ipfs", "gateway"])
async def origin(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ContentOrigin]:
    if request.param == "ipfs":
        require("gopeer")
    program = GO_PEER if request.param == "ipfs" else None
    async with content_origin(program, tmp_path / "origin") as found:
        assert found.kind == request.param
        assert ("make-gopeer" in found.instead) == (found.kind == "gateway"), "with the remedy"
        yield found


async def test_what_was_added_is_fetched_from_its_gateway_by_our_own_cid(
    origin: ContentOrigin, tmp_path: Path
) -> None:
    files = {"small": b"rows", "large": os.urandom(3 * MIB + 1), "empty": b""}
    store = ContentStore(tmp_path / "store", 64 * MIB)
    source = gateway_source("gateway", origin.gateway)
    for name, data in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        cid = await origin.add(path)
        assert cid == str(cid_of_path(path))
        async with await store.get(cid, [source], 8 * MIB, SECONDS, "provider") as lease:
            assert lease.path.read_bytes() == data
    await store.close()


async def test_what_nobody_added_is_clearly_absent(origin: ContentOrigin, tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store", 64 * MIB)
    source = gateway_source("gateway", origin.gateway)
    with pytest.raises(Unavailable, match="no source had bafk.*gateway 127"):
        await store.get(raw_cid(b"nobody has it"), [source], MIB, SECONDS, "provider")
    await store.close()


@pytest.mark.parametrize("text", ["#!/bin/sh\necho no JSON\n", "#!/nowhere/at/all\n", ""])
async def test_a_program_that_is_no_peer_is_named(tmp_path: Path, text: str) -> None:
    program = tmp_path / "gopeer"
    program.write_text(text)
    program.chmod(stat.S_IRWXU)
    with pytest.raises(Unavailable, match="gopeer"):
        async with content_origin(program, tmp_path / "origin"):
            pass


async def test_a_silent_program_does_not_delay_the_demo_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipfs_peer, "START_SECONDS", 0.2)
    program = tmp_path / "gopeer"
    program.write_text("#!/bin/sh\nexec cat > /dev/null\n")
    program.chmod(stat.S_IRWXU)
    with pytest.raises(Unavailable, match="did not start"):
        async with content_origin(program, tmp_path / "origin"):
            pass


def test_the_checkouts_program_is_found_if_it_is_built() -> None:
    assert built_program() == (GO_PEER if GO_PEER.is_file() else None)
