"""`quorate market`: supply, prices and volume of the market by hour or day and pool."""

from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from quorate.cli.context import JsonFlag, context_of, emit, note, run_async
from quorate.cli.tables import table
from quorate.job.pool import name_of, parse_pool, pool_name
from quorate.job.quantities import format_amount, parse_duration
from quorate_protocol.codec import canonical
from quorate_protocol.messages.market_history import MarketPeriodView
from quorate_protocol.units import Amount, Price

COLUMNS = [
    "START (UTC)",
    "POOL",
    "SLOTS",
    "PROVIDERS",
    "LOWEST",
    "MEDIAN",
    "P90",
    "JOBS",
    "EXECUTIONS/JOB",
    "UNMATCHED",
    "CHARGED",
]
UNKNOWN = "-"


def market(
    ctx: typer.Context,
    by: Annotated[Literal["hour", "day"], typer.Option(help="Length of a period.")] = "day",
    since: Annotated[str, typer.Option(help="How far back, such as 12h or 7d.")] = "7d",
    pool: Annotated[str, typer.Option("--pool", help="Only this pool, by its name or id.")] = "",
    json: JsonFlag = False,
) -> None:
    """Shows supply, prices per slot-hour in USD, and volume of the market's past."""
    seconds = parse_duration(since, "--since")
    identity = parse_pool(pool, "--pool")

    async def work() -> None:
        async with context_of(ctx).reading_market() as opened:
            periods = await opened.history(by, seconds, identity)
        if json:
            emit({"by": by, "periods": [canonical.to_json(period) for period in periods]})
            return
        table(COLUMNS, [_row(period, by) for period in periods])
        if not periods:
            note("nothing was on offer and nothing was ordered in this time; try a longer --since")

    run_async(work())


def _row(period: MarketPeriodView, by: str) -> list[str]:
    start = datetime.fromtimestamp(period.start, UTC)
    prices = period.prices
    band = (prices.least, prices.median, prices.p90) if prices else (None, None, None)
    per_job = period.executions_per_job_ppm / 1_000_000
    return [
        start.strftime("%Y-%m-%d" if by == "day" else "%Y-%m-%d %H:%M"),
        pool_name(period.pool) if period.pool else name_of(period.pool_id),
        str(period.slots),
        str(period.providers),
        *(_price(price) for price in band),
        str(period.jobs),
        f"{per_job:.2f}" if period.jobs else UNKNOWN,
        str(period.unmatched),
        format_amount(period.charged),
    ]


def _price(price: Price | None) -> str:
    return UNKNOWN if price is None else format_amount(Amount(price)).removesuffix(" USD")
