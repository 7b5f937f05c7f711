"""A small job for tests of the client, and a function that waits for a condition."""

import asyncio

from quorate.job.job import Job

IMAGE = "docker.io/library/python@sha256:" + "ab" * 32


def job(**changes: object) -> Job:
    return Job(
        **{
            "image": IMAGE,
            "command": ["python", "-c", "print(6*7)"],
            "max_price": "0.50",
            "max_duration": "60s",
            **changes,
        }
    )  # type: ignore[arg-type]


async def until(condition, seconds: float = 20.0) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)
