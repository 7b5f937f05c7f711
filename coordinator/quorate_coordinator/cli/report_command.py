"""The command `quorate coordinator report`: what the market earned, what it cost, and what it could
not serve.
"""

import asyncio
import json
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from quorate_coordinator.cli import options
from quorate_coordinator.status.database import DATABASE_ERRORS, Database
from quorate_coordinator.status.report import Report, read_report
from quorate_protocol.messages.classes import HostClass
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


def print_report(report: Report, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_tree(report)))
        return
    volume, disputes = report.volume, report.disputes
    _print_table(
        ("", "value"),
        [
            ("jobs ordered", volume["jobs"]),
            ("charged, USD", usd(volume["charged"])),
            ("fees, USD", usd(volume["fee"])),
            ("executions", volume["executions"]),
            ("audits", volume["audits"]),
            ("executions outside the accepted group", volume["outvoted"]),
            ("accepted", volume["accepted"]),
            ("unresolved", volume["unresolved"]),
            ("cannot verify", volume["cannot_verify"]),
            ("lapsed", volume["lapsed"]),
            ("stopped by their clients", volume["stopped"]),
            ("expired unmatched", volume["unmatched"]),
            ("cases opened", disputes.opened),
            ("cases convicted", disputes.convicted),
            ("cases acquitted", disputes.acquitted),
            ("cases undecided", disputes.undecided),
            ("burned by accusations, USD", usd(disputes.burned)),
            ("taken of stake, USD", usd(disputes.taken)),
        ],
    )
    _print_table(
        ("gas for", "transactions", "gas", "cost, coins"),
        [
            (item.kind, item.transactions, item.gas_used, _coins(item.cost_wei))
            for item in report.gas
        ],
    )
    _print_table(
        ("host class", "jobs", "expired unmatched"),
        [(_name(item.host, item.host_class), item.jobs, item.unmatched) for item in report.demand],
    )


def _tree(report: Report) -> dict[str, Any]:
    """Returns the report as JSON. Amounts are decimal text, in millionths of a USD or in wei."""
    volume, disputes = report.volume, report.disputes
    return {
        "since": report.since,
        "until": report.until,
        "jobs": volume["jobs"],
        "charged": str(volume["charged"]),
        "fees": str(volume["fee"]),
        "executions": volume["executions"],
        "audits": volume["audits"],
        "outvoted": volume["outvoted"],
        "outcomes": {
            "accepted": volume["accepted"],
            "unresolved": volume["unresolved"],
            "cannotVerify": volume["cannot_verify"],
            "lapsed": volume["lapsed"],
            "stopped": volume["stopped"],
            "unmatched": volume["unmatched"],
        },
        "disputes": {
            "opened": disputes.opened,
            "convicted": disputes.convicted,
            "acquitted": disputes.acquitted,
            "undecided": disputes.undecided,
            "burned": str(disputes.burned),
            "taken": str(disputes.taken),
        },
        "gas": [
            {
                "kind": item.kind,
                "transactions": item.transactions,
                "gasUsed": item.gas_used,
                "costWei": str(item.cost_wei),
            }
            for item in report.gas
        ],
        "demand": [
            {
                "hostClass": f"0x{item.host_class}",
                "name": _name(item.host, item.host_class),
                "jobs": item.jobs,
                "unmatched": item.unmatched,
            }
            for item in report.demand
        ],
    }


def _name(host: HostClass | None, identity: str) -> str:
    """Returns a host class's name as `quorate classes` shows it; its id if the tables do not know
    the class.
    """
    if host is None:
        return f"0x{identity}"
    if not host.is_gpu:
        return f"{host.architecture}/{host.level}/{host.vendor}"
    parts = [host.architecture, str(host.sm_count), host.driver_branch, host.mig_profile or "-"]
    return "/".join([*parts, str(host.world_size)]).removesuffix("/1").removesuffix("/-")


def _coins(wei: int) -> str:
    return f"{wei // WEI_PER_COIN}.{wei % WEI_PER_COIN:018d}"


def _print_table(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    if not rows:
        return
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(str(value) for value in row))
    Console(highlight=False, soft_wrap=True).print(table)
