"""Runs hashing, disk and socket work in threads, and stops it at once when its task is
cancelled.
"""

import asyncio
import functools
import socket
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import TypeVar

from quorate_content.dag.content_limits import oversize
from quorate_protocol.refusals import Unavailable
from quorate_runtime.process.shield import finish_before_cancel

T = TypeVar("T")


class Stopped(Exception):
    """The task that wanted the work was cancelled."""


class StopSignal:
    """Stops one piece of work at its deadline or at its cancellation, and shuts its sockets."""

    def __init__(self, deadline_seconds: float) -> None:
        self._until = time.monotonic() + deadline_seconds
        self._stopped = threading.Event()
        self._guard = threading.Lock()
        self._shut: list[Callable[[], None]] = []

    def check(self) -> None:
        """Raises `Stopped` after a cancellation, `Unavailable` after the deadline."""
        if self._stopped.is_set():
            raise Stopped
        if self.left_seconds() <= 0:
            raise Unavailable("the content did not arrive within its deadline", retry_after=10.0)

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def left_seconds(self) -> float:
        """Returns the seconds until the deadline; not positive after it."""
        return self._until - time.monotonic()

    def wait(self, seconds: float) -> None:
        """Waits in a thread. Ends early on cancellation or at the deadline."""
        self._stopped.wait(max(0.0, min(seconds, self.left_seconds())))
        self.check()

    def attach(self, connection: socket.socket) -> None:
        def shut() -> None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # it is closed already, as intended
                pass

        self.on_stop(shut)

    def on_stop(self, action: Callable[[], None]) -> None:
        """Runs `action` once on cancellation, or at once if that has happened."""
        with self._guard:
            self._shut = [*self._shut[-7:], action]
        if self._stopped.is_set():
            action()

    def stop(self) -> None:
        """Cancels the work. Callable from any thread."""
        self._stopped.set()
        with self._guard:
            actions, self._shut = self._shut, []
        for action in actions:
            action()


async def in_thread(executor: Executor, work: Callable[[], T], stop: StopSignal | None = None) -> T:
    """Runs `work` in a thread. If the caller is cancelled, stops the work and waits for its end, so
    that files stay in order.
    """
    future = asyncio.get_running_loop().run_in_executor(executor, work)
    return await finish_before_cancel(future, stop.stop if stop is not None else None)


class StreamReader:
    """A blocking reader, for use in a thread, over an async iterator on the event loop.

    It avoids reference cycles, which `run_coroutine_threadsafe` would make. Otherwise each upload
    would hold six kilobytes until the garbage collector visits all objects.
    """

    def __init__(
        self,
        stream: AsyncIterator[bytes],
        loop: asyncio.AbstractEventLoop,
        stop: StopSignal,
        bytes_max: int,
    ) -> None:
        self._stream, self._loop, self._stop, self._left = stream, loop, stop, bytes_max
        self._bytes_max = bytes_max
        self._chunk = memoryview(b"")
        self._waiting: Future[bytes | None] | None = None
        self._pulling: asyncio.Task[bytes | None] | None = None
        self._is_over = False
        weak = weakref.WeakMethod(self._cancel)

        def cancel() -> None:
            method = weak()
            if method is not None:
                method()

        stop.on_stop(cancel)

    def readinto(self, buffer: memoryview, /) -> int:
        """Fills some of `buffer` and returns how many bytes; 0 means the end. `Refused(OVERSIZE)`
        if the stream is too long.
        """
        while not self._chunk and not self._is_over:
            self._chunk = memoryview(self._next())
        count = min(len(buffer), len(self._chunk))
        buffer[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        return count

    def _next(self) -> bytes:
        self._stop.check()
        waiting: Future[bytes | None] = Future()
        self._waiting = waiting
        self._loop.call_soon_threadsafe(self._begin, waiting)
        if self._stop.is_stopped:
            self._cancel()
        try:
            chunk = waiting.result(timeout=max(0.0, self._stop.left_seconds()))
        except CancelledError as error:
            raise Stopped from error
        except TimeoutError as error:
            self._cancel()
            raise Unavailable(
                "the content did not arrive within its deadline", retry_after=10.0
            ) from error
        if chunk is None:
            self._is_over = True
            return b""
        self._left -= len(chunk)
        if self._left < 0:
            raise oversize("bytes of a stream", self._bytes_max)
        return chunk

    def _begin(self, waiting: "Future[bytes | None]") -> None:
        if not waiting.cancelled():
            self._pulling = self._loop.create_task(self._pull())
            self._pulling.add_done_callback(functools.partial(_hand_over, waiting))

    async def _pull(self) -> bytes | None:
        return await anext(self._stream, None)

    def _cancel(self) -> None:
        if self._waiting is not None and self._waiting.cancel():
            self._loop.call_soon_threadsafe(self._end_pull)

    def _end_pull(self) -> None:
        if self._pulling is not None:
            self._pulling.cancel()


def _hand_over(waiting: "Future[bytes | None]", pulled: "asyncio.Task[bytes | None]") -> None:
    error = None if pulled.cancelled() else pulled.exception()
    if pulled.cancelled():
        waiting.cancel()
    elif not waiting.set_running_or_notify_cancel():
        return  # the reader is gone
    elif error is not None:
        waiting.set_exception(error)
    else:
        waiting.set_result(pulled.result())
