"""Content benchmark: one JSON line, each figure the best of a few rounds.

cid_mb_s: CID of a local file in the page cache. fetch_mb_s: a whole `get` (fetch, verify, write,
fsync, rename) over loopback. fetch_verify_write_vs_curl: its ratio to curl writing the same CAR to
the same disk. rss_growth_mb: peak memory of the fetching process above its start. hit_ms: a `get`
of stored content.

With the Go peer (.ci/make-gopeer; else null): bitswap_path_mb_s: a `get` through a gateway that
fetches from another peer by bitswap meanwhile. boxo_get_mb_s: a `get` from that gateway when it has
the content. absent_cid_s: until a `get` of what that network lacks fails, at most 15.
Usage: content.py [--json] [MiB, default 128] [folder, default a temporary one]; PYTHONPATH=tests.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from quorate_content.dag.cid import raw_cid
from quorate_content.dag.disk_tree import cid_of_path
from quorate_content.store.content_store import ContentStore
from quorate_content.store.fetch_order import Source
from quorate_content.transfer.gateway import add_gateway_routes
from quorate_protocol.refusals import Unavailable
from support.go_peer import go_peer
from support.requirements import GO_PEER

MIB = 1 << 20
ROUNDS = 3

GET = """
import asyncio, json, sys, time
from pathlib import Path
from quorate_content.store.content_store import ContentStore
def peak_kib():  # of this program only; getrusage keeps the parent's peak over exec
    lines = open("/proc/self/status")
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
async def main(root, url, cid):
    store = ContentStore(Path(root), 1 << 40)
    before = peak_kib()
    start = time.perf_counter()
    (await store.get(cid, [url], 1 << 40, 600.0, "bench")).release()
    seconds = time.perf_counter() - start
    growth = peak_kib() - before
    hits = []
    for _ in range(20):
        start = time.perf_counter()
        (await store.get(cid, [url], 1 << 40, 600.0, "bench")).release()
        hits.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds, "growth_kib": growth, "hit": min(hits)}))
asyncio.run(main(*sys.argv[1:]))
"""

SERVE = "serve"


async def serve(root: Path) -> None:
    """A gateway in a process of its own; prints its port and runs until its input ends."""
    app = web.Application()
    add_gateway_routes(app, ContentStore(root, 1 << 40))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def make_file(path: Path, size_mib: int) -> None:
    with open(path, "wb") as file:
        for _ in range(size_mib):
            file.write(os.urandom(MIB))


async def put(root: Path, path: Path) -> str:
    store = ContentStore(root, 1 << 40)
    cid = str((await store.put(path, "bench")).cid)
    await store.close()
    return cid


def timed_cid(path: Path) -> float:
    start = time.perf_counter()
    cid_of_path(path)
    return time.perf_counter() - start


def timed_curl(url: str, target: Path) -> float | None:
    """Seconds of curl writing the same CAR durably; None without curl."""
    if shutil.which("curl") is None:
        return None
    start = time.perf_counter()
    subprocess.run(["curl", "-sf", "-o", str(target), url], check=True)
    with open(target, "rb") as file:
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    target.unlink()
    return seconds


async def through_ipfs(size_mib: int, folder: Path) -> dict[str, float | None]:
    """The figures with peers made of go-libp2p and boxo."""
    if not GO_PEER.exists():
        return dict.fromkeys(("bitswap_path_mb_s", "boxo_get_mb_s", "absent_cid_s"))
    data = os.urandom(size_mib * MIB)
    async with go_peer() as holder, go_peer() as gateway:
        await gateway.connect(holder)
        cid, source = await holder.add(data), Source(gateway.ipfs_url, searches=True)
        paths = []
        for name in ("bitswap", "boxo"):
            store = ContentStore(folder / name, 1 << 40)
            start = time.perf_counter()
            (await store.get(cid, [source], 1 << 40, 600.0, "bench")).release()
            paths.append(len(data) / 1e6 / (time.perf_counter() - start))
            await store.close()
            shutil.rmtree(folder / name)
        store = ContentStore(folder / "absent", 1 << 40)
        start = time.perf_counter()
        with suppress(Unavailable):
            await store.get(raw_cid(b"nobody has this"), [source], MIB, 600.0, "bench")
        absent = time.perf_counter() - start
        await store.close()
    return {
        "bitswap_path_mb_s": round(paths[0], 1),
        "boxo_get_mb_s": round(paths[1], 1),
        "absent_cid_s": round(absent, 2),
    }


def measure(size_mib: int, folder: Path) -> dict[str, float | None]:
    make_file(folder / "data", size_mib)
    megabytes = size_mib * MIB / 1e6
    cid = asyncio.run(put(folder / "origin", folder / "data"))
    hashing = min(timed_cid(folder / "data") for _ in range(ROUNDS))
    command = [sys.executable, __file__, SERVE, str(folder / "origin")]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None and server.stdin is not None
    try:
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}/ipfs"
        curls, gets = [], []
        for index in range(ROUNDS):
            curls.append(timed_curl(f"{url}/{cid}?format=car", folder / "curl.out"))
            arguments = [sys.executable, "-c", GET, str(folder / f"store-{index}"), url, cid]
            gets.append(
                json.loads(
                    subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
                )
            )
            shutil.rmtree(folder / f"store-{index}")
    finally:
        server.stdin.close()
        server.wait(timeout=20)
    known = [seconds for seconds in curls if seconds is not None]
    fetching = min(get["seconds"] for get in gets)
    return {
        "size_mib": size_mib,
        "cid_mb_s": round(megabytes / hashing, 1),
        "fetch_mb_s": round(megabytes / fetching, 1),
        "curl_mb_s": round(megabytes / min(known), 1) if known else None,
        "fetch_verify_write_vs_curl": round(min(known) / fetching, 3) if known else None,
        "rss_growth_mb": round(max(get["growth_kib"] for get in gets) / 1000, 1),
        "hit_ms": round(1000 * min(get["hit"] for get in gets), 3),
        **asyncio.run(through_ipfs(size_mib, folder)),
    }


def main(arguments: list[str]) -> None:
    """Runs once and prints the line."""
    if arguments[:1] == [SERVE]:
        asyncio.run(serve(Path(arguments[1])))
        return
    given = [item for item in arguments if item != "--json"]  # the answer is JSON in any case
    size_mib = int(given[0]) if given else 128
    with tempfile.TemporaryDirectory(dir=given[1] if len(given) > 1 else None) as folder:
        print(json.dumps(measure(size_mib, Path(folder))))


if __name__ == "__main__":
    main(sys.argv[1:])
