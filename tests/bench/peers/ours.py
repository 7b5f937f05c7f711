"""Quorate's own figures: the coordinator with scripted parties, and a devnet with no-op jobs."""

import asyncio
import tempfile
import time
from pathlib import Path

import drive

from bench import market_jobs
from quorate import Job, Market
from quorate.images import build_python_image

OUTSTANDING = 256
"""Jobs in progress at once in a throughput run; peers get all their tasks at once."""
DEVNET_JOBS = 24
DEVNET_CALM = 4


def coordinator(
    folder: str, count: int, calm: int, is_signed: bool, is_audited: bool
) -> dict[str, float]:
    """Jobs from order to verdict: throughput with OUTSTANDING in progress, latency one at a
    time.
    """
    many = market_jobs.Setup(count, OUTSTANDING, is_signed=is_signed, is_audited=is_audited)
    single = market_jobs.Setup(calm, 1, is_signed=is_signed, is_audited=is_audited)
    busy, quiet = (_play(folder, setup) for setup in (many, single))
    return {
        "tasks_s": busy.jobs_s,
        "p50_ms": quiet.p50_ms,
        "p99_ms": quiet.p99_ms,
        "executions": busy.executions_per_job,
    }


def _play(folder: str, setup: market_jobs.Setup) -> market_jobs.Figures:
    with tempfile.TemporaryDirectory(dir=folder) as path:
        return asyncio.run(market_jobs.measure(Path(path), setup))


def devnet(folder: str) -> dict[str, float]:
    """Chain, beacon, coordinator and three providers as processes.

    The client uploads, pays, and rechecks every result.
    """
    with tempfile.TemporaryDirectory(dir=folder) as path:
        return asyncio.run(_devnet(Path(path)))


async def _devnet(folder: Path) -> dict[str, float]:
    image = build_python_image(folder / "image.tar", ()).path
    async with Market.local(executor="noop", folder=folder / "devnet") as market:
        number = 0

        async def one() -> float:
            nonlocal number
            number += 1
            begun = time.perf_counter()
            run = await market.submit(
                Job(
                    image=image,
                    command=["python3", "-c", f"{number}"],
                    max_price="5",
                    max_duration="30s",
                )
            )
            result = await run.result()
            assert len(result.providers) == 2, result
            return time.perf_counter() - begun

        await one()  # uploads the image
        took = [await one() for _ in range(DEVNET_CALM)]
        begun = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(DEVNET_JOBS)))
        return drive.figures(DEVNET_JOBS / (time.perf_counter() - begun), took)
