"""`quorate coordinator top-up`: restores what was burned of the bond."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from quorate_coordinator.cli import money_commands, options
from quorate_protocol.units import Amount, usd

if TYPE_CHECKING:
    from quorate_coordinator.base.config import Settings
    from quorate_coordinator.base.coordinator_keys import MoneyKeys


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


async def _top_up(folder: Path, settings: "Settings", keys: "MoneyKeys", yes: bool) -> Amount:
    async with money_commands.own_money(folder, settings, keys) as money:
        lacks = await money.bond_lacks()
        if lacks:
            money_commands.note(f"{usd(lacks)} USD of the account go into the bond")
            money_commands.confirm(yes, "Send?")
            await money.top_up(lacks)
        return lacks
