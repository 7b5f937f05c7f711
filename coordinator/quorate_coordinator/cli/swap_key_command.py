"""`quorate coordinator swap-key`: replaces a stolen or lost hot key. It closes nothing."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from quorate_coordinator.base import coordinator_keys
from quorate_coordinator.base.config import Settings
from quorate_coordinator.cli import money_commands as money_parts
from quorate_coordinator.cli import options
from quorate_coordinator.cli.stopped_coordinator import stopped
from quorate_protocol.refusals import Code, Refused
from quorate_runtime.keys.keystore import Keystore

HOT = ("statement", "posting")


def swap_key(
    name: Annotated[str, typer.Argument(help="statement or posting")],
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    yes: money_parts.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Make a new statement or posting key, and name it on chain. The coordinator must be stopped.

    Vouchers under the old statement key count for 14 days, and providers redeem them. Coins and
    accusations' money of an old posting key stay with it.
    """
    with money_parts.sentences():
        if name not in HOT:
            raise Refused(Code.MALFORMED, f"{name[:40]!r}: it is one of {', '.join(HOT)}")
        folder, settings, _ = money_parts.opened(home, password_file)
        keystore = money_parts.keystore_of(folder, settings, password_file)
        with money_parts.alone(folder):
            new, kept = asyncio.run(_swap(folder, settings, keystore, name, yes))
    if as_json:
        typer.echo(json.dumps({"key": name, "address": new, "kept": str(kept)}))
        return
    typer.echo(f"{name} key {new}: the chain knows it; the old one is kept in {kept}")
    if name == "posting":
        typer.echo("Next: send it coins for gas, then start `quorate coordinator up`")


async def _swap(
    folder: Path, settings: Settings, keystore: Keystore, name: str, yes: bool
) -> tuple[str, Path]:
    """Saves the state first: a replay under another statement key would sign other messages."""
    keys = coordinator_keys.load(keystore)
    new = coordinator_keys.made_next(keystore, name)
    account = coordinator_keys.MoneyKeys(keys.account, keys.posting)
    money_parts.confirm(yes, f"Replace the {name} key by 0x{new.address.hex()}?")
    async with (
        stopped(folder, settings, keys) as there,
        money_parts.own_money(folder, settings, account) as money,
    ):
        await there.actor.save()
        if name == "statement":
            known = await money.statement_key()
            if known != new.address:
                await money.send(money.contracts.stakes.rotate_key(new.address))
            replaced = keys.statement.address
        else:
            known = await money.posting_key()
            if known != new.address:
                await money.send(money.contracts.stakes.change_posting_key(new.address))
            replaced = keys.posting.address
        kept = coordinator_keys.put_next(folder / "keys", name, replaced)
    return "0x" + new.address.hex(), kept
