"""Time limits for a coordinator that accepts connections but answers slowly or not at all.

A socket timeout is not enough, because it restarts with every byte. Requests that end here are
repeated or reported. Nothing is lost, because an order is in the ledger before it is sent. The user
is told what the client waits for.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from quorate.base.errors import UnavailableError
from quorate_content.store.deadline_socket import BYTES_PER_SECOND_MIN

NOTICE_SECONDS = 4.0
ANSWER_SECONDS = 30.0  # for a whole answer; the largest have 16 MiB
STALL_SECONDS = 30.0  # for the next piece of an upload or a download
STORED_SECONDS = 120.0  # for the answer to a complete upload, which the store hashes and writes
# for the next byte of an event stream; the coordinator sends a comment every 10 s
STREAM_SECONDS = 35.0


class WaitTimer:
    """One wait with a limit. `restart` sets a new limit."""

    def __init__(
        self, limit: asyncio.Timeout, tell: Callable[[float], None], seconds: float
    ) -> None:
        self._limit, self._give_notice, self.seconds = limit, tell, seconds
        self._loop = asyncio.get_running_loop()
        self._notice_timer = self._loop.call_later(NOTICE_SECONDS, tell, seconds)
        self._is_over = False

    def restart(self, seconds: float) -> None:
        """Sets a new limit in seconds because data moved. Does nothing once the wait is over."""
        if self._is_over or self._limit.expired():
            return
        self.seconds = seconds
        self._limit.reschedule(self._loop.time() + seconds)
        self._notice_timer.cancel()
        self._notice_timer = self._loop.call_later(NOTICE_SECONDS, self._give_notice, seconds)

    def end(self) -> None:
        self._is_over = True
        self._notice_timer.cancel()


class Timeouts:
    """Time limits of one client with one coordinator. `notice` is told once what it waits for, and
    again only after an answer.
    """

    def __init__(self, url: str, notice: Callable[[str], None]) -> None:
        self._url, self._notice = url, notice
        self._has_given_notice = False

    @asynccontextmanager
    async def limited(self, seconds: float) -> AsyncIterator[WaitTimer]:
        """Raises TimeoutError, with the seconds waited, unless the block ends in time."""
        limit = asyncio.timeout(seconds)
        waiting = WaitTimer(limit, self._give_notice, seconds)
        try:
            async with limit:
                yield waiting
            self._has_given_notice = False
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimeoutError(f"no complete answer within {waiting.seconds:g} s") from error
        finally:
            waiting.end()

    def _give_notice(self, seconds: float) -> None:
        if not self._has_given_notice:
            self._has_given_notice = True
            self._notice(
                f"waiting for the coordinator {self._url}: no answer for {NOTICE_SECONDS:g} s (at "
                f"most {seconds:g} s)"
            )


class DownloadSpeedCheck:
    """Checks a download's speed. Raises UnavailableError if the source is too slow."""

    def __init__(self, what: str) -> None:
        self._what, self._loop = what, asyncio.get_running_loop()
        self._since, self._received = self._loop.time(), 0

    def received(self, count: int) -> None:
        self._received += count
        lasted = self._loop.time() - self._since
        if lasted < STALL_SECONDS:
            return
        if self._received < lasted * BYTES_PER_SECOND_MIN:
            raise UnavailableError(
                f"{self._what} arrives with less than {BYTES_PER_SECOND_MIN} bytes a second; "
                "try again later"
            )
        self._since, self._received = self._loop.time(), 0
