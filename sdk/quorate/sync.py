"""The blocking version of `Market`: the same methods, run on an event loop in its own thread.

with Market(profile) as market:
    result = market.submit(Job(...)).result()
"""

import asyncio
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from quorate.client import market as asynchronous
from quorate.client import run as asynchronous_run
from quorate.client.base.client_ledger import OrderRecord, SpendingTotals
from quorate.client.base.profile import Profile
from quorate.client.base.result import Result
from quorate.client.base.session import Notice, ignore_notice
from quorate.client.base.transfer import Progress, no_progress
from quorate.client.market import Plan
from quorate.job.host_class import ClassRow
from quorate.job.job import Job
from quorate.job.quantities import Money
from quorate.programs import functions as asynchronous_functions
from quorate.programs.job_packing import ArrayElement
from quorate.trust.offer_verification import CheckedOffer
from quorate_protocol.messages.market_history import MarketPeriodView
from quorate_protocol.messages.ports import Clock
from quorate_protocol.messages.views import AccountView, InfoView, JobEvent, OfferView, RunView
from quorate_protocol.units import ZERO_HASH, Amount, Hash32

if TYPE_CHECKING:
    from quorate.client.money.balances import Balances
    from quorate.client.money.withdrawal import WithdrawalState

P = ParamSpec("P")
R = TypeVar("R")
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
        self.name = run.name

    def __repr__(self) -> str:
        """Names the run by its whole id."""
        return repr(self._run)

    @property
    def id(self) -> str:
        """Returns the job id as 0x-hex."""
        return self._run.id

    def status(self) -> RunView:
        """Returns the coordinator's present view of the run, unverified."""
        return self._loop.call(self._run.status())

    def events(self, after: int = 0) -> Iterator[JobEvent]:
        """Yields past and new events until the run is decided."""
        return self._loop.iterate(self._run.events(after))

    def history(self) -> Iterator[JobEvent]:
        """Yields the events so far."""
        return self._loop.iterate(self._run.history())

    def logs(self, follow: bool = False) -> Iterator[bytes]:
        """Yields log text in pieces."""
        return self._loop.iterate(self._run.logs(follow))

    def stop(self) -> None:
        """Stops the run now."""
        self._loop.call(self._run.stop())

    def wait(self, waiting: Notice = ignore_notice) -> RunView:
        """Waits until the run is over and returns its view."""
        return self._loop.call(self._run.wait(waiting))

    def result(
        self,
        destination: Path | None = None,
        progress: Progress = no_progress,
        waiting: Notice = ignore_notice,
    ) -> Result:
        """Waits for the checked result."""
        return self._loop.call(self._run.result(destination, progress, waiting))


class FunctionRun(Generic[R]):
    """Blocking version of `quorate.programs.functions.FunctionRun`."""

    def __init__(self, loop: _LoopThread, made: "asynchronous_functions.FunctionRun[R]") -> None:
        self._loop, self._made = loop, made
        self.run = Run(loop, made.run)

    def value(self) -> R:
        """Waits for the checked result and returns it in its declared type."""
        return self._loop.call(self._made.value())


