"""`quorate check` and `quorate image check`: find a nondeterministic program before it costs."""

import asyncio
import os
import shutil
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any

import aiohttp
import typer

from quorate.base.errors import UsageError
from quorate.base.exit_codes import ExitCode
from quorate.cli.check_on_market import MarketCheck, Ordering, check_on_market
from quorate.cli.context import JsonFlag, context_of, emit, note, run_async
from quorate.cli.job_flags import CHECKED, JobFlags, job_of
from quorate.cli.jobs import Command, File, ImageName, Yes
from quorate.cli.terminal_text import plain
from quorate.client.base.result import describe_exit
from quorate.job.job import Job
from quorate.job.jobfile import load_job
from quorate.job.packing import pack
from quorate.job.sweep import element_job, elements
from quorate.programs.job_preparation import JobPreparation
from quorate.programs.local_check import LocalCheck, LocalRun, check_locally
from quorate.programs.result_differences import UNVERIFIED
from quorate_content.comparators.report import (
    DIFFERENT,
    PPB_ONE,
    SHOWN_MAX,
    TOLERANCE_PPM_MAX,
    Difference,
    Report,
    tolerance_ppm,
)
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
OnMarket = Annotated[
    bool, typer.Option("--on-market", help="Let two owners run it, and pay for both.")
]
Tries = Annotated[
    int, typer.Option(min=1, max=5, help="Order at most so often, until two classes ran it.")
]
CAUSES = (
    "seed random numbers, write no times or process ids, sort what you read from folders. "
    "Let no threads decide an order"
)
LIMIT = "Other hardware can still differ: a verdict needs machines of one pool"
NUMERIC_LIMIT = (
    "One machine ran both; machines of other classes are further apart. 1000 ppm is a start for "
    "bf16"
)
MEASURED_MAX = 256  # files and arrays whose distances give the tolerance


@dataclass(frozen=True, slots=True)
class Advice:
    """The comparator to write into the job: "exact", "numeric", or "" with the reason why none."""

    compare: str
    tolerance_ppm: int = 0
    reason: str = ""


def check(
    ctx: typer.Context,
    file: File,
    output: Kept = None,
    on_market: OnMarket = False,
    tries: Tries = 1,
    yes: Yes = False,
    json: JsonFlag = False,
) -> None:
    """Runs a job file twice, here or on the market, and says which comparator fits its results."""
    _refuse_existing(output)
    run_async(_check(load_job(file), output, json, _ordering(ctx, on_market, tries, yes)))


@with_flags(JobFlags, names=CHECKED)
def image_check(
    ctx: typer.Context,
    image: ImageName = "",
    command: Command = None,
    *,
    output: Kept = None,
    on_market: OnMarket = False,
    tries: Tries = 1,
    yes: Yes = False,
    json: JsonFlag = False,
    **typed: Any,
) -> None:
    """Runs a command twice, here or on the market, and says which comparator fits its results."""
    _refuse_existing(output)
    flags, ordering = JobFlags(**typed), _ordering(ctx, on_market, tries, yes)
    price = flags.max_price or ("" if ordering else PRICE)
    job = job_of(flags, image, list(command or []), price)
    run_async(_check(job, output, json, ordering))


def _ordering(ctx: typer.Context, on_market: bool, tries: int, yes: bool) -> Ordering | None:
    if on_market:
        return Ordering(context_of(ctx), yes, tries)
    if tries != 1:
        raise UsageError("--tries orders the job several times; add --on-market, or leave it out")
    return None


def _refuse_existing(kept: Path | None) -> None:
    if kept is not None and kept.exists():
        raise UsageError(f"{kept} already exists; give a new directory for the outputs")


async def _check(job: Job, kept: Path | None, is_json: bool, ordering: Ordering | None) -> None:
    folder, compare = Path(mkdtemp(prefix="quorate-check-")), job.comparison()
    found: LocalCheck
    try:
        if ordering is not None:
            found = await check_on_market(ordering, job, folder, is_json)
        else:
            async with AsyncExitStack() as stack:
                packed = await _packed(job, folder, stack)
                found = await check_locally(packed, folder, note)
        report = None if found.is_equal else await _compared(found, compare)
        apart = () if found.is_equal else report.differences if report else None
        if kept is not None:
            await asyncio.to_thread(_keep, found, kept)
        if report is not None and _agrees(found, report, compare) and not is_json:
            typer.echo(
                f"agree: both results are {report.ppb / PPB_ONE:.1e} apart, within tolerance"
            )
            return note(_limit(found, LIMIT))
        _report(found, apart, advise(found, apart), is_json)
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
    is_exact = compare.comparator is Comparator.EXACT
    comparator = Comparator.NUMERIC if is_exact else compare.comparator
    try:
        from quorate_content.comparators.worker import (
            compare_apart,
        )  # numpy, which clients may lack

        return await compare_apart(
            found.first.output, found.second.output, comparator, compare.include, shown=MEASURED_MAX
        )
    except (ImportError, Refused, Unavailable) as error:
        note(f"how far the results are apart is not known: {error}")
        return None


