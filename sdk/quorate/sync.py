"""The blocking twin of `Market`: the same methods, run on an event loop in a thread of its own.

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


class _Loop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="quorate-sync", daemon=True
        )
        self._thread.start()

    def call(self, work: Awaitable[T]) -> T:
        """Waits for it. An interrupt of the caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(_as_coroutine(work), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """The items one by one; the source is closed when the caller stops early."""
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
    """Blocking twin of `quorate.client.run.Run`."""

    def __init__(self, loop: _Loop, run: asynchronous_run.Run) -> None:
        self._loop, self._run = loop, run
        self.job_id: Hash32 = run.job_id
        self.name, self.id = run.name, run.id

    def status(self) -> RunView:
        """What the coordinator says now; unverified."""
        return self._loop.call(self._run.status())

    def events(self, after: int = 0) -> Iterator[JobEvent]:
        """History, then news, until it is decided."""
        return self._loop.iterate(self._run.events(after))

    def logs(self, follow: bool = False) -> Iterator[bytes]:
        """Log text."""
        return self._loop.iterate(self._run.logs(follow))

    def stop(self) -> None:
        """Ends the run now."""
        self._loop.call(self._run.stop())

    def result(self, destination: Path | None = None) -> Result:
        """Waits for the checked result."""
        return self._loop.call(self._run.result(destination))


class Market:
    """Blocking twin of `quorate.client.market.Market`."""

    def __init__(
        self, profile: Profile, *, url: str | None = None, notice: Notice = ignore_notice
    ) -> None:
        """`notice` is called in the loop's thread."""
        self._profile, self._url, self._notice = profile, url, notice

    def __enter__(self) -> Self:
        """Connects."""
        self._loop = _Loop()
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
        """Detaches; runs go on."""
        try:
            self._loop.call(self._market.__aexit__(None, None, None))
        finally:
            self._loop.stop()

    def offers(self) -> tuple[OfferView, ...]:
        """Live offers."""
        return self._loop.call(self._market.offers())

    def classes(self) -> tuple[ClassRow, ...]:
        """Host classes on offer, with their owners."""
        return self._loop.call(self._market.classes())

    def account(self) -> AccountView:
        """This client's account as the coordinator sees it."""
        return self._loop.call(self._market.account())

    def runs(self) -> tuple[RunView, ...]:
        """This client's runs."""
        return self._loop.call(self._market.runs())

    def plan(self, job: Job) -> Plan:
        """What an order would meet."""
        return self._loop.call(self._market.plan(job))

    def submit(self, job: Job, plan: Plan | None = None) -> Run:
        """Uploads, signs, hands in."""
        return Run(self._loop, self._loop.call(self._market.submit(job, plan)))

    def run(self, name: str | bytes) -> Run:
        """A run of this profile."""
        return Run(self._loop, self._loop.call(self._market.run(name)))

    def map(self, job: Job, params: Iterable[Mapping[str, str]]) -> list[Run]:
        """One run for each set of variables."""
        return [Run(self._loop, run) for run in self._loop.call(self._market.map(job, params))]