class RemoteFunction(Generic[P, R]):
    """Blocking version of `quorate.programs.functions.RemoteFunction`."""

    def __init__(
        self, loop: _LoopThread, function: "asynchronous_functions.RemoteFunction[P, R]"
    ) -> None:
        self._loop, self._function = loop, function
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def __repr__(self) -> str:
        """Shows the signature."""
        return repr(self._function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function on the market and returns its checked result."""
        return self._loop.call(self._function(*args, **kwargs))

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> FunctionRun[R]:
        """Orders one call and returns it without waiting."""
        return FunctionRun(self._loop, self._loop.call(self._function.submit(*args, **kwargs)))

    def map(self, *inputs: Iterable[Any]) -> list[R]:
        """Calls the function for each item, or for the items of several in step."""
        return self._loop.call(self._function.map(*inputs))


class Market:
    """Blocking version of `quorate.client.market.Market`. Same errors."""

    def __init__(
        self,
        profile: Profile | str | Path,
        *,
        client: str = "",
        url: str | None = None,
        clock: Clock | None = None,
        notice: Notice = ignore_notice,
        is_reading: bool = False,
    ) -> None:
        """Takes the same arguments as the async version. `notice` is called in the loop's
        thread.
        """
        self._market = asynchronous.Market(
            profile, client=client, url=url, clock=clock, notice=notice, is_reading=is_reading
        )
        self._opened: AbstractAsyncContextManager[asynchronous.Market] = self._market

    @staticmethod
    @contextmanager
    def local(**options: Any) -> "Iterator[Market]":
        """Starts a whole market on this machine for tests: `with Market.local() as market`."""
        market = object.__new__(Market)
        market._opened = asynchronous.Market.local(**options)
        with market:
            yield market

    def __repr__(self) -> str:
        """Names the coordinator and the account."""
        return repr(self._market)

    def __enter__(self) -> Self:
        """Connects."""
        self._loop = _LoopThread()
        try:
            self._market = self._loop.call(self._opened.__aenter__())
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
            self._loop.call(self._opened.__aexit__(None, None, None))
        finally:
            self._loop.stop()

    @property
    def info(self) -> InfoView:
        """Returns what the coordinator says about itself."""
        return self._market.info

    def attach(self) -> None:
        """Starts witnessing and vouching for this client's runs."""
        self._loop.call(self._market.attach())

    def settle_ended(self) -> None:
        """Settles what ended while no program of this profile ran."""
        self._loop.call(self._market.settle_ended())

    def offers(self) -> tuple[OfferView, ...]:
        """Returns the live offers."""
        return self._loop.call(self._market.offers())

    def checked_offers(self, is_on_chain: bool = False) -> tuple[CheckedOffer, ...]:
        """Returns the offers of the book, each checked by this client."""
        return self._loop.call(self._market.checked_offers(is_on_chain))

    def with_attestation(
        self, rows: Iterable[CheckedOffer], is_on_chain: bool = False
    ) -> tuple[CheckedOffer, ...]:
        """Returns the rows with what this client found about the attestation of each slot."""
        return self._loop.call(self._market.with_attestation(rows, is_on_chain))

    def history(
        self, by: str, seconds: int, host_class: Hash32 = ZERO_HASH
    ) -> tuple[MarketPeriodView, ...]:
        """Returns supply, prices and volume of the last `seconds`, by "hour" or "day"."""
        return self._loop.call(self._market.history(by, seconds, host_class))

    def classes(self) -> tuple[ClassRow, ...]:
        """Returns the host classes on offer with their owners."""
        return self._loop.call(self._market.classes())

    def account(self) -> AccountView:
        """Returns this client's account as the coordinator sees it."""
        return self._loop.call(self._market.account())

    def balance(self) -> "Balances":
        """Returns this client's money: in the wallet, balance, tabs, and funded orders."""
        return self._loop.call(self._market.balance())

    def give_back(self, amount: Amount) -> Amount:
        """Asks the coordinator for so much of the tab. Returns what it frees on chain now."""
        return self._loop.call(self._market.give_back(amount))

    def withdraw(
        self, amount: Money | None = None, to: str = "", wait: bool = False
    ) -> "WithdrawalState":
        """Takes money back from the escrow; None is all that is not promised."""
        return self._loop.call(self._market.withdraw(amount, to, wait))

    def runs(self) -> tuple[RunView, ...]:
        """Returns this client's runs."""
        return self._loop.call(self._market.runs())

    def plan(self, job: Job) -> Plan:
        """Asks what an order would meet and cost."""
        return self._loop.call(self._market.plan(job))

    def submit(self, job: Job, plan: Plan | None = None, progress: Progress = no_progress) -> Run:
        """Uploads what is missing, signs the order and sends it."""
        return Run(self._loop, self._loop.call(self._market.submit(job, plan, progress)))

    def run(self, name: str | bytes) -> Run:
        """Returns a run of this profile by id, prefix or name."""
        return Run(self._loop, self._loop.call(self._market.run(name)))

    def map(self, job: Job, params: Iterable[Mapping[str, str]] | None = None) -> list[Run]:
        """Submits one job for each element of the job's sweep, or for each set of variables."""
        return [Run(self._loop, run) for run in self._loop.call(self._market.map(job, params))]

    def array(
        self, job: Job, params: Iterable[Mapping[str, str]] | None = None
    ) -> list[ArrayElement]:
        """Returns the elements of a job array with this profile's earlier orders of them."""
        return self._loop.call(self._market.array(job, params))

    def submit_element(self, element: ArrayElement) -> Run:
        """Submits one element of `array`."""
        return Run(self._loop, self._loop.call(self._market.submit_element(element)))

    def plan_element(self, element: ArrayElement) -> Plan:
        """Asks what one element would meet and cost."""
        return self._loop.call(self._market.plan_element(element))

    def function(self, **options: Any) -> "Callable[[Callable[P, R]], RemoteFunction[P, R]]":
        """Returns a decorator that makes a function's calls jobs."""
        decorate: Any = self._market.function(**options)
        return lambda function: RemoteFunction(self._loop, decorate(function))

    def entry(self, job_id: Hash32) -> OrderRecord:
        """Returns this profile's own record of one order."""
        return self._market.entry(job_id)

    def debt(self) -> SpendingTotals:
        """Returns what this profile's orders cost, and what open ones may still cost."""
        return self._market.debt()

    def entries(self) -> list[OrderRecord]:
        """Returns this profile's own record of its newest 1,000 orders here, newest first."""
        return self._market.entries()
