"""The memory of a daemon: a garbage collector that looks away from what lives long, and few heaps in the C library.

A core's state is hundreds of thousands of frozen values without cycles; the collector's default walks the young ones every 700
allocations and all of them again and again, a sixth of the time of a busy coordinator. Counting references frees what has no
cycles at once; cycles (exceptions with their frames, mostly) are still collected, less often.

glibc gives every thread that allocates a heap ("arena") of its own, up to eight a core, and each keeps what its largest moment
needed: with a pool of threads that read and write files, a third more memory, reached over hours, which looks like a leak. Under
the interpreter's lock two serve as well.
"""

import ctypes
import gc

YOUNG_MAX = 50_000  # allocations beyond frees before the young are walked
M_ARENA_MAX = -8  # malloc.h
ARENAS = 2


def settle() -> None:
    """To be called once by a process that is a daemon, when its program is loaded: what is there now is never walked again.

    And before it has threads: heaps that exist stay.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; other C libraries have no such heaps
    if mallopt is not None:
        mallopt(M_ARENA_MAX, ARENAS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, 20, 50)
