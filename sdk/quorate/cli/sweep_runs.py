"""Submits a job array from the command line, follows it and prints its table of results.

The same command again continues it: an element that was ordered before is looked up, not ordered
again, unless it ended without a result.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from quorate.base.errors import CancelledError, QuorateError, RefusedError, UsageError
from quorate.base.exit_codes import ExitCode
from quorate.cli import attach, rendering
from quorate.cli.context import Context, emit, note
from quorate.cli.program_output import ProgramOutput
from quorate.cli.sweep_results import Metrics, SweepRow, metrics_of, write_results
from quorate.cli.tables import table
from quorate.client.background_settlement import is_over
from quorate.client.base.result import Result, describe_exit
from quorate.client.market import Market, Plan
from quorate.client.run import Run
from quorate.job.job import Job
from quorate.job.quantities import format_amount, format_duration
from quorate.job.sweep import label
from quorate.programs.job_packing import ArrayElement
from quorate_protocol.units import Outcome

PARALLEL = 8
FAILURES_MAX = 3
LOGS_MAX = 5  # failed elements whose logs are named


@dataclass(slots=True)
class ElementResult:
    """What became of one element: a result, or the error that ended it."""

    element: ArrayElement
    run: Run | None = None
    result: Result | None = None
    error: QuorateError | None = None
    output: Path | None = None
    metrics: Metrics = field(default_factory=dict)

    @property
    def charged(self) -> int:
        """In micro-USD."""
        ended = self.result or self.error
        return ended.charged if ended is not None else 0

    @property
    def is_success(self) -> bool:
        """True if the program exited with 0."""
        return self.result is not None and self.result.is_success


async def run_array(
    context: Context,
    job: Job,
    confirm: Callable[[], Awaitable[bool]],
    is_detached: bool,
    is_json: bool,
) -> None:
    """Shows the cost, asks, submits what is missing and waits for all elements."""
    async with context.market() as market:
        elements = await market.array(job)
        known = [element for element in elements if element.entry is not None]
        first = await plan_first(market, elements)
        attach.check_plan(elements[0].job, first)
        if not is_json:
            attach.show_plan(elements[0].job, first, False)
        missing = len(elements) - len(known)
        note(summary(first, len(elements), len(known)))
        if missing and not await confirm():
            raise CancelledError("not submitted")
        results = await _submit_all(market, elements)
        if not is_detached:
            note(await _under_way(results))
            await _wait_for_all(results, job.outputs)
            if job.outputs is not None:
                rows = [_result(item) for item in results]
                await asyncio.to_thread(write_results, job.outputs, rows)
    _report(context, results, is_detached, is_json)


def summary(first: Plan, count: int, known: int) -> str:
    """Says how many runs there are, and what those that are not ordered yet cost and take."""
    missing, longest = count - known, first.packed.spec.max_duration
    cost, estimate = f"at most {format_amount(first.worst_charge * missing)}", first.estimate
    if estimate is not None:
        cost = f"about {format_amount(estimate.expected * missing)}, {cost}"
    return (
        f"sweep: {count} runs, {known} ordered before; the others charge {cost} together, and take "
        f"at most {format_duration(longest)} each, {format_duration(longest * missing)} in a row"
    )


async def plan_first(market: Market, elements: Sequence[ArrayElement]) -> Plan:
    """Returns the plan of the first element; the others differ in variables only."""
    try:
        return await market.plan_element(elements[0])
    except UsageError as error:
        if elements[0].job.budget is None:
            raise
        raise UsageError(
            f"{error}. The {len(elements)} runs of a sweep share its budget"
        ) from error


async def _submit_all(market: Market, elements: Sequence[ArrayElement]) -> list[ElementResult]:
    results = [ElementResult(element) for element in elements]
    slots = asyncio.Semaphore(PARALLEL)
    failures = 0

    async def one(item: ElementResult) -> None:
        nonlocal failures
        async with slots:
            if failures >= FAILURES_MAX:
                item.error = CancelledError("not submitted, because others before it failed")
                return
            try:
                item.run = await _known_run(market, item.element)
                if item.run is None:
                    item.run = await market.submit_element(item.element)
            except QuorateError as error:
                # not re-raised: the other elements go on, and the table shows it
                item.error, failures = error, failures + 1

    await asyncio.gather(*(one(item) for item in results))
    return results


async def _known_run(market: Market, element: ArrayElement) -> Run | None:
    """Returns the element's earlier run, unless it ended without an accepted result."""
    if element.entry is None:
        return None
    run = await market.run(element.entry.job_id)
    try:
        view = await run.status()
    except RefusedError:
        return None  # not re-raised: the coordinator never took that order
    if not is_over(view):
        return run
    is_accepted = view.verdict is not None and view.verdict.message.outcome is Outcome.ACCEPTED
    return run if is_accepted else None


