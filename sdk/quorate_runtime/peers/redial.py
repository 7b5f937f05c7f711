"""The loop that keeps one connection up: dial, wait longer after each failure, dial again."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Refused
from quorate_runtime.process.log_throttle import LogThrottle

RETRY_FIRST_SECONDS = 0.25
RETRY_MAX_SECONDS = 30.0
FAILURES = (aiohttp.ClientError, TimeoutError, ConnectionError, Refused)
"""The server is away, refuses this dialer or sends malformed data. The next try may succeed."""


@dataclass(frozen=True, slots=True)
class Redial:
    """How often to dial. The pause between tries grows to `retry_max` seconds.

    `jitter` returns a number from 0 to 1, which varies each pause from half of it to one and a
    half.
    """

    clock: Clock
    trouble: LogThrottle
    jitter: Callable[[], float] = random.random
    retry_max: float = RETRY_MAX_SECONDS

    async def run(
        self, name: str, connect: Callable[[], Awaitable[None]], is_closed: Callable[[], bool]
    ) -> None:
        """Calls `connect` until `is_closed` or until cancelled.

        `connect` returns when a connection has ended. `name` begins the log line of a failure.
        Raises what is not in FAILURES.
        """
        delay = RETRY_FIRST_SECONDS
        while not is_closed():
            try:
                await connect()
                delay = RETRY_FIRST_SECONDS
                self.trouble.recovered()
            except FAILURES as error:
                self.trouble.failed(f"{name}: {str(error) or type(error).__name__}")
            if not is_closed():
                await self.clock.sleep(delay * (0.5 + self.jitter()))
                delay = min(2 * delay, self.retry_max)
