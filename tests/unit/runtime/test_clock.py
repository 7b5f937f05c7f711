"""Tests virtual time, which passes only while every task waits."""

import asyncio
import time

import pytest

from quorate_runtime.clock import SystemClock
from support.virtual_clock import VirtualClock, run_virtual


def test_a_day_passes_in_no_time_and_in_order() -> None:
    async def main(clock: VirtualClock) -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []
        start = clock.now()

        async def wake(name: str, after: float) -> None:
            await clock.sleep(after)
            seen.append((name, clock.now() - start))

        await asyncio.gather(
            wake("day", 86_400), wake("late", 10.5), wake("soon", 0.25), wake("late too", 10.5)
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await clock.sleep(31)
        seen.append(("timeout", clock.now() - start))
        return seen

    real = time.monotonic()
    seen = run_virtual(main)
    assert [name for name, _ in seen] == ["soon", "late", "late too", "day", "timeout"]
    assert [at for _, at in seen] == pytest.approx([0.25, 10.5, 10.5, 86_400, 86_430])
    assert time.monotonic() - real < 5


def test_virtual_time_that_would_stand_still_is_an_error() -> None:
    async def main(clock: VirtualClock) -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="stand still"):
        run_virtual(main)


async def test_in_an_ordinary_loop_sleep_moves_the_time_on() -> None:
    clock = VirtualClock(100.0)
    await clock.sleep(5)
    clock.forward(2)
    assert clock.now() == 107.0
    with pytest.raises(AssertionError):
        clock.forward(-1)


async def test_the_system_clock_is_unix_time() -> None:
    clock = SystemClock()
    before = time.time()
    await clock.sleep(0)
    assert before <= clock.now() <= time.time()
