"""Python functions that run on the market: `@market.function(image=..., max_price=...)`."""

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from quorate.base.errors import ProgramError, UsageError
from quorate.client.base.result import Result, describe_exit
from quorate.job.job import Job
from quorate.programs import function_runner
from quorate.programs.function_runner import ERROR, RESULT, decode, encode, to_text
from quorate.programs.function_source import FunctionSource, build_value, read_function

if TYPE_CHECKING:
    from quorate.client.market import Market
    from quorate.client.run import Run

P = ParamSpec("P")
R = TypeVar("R")
RESULT_BYTES_MAX = 256 << 20
PARALLEL = 8
CALLS_MAX = 10_000
RUNNER = Path(function_runner.__file__)
TAKEN = ("command", "args", "file", "sweep", "seeds", "outputs")


@dataclass(frozen=True, slots=True)
class FunctionRun(Generic[R]):
    """One submitted call. `run` has its events, logs and result."""

    run: "Run"
    source: FunctionSource

    async def value(self) -> R:
        """Waits for the checked result and returns it in its declared type.

        Raises ProgramError if the function raised or returned something else.
        """
        result = await self.run.result()
        made: R = await asyncio.to_thread(read_value, result, self.source)
        return made


class RemoteFunction(Generic[P, R]):
    """A function whose calls are jobs. `options` are fields of `Job`."""

    def __init__(self, market: "Market", function: Callable[P, R], options: dict[str, Any]) -> None:
        taken = sorted(options.keys() & set(TAKEN))
        if taken:
            raise UsageError(f"{taken[0]}: a function has its own; leave it out")
        self._market, self._options = market, options
        self.source = read_function(function)
        self.__name__, self.__doc__ = self.source.name, function.__doc__
        name = self.source.name.lower().replace("_", "-").strip("-")[:63]
        self._base = {"name": name, **options}
        Job(**self._base)  # a wrong field is reported here, not at the first call

    def __repr__(self) -> str:
        return f"<remote function {self.source.name}{self.source.signature}>"

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function on the market and returns its checked result.

        Raises TypeError that names the argument of a wrong type, ProgramError if it fails.
        """
        call = await self.submit(*args, **kwargs)
        return await call.value()

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> "FunctionRun[R]":
        """Orders one call and returns it without waiting."""
        text = self.call_text(*args, **kwargs)
        with TemporaryDirectory(prefix="quorate-") as folder:
            job = await asyncio.to_thread(self._job, Path(folder), text)
            return FunctionRun(await self._market.submit(job), self.source)

    async def map(self, *inputs: Iterable[Any]) -> list[R]:
        """Calls the function for each item, or for the items of several in step, like `map`.

        All values are checked before the first order. Returns the results in order.
        """
        calls = list(zip(*inputs, strict=True))
        if len(calls) > CALLS_MAX:
            raise UsageError(f"map: {len(calls)} calls; at most {CALLS_MAX} are allowed")
        for values in calls:
            self.call_text(*values)
        slots = asyncio.Semaphore(PARALLEL)

        async def one(values: tuple[Any, ...]) -> FunctionRun[R]:
            async with slots:
                return await self.submit(*values)  # type: ignore[call-arg]

        runs = await asyncio.gather(*(one(values) for values in calls))
        return list(await asyncio.gather(*(run.value() for run in runs)))

    def call_text(self, *args: Any, **kwargs: Any) -> str:
        """Returns the call as JSON text. TypeError names the argument of a wrong type."""
        bound = self.source.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        shapes = self.source.parameters
        return to_text(
            {
                "name": self.source.name,
                "parameters": shapes,
                "result": self.source.result,
                "values": {
                    name: encode(shapes[name], value, name)
                    for name, value in bound.arguments.items()
                },
            }
        )

    def _job(self, folder: Path, call: str) -> Job:
        texts = {
            "runner.py": RUNNER.read_text(),
            "function.py": self.source.text,
            "call.json": call,
        }
        for name, text in texts.items():
            (folder / name).write_text(text)
        return Job(**self._base, file=tuple(folder / name for name in texts))


def read_value(result: Result, source: FunctionSource) -> Any:
    """Reads a result in its declared type. Nothing of it is executed."""
    run = f"run 0x{result.job_id.hex()[:12]}"
    path = result.output / (RESULT if result.is_success else ERROR)
    try:
        with path.open("rb") as file:
            data = file.read(RESULT_BYTES_MAX + 1)
    except OSError as error:
        said = describe_exit(result.exit_status)
        raise ProgramError(
            f"{source.name}: the program {said} and left no result; see `quorate logs {run[4:]}`"
        ) from error
    if len(data) > RESULT_BYTES_MAX:
        raise ProgramError(f"{source.name}: its result is larger than {RESULT_BYTES_MAX} bytes")
    try:
        tree = json.loads(data)
        if not result.is_success:
            raise ProgramError(
                f"{source.name}: it raised {tree['type']}: {tree['message']} ({run}; `quorate "
                f"logs {run[4:]}` has the whole trace)"
            )
        return build_value(source.result_type, decode(source.result, tree, "result"))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProgramError(f"{source.name}: its result is unreadable: {error} ({run})") from error
