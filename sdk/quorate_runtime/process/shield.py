"""Finishes work before its caller is cancelled, so that files and tables stay consistent."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def finish_before_cancel(work: Awaitable[T], stop: Callable[[], None] | None = None) -> T:
    """Returns what `work` returns. If the caller is cancelled, this calls `stop`, waits until the
    work has ended in any way, and then raises the cancellation.
    """
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # marks it as read: the caller gets the cancellation instead
        raise
