"""The memory of a daemon: a garbage collector that looks away from what lives long, and a C
library that gives back what was freed.

A core's state is hundreds of thousands of frozen values without cycles; the collector's default
walks the young ones every 700 allocations and all of them again and again, a sixth of the time
of a busy coordinator. Counting references frees what has no cycles at once; cycles (exceptions
with their frames, mostly) are still collected, less often.

glibc gives every thread that allocates a heap ("arena") of its own, up to eight a core, and each
keeps what its largest moment needed: with a pool of threads that read and write files, a third
more memory, reached over hours, which looks like a leak. Under the interpreter's lock one serves
as well. It also keeps what is freed for later, and after the first large buffer makes such from
its heap, between what stays, instead of from pages that go back at once: both are told
otherwise, and once in a while to give back what it has.

Every connection that asyncio has closed is a cycle, and one that is old enough by then is found
by a walk over all objects only: two hundred a minute in a soak of two hundred providers. So all
are walked as often as that costs next to nothing: a walk of a tenth of a second once in fifty
seconds, one of a second once in eight minutes.
"""

import asyncio
import ctypes
import gc
import time
from collections.abc import Callable

from quorate_protocol.codec.identity_cache import age_all
from quorate_protocol.ports import Clock

YOUNG_MAX = 50_000  # allocations beyond frees before the young are walked
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # malloc.h
ARENAS = 1
PAGED_BYTES = 64 * 1024  # buffers from this size on are pages of their own
TIDY_SECONDS = 10.0
WALK_SHARE = 0.002  # of the time, for walks over all objects


def settle() -> None:
    """To be called once by a process that is a daemon, when its program is loaded: what is there
    now is never walked again.

    And before it has threads: heaps that exist stay.
    """
    mallopt = getattr(
        ctypes.CDLL(None), "mallopt", None
    )  # glibc's; other C libraries have no such heaps
    if mallopt is not None:
        mallopt(M_ARENA_MAX, ARENAS)
        mallopt(M_MMAP_THRESHOLD, PAGED_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, 20, 50)


async def tidy_for_ever(clock: Clock) -> None:
    """The task of it: results that nobody asks for any more and what has cycles go without
    waiting until there are many, and what was freed goes back to the machine.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    walks = Walks()
    while True:
        await clock.sleep(TIDY_SECONDS)
        age_all()
        walks.collect(time.monotonic())
        if trim is not None:
            await asyncio.to_thread(trim, 0)


class Walks:
    """Collections: of all objects when that is due, else of the young ones."""

    def __init__(self) -> None:
        self._due = 0.0

    def collect(self, now: float, seconds: Callable[[], float] = time.thread_time) -> int:
        """One collection at `now`, seconds of a clock that never goes back; the generation that
        it walked.

        `seconds` is of the processor: where others use the machine, a walk takes no more of it
        and is due as often.
        """
        generation = 2 if now >= self._due else 1
        begun = seconds()
        gc.collect(generation)
        if generation == 2:
            self._due = now + (seconds() - begun) / WALK_SHARE
        return generation
