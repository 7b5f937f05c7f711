"""Providers fetch files from their sources, checked by SHA-256, and continue what was cut."""

import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from quorate_content.dag.cid import Cid, raw_cid
from quorate_content.dag.content_limits import AbsentEverywhere
from quorate_content.store import checked_http
from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import Source, host_name
from quorate_content.store.lease import Lease
from quorate_content.store.web_fetch import WebContent, WebFile, folder_of, one_file
from quorate_content.transfer.gateway import add_gateway_routes
from quorate_protocol.refusals import Refused, Unavailable
from support.http_server import on_loopback
from support.web_files import WebFiles

MIB = 1 << 20
BIG = bytes(range(256)) * (5 << 12)  # 5 MiB, above the size of any block
MODEL = {"/m/a b.txt": b"", "/m/sub/weights.bin": BIG, "/m/sub/x/y": b"deep", "/m/z": b"last"}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ContentStore]:
    made = ContentStore(tmp_path / "store", 64 * MIB)
    yield made
    await made.close()


def model(files: dict[str, bytes] = MODEL) -> WebContent:
    named = sorted((tuple(path.encode().split(b"/")[2:]), data) for path, data in files.items())
    return folder_of([WebFile(path, raw_cid(data), len(data)) for path, data in named])


async def get(
    store: ContentStore, content: WebContent, url: str, *others: Source, seconds: float = 20.0
) -> Lease:
    origin = Source(url, name=host_name("source", url))
    return await store.get_from_web(content, origin, others, seconds, "me")


def read(lease: Lease) -> dict[str, bytes]:
    return {
        f"/m/{path.relative_to(lease.path)}": path.read_bytes()
        for path in lease.path.rglob("*")
        if path.is_file()
    }


@pytest.mark.rule("4.83", "4.85")
async def test_a_folder_comes_file_by_file_and_is_kept_under_its_own_cid(
    store: ContentStore,
) -> None:
    served = WebFiles(dict(MODEL), moved={"/m/z": "/elsewhere/z"})
    served.files["/elsewhere/z"] = served.files.pop("/m/z")
    async with on_loopback(served.app()) as url:
        async with await get(store, model(), f"{url}/m/") as lease:
            assert read(lease) == MODEL
            assert not any(path.stat().st_mode & 0o222 for path in lease.path.rglob("*"))
        assert store.fetched.by_source() == {f"source {url[7:]}": sum(map(len, MODEL.values()))}
        count = len(served.asked)
        async with await get(store, model(), f"{url}/m/"):
            assert len(served.asked) == count, "it is in the store"
        assert not {"Cookie", "Authorization"} & {key for item in served.headers for key in item}


@pytest.mark.rule("4.85")
async def test_a_cut_file_continues_where_it_ended(store: ContentStore, tmp_path: Path) -> None:
    """Within one fetch, and after the provider was killed in the middle of one."""
    served, content = WebFiles({"/w": BIG}, cut={"/w": [3 * MIB]}), one_file(raw_cid(BIG), len(BIG))
    async with on_loopback(served.app()) as url:
        async with await get(store, content, f"{url}/w") as lease:
            assert lease.path.read_bytes() == BIG
        assert served.asked == [("/w", ""), ("/w", f"bytes={3 * MIB}-")]
        assert served.sent == len(BIG)
        for left, ranges in (
            (BIG[: 2 * MIB], [f"bytes={2 * MIB}-"]),
            (b"x" * MIB, [f"bytes={MIB}-", ""]),  # what the disk lost is asked for again
            (b"x" * len(BIG), [""]),
            (BIG, []),
        ):
            restarted = ContentStore(tmp_path / f"store-{len(left)}-{left[:1]!r}", 64 * MIB)
            part = restarted._files.work(str(content.root))
            Path(part, "tree").write_bytes(left)
            served.asked.clear()
            async with await get(restarted, content, f"{url}/w") as lease:
                assert lease.path.read_bytes() == BIG
            assert [span for _, span in served.asked] == ranges
            await restarted.close()


