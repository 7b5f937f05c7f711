"""How long the client waits for a coordinator that accepts and then says nothing, or drips, and
when it tells whom it waits for.

A timeout of the socket alone is not enough: it begins anew with every byte. What these bounds
end is asked again or told with the next command; nothing of it is lost, since an order is in the
books before it is sent.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from quorate.errors import UnavailableError
from quorate_content.transfer.deadline_socket import BYTES_PER_SECOND_MIN

TELL_SECONDS = 4.0
ANSWER_SECONDS = 30.0  # for a whole answer; the largest are 16 MiB
STALL_SECONDS = 30.0  # for the next piece of an upload or a download
STORED_SECONDS = (
    120.0  # for the answer to an upload that has been sent whole: it is hashed and written
)
# for the next byte of an event stream, in which a coordinator says every 10 s that it is alive
STREAM_SECONDS = 35.0


class Waiting:
    """One wait, until its bound or until `heard` begins it anew."""

    def __init__(
        self, limit: asyncio.Timeout, tell: Callable[[float], None], seconds: float
    ) -> None:
        self._limit, self._tell, self.seconds = limit, tell, seconds
        self._loop = asyncio.get_running_loop()
        self._teller = self._loop.call_later(TELL_SECONDS, tell, seconds)
        self._is_over = False

    def heard(self, seconds: float) -> None:
        """Something moved: from now on it may take so long again. Nothing happens once the wait
        is over.
        """
        if self._is_over or self._limit.expired():
            return
        self.seconds = seconds
        self._limit.reschedule(self._loop.time() + seconds)
        self._teller.cancel()
        self._teller = self._loop.call_later(TELL_SECONDS, self._tell, seconds)

    def end(self) -> None:
        """Nothing is told any more."""
        self._is_over = True
        self._teller.cancel()


class Timeouts:
    """Of one client with one coordinator. `notice` is told once whom it waits for, and again
    only after an answer came.
    """

    def __init__(self, url: str, notice: Callable[[str], None]) -> None:
        self._url, self._notice = url, notice
        self._has_told = False

    @asynccontextmanager
    async def limited(self, seconds: float) -> AsyncIterator[Waiting]:
        """TimeoutError, with how long it was waited, unless the block ends in time."""
        limit = asyncio.timeout(seconds)
        waiting = Waiting(limit, self._tell, seconds)
        try:
            async with limit:
                yield waiting
            self._has_told = False
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimeoutError(f"no whole answer within {waiting.seconds:g} s") from error
        finally:
            waiting.end()

    def _tell(self, seconds: float) -> None:
        if not self._has_told:
            self._has_told = True
            self._notice(
                f"waiting for the coordinator {self._url}: no answer for {TELL_SECONDS:g} s (at "
                f"most {seconds:g} s)"
            )


class Pace:
    """Whether a download goes on: UnavailableError when a source drips, so that nobody waits for
    a byte a second.
    """

    def __init__(self, what: str) -> None:
        self._what, self._loop = what, asyncio.get_running_loop()
        self._since, self._received = self._loop.time(), 0

    def received(self, count: int) -> None:
        """After each piece."""
        self._received += count
        lasted = self._loop.time() - self._since
        if lasted < STALL_SECONDS:
            return
        if self._received < lasted * BYTES_PER_SECOND_MIN:
            raise UnavailableError(
                f"{self._what} comes with less than {BYTES_PER_SECOND_MIN} bytes a second; try "
                f"again later"
            )
        self._since, self._received = self._loop.time(), 0
