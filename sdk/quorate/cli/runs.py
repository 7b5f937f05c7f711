"""Commands about existing runs: ps, logs, events, describe, get, stop, spend."""

from pathlib import Path
from typing import Annotated

import typer

from quorate.cli.context import JsonFlag, context_of, emit, note, run_async
from quorate.cli.text.tables import table
from quorate.cli.text.terminal_text import decoded, plain

NO_TEXT = (
    "there is no log text. The program printed nothing, or the text was lost: a provider's "
    "daemon was down, or the coordinator restarted since"
)
Name = Annotated[
    str, typer.Argument(metavar="RUN", help="Job id, a prefix of at least 4 digits, or a name.")
]


def ps(ctx: typer.Context, json: JsonFlag = False) -> None:
    """Lists your runs."""
    from quorate.cli import rendering
    from quorate_protocol.codec import canonical

    async def work() -> None:
        async with context_of(ctx).reading_market() as market:
            views = await market.runs()
        if json:
            emit({"runs": [canonical.to_json(view) for view in views]})
        else:
            table(rendering.RUN_COLUMNS, [rendering.run_row(view) for view in views])

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
    from quorate.client.background_settlement import is_over

    async def work() -> None:
        async with context_of(ctx).reading_market() as market:
            run = await market.run(name)
            texts, is_empty = [], True
            async for text in decoded(run.logs(follow)):
                is_empty = is_empty and not text
                if json:
                    texts.append(text)
                else:
                    typer.echo(plain(text), nl=False)
            if json:
                emit({"jobId": run.id, "text": "".join(texts)})
            if is_empty:
                is_ended = is_over(await run.status())
                note(
                    NO_TEXT
                    if is_ended
                    else (
                        f"no log text yet; wait for it with: "
                        f"{context_of(ctx).command(f'logs -f {run.id[:14]}')}"
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
    from quorate.cli import rendering

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
    """Prints all details of a run: terms, executions and verdict."""
    from quorate.cli import rendering
    from quorate.job.quantities import format_amount
    from quorate_protocol.codec import canonical

    async def work() -> None:
        async with context_of(ctx).reading_market() as market:
            run = await market.run(name)
            view = await run.status()
            checked = market.entry(run.job_id).charged
        if json:
            emit({"run": canonical.to_json(view), "checkedChargeMicroUsd": checked})
            return
        table(rendering.RUN_COLUMNS, [rendering.run_row(view)])
        typer.echo(f"job      {run.id}")
        seen = "not yet" if checked is None else format_amount(checked)
        typer.echo(
            f"budget   {format_amount(view.budget)}; charge as checked by this client: {seen}"
        )
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

    run_async(work())


def get(
    ctx: typer.Context,
    name: Name,
    directory: Annotated[Path | None, typer.Argument(help="New directory for the output.")] = None,
    json: JsonFlag = False,
) -> None:
    """Waits for a run, checks its evidence, and downloads its output."""
    from quorate.cli import attach
    from quorate.errors import UsageError

    if directory is not None and directory.exists():
        raise UsageError(f"{directory} already exists; give a new directory for the output")

    async def work() -> None:
        async with context_of(ctx).reading_market() as market:
            run = await market.run(name)
            wanted = directory or market.entry(run.job_id).outputs
            await attach.follow(
                context_of(ctx), run, None if wanted is None or wanted.exists() else wanted, json
            )

    run_async(work())


def stop(ctx: typer.Context, name: Name, json: JsonFlag = False) -> None:
    """Stops a run now; its elapsed time is paid."""
    from quorate.client.background_settlement import is_over

    async def work() -> None:
        async with context_of(ctx).market() as market:
            run = await market.run(name)
            ended = is_over(await run.status())
            if not ended:
                await run.stop()
        if json:
            emit({"jobId": run.id, "stopped": not ended})
        elif ended:
            note(
                f"run {run.id[:14]} has already ended: "
                f"{context_of(ctx).command(f'get {run.id[:14]}')}"
            )
        else:
            note(f"run {run.id[:14]} is being stopped")

    run_async(work())


def spend(ctx: typer.Context, json: JsonFlag = False) -> None:
    """Prints what this profile spent by its own ledger, and what it may still order."""
    from quorate.job.quantities import format_amount

    async def work() -> None:
        async with context_of(ctx).reading_market() as market:
            account, debt = await market.account(), market.debt()
        checked, promised = debt.charged, debt.open_budgets
        free = max(0, account.allocation - account.charged - account.reserved)
        if json:
            emit(
                {
                    "spentMicroUsd": checked,
                    "checkedMicroUsd": checked,
                    "openBudgetsMicroUsd": promised,
                    "allocatedMicroUsd": account.allocation,
                    "chargedMicroUsd": account.charged,
                    "vouchedMicroUsd": account.vouched,
                    "freeMicroUsd": free,
                }
            )
            return
        typer.echo(f"spent  {format_amount(checked)}")
        if account.charged != checked:
            told = format_amount(account.charged)
            typer.echo(f"       the coordinator says {told}; it counts runs that you did not check")
        if promised:
            typer.echo(f"       open orders may cost {format_amount(promised)} more at most")
        allocated = format_amount(account.allocation)
        typer.echo(f"       {format_amount(free)} of {allocated} allocated is free for new orders")

    run_async(work())
