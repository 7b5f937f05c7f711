"""`quorate coordinator init|up|health|status`: the operator's commands. The only place that
reads flags and environment.
"""

import asyncio
import json
import logging
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import aiohttp
import typer

from quorate_contracts import deploy
from quorate_coordinator import coordinator_keys
from quorate_coordinator.config import (
    ARCHIVE_DAYS,
    ARCHIVE_GIB,
    BOOKS,
    DOCUMENTS_DAYS,
    DOCUMENTS_GIB,
    FEE_CAP_GWEI,
    GIB,
    Config,
)
from quorate_coordinator.reporting import report_command
from quorate_coordinator.settings import SETTINGS, Settings, write_settings
from quorate_coordinator.storage.document_file import DAY_SECONDS, Keeping
from quorate_coordinator.storage.staging_quota import STORE_BYTES, StagingQuota
from quorate_protocol.codec import canonical
from quorate_protocol.limits import BY_NAME, DEVNET
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Bps, usd
from quorate_runtime.http.client_networks import FORWARDED, X_FORWARDED_FOR, Proxies
from quorate_runtime.http.urls import web_url
from quorate_runtime.journal.journal_port import JournalError
from quorate_runtime.keys.keystore import Keystore, KeystoreError
from quorate_runtime.keys.passphrase import passphrase_of
from quorate_runtime.process import crash_points, gc_tuning, logs
from quorate_runtime.process.shutdown import serve_until_signal
from quorate_runtime.process.systemd_notify import Notifier
from quorate_runtime.sqlite.durable import FileDamaged

if TYPE_CHECKING:
    from quorate_coordinator.reporting.database import Database
    from quorate_coordinator.service import Service

app = typer.Typer(
    help="Run the matching service: order book, audits, settlement.",
    no_args_is_help=True,
    add_completion=False,
)
EXIT_REFUSED = 3
EXIT_UNAVAILABLE = 4
LEAVE_SECONDS = 5  # for what was taken to be done with
CHAIN_URL, BEACON_URL = "http://127.0.0.1:8545", "http://127.0.0.1:8546"

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
AsJson = Annotated[bool, typer.Option("--json", help="One JSON line on stdout")]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        help="PostgreSQL for the market's tables, postgresql+asyncpg://USER@HOST/DATABASE "
        "(default: a SQLite file)",
    ),
]


def home_of(home: Path | None) -> Path:
    """The role's folder, absolute: flag, $QUORATE_HOME, else XDG data home."""
    if home is not None:
        return home.absolute()
    base = os.environ.get("QUORATE_HOME")
    if base:
        return Path(base).absolute() / "coordinator"
    return (
        Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share"))
        / "quorate"
        / "coordinator"
    )


def fail(message: str, status: int) -> typer.Exit:
    """Says what is wrong on stderr and gives the exit to raise."""
    typer.echo(f"coordinator: {message}", err=True)
    return typer.Exit(status)


