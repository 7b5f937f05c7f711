"""Tunes Python's garbage collector and the C library's allocator for a daemon.

A core's state is hundreds of thousands of frozen values without cycles. By default the collector
scans young objects every 700 allocations and all objects again and again, which took a sixth of a
busy coordinator's time. Reference counts free values without cycles at once. The collector still
frees cycles, mostly exceptions with their frames, but less often.

glibc gives every allocating thread its own heap ("arena"), up to eight per core, and each keeps as
much memory as it ever needed at once. With a pool of threads for files that was a third more
memory. It grew over hours, which looks like a leak. Because of the interpreter's lock, one arena is
as fast. After the first large buffer, glibc also takes large buffers from its heap, between values
that stay, instead of from pages that it can return. So this module fixes the threshold, and returns
free memory regularly.

Every connection that asyncio closed is a cycle, and only a scan of all objects finds an old one. A
soak of two hundred providers had two hundred such cycles a minute. So the schedule scans all
objects as often as it costs almost no time. A scan of a tenth of a second runs every fifty seconds,
one of a second every eight minutes.
"""

import asyncio
import ctypes
import gc
import time
from collections.abc import Callable

from quorate_protocol.codec.identity_cache import age_all
from quorate_protocol.messages.ports import Clock

YOUNG_MAX = 50_000  # allocations beyond frees before the young objects are scanned
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # malloc.h
ARENAS = 1
PAGED_BYTES = 64 * 1024  # buffers from this size on get pages of their own
COLLECT_SECONDS = 10.0
SCAN_SHARE = 0.002  # share of the time for scans of all objects


def tune_memory() -> None:
    """Sets the collector and the allocator; call it once in a daemon, before it has threads.
    Objects that exist at the call are never scanned again. Heaps that exist stay.
    """
    mallopt = getattr(
        ctypes.CDLL(None), "mallopt", None
    )  # glibc only; other C libraries have no such heaps
    if mallopt is not None:
        mallopt(M_ARENA_MAX, ARENAS)
        mallopt(M_MMAP_THRESHOLD, PAGED_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, 20, 50)


async def collect_periodically(clock: Clock) -> None:
    """Collects garbage and returns free memory to the machine at intervals, for ever. It also drops
    cached results that were not used for a while.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    schedule = CollectionSchedule()
    while True:
        await clock.sleep(COLLECT_SECONDS)
        age_all()
        schedule.collect(time.monotonic())
        if trim is not None:
            await asyncio.to_thread(trim, 0)


class CollectionSchedule:
    """Decides which objects each collection scans: all if that is due, else the young ones."""

    def __init__(self) -> None:
        self._due = 0.0

    def collect(self, now: float, seconds: Callable[[], float] = time.thread_time) -> int:
        """Collects once at `now`, in seconds of a monotonic clock; returns the scanned generation.

        `seconds` reads processor time. A scan needs no more of it when other programs use the
        machine, so scans stay as frequent.
        """
        generation = 2 if now >= self._due else 1
        begun = seconds()
        gc.collect(generation)
        if generation == 2:
            self._due = now + (seconds() - begun) / SCAN_SHARE
        return generation
