"""Runs trio in its own thread and lets asyncio call into it.

libp2p needs trio, and the daemons need asyncio. A thread was chosen over trio's guest mode, which
halves the throughput, and over trio-asyncio, where a crash of libp2p ends the daemon.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

import trio

STOP_SECONDS = 10.0
T = TypeVar("T")
R = TypeVar("R")


class TrioThread(Generic[T]):
    """One run of trio. `done` tells how it ended; a dead thread is not started again."""

    def __init__(self, main: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        """`main` is entered in the thread, and left when the thread is stopped."""
        self._main = main
        self._started: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.done: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._stop: trio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="libp2p", daemon=True)

    async def start(self) -> T:
        self._thread.start()
        return await asyncio.shield(asyncio.wrap_future(self._started))

    async def call(self, function: Callable[[], Awaitable[R]], deadline_seconds: float) -> R:
        """Runs an async function in the thread.

        Raises what it raises, TimeoutError at the deadline, and ConnectionError if the thread has
        ended. Cancelling the caller cancels the function.
        """
        answer: concurrent.futures.Future[R] = concurrent.futures.Future()
        scope = trio.CancelScope()

        async def job() -> None:
            try:
                with scope:
                    scope.deadline = trio.current_time() + deadline_seconds
                    result = await function()
                    _settle(answer, lambda: answer.set_result(result))
            except Exception as error:  # noqa: BLE001 - it is raised at the caller
                failure = error
                _settle(answer, lambda: answer.set_exception(failure))
            finally:
                late = TimeoutError(f"no result within {deadline_seconds} s")
                ended = ConnectionError("the libp2p host has stopped")
                reason = late if scope.cancelled_caught else ended
                _settle(answer, lambda: answer.set_exception(reason))

        def submit() -> None:
            if self._nursery is None or self._nursery.cancel_scope.cancel_called:
                stopping = ConnectionError("the libp2p host is stopping")
                _settle(answer, lambda: answer.set_exception(stopping))
            else:
                self._nursery.start_soon(job)

        self.post(submit)
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            try:
                self.post(scope.cancel)
            except ConnectionError:
                pass  # the thread has ended, and the function with it
            raise

    def post(self, function: Callable[[], object]) -> None:
        """Runs a quick function in the thread, soon. ConnectionError if the thread has ended."""
        if self._token is None:
            raise ConnectionError("the libp2p host has not started")
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError as error:
            raise ConnectionError("the libp2p host has ended") from error

    async def stop(self) -> None:
        """Leaves `main` and waits for the end of the thread. A second call changes nothing. Raises
        TimeoutError if the thread does not end.
        """
        if not self._thread.is_alive():
            return
        async with asyncio.timeout(STOP_SECONDS):
            await asyncio.wait([asyncio.wrap_future(self._started)])
            if not self.done.done():
                self._ask_to_stop()
                await asyncio.wait([asyncio.wrap_future(self.done)])
        self._thread.join()  # it has nothing left to do

    def _ask_to_stop(self) -> None:
        assert self._stop is not None, "it has started"
        try:
            self.post(self._stop.set)
        except ConnectionError:
            pass  # it has ended meanwhile

    def _run(self) -> None:
        try:
            trio.run(self._amain, strict_exception_groups=True)
        except BaseException as error:  # noqa: BLE001 - the supervisor reads it from `done`
            failure = error
            _settle(self._started, lambda: self._started.set_exception(failure))
            self.done.set_exception(error)
        else:
            self.done.set_result(None)

    async def _amain(self) -> None:
        self._stop = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        async with self._main() as value, trio.open_nursery() as nursery:
            self._nursery = nursery
            self._started.set_result(value)
            await self._stop.wait()
            nursery.cancel_scope.cancel()


def _settle(future: "concurrent.futures.Future[R]", settle: Callable[[], None]) -> None:
    try:
        if not future.done():
            settle()
    except concurrent.futures.InvalidStateError:
        pass  # cancelled by the other thread in between
