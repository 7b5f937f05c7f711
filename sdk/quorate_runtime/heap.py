"""The cyclic garbage collector of a daemon: told to look away from what lives long.

A core's state is hundreds of thousands of frozen values without cycles; the collector's default walks the young ones every 700
allocations and all of them again and again, a sixth of the time of a busy coordinator. Counting references frees what has no
cycles at once; cycles (exceptions with their frames, mostly) are still collected, less often.
"""

import gc

YOUNG_MAX = 50_000  # allocations beyond frees before the young are walked


def settle() -> None:
    """To be called once by a process that is a daemon, when its program is loaded: what is there now is never walked again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, 20, 50)
