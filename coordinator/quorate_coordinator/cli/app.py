"""`quorate coordinator ...`: the operator's commands."""

import asyncio
import logging
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from quorate_content.store.disk_share import half_of_disk
from quorate_coordinator.base import coordinator_keys
from quorate_coordinator.base import settings as settings_file
from quorate_coordinator.base.config import (
    ARCHIVE_DAYS,
    ARCHIVE_GIB,
    DOCUMENTS_DAYS,
    DOCUMENTS_GIB,
    FILES_KEPT,
    GIB,
    RESTORED,
    Config,
    Settings,
)
from quorate_coordinator.base.coordinator_keys import MONEY, CoordinatorKeys
from quorate_coordinator.base.storage_sizes import (
    DAY_SECONDS,
    LEAST_SECONDS,
    STORE_BYTES_MIN,
    Keeping,
    StagingQuota,
)
from quorate_coordinator.cli import options
from quorate_coordinator.cli.accuse_command import accuse
from quorate_coordinator.cli.backup_commands import backup, restore
from quorate_coordinator.cli.bond_commands import request, top_up
from quorate_coordinator.cli.capital_commands import balance, deposit, guarantee, limit, payroll
from quorate_coordinator.cli.init import init
from quorate_coordinator.cli.money_commands import retire, withdraw
from quorate_coordinator.cli.options import fail, home_of, proxies_of
from quorate_coordinator.cli.status_command import health, served_url_of, status
from quorate_coordinator.cli.swap_key_command import swap_key
from quorate_coordinator.status import report_command
from quorate_protocol.limits import BY_NAME, DEVNET
from quorate_protocol.quantity_input import size_bytes, span_seconds
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.actor.journal_port import JournalError
from quorate_runtime.durable import FileDamaged
from quorate_runtime.files import write_atomic
from quorate_runtime.http.urls import web_url
from quorate_runtime.keys import unlock_command
from quorate_runtime.keys.keystore import Keystore, KeystoreError
from quorate_runtime.keys.passphrase import passphrase_of
from quorate_runtime.process import crash_points, gc_tuning, logs
from quorate_runtime.process.command_errors import EXIT_REFUSED, EXIT_UNAVAILABLE, EXIT_USAGE
from quorate_runtime.process.shutdown import serve_until_signal
from quorate_runtime.process.systemd_notify import Notifier

if TYPE_CHECKING:
    from quorate_coordinator.service import Service


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


__all__ = ["EXIT_REFUSED", "EXIT_UNAVAILABLE", "app"]

