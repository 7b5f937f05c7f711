"""Ends a daemon on signals: the first SIGTERM or SIGINT shuts down in order, a second one at once.

In both cases everything that was acknowledged is in the journal, and the exit status is 0.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def serve_until_signal(
    run: Coroutine[None, None, None], leave: Callable[[], Awaitable[None]], seconds: float
) -> bool:
    """Runs `run` until it ends (returns False) or a signal cancels it (returns True). `leave` has
    `seconds` to finish before the cancellation. Raises as `run` does.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(run)
    leaving: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        if leaving:
            task.cancel()
        else:
            leaving.append(loop.create_task(_leave(task, leave, seconds), name="leaving"))

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        await task
        return False
    except asyncio.CancelledError:
        if not leaving:
            raise  # not a signal: the caller must see the cancellation
        return True
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        for each in leaving:
            each.cancel()


async def _leave(
    task: asyncio.Future[None], leave: Callable[[], Awaitable[None]], seconds: float
) -> None:
    try:
        async with asyncio.timeout(seconds):
            await leave()
    except TimeoutError:
        log.warning(
            "not everything was finished within %g s; it continues at the next start", seconds
        )
    finally:
        task.cancel()
