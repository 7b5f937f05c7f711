"""A clock of virtual time, and an event loop that follows it."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class VirtualClock:
    """`ports.Clock` of virtual time, which passes only by `forward` and `sleep`.

    Inside `run_virtual` it also drives the event loop: when every task waits, time jumps to the
    next timer. So a day passes in milliseconds, and always in the same order. In an ordinary loop
    `sleep` only moves the time on.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start
        self.elapsed = 0.0  # not added to the start: small floats keep timers exact

    def now(self) -> float:
        return self._start + self.elapsed

    def forward(self, seconds: float) -> None:
        assert seconds >= 0, "time does not run backwards"
        self.elapsed += seconds

    async def sleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(loop, _VirtualLoop) and loop.clock is self:
            await asyncio.sleep(seconds)
        else:
            self.forward(max(0.0, seconds))
            await asyncio.sleep(0)


def run_virtual(
    main: Callable[[VirtualClock], Awaitable[T]], clock: VirtualClock | None = None
) -> T:
    """Runs `main` in an event loop of virtual time, and returns its result.

    `asyncio.timeout`, `asyncio.sleep` and the clock use the same time. `main` must not wait for
    threads, sockets or processes. RuntimeError if every task waits and no timer runs.
    """
    virtual = clock or VirtualClock()

    async def start() -> T:
        return await main(virtual)

    with asyncio.Runner(loop_factory=lambda: _VirtualLoop(virtual)) as runner:
        return runner.run(start())


class _JumpingSelector(selectors.SelectSelector):
    """Moves the clock to the next timer instead of waiting for it."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            raise RuntimeError(
                "every task waits and no timer runs: virtual time would stand still for ever"
            )
        self._clock.forward(timeout)
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        super().__init__(_JumpingSelector(clock))

    def time(self) -> float:
        return self.clock.elapsed
