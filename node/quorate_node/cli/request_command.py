"""`quorate node request`: what an owner without coins signs for a relayer."""

import asyncio
import json
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from quorate_contracts.account.relayed_requests import RequestFile, write_file
from quorate_node.base import settings as settings_file
from quorate_node.base import typed_values
from quorate_node.base.config import Config
from quorate_node.base.provider_keys import ProviderKeys
from quorate_node.cli import options
from quorate_node.cli.owner_desk import owner_desk
from quorate_node.cli.requesting import Wish, requests_for
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address, Amount, UnixSeconds, usd
from quorate_runtime.clock import SystemClock
from quorate_runtime.keys.keystore import KeystoreError

WISHES = "join, leave, unbond, withdraw or payout"


def request(
    wish: Annotated[str, typer.Argument(help=WISHES)],
    payout: Annotated[
        str, typer.Option("--payout", help="With payout: the new account (default: the owner)")
    ] = "",
    max_fee: Annotated[
        str, typer.Option("--max-fee", help="The most that a relayer gets for each request, in USD")
    ] = "1",
    valid_for: Annotated[
        str, typer.Option("--valid-for", help="How long a relayer may send them, such as 24h")
    ] = "24h",
    out: Annotated[Path, typer.Option("--out", help="File to write")] = Path("requests.json"),
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Sign what should be done on chain, for somebody else to send: the owner needs no coins. The
    relayer is paid in tokens, at most --max-fee for each request.
    """

    folder = options.home_of(home)
    try:
        fee = Amount(typed_values.usd_price(max_fee, "--max-fee"))
        until = int(time.time()) + typed_values.seconds_of(valid_for, "--valid-for")
        new = typed_values.address_of(payout, "--payout") if payout else None
        settings = settings_file.read(folder)
        config = Config.of(settings, folder)
        keys = options.load_keys(folder, settings, password_file)
        found = asyncio.run(_requests(config, keys, wish, new, UnixSeconds(until), fee))
        write_file(out, found)
    except (Refused, Unavailable, KeystoreError, BaseExceptionGroup) as error:
        options.fail(error)
    kinds = [type(each.request).__name__ for each in found.requests]
    if as_json:
        facts = {"file": str(out), "requests": kinds, "permit": found.permit is not None}
        typer.echo(json.dumps({**facts, "maxFeeMicroUsd": fee * len(kinds), "until": until}))
        return
    typer.echo(f"{out}: {', '.join(kinds)}; costs at most {usd(fee * len(kinds))} USD")
    typer.echo(f"Next: a relayer types `quorate chain relay {shlex.quote(str(out))} --key KEYFILE`")


async def _requests(
    config: Config,
    keys: ProviderKeys,
    wish: str,
    payout: Address | None,
    until: UnixSeconds,
    max_fee: Amount,
) -> RequestFile:
    from quorate_node.status.diagnostics import wanted_slots

    if wish not in set(Wish):
        raise Refused(Code.MALFORMED, f"{wish[:40]!r}: {WISHES}")
    clock = SystemClock()
    wanted = await wanted_slots(config, keys, clock) if wish == Wish.JOIN else {}
    async with owner_desk(config, keys, clock) as desk:
        return await requests_for(desk, keys, Wish(wish), wanted, payout, until, max_fee)
