"""Fetches images from registries in separate threads, a few at once, each with an end.

A registry may send slowly on purpose, so no other work waits for a fetch. A fetch ends at its
lease's deadline, when the lease ends, or when the registry is slower than `TransferRate` allows.
The thread then closes the connection.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

from quorate_content.threads import Stopped, StopSignal, in_thread
from quorate_protocol.refusals import Unavailable

FETCHES_MAX = 4
Fetch = Callable[[str, bool, StopSignal], None]


class ImageFetches:
    """Runs at most one fetch at a time for each image; `fetch` blocks in a thread.

    `fetch` gets the image's name, whether the job needs GPUs, and the signal that ends it.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._threads = ThreadPoolExecutor(FETCHES_MAX, thread_name_prefix="image")
        self._turns = asyncio.Semaphore(FETCHES_MAX)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._stops: dict[str, StopSignal] = {}

    async def fetch(
        self,
        lease_id: str,
        name: str,
        seconds: float,
        has: Callable[[], Awaitable[bool]],
        needs_gpu: bool = False,
    ) -> None:
        """Fetches the image unless `has` says that the engine has it.

        Raises Refused and Unavailable as the fetch does. Also raises Unavailable at the deadline
        and after `stop`.
        """
        stop = StopSignal(seconds)
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._stops[lease_id] = stop
        try:
            async with asyncio.timeout(max(0.0, seconds)), lock, self._turns:
                if not await has():
                    await in_thread(self._threads, lambda: self._fetch(name, needs_gpu, stop), stop)
        except TimeoutError as error:
            raise Unavailable(f"image {name} did not arrive within its deadline", 1.0) from error
        except Stopped as error:
            raise Unavailable(f"the lease that needs {name} has ended", 1.0) from error
        finally:
            if self._stops.get(lease_id) is stop:
                del self._stops[lease_id]

    def stop(self, lease_id: str) -> None:
        """Cancels the lease's fetch if it runs or waits."""
        if lease_id in self._stops:
            self._stops[lease_id].stop()

    def close(self) -> None:
        """Cancels all fetches."""
        for stop in self._stops.values():
            stop.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
