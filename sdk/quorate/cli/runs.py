"""Commands about existing runs: ps, logs, events, describe, get, stop, spend."""

import time
from pathlib import Path
from typing import Annotated

import typer

from quorate.base.errors import RefusedError
from quorate.cli import attach as following
from quorate.cli import fetching, rendering, rental_text, run_state
from quorate.cli.context import Context, JsonFlag, context_of, emit, note, run_async
from quorate.cli.destinations import check_destination
from quorate.cli.failures import why_failed
from quorate.cli.kept_homes import keep_home_of
from quorate.cli.program_output import ProgramOutput, readable
from quorate.cli.tables import table
from quorate.cli.terminal_text import decoded, plain
from quorate.client.background_settlement import is_over
from quorate.client.base.result import describe_exit
from quorate.client.market import Market
from quorate.client.money.moments import moment
from quorate.client.run import Run
from quorate.job.quantities import format_amount, parse_duration
from quorate.rentals.secrets import waiting
from quorate_protocol.messages.job_spec import decode
from quorate_protocol.units import Amount, Label

NO_TEXT = (
    "there is no log text. The program printed nothing, or the text was lost: a provider's "
    "daemon was down, or the coordinator restarted since"
)
Name = Annotated[
    str, typer.Argument(metavar="RUN", help="Job id, a prefix of at least 4 digits, or a name.")
]


def ps(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Only these runs, such as 'train-*'.")
    ] = "",
    state: Annotated[
        str, typer.Option(help="Only runs in this state: running, failed, verified, ...")
    ] = "",
    last: Annotated[int | None, typer.Option(min=1, help="Only so many, newest first.")] = None,
    since: Annotated[str, typer.Option(help="Only runs of the last 2h, 7d, ...")] = "",
    json: JsonFlag = False,
) -> None:
    """Lists your runs: how each stands, its exit code, its age and what it cost."""
    seconds = parse_duration(since, "--since") if since else None

    async def work() -> None:
        async with context_of(ctx).reading_market() as market:
            views = await market.runs()
        found, now = run_state.chosen(views, name, state, seconds, last), time.time()
        if json:
            emit({"runs": [run_state.run_json(view, now) for view in found]})
            return
        table(run_state.RUN_COLUMNS, [run_state.run_row(view, now) for view in found])
        if views and not found:
            note(f"none of your {len(views)} runs fits these filters")

    run_async(work())


