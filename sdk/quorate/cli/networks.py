"""Asks a coordinator which network it serves, and says when its word is not enough."""

import ipaddress
from urllib.parse import urlsplit

import typer

from quorate.base.errors import QuorateError, UnavailableError, UsageError
from quorate.cli.context import note, run_async
from quorate.client.base.profile import coordinator_url_of
from quorate.client.money.chain_access import info_of
from quorate_protocol.limits import BY_NAME, DEVNET, MAINNET


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
