"""Follows a run in the terminal: the plan table, live progress, the result and the exit code."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from quorate.base.errors import REMEDIES, QuorateError, RefusedError, UsageError
from quorate.base.exit_codes import ExitCode
from quorate.cli import rendering, rental_text
from quorate.cli.context import Context, emit, note
from quorate.cli.failures import why_failed
from quorate.cli.program_output import ProgramOutput
from quorate.cli.tables import table
from quorate.cli.terminal_text import one_line, plain
from quorate.client.background_settlement import is_over
from quorate.client.base.transfer import Progress, no_progress
from quorate.client.market import Plan
from quorate.client.money.estimate import seconds_to_result
from quorate.client.money.moments import moment
from quorate.client.run import Run
from quorate.job.job import Job
from quorate.job.pool import describe_owners, name_of
from quorate.job.quantities import format_amount
from quorate_protocol.limits import USD
from quorate_protocol.messages.views import AccountView
from quorate_protocol.refusals import MEANINGS, Code
from quorate_protocol.units import Amount, usd

ESCROW_SUGGESTED_ABOVE = Amount(20 * USD)  # a loss of so much would hurt
DETAILS = frozenset(
    {"accepted", "committed", "witnessed", "drawn", "closed", "revealed", "escalated", "final"}
)
"""Steps of the verification, which ask nothing of who waits. `quorate events` prints them."""

PUBLIC_NOTE = (
    "this run is public: once it is final, anybody may read its spec with env, its logs and output"
)


def check_plan(job: Job, plan: Plan) -> None:
    """Raises RefusedError that names the limit to relax, if no offer fits. Raises UsageError if the
    lead is too small for the job.
    """
    plan.lead.check(plan.reserved)
    if plan.view.nearest:
        code = _refusal_code(plan)
        raise RefusedError(
            code.value, MEANINGS[code].sentence, _nearest(job, plan), _remedy(job, code)
        )


def check_funds(plan: Plan, account: AccountView, deposit: str) -> None:
    """Raises RefusedError, with the expected cost beside the worst case, if the tab does not cover
    the order. `deposit` is the command that adds to it.
    """
    if account.closes_at:
        raise UsageError(
            f"your tab for this coordinator closes and pays no new orders; after "
            f"{moment(account.closes_at)}: `{deposit} AMOUNT`"
        )
    available = max(0, account.locked - account.charged - account.reserved)
    if available >= plan.upfront:
        return
    expected = "" if plan.estimate is None else f"; it will probably cost {plan.estimate.short()}"
    none = "" if account.locked else "your tab for this coordinator is empty; "
    code, lacking = Code.INSUFFICIENT_FUNDS, usd(plan.upfront - available)
    is_rental = plan.packed.spec.kind.is_rental
    what = "what is paid ahead" if is_rental else "its worst case"
    longest = "--for" if is_rental else "max_duration"
    raise RefusedError(
        code.value,
        MEANINGS[code].sentence,
        f"{none}until the run ends, {what} of {format_amount(plan.upfront)} must be "
        f"available, and {format_amount(available)} is{expected}",
        f"`{deposit} {lacking}`, or a lower max_price or {longest}",
    )


def suggest_escrow(job: Job, plan: Plan) -> None:
    """Prints that a large order is safer with an escrow of its own."""
    if not (job.escrow or job.is_rental) and plan.worst_charge > ESCROW_SUGGESTED_ABOVE:
        note(
            f"above {format_amount(ESCROW_SUGGESTED_ABOVE)}, --escrow is safer: the budget stays "
            "on chain until two owners agree"
        )


def question(plan: Plan) -> str:
    expected = "" if plan.estimate is None else f" for {plan.estimate.short()}"
    if plan.packed.spec.kind.is_rental:
        return f"Rent{expected}, and sign {format_amount(plan.reserved)} ahead?"
    return f"Submit{expected}, at most {format_amount(plan.worst_charge)}?"


def _nearest(job: Job, plan: Plan) -> str:
    words, identity = one_line(plan.view.nearest), job.host()
    if not job.pool:
        return words
    known = job.pool
    if known.startswith("0x"):
        known = plan.pool.name if plan.pool else name_of(identity)
    return words.replace(f"0x{identity.hex()}", known)


def _remedy(job: Job, code: Code) -> str:
    classes = "`quorate pools` lists the pools on offer, `quorate offers` what their machines have"
    return classes if job.pool and code is Code.NO_OFFER else REMEDIES.get(code.value, "")


def _refusal_code(plan: Plan) -> Code:
    found = plan.view.refusal
    return Code(found) if found in set(Code) else Code.NO_OFFER


def show_plan(job: Job, plan: Plan, is_json: bool) -> None:
    view = plan.view
    if is_json:
        emit(
            {
                "spec": rendering.spec_json(plan.packed.spec),
                "specCid": plan.packed.spec.cid(),
                "uploadBytes": plan.upload_bytes,
                "sources": [
                    {"source": item.label, "bytes": item.size_bytes, "pinned": item.pinned}
                    for item in plan.packed.sources
                ],
                "notStored": [
                    {"field": item.field, "cid": item.cid} for item in plan.packed.not_stored
                ],
                "offers": view.offers,
                "owners": view.owners,
                "hosts": {item.host: item.owners for item in view.hosts},
                "siblings": [[item.one, item.other, item.agreed] for item in view.siblings],
                "rule": rendering.rule_name(view.rule),
                "executionsPriced": view.executions_priced,
                "feeBps": view.fee_bps,
                "cheapestMicroUsd": view.cheapest,
                "worstChargeMicroUsd": plan.worst_charge,
                "expectedChargeMicroUsd": None if plan.estimate is None else plan.estimate.expected,
                "expectedSeconds": _expected_seconds(plan),
                "expectedFromRuns": None if plan.estimate is None else plan.estimate.runs,
                "budgetMicroUsd": plan.budget,
                "reservedMicroUsd": plan.reserved,
                "hourMicroUsd": rental_text.hour_of(view) if job.is_rental else None,
                "aheadSeconds": job.ahead_seconds() if job.is_rental else None,
                "leadMicroUsd": plan.lead.most,
                "leadInUseMicroUsd": plan.lead.in_use,
                "nearest": view.nearest,
                "pool": f"0x{view.pool.hex()}",
                "classOwners": None
                if plan.pool is None
                else [f"0x{owner.hex()}" for owner in plan.pool.owners],
            }
        )
        return
    rows = rental_text.rental_rows(plan, job) if job.is_rental else None
    table(["PLAN", ""], rows or rendering.plan_rows(plan, job.accept_unwitnessed))
    show_owners(job, plan)
    if job.public:
        note(PUBLIC_NOTE)
    if view.nearest:
        note(f"no offer fits: {_nearest(job, plan)}. Next: {_remedy(job, _refusal_code(plan))}")
    elif view.offers < view.executions_priced:
        note(
            f"only {view.offers} of {view.executions_priced} executions find an offer now; "
            "the run may end without a result. Raise max_price or ask for less (see `quorate "
            "offers`)"
        )


def _expected_seconds(plan: Plan) -> int | None:
    found = plan.estimate
    if found is None:
        return None
    took = found.run_seconds or found.seconds
    return seconds_to_result(plan.view.rule, plan.is_fast, took, plan.period)


def show_owners(job: Job, plan: Plan) -> None:
    """Prints the owners of a named pool before anything is signed (PROTOCOL §2)."""
    if job.pool:
        note(describe_owners(plan.pool, job.pool))


@contextmanager
def progress(is_json: bool) -> Iterator[Progress]:
    """Yields a progress callback: bars on a terminal, nothing elsewhere."""
    if is_json or not sys.stderr.isatty():
        yield no_progress
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    # Standard output stays what it is: a program's text may go into a file.
    bars = Bars(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
    tasks: dict[str, TaskID] = {}

    def report(what: str, done: int, total: int) -> None:
        if what not in tasks:
            bars.start()
            tasks[what] = bars.add_task(plain(what), total=total or None)
        bars.update(tasks[what], completed=done, total=total or None)

    try:
        yield report
    finally:
        bars.stop()


async def follow(
    context: Context, run: Run, destination: Path | None, is_json: bool, is_live: bool = False
) -> None:
    """Prints events as they come, then the checked result; with `is_live` also what the program
    prints. Exits with 1 if the program itself failed, or its output was refused.
    """
    exit_code, tree = await finished(context, run, destination, is_json, is_live)
    if is_json:
        emit(tree)
    if exit_code:
        raise typer.Exit(exit_code)


async def finished(
    context: Context, run: Run, destination: Path | None, is_json: bool, is_live: bool = False
) -> tuple[int, dict[str, Any]]:
    """Waits for a run, and prints its result for people. Returns (exit code, the result as
    JSON).
    """
    program, is_live = ProgramOutput(run), is_live and not is_json
    shown: list[asyncio.Task[None]] = []
    try:
        if not is_json and not is_over(await run.status()):
            shown.append(asyncio.create_task(_print_events(run)))
            if is_live:
                shown.append(asyncio.create_task(program.follow()))
        with progress(is_json) as report:
            result = await run.result(destination, report, note)
    except QuorateError:
        await _ended(shown)
        await program.finish(is_live)
        raise
    except asyncio.CancelledError:
        note(goes_on(context, run))
        raise
    finally:
        await _ended(shown)
    await program.finish(is_live)
    refused = program.refusal() if result.is_empty else ""
    if not is_json:
        for line in rendering.result_lines(result):
            typer.echo(line)
        if refused or not result.is_success:
            show_failure(result.exit_status, program, not is_live)
        logs = context.command(f"logs {run.called}")
        if refused:
            note(f"its {refused}")
        elif not result.is_success:
            note(f"see what it printed: {logs}")
        elif result.is_empty:
            note(f"it left no files; see what it printed: {logs}")
    exit_code = ExitCode.OK if result.is_success and not refused else ExitCode.JOB_FAILED
    return int(exit_code), rendering.result_json(result) | {"outputRefused": refused}


def goes_on(context: Context, run: Run) -> str:
    """What a user who leaves has to know."""
    attached, stopped = context.command(f"attach {run.called}"), context.command("stop")
    return f"run {run.called} goes on; follow it: {attached}; stop it: {stopped} {run.called}"


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def show_failure(status: int, program: ProgramOutput, with_lines: bool) -> None:
    """Prints the end of what the program printed, the cause and what would help."""
    lines = program.last_lines() if with_lines else []
    if lines:
        note("the last lines that it printed:")
    for line in lines:
        note(f"  {line}")
    why = why_failed(status, program.end)
    if why:
        note(f"cause: {why}")


async def _print_events(run: Run) -> None:
    async for event in run.events():
        if event.name not in DETAILS:
            note(rendering.event_line(event))
