"""The content store on a real disk: put, get, pins, quotas, eviction, kill -9."""

import asyncio
import errno
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quorate_content.dag.cid import raw_cid
from quorate_content.dag.disk_tree import cid_of_path
from quorate_content.dag.unixfs import cid_of_bytes
from quorate_content.store.content_store import ContentStore
from quorate_protocol.refusals import Code, Refused, Unavailable

MIB = 1 << 20


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ContentStore]:
    made = ContentStore(tmp_path / "store", 64 * MIB, owner_quota_bytes=24 * MIB)
    yield made
    await made.close()


async def pieces(data: bytes, size: int = 100_001) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def joined(stream: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in stream])


def make_tree(root: Path) -> None:
    (root / "deep" / "er").mkdir(parents=True)
    (root / "deep" / "er" / "big").write_bytes(os.urandom(3 * MIB + 5))
    (root / "small").write_bytes(b"small")


async def test_bytes_stream_and_file_are_the_same_object(
    store: ContentStore, tmp_path: Path
) -> None:
    data = os.urandom(5 * MIB + 3)
    (tmp_path / "file").write_bytes(data)
    stats = [
        await store.put(data, "a"),
        await store.put(pieces(data), "b"),
        await store.put(tmp_path / "file", "c"),
    ]
    assert {stat.cid for stat in stats} == {cid_of_bytes(data)}
    assert {stat.size for stat in stats} == {len(data)}
    async with await store.lease(stats[0].cid) as lease:
        assert lease.path.read_bytes() == data
        assert lease.path.stat().st_mode & 0o777 == 0o444
    assert await store.used_bytes() < len(data) + 1000
    assert await store.resolve(stats[0].cid.digest) == stats[0].cid
    assert list((tmp_path / "store" / "tmp").iterdir()) == []
    assert list((tmp_path / "store" / "locks").iterdir()) == []


