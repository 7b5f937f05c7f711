"""`quorate unlock` and `quorate lock`: type the passphrase once for some hours of signing."""

from datetime import datetime
from typing import Annotated

import typer

from quorate.base.errors import ProfileError, UsageError
from quorate.cli.context import JsonFlag, context_of, emit, note
from quorate.client.base.profile import ACCOUNT, SESSION, read_settings
from quorate.job.quantities import parse_duration
from quorate_runtime.keys import key_agent
from quorate_runtime.keys.key_errors import KeystoreError

Hours = Annotated[
    str, typer.Option("--for", help="How long, such as 30m or 8h; at most seven days.")
]


def unlock(ctx: typer.Context, span: Hours = "8h", json: JsonFlag = False) -> None:
    """Asks for the passphrase once; until the time is over, no command asks for it again.

    An agent holds the keys in its memory and signs for your own processes. Nothing is written to
    the disk. `quorate lock` ends it, and so does a restart of the machine.
    """
    seconds = parse_duration(span, "--for")
    if not 0 < seconds <= key_agent.SECONDS_MAX:
        raise UsageError(f"--for {span}: give a time of at most 7d, such as 8h")
    context = context_of(ctx)
    home = context.home_in_use()
    read_settings(home, context.command("init --coordinator URL"))
    passphrase = context.passphrase_in_use(f"Passphrase of {home}")
    try:
        agent = key_agent.start(home / "keys", (ACCOUNT, SESSION), passphrase, seconds)
    except KeystoreError as error:
        raise ProfileError(str(error)) from error
    if json:
        emit({"home": str(home), "unlockedUntil": int(agent.until)})
    else:
        until = datetime.fromtimestamp(agent.until).astimezone()
        note(f"unlocked until {until:%Y-%m-%d %H:%M}; `{context.command('lock')}` ends it")


def lock(ctx: typer.Context, json: JsonFlag = False) -> None:
    """Ends what `quorate unlock` started: the next signature asks for the passphrase."""
    context = context_of(ctx)
    was_open = key_agent.lock(context.home_in_use() / "keys")
    if json:
        emit({"wasUnlocked": was_open})
    else:
        note("locked" if was_open else "it was locked already")