@app.command()
def init(
    deployment: Annotated[
        Path,
        typer.Option(
            "--deployment",
            "--devnet",
            help="deployment.json, or the devnet.json of a devnet to join",
        ),
    ],
    chain_url: Annotated[
        str,
        typer.Option(
            "--chain-url", help="Chain node (default: the devnet's, else http://127.0.0.1:8545)"
        ),
    ] = "",
    beacon_url: Annotated[
        str,
        typer.Option(
            "--beacon-url", help="Beacon (default: the devnet's, else http://127.0.0.1:8546)"
        ),
    ] = "",
    host: Annotated[str, typer.Option("--host", help="Where it listens")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 = any")] = 7700,
    public_url: Annotated[
        str, typer.Option("--public-url", help="How others reach it (default: host and port)")
    ] = "",
    fee_bps: Annotated[int, typer.Option("--fee-bps", min=0, max=2000)] = 200,
    fee_cap_gwei: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="The most that a transaction may pay per gas")
    ] = FEE_CAP_GWEI,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(help="Network of reverse proxies, such as 10.0.0.0/8; repeatable"),
    ] = None,
    proxy_header: Annotated[
        str, typer.Option(help=f"The header they set: {X_FORWARDED_FOR} or {FORWARDED}")
    ] = X_FORWARDED_FOR,
    database: DatabaseUrl = None,
    home: Home = None,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Make keys and settings; print what has to be funded."""
    folder, proxies = home_of(home), tuple(trusted_proxy or ())
    _proxies(proxies, proxy_header)
    if database:
        _database(database, folder)
    made, chain, beacon = _read_deployment(deployment)
    try:
        chain_url = web_url("--chain-url", chain_url or chain or CHAIN_URL, CHAIN_URL)
        beacon_url = web_url("--beacon-url", beacon_url or beacon or BEACON_URL, BEACON_URL)
        public_url = (
            web_url("--public-url", public_url, "https://market.example") if public_url else ""
        )
        is_first = not (folder / "keys" / "account.json").exists()
        passphrase = passphrase_of(password_file, os.environ, "coordinator", is_first)
        keystore = Keystore.at(folder / "keys", passphrase, BY_NAME[made.limits])
        keys = coordinator_keys.create(keystore)
    except Refused as error:
        raise fail(error.detail, 2) from error
    except KeystoreError as error:
        raise fail(str(error), EXIT_REFUSED) from error
    settings = Settings(
        made,
        chain_url,
        beacon_url,
        host,
        port,
        public_url,
        Bps(fee_bps),
        proxies,
        proxy_header,
        fee_cap_gwei,
        database or "",
    )
    write_settings(folder, settings)
    _print_made(home, folder, keys, made.limits, is_devnet=bool(chain), as_json=as_json)


def _print_made(
    home: Path | None,
    folder: Path,
    keys: coordinator_keys.CoordinatorKeys,
    limits: str,
    *,
    is_devnet: bool,
    as_json: bool,
) -> None:
    bond = BY_NAME[limits].coordinator_bond
    facts = {
        "home": str(folder),
        "account": "0x" + keys.account.address.hex(),
        "posting": "0x" + keys.posting.address.hex(),
        "bond": bond,
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"Coordinator made in {folder}")
    typer.echo(
        f"  account 0x{keys.account.address.hex()}: needs a bond of {usd(bond)} USD and gas to "
        f"register"
    )
    typer.echo(
        f"  posting 0x{keys.posting.address.hex()}: needs gas, and tokens for the bonds of cases"
    )
    faucet = (
        f"`quorate devnet fund {shlex.quote(str(home or folder))}`" if is_devnet else "fund both"
    )
    typer.echo(
        f"Next: {faucet}, then `quorate coordinator "
        f"up{'' if home is None else f' --home {shlex.quote(str(home))}'}`"
    )


def _database(text: str, folder: Path) -> "Database":
    # Here, because SQLAlchemy takes most of a second to load, and `health` need not wait for it.
    from quorate_coordinator.reporting.database import database_of

    try:
        return database_of(text, folder)
    except Refused as error:
        raise fail(error.detail, 2) from error


def _proxies(networks: tuple[str, ...], header: str) -> Proxies:
    try:
        return Proxies.of(networks, header)
    except ValueError as error:
        raise fail(f"--trusted-proxy, --proxy-header: {error}", 2) from error


def _read_deployment(path: Path) -> tuple[deploy.Deployment, str, str]:
    """The deployment and the URLs of chain and beacon, "" where the file does not say them
    (devnet.json does).
    """
    try:
        tree = canonical.parse(path.read_bytes(), 1 << 20)
        if not isinstance(tree, dict) or "deployment" not in tree:
            return canonical.from_json(deploy.Deployment, tree), "", ""
        return (
            canonical.from_json(deploy.Deployment, tree["deployment"]),
            str(tree.get("chainUrl", "")),
            str(tree.get("beaconUrl", "")),
        )
    except OSError as error:
        raise fail(
            (
                f"--deployment {path}: {error.strerror}; on a devnet it is --devnet "
                f"devnet/devnet.json, once it is up"
            ),
            2,
        ) from error
    except Refused as refused:
        raise fail(f"--deployment {path}: {refused.detail}", 2) from refused


@app.command()
def up(
    home: Home = None,
    password_file: PasswordFile = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Port to serve on; 0 = any")
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option("--ready-file", help="Written with the URL once it serves")
    ] = None,
    archive_gib: Annotated[
        int, typer.Option("--archive-gib", min=1, help="Disk for finished runs")
    ] = ARCHIVE_GIB,
    archive_days: Annotated[
        int, typer.Option("--archive-days", min=1, help="How long they are kept, if they may go")
    ] = ARCHIVE_DAYS,
    store_gib: Annotated[
        int, typer.Option("--store-gib", min=1, help="Disk for what clients and providers upload")
    ] = STORE_BYTES // GIB,
    documents_gib: Annotated[
        int, typer.Option("--documents-gib", min=1, help="Disk for own specs and receipts")
    ] = DOCUMENTS_GIB,
    documents_days: Annotated[
        int, typer.Option("--documents-days", min=23, help="How long they are kept")
    ] = DOCUMENTS_DAYS,
    begin_anew: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A file that is gone for good ({', '.join(BOOKS)}): make it, empty; repeatable"
        ),
    ] = None,
    journal_is_newest: Annotated[
        bool,
        typer.Option(
            "--journal-is-newest",
            help="Start although others show signatures of these keys that it does not know",
        ),
    ] = False,
    database: DatabaseUrl = None,
    log_json: Annotated[bool, typer.Option("--log-json")] = False,
    log_file: Annotated[
        Path | None,
        typer.Option(
            "--log-file",
            help="Log there, turned over at 16 MiB, five old files kept (default: stderr)",
        ),
    ] = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C. Twice ends it at once."""
    from quorate_coordinator.service import (
        Service,
    )  # here, because it takes a second to load, which `init` and `health` need not wait

    folder, anew = home_of(home), frozenset(begin_anew or ())
    if anew - set(BOOKS):
        raise fail(f"--begin-anew {min(anew - set(BOOKS))}: it is one of {', '.join(BOOKS)}", 2)
    settings = _settings(folder)
    crash_points.configure(os.environ.get("QUORATE_CRASH_AT", ""))
    try:
        logs.setup(is_json=log_json, file=log_file)
    except OSError as error:
        raise fail(f"--log-file {log_file}: {error.strerror}", 2) from error
    logging.getLogger("aiohttp.access").setLevel(
        logging.WARNING
    )  # a line a request would be most of the log
    try:
        passphrase = passphrase_of(password_file, os.environ, "coordinator")
        keystore = Keystore.at(folder / "keys", passphrase, BY_NAME[settings.deployment.limits])
        keys = coordinator_keys.load(keystore)
    except KeystoreError as error:
        raise fail(str(error), EXIT_REFUSED) from error
    database_url = settings.database if database is None else database
    _database(database_url, folder)
    config = Config(
        home=folder,
        database=database_url,
        deployment=settings.deployment,
        chain_url=settings.chain_url,
        beacon_url=settings.beacon_url,
        host=settings.host,
        port=settings.port if port is None else port,
        public_url=settings.public_url,
        fee_bps=settings.fee_bps,
        fee_cap_gwei=settings.fee_cap_gwei,
        archive=Keeping(archive_gib * GIB, archive_days * DAY_SECONDS),
        staging=StagingQuota(store_gib * GIB),
        documents=Keeping(documents_gib * GIB, documents_days * DAY_SECONDS),
        ready_file=ready_file,
        proxies=_proxies(settings.trusted_proxies, settings.proxy_header),
        begin_anew=anew,
        is_newest=journal_is_newest,
    )
    try:
        asyncio.run(_serve(Service(config, keys, notifier=Notifier(os.environ))))
    except* Refused as group:
        faucet = (
            f". On a devnet: quorate devnet fund {shlex.quote(str(folder))}"
            if settings.deployment.limits == DEVNET.name
            else ""
        )
        refused = _cause(group)
        assert isinstance(refused, Refused), "the group holds nothing else"
        raise fail(
            f"{refused.detail or refused}{faucet if refused.code is Code.NOT_REGISTERED else ''}",
            EXIT_REFUSED,
        ) from group
    except* (JournalError, FileDamaged) as group:
        raise fail(str(_cause(group)), EXIT_REFUSED) from group
    except* Unavailable as group:
        told = str(_cause(group))
        remedy = (
            ". Start it, or name another: quorate coordinator init --chain-url URL"
            if told.startswith("chain node")
            else ""
        )
        raise fail(told + remedy, EXIT_UNAVAILABLE) from group


