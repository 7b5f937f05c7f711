"""Prints whether one client's baits hurt honest clients and owners on a devnet of real processes.

    PYTHONPATH=tests python tests/bench/baits.py [--each 50] [--seconds 60]

One client orders jobs that no owner can run, as many of each kind as `--each`. Meanwhile another
client orders honest jobs, and a reader sends GET requests. The last line is one JSON object. The
command fails if an honest order was refused, or an owner is off offer.
"""

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from quorate import Job, Market
from quorate.base.errors import QuorateError, RefusedError
from quorate.images import build_python_image
from quorate_content.dag.cid import raw_cid
from quorate_devnet.market.config import DevnetConfig, ExecutorChoice
from quorate_devnet.market.devnet import Devnet, running
from support.crash.crash_client import job_of
from support.http_server import on_loopback

GET_SECONDS = 0.02
CODE = ["python3", "-c", "pass"]


@dataclass(slots=True)
class Figures:
    """What happened in one phase."""

    results: int = 0
    refused: list[str] = field(default_factory=list)  # codes of honest orders
    failed: list[str] = field(default_factory=list)
    off_offer: set[str] = field(default_factory=set)
    gets: list[float] = field(default_factory=list)

    @property
    def p99_ms(self) -> float:
        """The 99th percentile of GET, in milliseconds."""
        return round(sorted(self.gets)[int(len(self.gets) * 0.99)] * 1000, 1)


def baits(image: Path, gateway: str, blocks: dict[str, bytes]) -> dict[str, Job]:
    """Returns one job of each kind. No owner of this devnet can run any of them."""
    block = b"nobody has this " + secrets.token_bytes(8)
    absent = str(raw_cid(block))
    blocks[absent] = block
    registry = f"127.0.0.1:9/tool@sha256:{'ab' * 32}"
    limits = {"command": CODE, "max_price": "5", "max_duration": "10s", "start_within": "60s"}
    large = {
        "inputs": {"/inputs/x": str(raw_cid(b"no input"))},
        "input_sizes": {"/inputs/x": "19GiB"},
    }
    cuda = {"resources": {"gpu": "1", "min_cuda": "99"}}
    return {
        "input as large as the store": Job(image=image, gateways=[gateway], **large, **limits),  # type: ignore[arg-type]
        "registry image": Job(image=registry, **limits),  # type: ignore[arg-type]
        "CUDA 99": Job(image=image, **cuda, **limits),  # type: ignore[arg-type]
        "image nobody has": Job(image=absent, gateways=[gateway], **limits),  # type: ignore[arg-type]
    }


def lying_gateway(blocks: dict[str, bytes]) -> web.Application:
    """Returns a gateway that says that it has everything. It gives each of these blocks once, to
    the client's program, which reads the size from it.
    """

    async def answer(request: web.Request) -> web.Response:
        if request.method == "HEAD":
            return web.Response(headers={"Content-Length": "16"})
        block = blocks.pop(request.match_info["cid"], None)
        return web.Response(status=404) if block is None else web.Response(body=block)

    app = web.Application()
    app.router.add_route("*", "/ipfs/{cid}", answer)
    return app


async def measure(folder: Path, each: int, seconds: float) -> dict[str, object]:
    """Runs a quiet phase and one with baits, on one devnet."""
    image, blocks = folder / "image.tar", dict[str, bytes]()
    build_python_image(image)
    config = DevnetConfig(folder / "devnet", providers=4, slots=2, executor=ExecutorChoice.PROCESS)
    async with (
        on_loopback(lying_gateway(blocks)) as gateway,
        running(config) as devnet,
        Market(devnet.profiles[0]) as honest,
        Market(devnet.profiles[1]) as hostile,
    ):
        first = await honest.submit(job_of("first", image))
        await first.result()  # image and classes are known from here on
        quiet = await _phase(devnet, honest, image, "quiet", seconds / 2)
        told: Counter[str] = Counter()
        throwing = asyncio.create_task(
            _throw(hostile, lambda: baits(image, gateway, blocks), each, told)
        )
        baited = await _phase(devnet, honest, image, "baited", seconds, throwing)
        await throwing
    return {
        "each": each,
        "baits": dict(sorted(told.items())),
        "honest_results": baited.results,
        "honest_refused": len(baited.refused),
        "honest_failed": baited.failed,
        "owners_off_offer": len(baited.off_offer),
        "p99_quiet_ms": quiet.p99_ms,
        "p99_baited_ms": baited.p99_ms,
        "p99_ratio": round(baited.p99_ms / quiet.p99_ms, 2),
    }


async def _throw(
    market: Market, jobs: Callable[[], dict[str, Job]], each: int, told: Counter[str]
) -> None:
    for _ in range(each):
        for kind, job in jobs().items():
            try:
                await market.submit(job)
                told[f"{kind}: taken"] += 1
            except RefusedError as error:
                told[f"{kind}: {error.code}"] += 1
            except QuorateError as error:
                told[f"{kind}: {type(error).__name__}"] += 1


async def _phase(
    devnet: Devnet,
    market: Market,
    image: Path,
    name: str,
    seconds: float,
    until: "asyncio.Task[None] | None" = None,
) -> Figures:
    """Lets the honest client work for so long, and at least until a task has ended."""
    found, began = Figures(), time.monotonic()
    reading = asyncio.create_task(_read(devnet, found))
    number = 0
    try:
        while time.monotonic() - began < seconds or (until is not None and not until.done()):
            number += 1
            try:
                run = await market.submit(job_of(f"{name}-{number}", image))
                await run.result()
                found.results += 1
            except RefusedError as error:
                found.refused.append(error.code)
            except QuorateError as error:
                found.failed.append(str(error))
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return found


async def _read(devnet: Devnet, found: Figures) -> None:
    """Sends GET requests in turn, and notes owners that are off offer."""
    urls = [f"{devnet.coordinator_url}/v1/providers/0x{it.hex()}" for it in devnet.providers]
    async with aiohttp.ClientSession() as session:
        while True:
            for url in urls:
                begun = time.monotonic()
                async with session.get(url) as response:
                    shown = await response.json()
                found.gets.append(time.monotonic() - begun)
                if not shown["isAlive"]:
                    found.off_offer.add(url)
                await asyncio.sleep(GET_SECONDS)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="baits.py", description=__doc__)
    parser.add_argument("--each", type=int, default=50, help="baits of each kind")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the phase with baits")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(Path(folder), options.each, options.seconds))
    print(json.dumps(figures))
    return 1 if figures["honest_refused"] or figures["owners_off_offer"] else 0


if __name__ == "__main__":
    sys.exit(main())
