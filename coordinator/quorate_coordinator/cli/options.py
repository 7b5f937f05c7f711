"""What the commands of `quorate coordinator` share: option types, the coordinator's folder and exit
codes.

Only the `cli*` modules read flags and the environment.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorate_coordinator.base import settings as settings_file
from quorate_coordinator.base.config import Settings
from quorate_protocol.refusals import Code, Refused
from quorate_runtime.http.client_networks import Proxies
from quorate_runtime.keys.passphrase import passphrase_of
from quorate_runtime.process.command_errors import (
    EXIT_REFUSED,
    EXIT_USAGE,
    remember_json,
    say_error,
)
from quorate_runtime.process.program_start import program_home

if TYPE_CHECKING:
    from quorate_coordinator.status.database import Database


home_of = partial(program_home, program="coordinator")

# ----------------------------------------------------------------------------- of several commands

Home = Annotated[
    Path | None,
    typer.Option(
        "--home", help="Folder of this coordinator (default: $QUORATE_HOME/coordinator or XDG)"
    ),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", help="File with the keystore's passphrase (mode 0600)"),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON line on stdout", callback=remember_json)
]
ServedUrl = Annotated[str, typer.Option("--url", help="Where the coordinator serves")]

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        help="PostgreSQL for the market's tables, postgresql+asyncpg://USER@HOST/DATABASE "
        "(default: a SQLite file)",
    ),
]

UnlockedFor = Annotated[str, typer.Option("--for", help="How long, such as 30m or 8h; at most 7d")]

# ---------------------------------------------------------------------------------------- of `init`

DeploymentFile = Annotated[
    Path | None,
    typer.Option(
        "--deployment",
        "--devnet",
        help="deployment.json (or FILE#HASH), or a devnet's devnet.json; a new folder needs it",
    ),
]


# ------------------------------------------------------------------------------------------ of `up`

PortNow = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="Port to serve on; 0 = any")
]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line")]
LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log-file", help="Log there, turned over at 16 MiB, five old files kept (default: stderr)"
    ),
]


def passphrase_prompt(password_file: Path | None) -> Callable[[], str]:
    """Returns a function that gets the passphrase from a file or asks for it."""
    return lambda: passphrase_of(password_file, os.environ, "coordinator")


def fail(message: str, status: int, code: Code | None = None) -> typer.Exit:
    """Says what is wrong, also as JSON where that was asked for. Returns the exit to raise."""
    say_error("coordinator", message, status, code.value if code else "")
    return typer.Exit(status)


def read_settings(folder: Path) -> Settings:
    """Returns the settings that `init` wrote; ends the program without them."""
    try:
        return settings_file.read(folder)
    except Refused as refused:
        status = EXIT_USAGE if refused.code is Code.UNKNOWN else EXIT_REFUSED
        raise fail(refused.detail, status, refused.code) from refused


def database(text: str, folder: Path) -> "Database":
    """The database of the market's tables; ends the program when its URL cannot be used."""
    # Imported here: SQLAlchemy takes most of a second, which `health` need not wait for.
    from quorate_coordinator.status.database import database_of

    try:
        return database_of(text, folder)
    except Refused as error:
        raise fail(error.detail, EXIT_USAGE, error.code) from error


def proxies_of(networks: tuple[str, ...], header: str) -> Proxies:
    """The trusted proxies; ends the program when they cannot be read."""
    try:
        return Proxies.of(networks, header)
    except ValueError as error:
        raise fail(f"--trusted-proxy, --proxy-header: {error}", EXIT_USAGE) from error
