"""The commands `check` and `up` of a provider."""

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import typer

from quorate_node.base import settings as settings_file
from quorate_node.base.config import Config, Settings
from quorate_node.base.provider_keys import OwnerKeys, ProviderKeys
from quorate_node.cli import options
from quorate_node.cli.options import fail, home_of
from quorate_node.core.provider_core import ProviderCore
from quorate_node.daemon import ProviderDaemon
from quorate_node.executors import selection
from quorate_node.market_entry import AgreeToStake, agree_to_all
from quorate_node.status.diagnostics import check_node
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.actor.journal_port import JournalError
from quorate_runtime.clock import SystemClock
from quorate_runtime.durable import FileDamaged
from quorate_runtime.keys.keystore import KeystoreError
from quorate_runtime.process import gc_tuning
from quorate_runtime.process.command_errors import EXIT_REFUSED
from quorate_runtime.process.program_start import set_up_daemon
from quorate_runtime.process.settings_flags import read_flags, with_flags
from quorate_runtime.process.shutdown import serve_until_signal
from quorate_runtime.process.systemd_notify import Notifier

LEAVE_SECONDS = 3  # how long the exit may take to tell the coordinators of the withdrawn offer


def check(
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Check machine, engine, market and money, and print a fix for each failure. Exit 3 when
    something is missing.
    """
    config, keys = _config_to_check(home_of(home), password_file)
    found = asyncio.run(check_node(config, keys, SystemClock()))
    is_good = all(item.is_good for item in found)
    if as_json:
        typer.echo(json.dumps({"good": is_good, "findings": [asdict(item) for item in found]}))
    else:
        for item in found:
            typer.echo(f"{'ok ' if item.is_good else 'NO '} {item.name:12} {item.text}")
            if not item.is_good and item.fix:
                typer.echo(f"                 fix: {item.fix}")
    raise typer.Exit(0 if is_good else EXIT_REFUSED)


def _config_to_check(folder: Path, password_file: Path | None) -> tuple[Config, OwnerKeys | None]:
    """Returns configuration and keys.

    Before `init` the configuration is empty and there are no keys, so only the machine is checked.
    """
    try:
        settings = settings_file.read(folder)
        config = Config.of(settings, folder)
        return config, options.locked_keys(folder, settings, password_file)
    except (Refused, KeystoreError) as error:
        if not isinstance(error, Refused) or error.code is not Code.UNKNOWN:
            fail(error)
        return Config(home=folder, coordinators=()), None


@with_flags(Config, Settings)
def up(
    executor: options.ExecutorOverride = None,
    port: options.PortOverride = None,
    *,
    yes: options.AgreeToStake = False,
    log_json: options.LogJson = False,
    log_file: options.LogFile = None,
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    as_json: options.AsJson = False,
    **typed: object,
) -> None:
    """Serve until SIGTERM or Ctrl-C; a second signal ends it at once.

    If the owner's key is here and funded, register and stake first. Asks before it stakes.
    """
    folder = home_of(home)
    try:
        set_up_daemon(log_json or as_json, log_file)
    except OSError as error:
        fail(Refused(Code.UNSUPPORTED, f"--log-file {log_file}: {error.strerror}"))
    try:
        settings = settings_file.read(folder)
        keys = options.load_keys(folder, settings, password_file)
        settings_file.check_not_copied(folder)
        config = Config.of(
            settings,
            folder,
            executor=executor or settings.executor,
            listen_port=settings.listen_port if port is None else port,
            **read_flags(Config, typed, Settings),
        )
        asyncio.run(_serve(config, keys, agree_to_all if yes else ask_owner))
    except (
        Refused,
        Unavailable,
        KeystoreError,
        JournalError,
        FileDamaged,
        BaseExceptionGroup,
    ) as error:
        fail(error)


def _going_on(core: ProviderCore | None) -> str:
    """What runs on without the daemon, and until when it must be back."""
    count = sum(item.is_under_way for item in core.live()) if core is not None else 0
    if core is None or not count:
        return ""
    seconds = core.terms.limits.lease_silence
    return f"; {count} unfinished: start it again within {seconds} s, or they lapse unpaid"


async def _serve(config: Config, keys: ProviderKeys, agree: AgreeToStake) -> None:
    """Runs the daemon until a signal comes.

    The journal has all that the daemon acknowledged, so at the end it only has to tell the
    coordinators.
    """
    clock = SystemClock()
    executor = await selection.choose(config, keys.account.hex(), clock)
    if executor.sandbox is Sandbox.PROCESS:
        typer.echo(selection.BANNER, err=True)
    daemon = ProviderDaemon(
        config, keys, executor, clock, notifier=Notifier(os.environ), agree=agree
    )
    try:
        gc_tuning.tune_memory()
        if await serve_until_signal(
            daemon.run(), daemon.leave, max(LEAVE_SECONDS, config.drain_seconds)
        ):
            typer.echo(f"node: stopped{_going_on(daemon.core)}", err=True)
    finally:
        await executor.close()


async def ask_owner(question: str) -> bool:
    """False without a terminal. Unlike a thread that reads, it ends when the daemon is stopped."""
    if not sys.stdin.isatty():
        return False
    typer.echo(f"{question} [y/N]: ", nl=False, err=True)
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        if not typed.done():
            typed.set_result(sys.stdin.readline())

    loop.add_reader(sys.stdin, read)
    try:
        return (await typed).strip().lower() in ("y", "yes")
    finally:
        loop.remove_reader(sys.stdin)
