"""The command `up` of a coordinator."""

import asyncio
import logging
import os
import shlex
from pathlib import Path

import typer

from quorate_content.store.disk_share import half_of_disk
from quorate_coordinator.base import coordinator_keys
from quorate_coordinator.base import settings as settings_file
from quorate_coordinator.base.config import RESTORED, Config, Settings
from quorate_coordinator.base.coordinator_keys import CoordinatorKeys
from quorate_coordinator.base.storage_sizes import STORE_BYTES_MIN, StagingQuota
from quorate_coordinator.cli import options
from quorate_coordinator.cli.options import fail, home_of, proxies_of
from quorate_coordinator.cli.status_command import served_url_of
from quorate_coordinator.service import Service
from quorate_coordinator.storage.startup_checks import JournalOlder
from quorate_protocol.limits import BY_NAME, DEVNET
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.actor.journal_port import JournalError
from quorate_runtime.durable import FileDamaged
from quorate_runtime.files import write_atomic
from quorate_runtime.keys.keystore import Keystore, KeystoreError
from quorate_runtime.keys.passphrase import passphrase_of
from quorate_runtime.process import gc_tuning
from quorate_runtime.process.command_errors import EXIT_REFUSED, EXIT_UNAVAILABLE, EXIT_USAGE
from quorate_runtime.process.program_start import first_cause, set_up_daemon
from quorate_runtime.process.settings_flags import read_flags, with_flags
from quorate_runtime.process.shutdown import serve_until_signal
from quorate_runtime.process.systemd_notify import Notifier

LEAVE_SECONDS = 5  # at exit, to finish what was begun


@with_flags(Config, Settings)
def up(
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    port: options.PortNow = None,
    *,
    database: options.DatabaseUrl = None,
    log_json: options.LogJson = False,
    log_file: options.LogFile = None,
    as_json: options.AsJson = False,
    **typed: object,
) -> None:
    """Serve until SIGTERM or Ctrl-C. A second one ends the program at once."""
    folder = home_of(home)
    try:
        choices = read_flags(Config, typed, Settings)
    except Refused as refused:
        raise fail(refused.detail, EXIT_USAGE, refused.code) from refused
    except ValueError as error:
        raise fail(str(error), EXIT_USAGE) from error
    settings = options.read_settings(folder)
    _set_up_logs(log_json or as_json, log_file)
    keys = _load_keys(folder, password_file, settings)
    database_url = settings.database if database is None else database
    options.database(database_url, folder)
    http_port = settings.port if port is None else port
    proxies_of(settings.trusted_proxies, settings.proxy_header)
    if not typed["staging"]:
        choices["staging"] = StagingQuota(half_of_disk(folder, STORE_BYTES_MIN))
    config = Config.of(
        settings,
        folder,
        database=database_url,
        port=http_port,
        p2p_listen=settings_file.p2p_listen(settings, http_port),
        own_urls=(settings.public_url, served_url_of(settings)),
        **choices,
    )
    _run(config, keys)


def _set_up_logs(is_json: bool, file: Path | None) -> None:
    try:
        set_up_daemon(is_json, file)
    except OSError as error:
        raise fail(f"--log-file {file}: {error.strerror}", EXIT_USAGE) from error
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it lists its plugins at each start


def _load_keys(folder: Path, password_file: Path | None, settings: Settings) -> CoordinatorKeys:
    try:
        passphrase = passphrase_of(password_file, os.environ, "coordinator")
        limits = BY_NAME[settings.deployment.limits]
        return coordinator_keys.load(Keystore.at(folder / "keys", passphrase, limits))
    except KeystoreError as error:
        raise fail(str(error), EXIT_REFUSED) from error


def _run(config: Config, keys: CoordinatorKeys) -> None:
    """Serves, and ends the program with a sentence when the coordinator cannot go on."""
    try:
        asyncio.run(_serve(Service(config, keys, notifier=Notifier(os.environ))))
    except* Refused as group:
        refused = first_cause(group)
        assert isinstance(refused, Refused), "the group holds nothing else"
        is_on_devnet = config.deployment.limits == DEVNET.name
        place = shlex.quote(str(config.home))
        faucet = (
            f". On a devnet: quorate devnet fund {place}; after `chain deploy`: "
            f"quorate chain fund {place} --key KEYFILE"
        )
        remedy = faucet if is_on_devnet and refused.code is Code.NOT_REGISTERED else ""
        raise fail(f"{refused.detail or refused}{remedy}", EXIT_REFUSED, refused.code) from group
    except* (JournalError, FileDamaged) as group:
        cause = first_cause(group)
        if isinstance(cause, JournalOlder):  # for `status`, while nothing runs
            write_atomic(config.path(RESTORED), str(cause).encode())
        raise fail(str(cause), EXIT_REFUSED) from group
    except* Unavailable as group:
        told, at = str(first_cause(group)), f" --home {shlex.quote(str(config.home))}"
        remedy = (
            f". Start it, or name another: quorate coordinator init --chain-url URL{at}"
            if told.startswith("chain node")
            else ""
        )
        raise fail(told + remedy, EXIT_UNAVAILABLE) from group


async def _serve(service: Service) -> None:
    """Runs until a signal, then gives the work that it has taken a moment to end. The journal has
    everything that was acknowledged.
    """
    gc_tuning.tune_memory()
    if await serve_until_signal(service.run(), service.leave, LEAVE_SECONDS):
        typer.echo("coordinator: stopped", err=True)
