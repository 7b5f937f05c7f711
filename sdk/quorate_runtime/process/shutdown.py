"""How a daemon ends: the first SIGTERM or SIGINT lets it leave in order within a bound, a second
one ends it at once.

Either way what was acknowledged is in the journal, and the program's exit status is 0.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine

_logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def serve_until_signal(
    run: Coroutine[None, None, None], leave: Callable[[], Awaitable[None]], seconds: float
) -> bool:
    """Runs `run` until it ends (False) or was cancelled after a signal (True). `leave` has
    `seconds` before that. Raises as `run` does.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(run)
    leaving: list[asyncio.Task[None]] = []

    def heard() -> None:
        if leaving:
            task.cancel()
        else:
            leaving.append(loop.create_task(_leave(task, leave, seconds), name="leaving"))

    for number in SIGNALS:
        loop.add_signal_handler(number, heard)
    try:
        await task
        return False
    except asyncio.CancelledError:
        if not leaving:
            raise  # not by a signal: whoever cancelled us is to know
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
        _logger.warning(
            "not everything was finished within %g s; it is taken up at the next start", seconds
        )
    finally:
        task.cancel()
