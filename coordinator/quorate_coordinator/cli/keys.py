"""The commands `unlock` and `lock` of a coordinator's keys."""

import typer

from quorate_coordinator.base import settings as settings_file
from quorate_coordinator.base.coordinator_keys import MONEY
from quorate_coordinator.cli import options
from quorate_coordinator.cli.options import fail, home_of
from quorate_protocol.refusals import Refused
from quorate_runtime.keys import unlock_command
from quorate_runtime.keys.keystore import KeystoreError
from quorate_runtime.process.command_errors import EXIT_REFUSED, EXIT_USAGE


def unlock(
    span: options.UnlockedFor = "8h",
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Ask for the passphrase once: until the time is over, `retire` and `withdraw` do not ask."""
    folder = home_of(home)
    try:
        settings_file.read(folder)
        ask = options.passphrase_prompt(password_file)
        typer.echo(unlock_command.unlock(folder / "keys", MONEY, ask, span, as_json))
    except Refused as refused:
        raise fail(refused.detail, EXIT_USAGE, refused.code) from refused
    except KeystoreError as error:
        raise fail(str(error), EXIT_REFUSED) from error


def lock(home: options.Home = None, as_json: options.AsJson = False) -> None:
    """End what `unlock` started: the next signature asks for the passphrase."""
    typer.echo(unlock_command.lock(home_of(home) / "keys", as_json))
