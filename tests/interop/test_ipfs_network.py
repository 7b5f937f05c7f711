"""Content to and from IPFS as others build it: peers made of go-libp2p and boxo, with bitswap."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from nacl.signing import SigningKey

from quorate_content.dag.cid import BASE58, raw_cid
from quorate_content.dag.disk_tree import cid_of_path
from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import Source
from quorate_content.transfer.gateway import add_gateway_routes
from quorate_protocol.refusals import Unavailable
from support.go_peer import GoPeer, go_peer
from support.http_server import on_loopback

pytestmark = pytest.mark.gopeer
MIB = 1 << 20


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ContentStore]:
    made = ContentStore(tmp_path / "store", 512 * MIB)
    yield made
    await made.close()


@asynccontextmanager
async def network() -> AsyncIterator[tuple[GoPeer, GoPeer]]:
    """A peer that holds data, and one that gets it by bitswap and serves it as a gateway."""
    async with go_peer() as holder, go_peer() as gateway:
        await gateway.connect(holder)
        yield holder, gateway


async def test_content_comes_through_a_gateway_that_gets_it_by_bitswap(store: ContentStore) -> None:
    data = os.urandom(9 * MIB + 1)
    async with network() as (holder, gateway):
        cid = await holder.add(data)
        source = Source(gateway.ipfs_url, name="gateway", searches=True)
        async with await store.get(cid, [source], 16 * MIB, 60.0, "a") as lease:
            assert lease.path.read_bytes() == data
            assert str(cid_of_path(lease.path)) == cid
    assert store.fetched.by_source() == {"gateway": len(data)}


class Cutter:
    """A proxy of a gateway that cuts each answer after 4 MiB."""

    def __init__(self, gateway: GoPeer) -> None:
        self._gateway, self.sent = gateway, 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        url = f"{self._gateway.started.gateway}{request.path_qs}"
        headers = {"Accept": request.headers["Accept"]}
        async with self._gateway.session.get(url, headers=headers) as found:
            response = web.StreamResponse(headers={"Content-Type": found.headers["Content-Type"]})
            await response.prepare(request)
            left = 4 * MIB
            async for piece in found.content.iter_chunked(64 * 1024):
                await response.write(piece)
                self.sent, left = self.sent + len(piece), left - len(piece)
                if left <= 0 and request.transport is not None:
                    request.transport.close()
                    break
            return response


@asynccontextmanager
async def cut_network() -> AsyncIterator[tuple[GoPeer, Cutter, str]]:
    """The holder, and the gateway behind a `Cutter`, with the URL of its content."""
    async with network() as (holder, gateway):
        cutter, app = Cutter(gateway), web.Application()
        app.router.add_get("/ipfs/{cid}", cutter.handle)
        async with on_loopback(app) as url:
            yield holder, cutter, f"{url}/ipfs"


async def test_a_fetch_through_a_gateway_resumes_after_each_cut(store: ContentStore) -> None:
    """boxo, like Kubo, continues a file only if the request names the scope `entity`."""
    data = os.urandom(16 * MIB)
    async with cut_network() as (holder, cutter, url):
        cid = await holder.add(data)
        async with await store.get(cid, [url], 16 * MIB, 60.0, "a") as lease:
            assert lease.path.read_bytes() == data
        assert cutter.sent < 24 * MIB


async def test_a_model_of_several_files_resumes_file_by_file(
    store: ContentStore, tmp_path: Path
) -> None:
    """From its beginning, the directory would never be complete: it is cut every 4 MiB."""
    model = tmp_path / "model"
    (model / "shards").mkdir(parents=True)
    for number in range(4):
        (model / "shards" / f"{number}.safetensors").write_bytes(os.urandom(5 * MIB + number))
    (model / "config.json").write_text("{}")
    origin = ContentStore(tmp_path / "origin", 64 * MIB)
    stat = await origin.put(model, "a")
    car = b"".join([bytes(piece) async for piece in origin.export_car(stat.cid)])
    async with cut_network() as (holder, cutter, url):
        assert await holder.import_car(car) == str(stat.cid)
        async with await store.get(stat.cid, [url], 64 * MIB, 60.0, "a") as lease:
            assert cid_of_path(lease.path) == stat.cid
        assert cutter.sent < 32 * MIB, "each cut sends one leaf again, not more"
    await origin.close()


async def test_content_that_the_network_lacks_fails_within_15_s(store: ContentStore) -> None:
    async with network() as (_, gateway):
        source = Source(gateway.ipfs_url, name="gateway", searches=True)
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="gateway: "):
            await store.get(raw_cid(b"nobody has this"), [source], MIB, 60.0, "a")
        assert time.monotonic() - begun < 15


async def test_a_boxo_client_reads_our_gateway_block_by_block(
    store: ContentStore, tmp_path: Path
) -> None:
    data = os.urandom(5 * MIB + 3)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "model").write_bytes(data)
    stat = await store.put(data, "a")
    folder = await store.put(tmp_path / "tree", "a")
    await store.gc(0)
    app = web.Application()
    add_gateway_routes(app, store)
    async with on_loopback(app) as url, go_peer() as reader:
        found = await reader.read(str(stat.cid), url)
        assert (found.bytes, found.sha256) == (len(data), sha256(data).hexdigest())
        async with aiohttp.ClientSession() as session:
            probe = f"{url}/ipfs/bafkqaaa?format=raw"
            async with session.get(probe) as answer:
                assert (answer.status, await answer.read()) == (200, b"")
        await store.unpin(stat.cid, "a")
        await store.gc(folder.size)
        assert await store.stat(stat.cid) is None
        inside = await reader.read(str(stat.cid), url)
        assert inside.sha256 == found.sha256


def peer_id(public_key: bytes) -> str:
    """The text of an Ed25519 peer id: the base58 of an identity multihash, which begins with 0."""
    number, text = int.from_bytes(bytes((0x24, 0x08, 0x01, 0x12, 0x20)) + public_key, "big"), ""
    while number:
        number, rest = divmod(number, 58)
        text = BASE58[rest] + text
    return "1" + text


async def test_go_peers_gossip_and_echo_and_keep_their_identity() -> None:
    seed = bytes(31) + b"\1"
    async with go_peer(seed) as first, go_peer() as second:
        assert first.started.id == peer_id(bytes(SigningKey(seed).verify_key))
        await second.connect(first)
        big = os.urandom(MIB)
        assert await second.exchange(first.started.id, "/quorate/echo/1", big, 3) == big
        for peer in (first, second):
            await peer.join("topic")
        async with asyncio.timeout(30):
            # Before its first heartbeat with a neighbour, gossipsub sends messages to nobody.
            while not (found := await second.messages("topic")):
                await first.publish("topic", b"hello")
                await asyncio.sleep(0.2)
        assert (found[0].signer, found[0].data) == (first.started.id, b"hello")


async def test_empty_files_arrive_although_bitswap_does_not_send_the_empty_block(
    store: ContentStore,
) -> None:
    async with network() as (holder, gateway):
        cid = await holder.add(b"")
        source = Source(gateway.ipfs_url, name="gateway", searches=True)
        async with await store.get(cid, [source], MIB, 60.0, "a") as lease:
            assert lease.path.read_bytes() == b""