async def test_stored_names_are_not_interned(
    store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    intern = sys.intern

    def noted(name: str) -> str:
        names.append(name)
        return intern(name)

    monkeypatch.setattr(sys, "intern", noted)
    stat = await store.put(pieces(b"read"), "a")
    (await store.lease(stat.cid)).release()
    await store.unpin(stat.cid, "a")
    await store.gc(0)
    assert names == []
    lease = await store.lease((await store.put(pieces(b"read"), "a")).cid)
    assert lease.path.read_bytes() == b"read" and str(stat.cid) in names, (
        "a path that somebody asks for is a `Path`"
    )
    lease.release()


async def test_an_unreadable_object_does_not_count_as_gone(
    store: ContentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = await store.put(b"kept", "a")
    look = os.stat

    def failing(path: str | Path, **options: object) -> os.stat_result:
        if "/objects/" in str(path):
            raise OSError(errno.EIO, "I/O error")
        return look(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", failing)
    with pytest.raises(OSError, match="I/O error"):
        await store.lease(stat.cid)
    with pytest.raises(OSError, match="I/O error"):
        ContentStore(tmp_path / "store", 64 * MIB)
    monkeypatch.undo()
    (await store.lease(stat.cid)).release()


async def test_a_directory_survives_export_and_import_as_a_car(
    store: ContentStore, tmp_path: Path
) -> None:
    make_tree(tmp_path / "tree")
    stat = await store.put(tmp_path / "tree", "a")
    assert stat.cid == cid_of_path(tmp_path / "tree")
    raw = await joined(store.export_car(stat.cid))
    other = ContentStore(tmp_path / "other", 64 * MIB)
    assert await other.import_car(pieces(raw), 8 * MIB, "b", stat.cid) == stat
    async with await other.lease(stat.cid) as lease:
        assert cid_of_path(lease.path) == stat.cid
        assert (lease.path / "deep").stat().st_mode & 0o777 == 0o555
    assert await joined(other.export_car(stat.cid)) == raw
    await other.close()
    third = ContentStore(tmp_path / "third", 64 * MIB)
    for bad in (raw[:-50], raw[: 2 * MIB] + bytes((raw[2 * MIB] ^ 1,)) + raw[2 * MIB + 1 :], b""):
        with pytest.raises(Refused) as refused:
            await third.import_car(pieces(bad), 8 * MIB, "b", stat.cid)
        assert refused.value.code is Code.MALFORMED
    with pytest.raises(Refused) as refused:
        await third.import_car(pieces(raw), MIB, "b", stat.cid)
    assert refused.value.code is Code.OVERSIZE
    with pytest.raises(Refused):
        await third.import_car(pieces(raw), 8 * MIB, "b", raw_cid(b"not in that CAR"))
    assert list((tmp_path / "third" / "tmp").iterdir()) == []
    assert await third.used_bytes() == 0
    await third.close()


async def test_quotas_of_owner_and_store_hold(store: ContentStore) -> None:
    first = await store.put(os.urandom(15 * MIB), "a")
    with pytest.raises(Refused) as refused:
        await store.put(os.urandom(15 * MIB), "a")
    assert refused.value.code is Code.QUOTA
    await store.put(os.urandom(15 * MIB), "b")
    await store.put(os.urandom(15 * MIB), "c")
    await store.put(os.urandom(15 * MIB), "d")
    with pytest.raises(Refused) as refused:  # everything is pinned: nothing may be evicted
        await store.put(os.urandom(15 * MIB), "e")
    assert refused.value.code is Code.QUOTA
    lease = await store.lease(first.cid)
    await store.unpin(first.cid, "a")
    with pytest.raises(Refused):  # not pinned any more, but somebody reads it
        await store.put(os.urandom(15 * MIB), "e")
    assert await store.stat(first.cid) is not None
    lease.release()
    await store.put(os.urandom(15 * MIB), "e")
    assert await store.stat(first.cid) is None
    assert not lease.path.exists()


async def test_pins_end_and_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    clock = [1000.0]
    store = ContentStore(tmp_path / "store", 64 * MIB, now=lambda: clock[0])
    stats = []
    for index in range(3):
        clock[0] += 1
        stats.append(await store.put(os.urandom(MIB + index), "a", until=2000.0))
    assert await store.gc(0) == 0
    clock[0] = 3000.0
    await store.pin(stats[2].cid, "b")
    (await store.lease(stats[0].cid)).release()
    assert await store.gc(int(2.5 * MIB)) >= MIB
    assert [await store.stat(stat.cid) is not None for stat in stats] == [True, False, True]
    await store.gc(0)
    assert [await store.stat(stat.cid) is not None for stat in stats] == [False, False, True]
    await store.close()


async def test_refused_puts_leave_nothing(store: ContentStore, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to("/etc")
    with pytest.raises(Refused) as refused:
        await store.put(tmp_path / "tree", "a")
    assert refused.value.code is Code.MALFORMED
    with pytest.raises(Refused) as refused:
        await store.put(pieces(bytes(3 * MIB)), "a", bytes_max=MIB)
    assert refused.value.code is Code.OVERSIZE
    assert await store.used_bytes() == 0
    assert list((tmp_path / "store" / "tmp").iterdir()) == []


async def test_cancelled_put_leaves_nothing(store: ContentStore, tmp_path: Path) -> None:
    started = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield bytes(MIB)
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(store.put(stuck(), "a"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    assert await store.used_bytes() == 0
    assert list((tmp_path / "store" / "tmp").iterdir()) == []


async def test_absent_content_is_not_stored(store: ContentStore) -> None:
    with pytest.raises(Refused) as refused:
        await store.lease(raw_cid(b"nothing"))
    assert refused.value.code is Code.NOT_STORED
    assert await store.stat(raw_cid(b"nothing")) is None


PUT_FOREVER = """
import asyncio, sys
from pathlib import Path
from quorate_content.store.content_store import ContentStore
async def main():
    store = ContentStore(Path(sys.argv[1]), 1 << 30)
    for index in range(1000):
        await store.put(index.to_bytes(4, "big") * (1 << 19), "a")
        print(index, flush=True)
asyncio.run(main())
"""


async def test_kill_nine_during_puts_leaves_only_whole_objects(tmp_path: Path) -> None:
    root = tmp_path / "store"
    for round_number in range(4):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PUT_FOREVER, str(root), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(1 + round_number):
            await asyncio.wait_for(process.stdout.readline(), 20)
        await asyncio.sleep(0.003 * round_number)  # another moment within a put each time
        process.send_signal(signal.SIGKILL)
        await process.wait()
        store = ContentStore(root, 1 << 30)
        found = list((root / "objects").glob("*/*"))
        assert found
        for path in found:
            assert str(cid_of_path(path)) == path.name
            assert path.stat().st_mode & 0o777 == 0o444
        assert list((root / "tmp").iterdir()) == []
        on_disk = sum(
            path.stat().st_size
            for folder in ("objects", "nodes")
            for path in (root / folder).glob("*/*")
        )
        assert abs(await store.used_bytes() - on_disk) < 4096
        await store.close()


async def test_lost_index_is_rebuilt_from_the_objects(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store", 64 * MIB)
    stat = await store.put(os.urandom(2 * MIB), "a")
    await store.close()
    for path in (tmp_path / "store").glob("index.sqlite*"):
        path.unlink()
    store = ContentStore(tmp_path / "store", 64 * MIB)
    assert await store.stat(stat.cid) == stat
    await store.close()


async def test_a_stored_object_is_returned_quickly(store: ContentStore) -> None:
    stat = await store.put(os.urandom(4 * MIB), "a")
    best = 1.0
    for _ in range(10):
        start = time.perf_counter()
        async with await store.get(stat.cid, [], 8 * MIB, 5.0, "a"):
            best = min(best, time.perf_counter() - start)
    assert best < 0.02


async def test_full_disk_is_unavailable_before_anything_is_written(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store", 64 * MIB, spare_bytes=1 << 60)
    with pytest.raises(Unavailable, match="disk is full"):
        await store.put(os.urandom(MIB), "a")
    assert await store.used_bytes() == 0
    await store.close()


async def test_empty_files_and_folders_count_for_their_inodes(tmp_path: Path) -> None:
    """If each counted 50 bytes, a few megabytes of a stranger's folders would use up all inodes."""
    store = ContentStore(tmp_path / "store", 2 * MIB)
    for number in range(100):
        (tmp_path / "tree" / f"folder-{number}").mkdir(parents=True)
        (tmp_path / "tree" / f"folder-{number}" / "empty").touch()
    stat = await store.put(tmp_path / "tree", "a")
    assert stat.size == 0
    used = await store.used_bytes()
    assert used >= 200 * 8192
    raw = await joined(store.export_car(stat.cid))
    await store.close()
    for damaged in (tmp_path / "store").glob("index.sqlite*"):
        damaged.unlink()
    store = ContentStore(tmp_path / "store", 2 * MIB)
    assert await store.used_bytes() == used, "an index that is made again counts the same"
    await store.close()
    for number in range(100):
        (tmp_path / "tree" / f"more-{number}").touch()
    store, small = ContentStore(tmp_path / "other", 2 * MIB), ContentStore(tmp_path / "small", MIB)
    with pytest.raises(Refused) as refused:
        await store.put(tmp_path / "tree", "a")
    assert refused.value.code is Code.QUOTA
    with pytest.raises(Refused) as refused:
        await small.import_car(pieces(raw), 2 * MIB, "a", stat.cid)
    assert refused.value.code is Code.QUOTA
    assert await store.used_bytes() == await small.used_bytes() == 0
    await store.close()
    await small.close()
