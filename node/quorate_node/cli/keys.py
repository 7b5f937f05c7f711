"""The commands of a provider's keys: rotate, unlock and lock."""

import json

import typer

from quorate_node.base import provider_keys
from quorate_node.base import settings as settings_file
from quorate_node.base.operator_keys import FILE as OPERATOR_KEYS_FILE
from quorate_node.base.operator_keys import OperatorKeys
from quorate_node.cli import options
from quorate_node.cli.options import fail, hex_text, home_of
from quorate_protocol.refusals import Refused
from quorate_runtime.keys import unlock_command
from quorate_runtime.keys.keystore import KeystoreError
from quorate_runtime.process.program_start import home_flag


def rotate(
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Make the next operator key. The daemon uses it from its next start, and keeps the old key as
    long as a job needs it.
    """
    folder = home_of(home)
    try:
        settings = settings_file.read(folder)
        keystore = options.open_keystore(folder, settings, password_file)
        keys = provider_keys.load(keystore, *options.owner_and_payout(settings))
        is_waiting = OperatorKeys(keys, folder / OPERATOR_KEYS_FILE).is_changing
        new = keys.operator if is_waiting else provider_keys.add_operator(keystore)
    except (Refused, KeystoreError) as error:
        fail(error)
    operator = hex_text(new.address)
    if as_json:
        typer.echo(json.dumps({"operator": operator, "is_new": not is_waiting}))
        return
    typer.echo(
        f"operator {operator} was made earlier and is not in use yet"
        if is_waiting
        else f"operator {operator} is made"
    )
    if keys.owner is None:
        typer.echo(
            f"Send gas to it; then, with the key of {hex_text(keys.account)}, call "
            f"rotate_key({operator}) of Stakes"
        )
    flag = home_flag(home)
    typer.echo(f"Next: stop the daemon and start it with `quorate node up{flag}`; jobs go on")


def unlock(
    span: options.UnlockedFor = "8h",
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Ask for the passphrase once: until the time is over, `withdraw` and `leave` do not ask."""
    keys = home_of(home) / options.KEYS_FOLDER
    try:
        settings_file.read(home_of(home))
        names = provider_keys.account_names(keys)
        ask = options.passphrase_prompt(password_file)
        typer.echo(unlock_command.unlock(keys, names, ask, span, as_json))
    except (Refused, KeystoreError) as error:
        fail(error)


def lock(home: options.Home = None, as_json: options.AsJson = False) -> None:
    """End what `unlock` started: the next signature asks for the passphrase."""
    typer.echo(unlock_command.lock(home_of(home) / options.KEYS_FOLDER, as_json))
