"""`quorate coordinator top-up|request`: restores the bond; signs the exit for a relayer."""

import asyncio
import json
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from quorate_contracts.account.relayed_requests import RequestFile, sign_requests, write_file
from quorate_coordinator.base.config import Settings
from quorate_coordinator.base.coordinator_keys import MoneyKeys
from quorate_coordinator.cli import money_commands, options
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Amount, UnixSeconds, usd

VALID_SECONDS = 86_400


def top_up(
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    yes: money_commands.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Restore what was burned of the bond, from the account. Below half, no court hears it."""
    with money_commands.sentences():
        folder, settings, keys = money_commands.opened(home, password_file)
        with money_commands.alone(folder):
            added = asyncio.run(_top_up(folder, settings, keys, yes))
    if as_json:
        typer.echo(json.dumps({"toppedUp": added}))
        return
    typer.echo(f"{usd(added)} USD of bond restored" if added else "no bond is missing")


async def _top_up(folder: Path, settings: Settings, keys: MoneyKeys, yes: bool) -> Amount:
    async with money_commands.own_money(folder, settings, keys) as money:
        lacks = await money.bond_lacks()
        if lacks:
            money_commands.note(f"{usd(lacks)} USD of the account go into the bond")
            money_commands.confirm(yes, "Send?")
            await money.top_up(lacks)
        return lacks


def request(
    max_fee: Annotated[
        int, typer.Option("--max-fee", min=0, help="The most that a relayer gets, in USD")
    ] = 1,
    out: Annotated[Path, typer.Option("--out", help="File to write")] = Path("requests.json"),
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    yes: money_commands.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Sign this coordinator's exit, for somebody else to send within a day: as `retire`, without
    coins. The relayer is paid in tokens.
    """

    fee = Amount(max_fee * 10**6)
    with money_commands.sentences():
        folder, settings, keys = money_commands.opened(home, password_file)
        with money_commands.alone(folder):
            found = asyncio.run(_sign(folder, settings, keys, fee, yes))
        write_file(out, found)
    if as_json:
        typer.echo(json.dumps({"file": str(out), "maxFeeMicroUsd": fee}))
        return
    typer.echo(f"{out}: the exit of 0x{found.account.hex()}; costs at most {usd(fee)} USD")
    typer.echo(f"Next: a relayer types `quorate chain relay {shlex.quote(str(out))} --key KEYFILE`")


async def _sign(
    folder: Path, settings: Settings, keys: MoneyKeys, fee: Amount, yes: bool
) -> RequestFile:
    async with money_commands.own_money(folder, settings, keys) as money:
        found = await money.retirement()
        if not found.is_registered or found.retired_at:
            raise Refused(Code.WRONG_PHASE, "this coordinator has retired, or never registered")
        money_commands.note("once sent, this coordinator takes no new orders for ever")
        money_commands.confirm(yes, "Sign?")
        until = UnixSeconds(int(time.time()) + VALID_SECONDS)
        return await sign_requests(
            money.client, money.contracts, keys.account, [money.contracts.stakes.exit()], until, fee
        )
