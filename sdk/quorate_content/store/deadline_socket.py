"""A socket to an untrusted source that checks the deadline at every receive, so that slow drips
cannot outlive it.

A socket timeout is not enough: it restarts with every byte, and readers above it ask until their
buffer is full.
"""

import io
import socket
import time
from typing import cast

from quorate_content.dag.content_limits import TruncatedSource
from quorate_content.store.threads import StopSignal

HEAD_BYTES_MAX = 64 * 1024
BYTES_PER_SECOND_MIN = 2 * 1024


class DeadlineSocket:
    """Wraps a socket and offers as much of it as `http.client` uses."""

    def __init__(
        self,
        connection: socket.socket,
        stop: StopSignal,
        stall_seconds: float,
        may_drip: bool,
        answer_seconds: float | None = None,
    ) -> None:
        """Wraps `connection`. The head must be complete after `answer_seconds` (None: as long as a
        stall); each receive after it may take `stall_seconds`. `may_drip` allows slow sources until
        the deadline, because no other source is left.
        """
        self._connection = connection
        self._stop = stop
        self._answer = stall_seconds if answer_seconds is None else answer_seconds
        self._stall = stall_seconds
        self._may_drip = may_drip
        self._begun, self._received, self._timeout = time.monotonic(), 0, self._answer
        self.is_head = True

    def sendall(self, data: bytes) -> None:
        self._connection.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        raw = self._connection.makefile(mode, buffering=0)  # type: ignore[call-overload]
        return io.BufferedReader(_Receiver(self, cast(io.RawIOBase, raw)))

    def close(self) -> None:
        self._connection.close()

    def before(self) -> None:
        """Runs before each receive: checks deadline and cancellation, and sets how long this one
        may take.
        """
        self._stop.check()
        lasted = time.monotonic() - self._begun
        limit = self._answer - lasted if self.is_head else self._stall
        wanted = max(0.05, min(limit, self._stop.left_seconds()))
        if wanted != self._timeout:
            self._timeout = wanted
            self._connection.settimeout(wanted)

    def after(self, count: int) -> None:
        """Runs after each receive. Raises `TruncatedSource` if the head does not end or the source
        is too slow.
        """
        self._received += count
        lasted = time.monotonic() - self._begun
        if self.is_head and (self._received > HEAD_BYTES_MAX or lasted > self._answer):
            raise TruncatedSource("the head of its answer is too long or too slow")
        if (
            not self._may_drip
            and lasted > self._stall
            and self._received < lasted * BYTES_PER_SECOND_MIN
        ):
            raise TruncatedSource(f"it sends less than {BYTES_PER_SECOND_MIN} bytes a second")


class _Receiver(io.RawIOBase):
    """The raw side of the answer."""

    def __init__(self, owner: DeadlineSocket, inner: io.RawIOBase) -> None:
        self._owner, self._inner = owner, inner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int | None:  # type: ignore[override]
        self._owner.before()
        count = self._inner.readinto(buffer)
        self._owner.after(count or 0)
        return count

    def close(self) -> None:
        self._inner.close()
        super().close()
