"""The coordinator's own documents: durable, kept for their time, and never refused for lack of
space.
"""

import asyncio
import os
import resource
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from quorate_content.dag.cid import parse
from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import Source
from quorate_content.transfer.gateway import CombinedStores, add_gateway_routes
from quorate_coordinator.base.storage_sizes import DAY_SECONDS, Keeping
from quorate_coordinator.storage.document_file import DocumentFile
from quorate_protocol.codec.cids import document_cid
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.refusals import Unavailable
from quorate_runtime.durable import OtherVersion
from support.clocks import SetClock
from support.http_server import on_loopback

KIB = 1024
KEEPING = Keeping(4 << 20, 180 * DAY_SECONDS, 15 * DAY_SECONDS)


def some(number: int, size: int = 8 * KIB) -> bytes:
    """Returns incompressible bytes, so that sizes are exact."""
    return number.to_bytes(8, "big") + os.urandom(size - 8)


async def fill(file: DocumentFile) -> list[bytes]:
    """Stores documents until the file refuses more; returns those it took."""
    taken: list[bytes] = []
    for number in range(4096):
        data = some(number)
        try:
            await file.put(data)
        except Unavailable as error:
            assert "--documents-size" in str(error) and file.problem == str(error)
            return taken
        taken.append(data)
    raise AssertionError("it never was full")


async def test_parallel_writes_share_syncs_and_are_durable(tmp_path: Path) -> None:
    file = DocumentFile(tmp_path / "documents.sqlite", KEEPING, SetClock())
    commits: list[str] = []
    file.file._connections()[0].set_trace_callback(
        lambda statement: commits.append(statement) if statement == "COMMIT" else None
    )
    documents = [some(number) for number in range(200)]
    await asyncio.gather(
        *(file.put(data) for data in documents), *(file.put(data) for data in documents[:50])
    )
    assert 1 <= len(commits) <= 4, "one sync for all that wait, not one each"
    file.close()
    file = DocumentFile(tmp_path / "documents.sqlite", KEEPING, SetClock())
    assert (
        all(file.get(sha256(data)) == data for data in documents)
        and file.get(sha256(b"nothing")) is None
    )
    file.close()


async def test_text_is_compressed(tmp_path: Path) -> None:
    file = DocumentFile(tmp_path / "documents.sqlite", KEEPING, SetClock())
    text = (os.urandom(4 * KIB).hex() + '{"body":{}}' * 100).encode()
    await file.put(text)
    before = file.used_bytes()
    for number in range(64):
        await file.put(text + str(number).encode())
    assert (file.used_bytes() - before) / 64 < 0.8 * len(text) and file.get(sha256(text)) == text
    file.close()


async def test_expired_documents_go_unless_stored_again(tmp_path: Path) -> None:
    clock = SetClock()
    file = DocumentFile(tmp_path / "documents.sqlite", KEEPING, clock)
    old, again = some(1), some(2)
    await file.put(old)
    await file.put(again)
    clock.at += 100 * DAY_SECONDS
    assert not file.is_fresh(sha256(again))
    await file.put(again)  # another job with the same spec
    assert file.is_fresh(sha256(again))
    clock.at += 81 * DAY_SECONDS
    await file.put(some(3))
    assert file.get(sha256(old)) is None and file.get(sha256(again)) == again
    file.close()


async def test_a_full_file_drops_the_oldest_but_keeps_young_documents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SetClock()
    file = DocumentFile(tmp_path / "documents.sqlite", KEEPING, clock)
    taken = await fill(file)
    assert len(taken) > 300 and all(file.get(sha256(data)) == data for data in taken)
    assert file.used_bytes() <= KEEPING.bytes_max
    assert (
        sum("--documents-size has to grow" in record.getMessage() for record in caplog.records) == 1
    ), "told beforehand, once an hour"
    with pytest.raises(Unavailable):
        await asyncio.gather(*(file.put(some(number)) for number in range(20)))
    clock.at += 16 * DAY_SECONDS
    newer = some(9)
    await file.put(newer)
    assert not file.problem and file.get(sha256(newer)) == newer
    assert file.get(sha256(taken[0])) is None, "the oldest made room"
    for number in range(200):
        await file.put(some(number))
    assert file.used_bytes() <= KEEPING.bytes_max
    file.close()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Makes the kernel refuse to write past this size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


async def test_a_full_disk_is_unavailable_and_later_everything_is_there(tmp_path: Path) -> None:
    file = DocumentFile(tmp_path / "documents.sqlite", KEEPING, SetClock())
    first, second = some(1), some(2, 512 * KIB)
    await file.put(first)
    with files_of_at_most(128 * KIB):
        with pytest.raises(Unavailable, match="does not take documents"):
            await file.put(second)
        assert file.get(sha256(first)) == first and file.get(sha256(second)) is None
    await file.put(second)
    assert file.get(sha256(second)) == second and not file.problem
    file.close()


async def test_a_file_of_a_newer_version_is_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "documents.sqlite"
    DocumentFile(path, KEEPING, SetClock()).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(OtherVersion, match="newer Quorate"):
        DocumentFile(path, KEEPING, SetClock())
    path.write_bytes(b"rubbish" * 1000)
    file = DocumentFile(path, KEEPING, SetClock())
    with pytest.raises(Unavailable, match="backup"):
        file.get(sha256(some(1)))
    file.close()


async def test_documents_are_served_and_fetched_like_content(tmp_path: Path) -> None:
    data = some(5)
    cid = parse(document_cid(data))
    store, reader = (
        ContentStore(tmp_path / "store", 1 << 24, spare_bytes=0),
        ContentStore(tmp_path / "reader", 1 << 24, spare_bytes=0),
    )
    stored = await store.put(b"in the store", "0x1")

    async def block(asked: object) -> bytes | None:
        return data if asked == cid else None

    app = web.Application()
    add_gateway_routes(app, CombinedStores((store,), block), "/v1/content")
    try:
        async with on_loopback(app) as base, aiohttp.ClientSession() as session:
            url = f"{base}/v1/content"
            for form in ("", "?format=raw"):
                async with session.get(f"{url}/{cid}{form}") as answer:
                    assert answer.status == 200 and await answer.read() == data
            async with session.head(f"{url}/{cid}") as answer:
                assert answer.status == 200 and answer.content_length == len(data)
            async with session.get(f"{url}/{stored.cid}") as answer:
                assert await answer.read() == b"in the store"
            async with session.get(f"{url}/{document_cid(b'absent')}") as answer:
                assert answer.status == 404
            async with await reader.get(cid, [Source(url)], 1 << 20, 10.0, "me") as lease:
                assert lease.path.read_bytes() == data
    finally:
        await store.close()
        await reader.close()
