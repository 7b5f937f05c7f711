"""What is begun is ended, though whoever waits for it be cancelled: files and tables are left in
order.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def ended_first(work: Awaitable[T], stop: Callable[[], None] | None = None) -> T:
    """What `work` gives. A cancelled caller says so with `stop`, waits for the end of the work,
    whichever it is, and is cancelled then.
    """
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # marks it as seen: the caller gets the cancellation
        raise