def _settings(folder: Path) -> Settings:
    """What `init` wrote."""
    try:
        settings = canonical.decode(Settings, (folder / SETTINGS).read_bytes())
        if not 0 <= settings.port <= 65535:
            raise Refused(Code.MALFORMED, f"port: {settings.port} is not between 0 and 65535")
    except OSError as error:
        raise fail(
            (
                f"{folder / SETTINGS} cannot be read ({error.strerror}); run `quorate coordinator "
                f"init` first"
            ),
            2,
        ) from error
    except Refused as damage:
        remedy = "make it anew with `quorate coordinator init`: keys stay"
        raise fail(
            f"{folder / SETTINGS} is damaged ({damage.detail}); {remedy}", EXIT_REFUSED
        ) from damage
    return settings


def _cause(error: BaseException) -> BaseException:
    """The first one in groups of groups: every group of tasks on its way wraps it once more."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _serve(service: "Service") -> None:
    """Runs until a signal; everything acknowledged is in the journal, and what was begun has a
    moment to end.
    """
    gc_tuning.settle()
    if await serve_until_signal(service.run(), service.leave, LEAVE_SECONDS):
        typer.echo("coordinator: stopped", err=True)


@app.command()
def health(
    url: Annotated[str, typer.Option("--url", help="Where it serves")] = "http://127.0.0.1:7700",
    as_json: AsJson = False,
) -> None:
    """Whether it can work: exit 0, or 3 with each cause by its name, or 4 when nothing answers."""
    found = _asked(url)
    problems = found["problems"]
    assert isinstance(problems, list), "a list in the coordinator's own document"
    if as_json:
        typer.echo(json.dumps({"ready": not problems, "problems": problems}))
    else:
        for item in problems or [{"name": "ready", "text": url}]:
            typer.echo(f"{item['name']}: {item['text']}")
    raise typer.Exit(EXIT_REFUSED if problems else 0)


@app.command()
def status(
    url: Annotated[str, typer.Option("--url", help="Where it serves")] = "http://127.0.0.1:7700",
    as_json: AsJson = False,
) -> None:
    """Is it alive, and how far has it followed the chain."""
    found = _asked(url)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        typer.echo(f"{url}: ok={found['ok']} block={found['block']} live jobs={found['live']}")


@app.command()
def report(
    since: report_command.Since = "7d",
    database: DatabaseUrl = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Fees, audits, disputes, gas and unmet demand, from the market's tables."""
    folder = home_of(home)
    if database is None:
        database = _settings(folder).database
    try:
        found = report_command.make_report(_database(database, folder), since)
    except Refused as error:
        raise fail(error.detail, 2) from error
    except Unavailable as error:
        raise fail(str(error), EXIT_UNAVAILABLE) from error
    report_command.print_report(found, as_json)


def _asked(url: str) -> dict[str, object]:
    """What it says of its health; the program's end when nothing answers."""
    try:
        return asyncio.run(_health(url))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        remedy = "start it: quorate coordinator up; or name another: --url URL"
        raise fail(f"nothing answers at {url} ({error}); {remedy}", EXIT_UNAVAILABLE) from error


async def _health(url: str) -> dict[str, object]:
    timeout = aiohttp.ClientTimeout(total=5)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"{url}/v1/health") as response,
    ):
        found: dict[str, object] = await response.json()
        return found
