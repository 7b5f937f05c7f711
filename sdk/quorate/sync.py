"""The blocking version of `Market`: the same methods, run on an event loop in its own thread.

with Market(profile) as market:
    result = market.submit(Job(...)).result()
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from quorate.client import market as asynchronous
from quorate.client import run as asynchronous_run
from quorate.client.market import Plan
from quorate.client.profile import Profile
from quorate.client.result import Result
from quorate.client.session import Notice, ignore_notice
from quorate.job.host_class import ClassRow
from quorate.job.job import Job
from quorate_protocol.messages.views import AccountView, JobEvent, OfferView, RunView
from quorate_protocol.units import Hash32

T = TypeVar("T")
JOIN_SECONDS = 10.0


class _LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="quorate-sync", daemon=True
        )
        self._thread.start()

    def call(self, work: Awaitable[T]) -> T:
        """Waits for the result. An interrupt of the caller cancels the work."""
        future = asyncio.run_coroutine_threadsafe(_as_coroutine(work), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Yields the items one by one. Closes the source if the caller stops early."""
        try:
            while True:
                try:
                    item = self.call(anext(source))
                except StopAsyncIteration:  # not re-raised: the iterator's ordinary end
                    return
                yield item
        finally:
            close = getattr(source, "aclose", None)
            if close is not None:
                self.call(close())

    def stop(self) -> None:
        """Ends the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_SECONDS)
        self._loop.close()


def _as_coroutine(work: Awaitable[T]) -> Coroutine[Any, Any, T]:
    async def wait() -> T:
        return await work

    return wait()


class Run:
    """Blocking version of `quorate.client.run.Run`. Same errors."""

    def __init__(self, loop: _LoopThread, run: asynchronous_run.Run) -> None:
        self._loop, self._run = loop, run
        self.job_id: Hash32 = run.job_id
        self.name, self.id = run.name, run.id

    def status(self) -> RunView:
        """Returns the coordinator's present view of the run, unverified."""
        return self._loop.call(self._run.status())

    def events(self, after: int = 0) -> Iterator[JobEvent]:
        """Yields past and new events until the run is decided."""
        return self._loop.iterate(self._run.events(after))

    def logs(self, follow: bool = False) -> Iterator[bytes]:
        """Yields log text in pieces."""
        return self._loop.iterate(self._run.logs(follow))

    def stop(self) -> None:
        """Stops the run now."""
        self._loop.call(self._run.stop())

    def result(self, destination: Path | None = None) -> Result:
        """Waits for the checked result."""
        return self._loop.call(self._run.result(destination))


class Market:
    """Blocking version of `quorate.client.market.Market`. Same errors."""

    def __init__(
        self, profile: Profile, *, url: str | None = None, notice: Notice = ignore_notice
    ) -> None:
        """Takes the same arguments as the async version. `notice` is called in the loop's
        thread.
        """
        self._profile, self._url, self._notice = profile, url, notice

    def __enter__(self) -> Self:
        """Connects."""
        self._loop = _LoopThread()
        self._market = asynchronous.Market(self._profile, url=self._url, notice=self._notice)
        try:
            self._loop.call(self._market.__aenter__())
        except BaseException:
            self._loop.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Disconnects. Runs continue."""
        try:
            self._loop.call(self._market.__aexit__(None, None, None))
        finally:
            self._loop.stop()

    def offers(self) -> tuple[OfferView, ...]:
        """Returns the live offers."""
        return self._loop.call(self._market.offers())

    def classes(self) -> tuple[ClassRow, ...]:
        """Returns the host classes on offer with their owners."""
        return self._loop.call(self._market.classes())

    def account(self) -> AccountView:
        """Returns this client's account as the coordinator sees it."""
        return self._loop.call(self._market.account())

    def runs(self) -> tuple[RunView, ...]:
        """Returns this client's runs."""
        return self._loop.call(self._market.runs())

    def plan(self, job: Job) -> Plan:
        """Asks what an order would meet and cost."""
        return self._loop.call(self._market.plan(job))

    def submit(self, job: Job, plan: Plan | None = None) -> Run:
        """Uploads what is missing, signs the order and sends it."""
        return Run(self._loop, self._loop.call(self._market.submit(job, plan)))

    def run(self, name: str | bytes) -> Run:
        """Returns a run of this profile by id, prefix or name."""
        return Run(self._loop, self._loop.call(self._market.run(name)))

    def map(self, job: Job, params: Iterable[Mapping[str, str]]) -> list[Run]:
        """Submits one job for each set of environment variables."""
        return [Run(self._loop, run) for run in self._loop.call(self._market.map(job, params))]