app = typer.Typer(
    help="Run the matching service: offers, audits, settlement.",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(init)
app.command()(health)
app.command()(status)
for money_command in (deposit, balance, limit, guarantee, payroll, swap_key):
    app.command()(money_command)
app.command()(accuse)
app.command()(retire)
app.command()(withdraw)
app.command()(top_up)
app.command()(request)
app.command()(unlock)
app.command()(lock)
app.command()(backup)
app.command()(restore)
LEAVE_SECONDS = 5  # at exit, to finish what was begun


@app.command()
def up(
    home: options.Home = None,
    password_file: options.PasswordFile = None,
    port: options.PortNow = None,
    ready_file: options.ReadyFile = None,
    archive_size: options.ArchiveSize = f"{ARCHIVE_GIB}GiB",
    archive_age: options.ArchiveAge = f"{ARCHIVE_DAYS}d",
    store_size: options.StoreSize = "",
    ipfs_gateway: options.IpfsGateways = None,
    documents_size: options.DocumentsSize = f"{DOCUMENTS_GIB}GiB",
    documents_age: options.DocumentsAge = f"{DOCUMENTS_DAYS}d",
    begin_anew: options.MayStartEmpty = None,
    journal_is_newest: options.JournalIsNewest = False,
    database: options.DatabaseUrl = None,
    log_json: options.LogJson = False,
    log_file: options.LogFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C. A second one ends the program at once."""
    folder, lost = home_of(home), frozenset(begin_anew or ())
    if lost - set(FILES_KEPT):
        names = ", ".join(FILES_KEPT)
        raise fail(f"--begin-anew {min(lost - set(FILES_KEPT))}: it is one of {names}", EXIT_USAGE)
    settings = _read_settings(folder)
    _set_up_logs(log_json or as_json, log_file)
    keys = _load_keys(folder, password_file, settings)
    database_url = settings.database if database is None else database
    options.database(database_url, folder)
    http_port = settings.port if port is None else port
    proxies_of(settings.trusted_proxies, settings.proxy_header)
    config = Config.of(
        settings,
        folder,
        database=database_url,
        port=http_port,
        p2p_listen=settings_file.p2p_listen(settings, http_port),
        own_urls=(settings.public_url, served_url_of(settings)),
        archive=_keeping("archive", archive_size, archive_age, DAY_SECONDS),
        staging=StagingQuota(
            _size("--store-size", store_size)
            if store_size
            else half_of_disk(folder, STORE_BYTES_MIN)
        ),
        documents=_keeping("documents", documents_size, documents_age, LEAST_SECONDS),
        ready_file=ready_file,
        begin_anew=lost,
        is_newest=journal_is_newest,
        ipfs_gateways=_gateways(ipfs_gateway),
    )
    _run(config, keys)


def _keeping(name: str, size: str, age: str, age_min: int) -> Keeping:
    """Returns the bounds of a file, from its two flags."""
    flag = f"--{name}-age"
    try:
        seconds = span_seconds(age)
    except ValueError as error:
        raise fail(f"{flag}: {error}", EXIT_USAGE) from error
    if seconds < age_min:
        raise fail(
            f"{flag}: {age} is too short; write {age_min // DAY_SECONDS}d or more", EXIT_USAGE
        )
    return Keeping(_size(f"--{name}-size", size), seconds)


def _size(flag: str, text: str) -> int:
    try:
        found = size_bytes(text)
    except ValueError as error:
        raise fail(f"{flag}: {error}", EXIT_USAGE) from error
    if found < GIB:
        raise fail(f"{flag}: {text} is too little; write 1GiB or more", EXIT_USAGE)
    return found


def _gateways(texts: list[str] | None) -> tuple[str, ...]:
    try:
        return tuple(
            web_url("--ipfs-gateway", text, "http://127.0.0.1:8080") for text in texts or ()
        )
    except Refused as refused:
        raise fail(refused.detail, EXIT_USAGE, refused.code) from refused


def _read_settings(folder: Path) -> Settings:
    try:
        return settings_file.read(folder)
    except Refused as refused:
        status = EXIT_USAGE if refused.code is Code.UNKNOWN else EXIT_REFUSED
        raise fail(refused.detail, status, refused.code) from refused


def _set_up_logs(is_json: bool, file: Path | None) -> None:
    crash_points.configure(os.environ.get("QUORATE_CRASH_AT", ""))
    try:
        logs.setup(is_json=is_json, file=file)
    except OSError as error:
        raise fail(f"--log-file {file}: {error.strerror}", EXIT_USAGE) from error
    # A line for each request would be most of the log.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
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
    # Imported here: it takes a second, which `init` and `health` need not wait for.
    from quorate_coordinator.service import Service
    from quorate_coordinator.storage.startup_checks import JournalOlder

    try:
        asyncio.run(_serve(Service(config, keys, notifier=Notifier(os.environ))))
    except* Refused as group:
        refused = _cause(group)
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
        cause = _cause(group)
        if isinstance(cause, JournalOlder):  # for `status`, while nothing runs
            write_atomic(config.path(RESTORED), str(cause).encode())
        raise fail(str(cause), EXIT_REFUSED) from group
    except* Unavailable as group:
        told, at = str(_cause(group)), f" --home {shlex.quote(str(config.home))}"
        remedy = (
            f". Start it, or name another: quorate coordinator init --chain-url URL{at}"
            if told.startswith("chain node")
            else ""
        )
        raise fail(told + remedy, EXIT_UNAVAILABLE) from group


def _cause(error: BaseException) -> BaseException:
    """Returns the first error inside groups of errors. Each task group that an error passes wraps
    it once more.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _serve(service: "Service") -> None:
    """Runs until a signal, then gives the work that it has taken a moment to end. The journal has
    everything that was acknowledged.
    """
    gc_tuning.tune_memory()
    if await serve_until_signal(service.run(), service.leave, LEAVE_SECONDS):
        typer.echo("coordinator: stopped", err=True)


@app.command()
def report(
    since: report_command.Since = "7d",
    database: options.DatabaseUrl = None,
    home: options.Home = None,
    as_json: options.AsJson = False,
) -> None:
    """Print fees, audits, disputes, gas and unmet demand, from the market's tables."""
    folder = home_of(home)
    if database is None:
        database = _read_settings(folder).database
    try:
        found = report_command.make_report(options.database(database, folder), since)
    except Refused as error:
        raise fail(error.detail, EXIT_USAGE, error.code) from error
    except Unavailable as error:
        raise fail(str(error), EXIT_UNAVAILABLE) from error
    report_command.print_report(found, as_json)
