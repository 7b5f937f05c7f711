"""A pool of sandboxes: machines that run already wait for their one use."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

from quorate.base.errors import QuorateError, UsageError
from quorate.job.quantities import parse_duration
from quorate.sandboxes.machines import Machines, Template
from quorate.sandboxes.sandbox import Sandbox, start, through

WARM_MAX = 64
LOOK_SECONDS = 5.0

log = logging.getLogger(__name__)


class Sandboxes:
    """Keeps `warm` sandboxes running, and hands each out once. `Market.sandboxes` makes it.

    Those that wait are paid, too. Without any call for `idle` they are destroyed; the next call
    starts new ones.
    """

    def __init__(
        self, machines: Machines, template: Template, warm: int = 2, idle: str | int = "10m"
    ) -> None:
        if isinstance(warm, bool) or not (isinstance(warm, int) and 1 <= warm <= WARM_MAX):
            raise UsageError(f"warm: {warm!r}; write a number from 1 to {WARM_MAX}")
        self._machines, self._template, self._warm = machines, template, warm
        self._idle_seconds = parse_duration(idle, "idle")
        self._waiting: list[asyncio.Task[Sandbox]] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._called_at = 0.0
        self._callers = 0  # that wait for one

    async def __aenter__(self) -> Self:
        """Starts the first ones in the background."""
        self._called_at = _now()
        self._refill()
        self._watch = asyncio.create_task(self._look(), name="warm sandboxes")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Destroys those that wait. Those in use end with their own block."""
        if self._watch is not None:
            self._watch.cancel()
        self._watch = None
        self._drop(lambda task: True)
        await through(asyncio.gather(*self._ending))

    @property
    def ready(self) -> int:
        """Returns how many run and wait."""
        return sum(_is_ready(task) for task in self._waiting)

    @asynccontextmanager
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        """Hands out a sandbox that runs already, or the next that does, and destroys it at the
        end. Raises the error of the start if none can be started.
        """
        self._callers += 1
        try:
            sandbox = await self._take()
        finally:
            self._callers -= 1
        try:
            yield sandbox
        finally:
            await sandbox.close()

    async def _take(self) -> Sandbox:
        if self._watch is None:
            raise UsageError("sandboxes: the pool is closed; use it inside `async with`")
        self._refill()
        while True:
            self._called_at = _now()
            ready = next((task for task in self._waiting if _is_ready(task)), None)
            if ready is not None:
                # Nothing awaits in between, so no second caller gets it.
                self._waiting.remove(ready)
                self._refill()
                return ready.result()
            starting = [task for task in self._waiting if not task.done()]
            if not starting:
                for task in self._waiting:
                    task.result()  # raises why it did not start
                self._refill()  # those that ran are dead
            else:
                await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED)

    def _refill(self) -> None:
        """Replaces those that failed, and those that ended while they waited."""
        self._drop(lambda task: task.done() and not _is_ready(task))
        while len(self._waiting) < self._warm:
            starting = start(self._machines, self._template)
            self._waiting.append(asyncio.create_task(starting, name="start a sandbox"))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._callers and _now() - self._called_at > self._idle_seconds:
                self._drop(lambda task: True)
            else:
                self._refill()

    def _drop(self, is_dropped: "Callable[[asyncio.Task[Sandbox]], bool]") -> None:
        for task in [task for task in self._waiting if is_dropped(task)]:
            self._waiting.remove(task)
            ending = asyncio.create_task(_destroy(task), name="end a warm sandbox")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


async def _destroy(task: "asyncio.Task[Sandbox]") -> None:
    task.cancel()  # of one that is starting: it stops its own machine
    await asyncio.wait({task})
    try:
        await task.result().close()
    except asyncio.CancelledError:
        pass  # not re-raised: it is the task's
    except QuorateError as error:
        log.warning("a warm sandbox: %s", error)


def _is_ready(task: "asyncio.Task[Sandbox]") -> bool:
    if not task.done() or task.cancelled() or task.exception() is not None:
        return False
    return task.result().is_connected


def _now() -> float:
    return asyncio.get_running_loop().time()
