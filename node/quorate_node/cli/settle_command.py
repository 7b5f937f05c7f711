"""`quorate node settle`: own executions of orders with an escrow of their own."""

import asyncio
import json
from typing import Annotated

import typer

from quorate_node.base import settings as settings_file
from quorate_node.base.config import Config
from quorate_node.base.dates import until_text
from quorate_node.base.provider_keys import SigningKeys
from quorate_node.cli import options
from quorate_node.cli.owner_desk import owner_desk
from quorate_node.cli.settling import Row, settle_one, table
from quorate_protocol.refusals import Refused, Unavailable
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.keystore import KeystoreError


def settle(
    job: Annotated[
        str, typer.Argument(metavar="[JOB]", help="Job or lease; its first 6 digits are enough")
    ] = "",
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Show how far the jobs with an escrow of their own are from their pay. With JOB, send what
    is possible now: show the execution on chain, or have it paid. The daemon does both by itself
    later. The pay goes to your balance in Escrow.
    """
    folder = options.home_of(home)
    try:
        settings = settings_file.read(folder)
        config = Config.of(settings, folder)
        keys = options.locked_keys(folder, settings, password_file)
        sent, rows = asyncio.run(_settle(config, keys, job))
    except (Refused, Unavailable, KeystoreError, BaseExceptionGroup) as error:
        options.fail(error)
    if as_json:
        facts = [
            {"job": row.job, "lease": row.lease, "state": row.state.name.lower(), "at": row.at}
            for row in rows
        ]
        typer.echo(json.dumps({"sent": sent, "jobs": facts}))
        return
    for text in sent:
        typer.echo(f"sent {text}")
    for row in rows:
        typer.echo(_line(row))
    if not rows:
        typer.echo("no job with an escrow of its own waits for its pay")


async def _settle(config: Config, keys: SigningKeys, job: str) -> tuple[list[str], list[Row]]:
    async with owner_desk(config, keys, SystemClock()) as desk:
        sent = await settle_one(desk, job) if job else []
        return sent, await table(desk, job)


def _line(row: Row) -> str:
    when = f", {until_text(row.at, SystemClock().now())}" if row.at else ""
    return f"job 0x{row.job[:12]} (lease 0x{row.lease[:12]}): {row.state}{when}"
