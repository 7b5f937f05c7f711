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
from functools import wraps
from inspect import signature
from pathlib import Path
from types import GenericAlias
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, get_args

from quorate.client import market as asynchronous
from quorate.client import rental as asynchronous_rental
from quorate.client import run as asynchronous_run
from quorate.client.base.client_ledger import OrderRecord, SpendingTotals
from quorate.client.base.profile import Profile
from quorate.client.base.session import Notice, ignore_notice
from quorate.job.job import Job
from quorate.programs import functions as asynchronous_functions
from quorate.sandboxes import pool as asynchronous_pool
from quorate.sandboxes import sandbox as asynchronous_sandbox
from quorate.sources.resolution import Endpoints
from quorate_protocol.messages.ports import Clock
from quorate_protocol.messages.views import InfoView
from quorate_protocol.units import Amount, Hash32

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
W = TypeVar("W")
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


def _waits(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """The blocking twin of a method: its caller waits for the result."""
    return _twin(method, _LoopThread.call)


def _yields(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """The blocking twin of a method that yields."""
    items = get_args(signature(method).return_annotation)
    return _twin(method, _LoopThread.iterate, GenericAlias(Iterator, items))


def _orders(
    method: Callable[Concatenate[Any, P], Awaitable[asynchronous_run.Run]],
) -> "Callable[Concatenate[Any, P], Run]":
    """The blocking twin of a method that returns a run."""
    return _twin(method, lambda loop, made: Run(loop, loop.call(made)), Run)


def _twin(
    method: Callable[..., Any], finish: Callable[[_LoopThread, Any], Any], result: object = None
) -> Callable[..., Any]:
    """Returns a method with the name, docstring and parameters of the async one, which it calls on
    the object that `self` wraps. `result` is its type where it differs.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return finish(self._loop, method(self._wrapped, *args, **kwargs))

    if result is not None:
        call.__dict__["__signature__"] = signature(method).replace(return_annotation=result)
    return call


class _Wrapper(Generic[W]):
    def __init__(self, loop: _LoopThread, wrapped: W) -> None:
        self._loop, self._wrapped = loop, wrapped

    def __repr__(self) -> str:
        return repr(self._wrapped)


class Run(_Wrapper[asynchronous_run.Run]):
    """Blocking version of `quorate.client.run.Run`. Same errors."""

    @property
    def job_id(self) -> Hash32:
        return self._wrapped.job_id

    @property
    def name(self) -> str:
        return self._wrapped.name

    @property
    def id(self) -> str:
        """Returns the job id as 0x-hex."""
        return self._wrapped.id

    status = _waits(asynchronous_run.Run.status)
    events = _yields(asynchronous_run.Run.events)
    history = _yields(asynchronous_run.Run.history)
    logs = _yields(asynchronous_run.Run.logs)
    stop = _waits(asynchronous_run.Run.stop)
    why_ended = _waits(asynchronous_run.Run.why_ended)
    wait = _waits(asynchronous_run.Run.wait)
    result = _waits(asynchronous_run.Run.result)


class Rental(_Wrapper[asynchronous_rental.Rental]):
    """Blocking version of `quorate.client.rental.Rental`, without `connect`. Same errors."""

    @property
    def run(self) -> Run:
        return Run(self._loop, self._wrapped.run)

    started = _waits(asynchronous_rental.Rental.started)
    keep = _waits(asynchronous_rental.Rental.keep)
    extend = _waits(asynchronous_rental.Rental.extend)
    stop = _waits(asynchronous_rental.Rental.stop)


class Sandbox(_Wrapper[asynchronous_sandbox.Sandbox]):
    """Blocking version of `quorate.sandboxes.sandbox.Sandbox`. Same errors."""

    @property
    def id(self) -> str:
        """Returns the id of its rental."""
        return self._wrapped.id

    @property
    def is_connected(self) -> bool:
        """Returns False once it ended, or its connection broke."""
        return self._wrapped.is_connected

    exec = _waits(asynchronous_sandbox.Sandbox.exec)
    stream = _yields(asynchronous_sandbox.Sandbox.stream)
    upload = _waits(asynchronous_sandbox.Sandbox.upload)
    download = _waits(asynchronous_sandbox.Sandbox.download)
    list = _waits(asynchronous_sandbox.Sandbox.list)
    port = _waits(asynchronous_sandbox.Sandbox.port)
    spent = _waits(asynchronous_sandbox.Sandbox.spent)
    prepare = _waits(asynchronous_sandbox.Sandbox.prepare)
    why_over = _waits(asynchronous_sandbox.Sandbox.why_over)
    close = _waits(asynchronous_sandbox.Sandbox.close)


class Sandboxes(_Wrapper[asynchronous_pool.Sandboxes]):
    """Blocking version of `quorate.sandboxes.pool.Sandboxes`. Same errors."""

    @property
    def ready(self) -> int:
        """Returns how many run and wait."""
        return self._wrapped.ready

    @contextmanager
    def sandbox(self) -> Iterator[Sandbox]:
        """Hands out a sandbox that runs already, and destroys it at the end."""
        with _entered(self._loop, self._wrapped.sandbox()) as made:
            yield Sandbox(self._loop, made)


@contextmanager
def _entered(loop: _LoopThread, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
    made = loop.call(manager.__aenter__())
    try:
        yield made
    finally:
        loop.call(manager.__aexit__(None, None, None))


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
        endpoints: Endpoints | None = None,
    ) -> None:
        """Takes the same arguments as the async version. `notice` is called in the loop's
        thread.
        """
        self._wrapped = asynchronous.Market(
            profile,
            client=client,
            url=url,
            clock=clock,
            notice=notice,
            is_reading=is_reading,
            endpoints=endpoints,
        )
        self._opened: AbstractAsyncContextManager[asynchronous.Market] = self._wrapped

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
        return repr(self._wrapped)

    def __enter__(self) -> Self:
        """Connects."""
        self._loop = _LoopThread()
        try:
            self._wrapped = self._loop.call(self._opened.__aenter__())
        except BaseException:
            self._loop.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnects. Runs continue."""
        try:
            self._loop.call(self._opened.__aexit__(None, None, None))
        finally:
            self._loop.stop()

    @property
    def info(self) -> InfoView:
        """Returns what the coordinator says about itself."""
        return self._wrapped.info

    attach = _waits(asynchronous.Market.attach)
    settle_ended = _waits(asynchronous.Market.settle_ended)
    offers = _waits(asynchronous.Market.offers)
    checked_offers = _waits(asynchronous.Market.checked_offers)
    with_attestation = _waits(asynchronous.Market.with_attestation)
    history = _waits(asynchronous.Market.history)
    pools = _waits(asynchronous.Market.pools)
    account = _waits(asynchronous.Market.account)
    balance = _waits(asynchronous.Market.balance)
    give_back = _waits(asynchronous.Market.give_back)
    withdraw = _waits(asynchronous.Market.withdraw)
    compare_again = _waits(asynchronous.Market.compare_again)
    fetch_executions = _waits(asynchronous.Market.fetch_executions)
    runs = _waits(asynchronous.Market.runs)
    plan = _waits(asynchronous.Market.plan)
    submit = _orders(asynchronous.Market.submit)
    run = _orders(asynchronous.Market.run)
    array = _waits(asynchronous.Market.array)
    submit_element = _orders(asynchronous.Market.submit_element)
    plan_element = _waits(asynchronous.Market.plan_element)

    def rental(self, name: str | bytes) -> Rental:
        """Returns a rental of this profile by its name or id."""
        return Rental(self._loop, self._loop.call(self._wrapped.rental(name)))

    @contextmanager
    def sandbox(self, image: str | Path, **options: Any) -> Iterator[Sandbox]:
        """Rents a machine for commands and files, and destroys it at the end of the block."""
        with _entered(self._loop, self._wrapped.sandbox(image, **options)) as made:
            yield Sandbox(self._loop, made)

    @contextmanager
    def sandboxes(
        self, image: str | Path, *, warm: int = 2, idle: str | int = "10m", **options: Any
    ) -> Iterator[Sandboxes]:
        """Keeps sandboxes running for the time of the block."""
        pool = self._wrapped.sandboxes(image, warm=warm, idle=idle, **options)
        with _entered(self._loop, pool) as made:
            yield Sandboxes(self._loop, made)

    def open_rentals(self) -> list[OrderRecord]:
        """Returns this profile's rentals here that are not settled yet, newest first."""
        return self._wrapped.open_rentals()

    def map(self, job: Job, params: Iterable[Mapping[str, str]] | None = None) -> list[Run]:
        """Submits one job for each element of the job's sweep, or for each set of variables."""
        return [Run(self._loop, run) for run in self._loop.call(self._wrapped.map(job, params))]

    def function(self, **options: Any) -> "Callable[[Callable[P, R]], RemoteFunction[P, R]]":
        """Returns a decorator that makes a function's calls jobs."""
        decorate: Any = self._wrapped.function(**options)
        return lambda function: RemoteFunction(self._loop, decorate(function))

    def entry(self, job_id: Hash32) -> OrderRecord:
        """Returns this profile's own record of one order."""
        return self._wrapped.entry(job_id)

    def costs_of(self, beginning: str) -> tuple[Amount, Amount]:
        """Returns what orders whose names begin so cost, and what open ones may cost."""
        return self._wrapped.costs_of(beginning)

    def debt(self) -> SpendingTotals:
        """Returns what this profile's orders cost, and what open ones may still cost."""
        return self._wrapped.debt()

    def entries(self) -> list[OrderRecord]:
        """Returns this profile's own record of its newest 1,000 orders here, newest first."""
        return self._wrapped.entries()