async def _under_way(results: list[ElementResult]) -> str:
    views = [await item.run.status() for item in results if item.run is not None]
    done = sum(is_over(view) for view in views)
    if done == len(views):
        return f"all {done} runs have ended"
    ended = f", {done} have ended" if done else ""
    return (
        f"{len(views) - done} runs are under way{ended}; they continue if you leave, and the same "
        "command then goes on"
    )


async def _wait_for_all(results: list[ElementResult], folder: Path | None) -> None:
    slots, done = asyncio.Semaphore(PARALLEL), 0

    async def one(item: ElementResult) -> None:
        nonlocal done
        if item.run is not None:
            try:
                async with slots:
                    item.result = await item.run.result()
                    item.output = await asyncio.to_thread(_placed, item, folder)
                    if folder is not None:
                        item.metrics = await _metrics(item.run, item.output)
            except QuorateError as error:
                item.error = error  # not re-raised: the table shows it
        done += 1
        note(f"{done}/{len(results)}  {label(item.element.params)}  {_state(item)}")

    await asyncio.gather(*(one(item) for item in results))


async def _metrics(run: Run, output: Path) -> Metrics:
    program = ProgramOutput(run)
    await program.finish(is_shown=False)
    return await asyncio.to_thread(metrics_of, output, program.end)


def _placed(item: ElementResult, folder: Path | None) -> Path:
    """Copies the output to the folder that the user named; one that is there is complete."""
    assert item.result is not None, "only finished elements have an output"
    if folder is None:
        return item.result.output
    target = folder / label(item.element.params)
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".part-{target.name}"
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(item.result.output, part, copy_function=shutil.copyfile)
        part.rename(target)
    return target


def _state(item: ElementResult) -> str:
    if item.result is not None:
        return f"the program {describe_exit(item.result.exit_status)}"
    return " ".join(str(item.error).split())[:200] if item.error else "submitted"


def _short_state(item: ElementResult) -> str:
    """For tables. What became of a run without a result was said when it ended."""
    if item.error is None:
        return _state(item)
    return "stopped" if isinstance(item.error, CancelledError) and item.run else "no result"


def _report(
    context: Context, results: list[ElementResult], is_detached: bool, is_json: bool
) -> None:
    """Prints the table and raises the exit code: 0 only if all elements succeeded."""
    if is_json:
        emit({"elements": [_tree(item) for item in results]})
    else:
        keys = list(results[0].element.params)
        table([*keys, "RUN", "STATE", "CHARGED", "OUTPUT"], [_row(item) for item in results])
        charged = sum(item.charged for item in results)
        good = sum(item.is_success for item in results)
        if not is_detached:
            note(f"{good} of {len(results)} runs succeeded; {format_amount(charged)} charged")
            _name_logs(context, results)
    code = _exit_code(results, is_detached)
    if code is not ExitCode.OK:
        raise typer.Exit(int(code))


def _name_logs(context: Context, results: list[ElementResult]) -> None:
    failed = [item for item in results if item.result is not None and not item.is_success]
    for item in failed[:LOGS_MAX]:
        assert item.run is not None, "a result is that of a run"
        command = context.command(f"logs {item.run.id[:14]}")
        note(f"{label(item.element.params)}: see what it printed: {command}")
    if len(failed) > LOGS_MAX:
        note(f"{len(failed) - LOGS_MAX} more failed; the table above names their runs")


def _exit_code(results: list[ElementResult], is_detached: bool) -> ExitCode:
    if is_detached:
        bad = [item.error for item in results if item.error is not None]
        return bad[0].exit_code if bad else ExitCode.OK
    good = sum(item.is_success for item in results)
    if good == len(results):
        return ExitCode.OK
    if good:
        return ExitCode.PARTLY_FAILED
    errors = [item.error.exit_code for item in results if item.error is not None]
    return errors[0] if len(errors) == len(results) else ExitCode.JOB_FAILED


def _result(item: ElementResult) -> SweepRow:
    if item.result is None:
        return SweepRow(item.element.params, _short_state(item), charged=item.charged)
    result = item.result
    state = "succeeded" if item.is_success else "failed"
    seconds = result.usage_ms / 1000
    return SweepRow(
        item.element.params, state, result.exit_status, result.charged, seconds, item.metrics
    )


def _row(item: ElementResult) -> list[str]:
    return [
        *item.element.params.values(),
        "" if item.run is None else rendering.short(item.run.job_id),
        _short_state(item),
        format_amount(item.charged) if item.result or item.error else "",
        "" if item.output is None else str(item.output),
    ]


def _tree(item: ElementResult) -> dict[str, Any]:
    return {
        "params": dict(item.element.params),
        "jobId": None if item.run is None else item.run.id,
        "result": None if item.result is None else rendering.result_json(item.result),
        "output": None if item.output is None else str(item.output),
        "error": None if item.error is None else str(item.error),
    }
