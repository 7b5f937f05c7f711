"""`quorate check` and `quorate image check`: find a nondeterministic program before it costs."""

import asyncio
import os
import shutil
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any

import aiohttp
import typer

from quorate.base.errors import UsageError
from quorate.base.exit_codes import ExitCode
from quorate.cli.context import JsonFlag, emit, note, run_async
from quorate.cli.job_flags import CHECKED, JobFlags, job_of
from quorate.cli.jobs import Command, File, ImageName
from quorate.cli.terminal_text import plain
from quorate.client.base.result import describe_exit
from quorate.job.job import Job
from quorate.job.jobfile import load_job
from quorate.job.packing import pack
from quorate.job.sweep import element_job, elements
from quorate.programs.job_preparation import JobPreparation
from quorate.programs.local_check import LocalCheck, LocalRun, check_locally
from quorate_content.comparators.report import DIFFERENT, PPB_ONE, Difference, Report
from quorate_protocol.messages.job_spec import Compare
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.rules.agreement import PPB_OF_PPM
from quorate_protocol.units import Comparator
from quorate_runtime.process.settings_flags import with_flags

LOG_LINES = 20
PRICE = "1"  # nothing is ordered
Kept = Annotated[
    Path | None, typer.Option("--output", "-o", help="New directory for both outputs, 1 and 2.")
]
CAUSES = (
    "seed random numbers, write no times or process ids, sort what you read from folders. "
    "Let no threads decide an order"
)
LIMIT = "Other hardware can still differ: a verdict needs machines of one pool"


def check(file: File, output: Kept = None, json: JsonFlag = False) -> None:
    """Runs a job file twice on this machine and compares the results, before it costs money."""
    _refuse_existing(output)
    run_async(_check(load_job(file), output, json))


@with_flags(JobFlags, names=CHECKED)
def image_check(
    image: ImageName = "",
    command: Command = None,
    *,
    output: Kept = None,
    json: JsonFlag = False,
    **typed: Any,
) -> None:
    """Runs a command twice on this machine and compares the results, before it costs money."""
    _refuse_existing(output)
    job = job_of(JobFlags(**typed), image, list(command or []), PRICE)
    run_async(_check(job, output, json))


def _refuse_existing(kept: Path | None) -> None:
    if kept is not None and kept.exists():
        raise UsageError(f"{kept} already exists; give a new directory for the outputs")


async def _check(job: Job, kept: Path | None, is_json: bool) -> None:
    folder = Path(mkdtemp(prefix="quorate-check-"))
    try:
        async with AsyncExitStack() as stack:
            packed = await _packed(job, folder, stack)
            found = await check_locally(packed, folder, note)
        compare = packed.spec.compare
        report = None if found.is_equal else await _compared(found, compare)
        apart = tuple(it for it in report.differences if it.ppb < DIFFERENT) if report else ()
        if kept is not None:
            await asyncio.to_thread(_keep, found, kept)
        if report is not None and _agrees(found, report, compare) and not is_json:
            typer.echo(
                f"agree: both results are {report.ppb / PPB_ONE:.1e} apart, within tolerance"
            )
            return note(LIMIT)
        _report(found, apart, is_json)
    finally:
        await asyncio.to_thread(_delete, folder)


async def _packed(job: Job, folder: Path, stack: AsyncExitStack) -> Any:
    """Returns the packed job: as for an order, but without a store."""
    session = await stack.enter_async_context(aiohttp.ClientSession())
    preparation = JobPreparation(folder, session, note, stack)
    prepared = await preparation.prepared(replace(job, sweep={}, seeds=0, outputs=None))
    if job.is_array:
        found = elements(job.sweep, job.seeds)
        note(f"sweep: the first of {len(found)} runs is checked")
        prepared = element_job(prepared, found[0], len(found))
    return await asyncio.to_thread(pack, prepared, {})


async def _compared(found: LocalCheck, compare: Compare) -> Report | None:
    """How far files that differ are apart, as numbers under `exact`; None if that is not known."""
    from quorate_content.comparators.worker import compare_apart  # numpy, which clients may lack

    is_exact = compare.comparator is Comparator.EXACT
    comparator = Comparator.NUMERIC if is_exact else compare.comparator
    try:
        return await compare_apart(
            found.first.output, found.second.output, comparator, compare.include
        )
    except (Refused, Unavailable) as error:
        note(f"how far the results are apart is not known: {error}")
        return None


def _agrees(found: LocalCheck, report: Report, compare: Compare) -> bool:
    return (
        compare.comparator is not Comparator.EXACT
        and found.first.exit_status == found.second.exit_status == 0
        and report.ppb <= compare.tolerance_ppm * PPB_OF_PPM
    )


def _report(found: LocalCheck, apart: tuple[Difference, ...], is_json: bool) -> None:
    """Prints the comparison. Exits with 6 for different results, with 1 if the program fails."""
    first, second = found.first, found.second
    if is_json:
        emit(
            {
                "equal": found.is_equal,
                "runs": [_tree(first), _tree(second)],
                "differences": [
                    {"path": item.path, "sentence": item.sentence} for item in found.differences
                ],
                "distances": [
                    {"path": item.path, "array": item.part, "ppb": item.ppb} for item in apart
                ],
            }
        )
    elif found.is_equal:
        typer.echo(f"equal: both runs gave the same result; the program {_ending(first)}")
        note(LIMIT)
    else:
        typer.echo("different: providers would not agree on a result")
        if first.exit_status != second.exit_status:
            both = " and ".join(describe_exit(item.exit_status) for item in (first, second))
            typer.echo(f"  the program {both}")
        for item in found.differences:
            typer.echo(f"  {plain(item.sentence)}")
        for each in apart:
            array = f", array {plain(each.part)}" if each.part else ""
            typer.echo(f"  {plain(each.path)}{array}: as numbers {each.ppb / PPB_ONE:.1e} apart")
        note(f"Next: {CAUSES}")
    if not found.is_equal:
        raise typer.Exit(int(ExitCode.NOT_VERIFIED))
    if first.exit_status:
        _show_log(first)
        raise typer.Exit(int(ExitCode.JOB_FAILED))


def _ending(run: LocalRun) -> str:
    refused = f", and its outputs were refused: {plain(run.refusal)}" if run.refusal else ""
    return f"{describe_exit(run.exit_status)}{refused} (output {run.output_cid})"


def _show_log(run: LocalRun) -> None:
    lines = run.log.decode(errors="replace").splitlines()[-LOG_LINES:]
    note("\n".join(["its last lines:", *lines]) if lines else "it printed nothing")


def _tree(run: LocalRun) -> dict[str, Any]:
    return {
        "sandbox": run.sandbox,
        "exitStatus": int(run.exit_status),
        "outputCid": run.output_cid,
        "outputRefused": run.refusal,
        "wallMs": run.wall_ms,
    }


def _keep(found: LocalCheck, kept: Path) -> None:
    kept.mkdir(parents=True)
    for name, run in (("1", found.first), ("2", found.second)):
        shutil.copytree(run.output, kept / name, copy_function=shutil.copyfile)


def _delete(folder: Path) -> None:
    """Deletes the copies of the inputs, whose folders are read-only as in a store."""
    for parent, _, _ in os.walk(folder):
        Path(parent).chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)
