"""`quorate node top-up`: restores stake that was burned."""

import asyncio
import json

import typer

from quorate_node.base import settings as settings_file
from quorate_node.base.config import Config
from quorate_node.base.provider_keys import SigningKeys
from quorate_node.cli import options
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Amount, usd
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.keystore import KeystoreError


def top_up(
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Restore the stake that was burned, from the owner's wallet."""
    folder = options.home_of(home)
    try:
        settings = settings_file.read(folder)
        config = settings.config(folder, None, None, stop_on_exit=False)
        keys = options.locked_keys(folder, settings, password_file)
        added, calls = asyncio.run(_top_up(config, keys))
    except (Refused, Unavailable, KeystoreError, BaseExceptionGroup) as error:
        options.fail(error)
    if as_json:
        typer.echo(json.dumps({"toppedUp": added, "calls": calls}))
        return
    if calls:
        typer.echo(f"The owner's key is not here. With the key of 0x{keys.account.hex()} call:")
    for call in calls:
        typer.echo(f"  {call}")
    if not calls:
        typer.echo(f"{usd(added)} USD of stake restored" if added else "no stake is missing")


async def _top_up(config: Config, keys: SigningKeys) -> tuple[Amount, list[str]]:
    # Imported here: it loads the contracts, and commands such as `status` must start fast.
    from quorate_node.cli.owner_desk import owner_desk
    from quorate_node.cli.topping_up import top_up as top_up_now

    async with owner_desk(config, keys, SystemClock()) as desk:
        return await top_up_now(desk)