def _agrees(found: LocalCheck, report: Report, compare: Compare) -> bool:
    return (
        compare.comparator is not Comparator.EXACT
        and found.first.exit_status == found.second.exit_status == 0
        and report.ppb <= compare.tolerance_ppm * PPB_OF_PPM
    )


def advise(found: LocalCheck, apart: tuple[Difference, ...] | None) -> Advice:
    """Returns the strictest comparator under which the two results agree. Pure."""
    for run in (found.first, found.second):
        if run.exit_status or run.refusal:
            return Advice("", reason=f"the program {_ending(run)}; it must succeed first")
    if found.is_equal:
        return Advice("exact")
    if apart is None:
        return Advice("", reason="the results differ, and their distance is not known")
    for item in apart:
        if item.ppb >= DIFFERENT:
            why = item.why or "more than its numbers differ"
            return Advice("", reason=f"{item.path or 'outputs'}: {why}")
    tolerance = tolerance_ppm(item.ppb for item in apart)
    if tolerance > TOLERANCE_PPM_MAX:
        return Advice("", reason=f"{apart[0].path}: {tolerance} ppm would let wrong results agree")
    return Advice("numeric", tolerance)


def _report(
    found: LocalCheck, apart: tuple[Difference, ...] | None, advice: Advice, is_json: bool
) -> None:
    """Prints the comparison. Exits with 6 for different results, with 1 if the program fails."""
    first, second = found.first, found.second
    if is_json:
        emit(_document(found, _measured(apart), advice))
    elif found.is_equal:
        typer.echo(f"equal: both runs gave the same result; the program {_ending(first)}")
        _show_advice(advice)
        note(_limit(found, LIMIT))
    else:
        typer.echo("different: providers would not agree on a result bit for bit")
        if first.exit_status != second.exit_status:
            both = " and ".join(describe_exit(item.exit_status) for item in (first, second))
            typer.echo(f"  the program {both}")
        for item in found.differences:
            typer.echo(f"  {plain(item.sentence)}")
        for each in _measured(apart)[:SHOWN_MAX]:
            array = f", array {plain(each.part)}" if each.part else ""
            typer.echo(f"  {plain(each.path)}{array}: as numbers {each.ppb / PPB_ONE:.1e} apart")
        _show_advice(advice)
        if advice.compare:
            note(_limit(found, NUMERIC_LIMIT))
        note(f"Next: {CAUSES}")
    failed = next((run for run in (first, second) if run.exit_status), None)
    if failed is not None and isinstance(found, MarketCheck):
        note(f"`quorate logs {found.result.id[:14]}` shows what it printed")
    elif failed is not None:
        _show_log(failed)
    if not found.is_equal:
        raise typer.Exit(int(ExitCode.NOT_VERIFIED))
    if failed is not None:
        raise typer.Exit(int(ExitCode.JOB_FAILED))


def _limit(found: LocalCheck, local: str) -> str:
    return found.limit if isinstance(found, MarketCheck) else local


def _show_advice(advice: Advice) -> None:
    """Prints what to write into the job."""
    if advice.compare == "numeric":
        typer.echo(f"compare: numeric, with a tolerance of {advice.tolerance_ppm} ppm")
    elif advice.compare:
        typer.echo(f"compare: {advice.compare}")
    else:
        typer.echo(f"compare: no comparator fits: {plain(advice.reason)}")
        note(UNVERIFIED)


def _document(
    found: LocalCheck, measured: tuple[Difference, ...], advice: Advice
) -> dict[str, Any]:
    return {
        "equal": found.is_equal,
        "runs": [_tree(found.first), _tree(found.second)],
        "differences": [
            {"path": item.path, "sentence": item.sentence} for item in found.differences
        ],
        "distances": [
            {"path": item.path, "array": item.part, "ppb": item.ppb} for item in measured
        ],
        "compare": advice.compare or None,
        "tolerancePpm": advice.tolerance_ppm,
        "reason": advice.reason,
        "market": found.document() if isinstance(found, MarketCheck) else None,
    }


def _measured(apart: tuple[Difference, ...] | None) -> tuple[Difference, ...]:
    """Without those that no tolerance lets agree."""
    return tuple(item for item in apart or () if item.ppb < DIFFERENT)


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
