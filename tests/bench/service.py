"""What a service's gateway adds to a request, and how many it passes by the second.

Replicas, gateway and load are processes of their own on loopback, without SSH and market. Load
asks 32 at once; the added time is the difference of the medians of requests one after the other.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
from aiohttp import web

from quorate.serving.gateway import Gateway, Revisions
from quorate.serving.key_book import KeyBook
from quorate.serving.replicas import Health, Replica, Replicas

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
ANSWER = json.dumps(
    {"choices": [{}], "usage": {"prompt_tokens": 1, "completion_tokens": 5}}
).encode()
AT_ONCE = 32


async def _serve(app: web.Application, told: Connection) -> None:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    told.send(runner.addresses[0][1])
    await asyncio.Event().wait()


async def _answer(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=ANSWER, content_type="application/json")


def replica(told: Connection) -> None:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", _answer)
    asyncio.run(_serve(app, told))


def gateway(told: Connection, home: str, urls: list[str]) -> None:
    asyncio.run(_gateway(told, home, urls))


async def _gateway(told: Connection, home: str, urls: list[str]) -> None:
    found = [Replica(url, "a", url, 1_000_000, Health.READY) for url in urls]
    async with aiohttp.ClientSession(
        auto_decompress=False, connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        made = Gateway(
            "bench", KeyBook(Path(home)), Replicas(found), lambda: Revisions("a"), session
        )
        await _serve(made.app(), told)


@asynccontextmanager
async def process(work: Callable[..., None], *given: object) -> AsyncIterator[int]:
    ours, theirs = get_context("spawn").Pipe()
    started = get_context("spawn").Process(target=work, args=(theirs, *given), daemon=True)
    started.start()
    try:
        yield await asyncio.to_thread(ours.recv)
    finally:
        started.terminate()
        await asyncio.to_thread(started.join)


async def _ask(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> float:
    began = time.perf_counter()
    async with session.post(url + "/v1/chat/completions", data=BODY, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
    return time.perf_counter() - began


async def measure(requests: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as home:
        key = KeyBook(Path(home)).create("bench", time.time())
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        async with process(replica) as first, process(replica) as second:
            urls = [f"http://127.0.0.1:{port}" for port in (first, second)]
            async with (
                process(gateway, home, urls) as port,
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
            ):
                ours = f"http://127.0.0.1:{port}"
                direct = [await _ask(session, urls[0], headers) for _ in range(requests // 4)]
                passed = [await _ask(session, ours, headers) for _ in range(requests // 4)]
                turn = asyncio.Semaphore(AT_ONCE)

                async def one() -> float:
                    async with turn:
                        return await _ask(session, ours, headers)

                began = time.perf_counter()
                await asyncio.gather(*(one() for _ in range(requests)))
                lasted = time.perf_counter() - began
    added = statistics.median(passed) - statistics.median(direct)
    return {
        "requests": requests,
        "direct_p50_ms": round(statistics.median(direct) * 1000, 3),
        "added_p50_ms": round(added * 1000, 3),
        "requests_per_second": round(requests / lasted, 1),
        "at_once": AT_ONCE,
    }


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000)
    print(json.dumps(asyncio.run(measure(parser.parse_args(words).requests))))


if __name__ == "__main__":
    main(sys.argv[1:])
