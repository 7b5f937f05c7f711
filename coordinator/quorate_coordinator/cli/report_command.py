"""The command `quorate coordinator report`: what the market earned, what it cost, and what it could
not serve.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from quorate_coordinator.cli import options
from quorate_coordinator.status.database import DATABASE_ERRORS, Database
from quorate_coordinator.status.report import Report, read_report
from quorate_protocol.codec.declared_types import camel
from quorate_protocol.messages.classes import Pool
from quorate_protocol.quantity_input import span_seconds
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import usd
from quorate_runtime.process.command_errors import EXIT_UNAVAILABLE, EXIT_USAGE

WEI_PER_COIN = 10**18
Since = Annotated[str, typer.Option("--since", help="How far back, such as 24h or 7d.")]


def report(
    since: Since = "7d",
    database: options.DatabaseUrl = None,
    home: options.Home = None,
    as_json: options.AsJson = False,
) -> None:
    """Print fees, audits, disputes, gas and unmet demand, from the market's tables."""
    folder = options.home_of(home)
    if database is None:
        database = options.read_settings(folder).database
    try:
        found = make_report(options.database(database, folder), since)
    except Refused as error:
        raise options.fail(error.detail, EXIT_USAGE, error.code) from error
    except Unavailable as error:
        raise options.fail(str(error), EXIT_UNAVAILABLE) from error
    print_report(found, as_json)


def make_report(database: Database, since: str) -> Report:
    """Returns the report until now. Raises `Refused` for a bad span, `Unavailable` if the tables
    cannot be read.
    """
    try:
        seconds = span_seconds(since)
    except ValueError as error:
        raise Refused(Code.MALFORMED, f"--since: {error}") from error
    if database.path is not None and not database.path.exists():
        raise Unavailable(
            f"{database.path}: there are no tables yet; start the coordinator first: quorate "
            f"coordinator up"
        )
    until = int(time.time()) + 1
    return asyncio.run(_read(database, max(0, until - seconds), until))


async def _read(database: Database, since: int, until: int) -> Report:
    engine = database.engine()
    try:
        return await read_report(engine, since, until)
    except DATABASE_ERRORS as error:
        raise Unavailable(
            f"{database.explain(error)}; start the coordinator of this program version once, so "
            f"that it makes the tables"
        ) from error
    finally:
        await engine.dispose()


class Figure(NamedTuple):
    """One of `Report.figures`: its label for people, and its place in the JSON."""

    column: str
    label: str
    group: str = ""
    name: str = ""  # the column's, unless it is named here


FIGURES = (
    Figure("jobs", "jobs ordered"),
    Figure("charged", "charged, USD"),
    Figure("fee", "fees, USD", name="fees"),
    Figure("executions", "executions"),
    Figure("audits", "audits"),
    Figure("outvoted", "executions outside the accepted group"),
    Figure("accepted", "accepted", "outcomes"),
    Figure("unresolved", "unresolved", "outcomes"),
    Figure("cannot_verify", "cannot verify", "outcomes"),
    Figure("lapsed", "lapsed", "outcomes"),
    Figure("stopped", "stopped by their clients", "outcomes"),
    Figure("unmatched", "expired unmatched", "outcomes"),
    Figure("opened", "cases opened", "disputes"),
    Figure("convicted", "cases convicted", "disputes"),
    Figure("acquitted", "cases acquitted", "disputes"),
    Figure("undecided", "cases undecided", "disputes"),
    Figure("burned", "burned by accusations, USD", "disputes"),
    Figure("taken", "taken of stake, USD", "disputes"),
)
AMOUNTS = frozenset({"charged", "fee", "burned", "taken"})


def print_report(report: Report, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_tree(report)))
        return
    shown = ((figure, report.figures[figure.column]) for figure in FIGURES)
    totals = [(it.label, usd(value) if it.column in AMOUNTS else value) for it, value in shown]
    _print_table(("", "value"), totals)
    _print_table(
        ("gas for", "transactions", "gas", "cost, coins"),
        [
            (item.kind, item.transactions, item.gas_used, _coins(item.cost_wei))
            for item in report.gas
        ],
    )
    _print_table(
        ("pool", "jobs", "expired unmatched"),
        [(_name(item.pool, item.pool_id), item.jobs, item.unmatched) for item in report.demand],
    )


def _tree(report: Report) -> dict[str, Any]:
    """Amounts are decimal text, in millionths of a USD or in wei."""
    tree: dict[str, Any] = {"since": report.since, "until": report.until}
    for figure in FIGURES:
        value = report.figures[figure.column]
        place = tree.setdefault(figure.group, {}) if figure.group else tree
        shown = str(value) if figure.column in AMOUNTS else value
        place[figure.name or camel(figure.column)] = shown
    tree["gas"] = [
        {
            "kind": item.kind,
            "transactions": item.transactions,
            "gasUsed": item.gas_used,
            "costWei": str(item.cost_wei),
        }
        for item in report.gas
    ]
    tree["demand"] = [
        {
            "pool": f"0x{item.pool_id}",
            "name": _name(item.pool, item.pool_id),
            "jobs": item.jobs,
            "unmatched": item.unmatched,
        }
        for item in report.demand
    ]
    return tree


def _name(pool: Pool | None, identity: str) -> str:
    """As `quorate pools` shows it; its id if the tables do not know the pool."""
    return str(pool) if pool is not None else f"0x{identity}"


def _coins(wei: int) -> str:
    return f"{wei // WEI_PER_COIN}.{wei % WEI_PER_COIN:018d}"


def _print_table(columns: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> None:
    if not rows:
        return
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(str(value) for value in row))
    Console(highlight=False, soft_wrap=True).print(table)