def logs(
    ctx: typer.Context,
    name: Name,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until the run ends.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Prints what the program wrote. Logs are never part of the result."""

    async def work() -> None:
        async with context_of(ctx).reading_market() as market:
            run = await market.run(name)
            texts, is_empty = [], True
            async for text in decoded(run.logs(follow)):
                is_empty = is_empty and not text
                if json:
                    texts.append(text)
                else:
                    typer.echo(readable(text), nl=False)
            if json:
                emit({"jobId": run.id, "text": "".join(texts)})
            if is_empty:
                is_ended = is_over(await run.status())
                note(
                    NO_TEXT
                    if is_ended
                    else (
                        f"no log text yet; wait for it with: "
                        f"{context_of(ctx).command(f'logs -f {run.called}')}"
                    )
                )

    run_async(work())


def events(
    ctx: typer.Context,
    name: Name,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until the run is decided.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print each event as one JSON document per line.")
    ] = False,
) -> None:
    """Prints a run's history, one event per line."""

    async def work() -> None:
        async with context_of(ctx).reading_market() as market:
            run = await market.run(name)
            async for event in run.events() if follow else run.history():
                if json:
                    emit(rendering.event_json(event))
                else:
                    typer.echo(rendering.event_line(event))

    run_async(work())


def describe(ctx: typer.Context, name: Name, json: JsonFlag = False) -> None:
    """Prints all details of a run: how it ended and why, its terms and its executions."""

    async def work() -> None:
        async with context_of(ctx).reading_market() as market:
            run = await market.run(name)
            view = await run.status()
            try:
                entry = market.entry(run.job_id)
            except RefusedError:
                entry = None  # not re-raised: a public run, or one that was ordered elsewhere
            program = ProgramOutput(run)
            if run_state.exit_status(view):  # its log is paid for
                await program.finish(is_shown=False)
            ended = await run.why_ended() if view.phase == run_state.ENDED else ""
        checked = None if entry is None else entry.charged
        until = None if entry is None else entry.funded_until or None
        profile = None if entry is None else decode(entry.spec).profile()
        if json:
            tree = run_state.run_json(view, time.time())
            tree["cause"] = ended or run_state.cause(view)
            tree |= rental_text.rental_json(view, entry)
            more = {} if profile is None else {"determinism": rendering.profile_json(profile)}
            emit({"run": tree, "checkedChargeMicroUsd": checked, "escrowUntil": until, **more})
            return
        table(run_state.RUN_COLUMNS, [run_state.run_row(view, time.time())])
        typer.echo(f"job      {run.id}")
        status = run_state.exit_status(view)
        why = ended or run_state.cause(view) or (why_failed(status, program.end) if status else "")
        if status is not None:
            typer.echo(f"exit     {status}: the program {describe_exit(status)}")
        if why:
            typer.echo(f"cause    {plain(why)}")
        typer.echo(f"rule     {rendering.rule_name(view.rule)}")
        for line in rental_text.rental_lines(view, entry):
            typer.echo(line)
        if run.job_id in waiting(context_of(ctx).home_in_use()):
            sends = context_of(ctx).command(f"shell {run.called}")
            typer.echo(f"secrets  wait here, and it waits for them: `{sends}` sends them")
        seen = "not yet" if checked is None else format_amount(checked)
        # A rental's is told above, if its client named one.
        is_rental = view.rule is Label.NONE
        budget = "" if is_rental else f"budget   {format_amount(view.budget)}; "
        typer.echo(f"{budget or 'charge   '}charge as checked by this client: {seen}")
        if until:
            typer.echo(
                f"escrow   of its own until {moment(until)}; then `quorate reclaim {run.called}`"
            )
        if profile is not None:
            typer.echo(f"pinned   {rendering.profile_text(profile)}")
        typer.echo(f"receipt  {plain(view.receipt_cid or 'none yet')}")
        rows = [
            [
                rendering.short(item.provider),
                item.role,
                str(item.batch),
                item.phase,
                "" if item.agreed is None else "yes" if item.agreed else "NO",
                "" if item.usage_ms is None else f"{item.usage_ms} ms",
                "" if item.pay is None else format_amount(item.pay),
            ]
            for item in view.executions
        ]
        table(["PROVIDER", "ROLE", "BATCH", "PHASE", "AGREED", "USAGE", "PAY"], rows)
        if program.end:
            typer.echo("the last lines that it printed:")
            for line in program.last_lines():
                typer.echo(f"  {line}")

    run_async(work())


def get(
    ctx: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... [DIRECTORY]",
            help="Runs by id or name, also 'train-*'; last, a new directory for the output.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="New directory; of several runs one folder each."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Waits for runs, checks their evidence, and downloads their output.

    The exit code is that of the first run that failed.
    """
    run_async(fetching.get_all(context_of(ctx), names, output, json))


def attach(
    ctx: typer.Context,
    name: Name,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="New directory for the output.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Follows a run: shows what its program prints, waits for the end, and fetches its output."""

    async def work() -> None:
        context = context_of(ctx)
        check_destination(output)
        async with context.reading_market() as market:
            run = await market.run(name)
            folder = output or fetching.ordered_folder(market, run)
            await following.follow(context, run, folder, json, is_live=True)

    run_async(work())


def stop(
    ctx: typer.Context,
    names: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Runs by id or name, also 'train-*'.")
    ],
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep /home of rentals for the next one, by its CID.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Stops runs now; their elapsed time is paid."""

    async def work() -> None:
        context, found = context_of(ctx), []
        async with context.market() as market:
            rented = {entry.job_id for entry in market.open_rentals()}
            for run in await fetching.runs_named(market, names):
                ended = is_over(await run.status())
                if keep and not ended:
                    await keep_home_of(context, market, run)
                if not ended:
                    await run.stop()
                found.append({"jobId": run.id, "stopped": not ended})
                is_rental = run.job_id in rented
                if not json:
                    note(_said_of_stop(context, run, ended, is_rental))
                    if is_rental and not ended:
                        note(_said_of_rest(market, run))
        if json:
            emit(found[0] if len(found) == 1 else {"runs": found})

    run_async(work())


def _said_of_stop(context: Context, run: Run, ended: bool, is_rental: bool) -> str:
    if is_rental and not ended:
        return f"rental {run.called} ends now; you pay the time it has run"
    again = context.command(f"get {run.called}")
    if ended:
        return f"run {run.called} has already ended: {again}"
    return (
        f"run {run.called}: you stop it now, and pay the time it has run, if any; `{again}` says "
        "what it cost"
    )


def _said_of_rest(market: Market, run: Run) -> str:
    entry = market.entry(run.job_id)
    rest = format_amount(Amount(entry.reserved - entry.metered))
    return (
        f"of what you signed ahead, at most {rest} is not used; vouchers cannot be taken back, so "
        "it pays for later orders"
    )


def spend(ctx: typer.Context, json: JsonFlag = False) -> None:
    """Prints what this profile spent by its own ledger, and what it may still order."""

    async def work() -> None:
        async with context_of(ctx).reading_market() as market:
            account, debt = await market.account(), market.debt()
        checked, promised = debt.charged, debt.promised
        available = max(0, account.locked - account.charged - account.reserved)
        if json:
            emit(
                {
                    "spentMicroUsd": checked,
                    "checkedMicroUsd": checked,
                    "openOrdersMicroUsd": promised,
                    "lockedMicroUsd": account.locked,
                    "chargedMicroUsd": account.charged,
                    "vouchedMicroUsd": account.vouched,
                    "availableMicroUsd": available,
                }
            )
            return
        typer.echo(f"spent  {format_amount(checked)}")
        if account.charged != checked:
            told = format_amount(account.charged)
            typer.echo(f"       the coordinator says {told}; it counts runs that you did not check")
        if promised:
            typer.echo(f"       open orders may cost {format_amount(promised)} more at most")
        typer.echo(f"       {format_amount(available)} is available for new orders")

    run_async(work())