@pytest.mark.rule("4.85")
async def test_a_busy_source_is_asked_again_when_it_says(store: ContentStore) -> None:
    served = WebFiles({"/w": b"here"})
    served.busy["/w"] = 1
    content = one_file(raw_cid(b"here"), 4)
    async with on_loopback(served.app()) as url:
        async with await get(store, content, f"{url}/w") as lease:
            assert lease.path.read_bytes() == b"here"
        served.busy["/v"] = 1
        late = one_file(raw_cid(b"late"), 4)
        with pytest.raises(Unavailable, match="status 429"):
            await get(store, late, f"{url}/v", seconds=0.9)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"other", "its SHA-256 is .*the file changed since it was ordered"),
        (b"longer than it was", "it has 18 bytes, not 5"),
        (b"", "it has 0 bytes, not 5"),
    ],
)
@pytest.mark.rule("4.85")
async def test_a_file_that_changed_is_named_and_never_used(
    store: ContentStore, data: bytes, said: str
) -> None:
    served = WebFiles({"/w": data})
    async with on_loopback(served.app()) as url:
        with pytest.raises(AbsentEverywhere, match=said) as error:
            await get(store, one_file(raw_cid(b"right"), 5), f"{url}/w")
        assert f"{url}/w" in str(error.value) and "order again" in str(error.value)


@pytest.mark.rule("4.85")
async def test_a_private_file_needs_a_token_which_jobs_have_not(store: ContentStore) -> None:
    async with on_loopback(WebFiles(locked={"/w"}).app()) as url:
        with pytest.raises(AbsentEverywhere, match="needs a token"):
            await get(store, one_file(raw_cid(b"x"), 1), f"{url}/w")


@pytest.mark.rule("4.85")
async def test_a_gateway_that_has_a_file_by_its_cid_helps_out(
    store: ContentStore, tmp_path: Path
) -> None:
    other = ContentStore(tmp_path / "other", 64 * MIB)
    cid = (await other.put(b"right", "me")).cid
    app, gateway = WebFiles({"/w": b"wrong"}).app(), web.Application()
    add_gateway_routes(gateway, other)
    async with on_loopback(app) as url, on_loopback(gateway) as there:
        source = Source(f"{there}/ipfs", name="gateway of a friend")
        async with await get(store, one_file(cid, 5), f"{url}/w", source) as lease:
            assert lease.path.read_bytes() == b"right"
    assert store.fetched.by_source() == {"gateway of a friend": 5}
    await other.close()


@pytest.mark.rule("4.84")
async def test_a_source_cannot_lead_into_the_owners_network(
    store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing public is reachable here, so 127.0.0.1 counts as public, and 127.0.0.2 as private."""
    monkeypatch.setattr(checked_http, "is_public", lambda address: str(address) == "127.0.0.1")
    served = WebFiles()
    content = one_file(raw_cid(b"x"), 1)
    async with on_loopback(served.app()) as url:
        there = url.replace("127.0.0.1", "127.0.0.2")
        served.moved = {"/w": f"{there}/secret", "/round": "/round"}
        for path, said in (("/w", "leads to 127.0.0.2"), ("/round", "redirects more than 5")):
            with pytest.raises(AbsentEverywhere, match=said):
                origin = Source(url + path, may_be_private=False)
                await store.get_from_web(content, origin, (), 20.0, "me")
        with pytest.raises(AbsentEverywhere, match="own network"):
            origin = Source(f"{there}/w", may_be_private=False)
            await store.get_from_web(content, origin, (), 20.0, "me")
    assert {path for path, _ in served.asked} == {"/w", "/round"}
    assert len(served.asked) == 1 + 6


async def test_memory_stays_flat(store: ContentStore) -> None:
    served, content = WebFiles({"/w": BIG * 4}), one_file(raw_cid(BIG * 4), 4 * len(BIG))
    async with on_loopback(served.app()) as url:
        tracemalloc.start()
        async with await get(store, content, f"{url}/w"):
            peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 60 * MIB, "the server of the test holds the file itself"


def test_a_folder_with_a_bad_name_is_refused() -> None:
    for name in (b"..", b"", b"a\n", b"x" * 300):
        with pytest.raises(Refused, match="name"):
            folder_of([WebFile((b"a", name), raw_cid(b""), 0)])
    assert isinstance(model().root, Cid)
    assert replace(model(), nodes={}).size == sum(map(len, MODEL.values()))
