"""Tests that a daemon's garbage collector runs rarely, but still collects reference cycles in
time.
"""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from quorate_runtime.process import gc_tuning
from support.virtual_clock import VirtualClock


class Cycle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Restores the collector of the process that runs the tests."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


async def test_cycles_are_collected_after_a_while() -> None:
    gc_tuning.tune_memory()
    clock, knot = VirtualClock(0.0), Cycle()
    tidying = asyncio.create_task(gc_tuning.collect_periodically(clock))
    await asyncio.sleep(0)
    gone = weakref.ref(knot)
    del knot
    assert gone() is not None, "counting references does not free a cycle"
    clock.forward(gc_tuning.COLLECT_SECONDS)
    async with asyncio.timeout(10):
        while gone() is not None:
            await asyncio.sleep(0.01)
    assert not tidying.done()
    tidying.cancel()


def test_loaded_modules_are_never_scanned_again() -> None:
    before = gc.get_freeze_count()
    gc_tuning.tune_memory()
    assert gc.get_freeze_count() > before and gc.get_threshold()[0] == gc_tuning.YOUNG_MAX


def test_full_scans_run_as_often_as_they_are_cheap() -> None:
    ticks = iter([0.0, 0.1, 7.0, 7.001])  # start and end of two full scans
    walks, old = gc_tuning.CollectionSchedule(), Cycle()
    gc.collect(1)
    gc.collect(1)  # it is in the oldest generation now
    gone = weakref.ref(old)
    assert walks.collect(100.0, lambda: next(ticks)) == 2
    del old
    assert walks.collect(130.0) == 1 and gone() is not None
    assert walks.collect(149.0) == 1, "0.1 s of scanning may come once in 50 s"
    assert walks.collect(151.0, lambda: next(ticks)) == 2 and gone() is None
