"""Commands around runs: init, deposit, pools, exit-codes."""

import ipaddress
import secrets
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from quorate.base.errors import QuorateError, UnavailableError, UsageError
from quorate.base.exit_codes import MEANING, ExitCode
from quorate.cli import rendering
from quorate.cli.context import JsonFlag, context_of, emit, note, run_async
from quorate.cli.tables import table
from quorate.client.base.profile import (
    change_coordinator,
    check_new,
    coordinator_url_of,
    create_profile,
)
from quorate.client.market import Market
from quorate.client.money.chain_access import checked_url, info_of
from quorate.client.money.funding import fund
from quorate.job.quantities import format_amount, parse_amount
from quorate.trust.coordinator_identity import check_identity
from quorate_contracts import trusted_deployment
from quorate_protocol.limits import BY_NAME, DEVNET, MAINNET
from quorate_protocol.refusals import Refused
from quorate_runtime.clock import SystemClock


def init(
    ctx: typer.Context,
    coordinator: Annotated[
        str, typer.Option(help="URL of the coordinator.")
    ] = "http://127.0.0.1:7700",
    limits: Annotated[
        str,
        typer.Option(
            help="Network: mainnet, testnet or devnet (weak keys, for tests). Default: as the "
            "coordinator says, if that is safe."
        ),
    ] = "",
    deployment: Annotated[
        Path | None,
        typer.Option(
            help="A deployment.json (or FILE#HASH) that you trust; other deployments are refused."
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Makes a client profile: an account key, a session key, its coordinator."""
    context = context_of(ctx)
    home = context.profile_home()
    try:
        known = trusted_deployment.read(deployment) if deployment else None
    except Refused as refused:
        raise UsageError(f"--deployment: {refused.detail}") from refused
    limits = limits or limits_of(coordinator, sys.stdin.isatty())
    if change_coordinator(home, coordinator, limits):
        trusted_deployment.keep(home, known)
        if json:
            emit({"home": str(home), "coordinator": coordinator})
        else:
            typer.echo(f"profile  {home}: its keys stay, and it names {coordinator} now")
        return
    check_new(
        home, coordinator, limits
    )  # check the URL before the user types a new passphrase twice
    passphrase = context.passphrase("New passphrase", is_new=True)
    trusted_deployment.keep(
        home, known
    )  # first, because a profile without it would trust any coordinator
    profile = create_profile(home, coordinator, passphrase, limits)
    address = f"0x{profile.account.address.hex()}"
    if json:
        emit({"account": address, "home": str(home), "coordinator": profile.coordinator_url})
        return
    typer.echo(f"account  {address}\nprofile  {home}")
    note(
        f"Next: `{context.command('balance')}` names the token and coin that the account needs; "
        f"then `{context.command('deposit AMOUNT')}`. Back up the profile: its keys control your "
        "money."
    )


def limits_of(coordinator: str, can_ask: bool) -> str:
    """Returns the name of the limits for a new profile.

    Mainnet has the strictest: a coordinator that says so can take nothing by it. Others shorten the
    waits that protect money, and a devnet's keys are weak. So a devnet must be on this machine, and
    a user must agree to a testnet.
    """
    url = coordinator_url_of("--coordinator", coordinator)
    try:
        said = run_async(info_of(url)).limits
    except UnavailableError:
        note(
            f"{url} does not answer, so this profile is for {MAINNET.name}; --limits NAME names "
            "another network"
        )
        return MAINNET.name
    except QuorateError as error:
        raise UsageError(f"--coordinator: {url} is no coordinator: {error}") from error
    if said not in BY_NAME:
        raise UsageError(f"--limits: {url} serves {said[:40]!r}, which this program does not know")
    if said == MAINNET.name or (said == DEVNET.name and _is_here(url)):
        return said
    if said == DEVNET.name:
        raise UsageError(
            f"--limits: {url} says it is a devnet, whose keys are weak, and it is not on this "
            "machine; add --limits devnet if it is yours"
        )
    told = f"{url} says it serves a {said}: waits are short there, and tokens are worth nothing"
    if can_ask and typer.confirm(f"{told}. Is that what you want?", err=True):
        return said
    raise UsageError(f"--limits: {told}; add --limits {said} if you want that")


def _is_here(url: str) -> bool:
    name = urlsplit(url).hostname or ""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def deposit(
    ctx: typer.Context,
    amount: Annotated[str, typer.Argument(help="Amount in USD, such as 25.")],
    again: Annotated[
        str, typer.Option(help="Id that an interrupted deposit printed; continues that deposit.")
    ] = "",
    chain_url: Annotated[
        str, typer.Option(help="URL of a chain node; default: the one that the coordinator names.")
    ] = "",
    into_balance: Annotated[
        bool,
        typer.Option(
            "--into-balance", help="Into your balance instead, for orders with `--escrow`."
        ),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Puts stablecoin into your tab for the coordinator: one or two transactions, once for many
    jobs.
    """
    node = checked_url(chain_url) if chain_url else ""
    wanted, purpose = parse_amount(amount, "amount"), again or f"deposit-{secrets.token_hex(6)}"

    async def work() -> int:
        profile = context_of(ctx).profile()
        async with Market(profile) as market:
            url, pins = market.info.chain_url, check_identity(profile.pins_path, market.info)
        into = " --into-balance" if into_balance else ""
        repeat = context_of(ctx).command(f"deposit {amount}{into} --again {purpose}")
        note(
            f"sending 2 transactions (1 if the token has permits); if this is interrupted, run: "
            f"{repeat}"
        )
        return await fund(
            profile, pins, node or url, wanted, purpose, SystemClock(), into_balance=into_balance
        )

    gas = run_async(work())
    if json:
        emit({"depositedMicroUsd": wanted, "gas": gas, "id": purpose})
    else:
        where = "your balance" if into_balance else "your tab for the coordinator"
        typer.echo(f"{format_amount(wanted)} deposited into {where} ({gas} gas)")


def pools(ctx: typer.Context, json: JsonFlag = False) -> None:
    """Lists the pools on offer: GPU models or CPUs, and the owners who decide results there."""

    async def work() -> None:
        async with context_of(ctx).reading_market() as market:
            rows = await market.pools()
        if json:
            emit({"pools": [rendering.pool_json(row) for row in rows]})
        else:
            table(rendering.POOL_COLUMNS, [rendering.pool_row(row) for row in rows])
            if not rows:
                note("there are no offers here now; try again later")

    run_async(work())


def exit_codes(json: JsonFlag = False) -> None:
    """Lists all exit codes and their meanings."""
    if json:
        emit(
            {code.name.lower(): {"code": int(code), "meaning": MEANING[code]} for code in ExitCode}
        )
    else:
        for code in ExitCode:
            typer.echo(f"{int(code):>3}  {MEANING[code]}")
