"""What the commands of `quorate coordinator` share: option types, the coordinator's folder and exit
codes.

Only the `cli*` modules read flags and the environment.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorate_coordinator.config import FILES_KEPT
from quorate_protocol.refusals import Refused
from quorate_runtime.http.client_networks import FORWARDED, X_FORWARDED_FOR, Proxies

if TYPE_CHECKING:
    from quorate_coordinator.reporting.database import Database

EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_UNAVAILABLE = 4

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
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON line on stdout")]
ServedUrl = Annotated[str, typer.Option("--url", help="Where the coordinator serves")]

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        help="PostgreSQL for the market's tables, postgresql+asyncpg://USER@HOST/DATABASE "
        "(default: a SQLite file)",
    ),
]

# ---------------------------------------------------------------------------------------- of `init`

DeploymentFile = Annotated[
    Path | None,
    typer.Option(
        "--deployment",
        "--devnet",
        help="deployment.json, or the devnet.json of a devnet to join (a new folder needs it)",
    ),
]
ChainUrl = Annotated[
    str,
    typer.Option(
        "--chain-url", help="Chain node (default: the devnet's, else http://127.0.0.1:8545)"
    ),
]
BeaconUrl = Annotated[
    str,
    typer.Option("--beacon-url", help="Beacon (default: the devnet's, else http://127.0.0.1:8546)"),
]
Host = Annotated[str, typer.Option("--host", help="Address to listen on")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to serve on; 0 = any")]
PublicUrl = Annotated[
    str,
    typer.Option("--public-url", help="How others reach the coordinator (default: host and port)"),
]
P2pListen = Annotated[
    str,
    typer.Option(
        "--p2p-listen",
        help="Multiaddr for libp2p, such as /ip4/0.0.0.0/tcp/7701, or off (default: the port after "
        "--port)",
    ),
]
P2pAnnounce = Annotated[
    list[str] | None,
    typer.Option(
        "--p2p-announce",
        help="Multiaddr at which others dial libp2p (default: where it listens); repeatable",
    ),
]
FeeBps = Annotated[
    int, typer.Option("--fee-bps", min=0, max=2000, help="Fee, in hundredths of a percent")
]
FeeCapGwei = Annotated[
    int, typer.Option(min=1, max=1_000_000, help="The most that a transaction may pay per gas")
]
TrustedProxies = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy", help="Network of reverse proxies, such as 10.0.0.0/8; repeatable"
    ),
]
ProxyHeader = Annotated[
    str, typer.Option(help=f"Header that the proxies set: {X_FORWARDED_FOR} or {FORWARDED}")
]

MetricsFrom = Annotated[
    list[str] | None,
    typer.Option(
        "--metrics-from",
        help="Network that may read /metrics, such as 10.0.0.0/8 (default: this machine); "
        "repeatable",
    ),
]

# ------------------------------------------------------------------------------------------ of `up`

PortNow = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="Port to serve on; 0 = any")
]
ReadyFile = Annotated[
    Path | None, typer.Option("--ready-file", help="File to write the URL to, once it serves")
]
ArchiveGib = Annotated[
    int, typer.Option("--archive-gib", min=1, help="Disk space for finished runs")
]
ArchiveDays = Annotated[
    int, typer.Option("--archive-days", min=1, help="How long finished runs are kept")
]
StoreGib = Annotated[
    int,
    typer.Option(
        "--store-gib",
        min=0,
        help="Disk space for what clients and providers upload (0: half of the disk)",
    ),
]
IpfsGateways = Annotated[
    list[str] | None,
    typer.Option(
        "--ipfs-gateway",
        help="IPFS gateway from which inputs that clients did not upload are taken; repeatable",
    ),
]
DocumentsGib = Annotated[
    int, typer.Option("--documents-gib", min=1, help="Disk space for own specs and receipts")
]
DocumentsDays = Annotated[
    int, typer.Option("--documents-days", min=23, help="How long own specs and receipts are kept")
]
MayStartEmpty = Annotated[
    list[str] | None,
    typer.Option(help=f"Make a lost file again, empty ({', '.join(FILES_KEPT)}); repeatable"),
]
JournalIsNewest = Annotated[
    bool,
    typer.Option(
        "--journal-is-newest",
        help="Start although others show signatures of these keys that the journal does not know",
    ),
]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line")]
LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log-file", help="Log there, turned over at 16 MiB, five old files kept (default: stderr)"
    ),
]


def home_of(home: Path | None) -> Path:
    """The coordinator's folder, absolute: from the flag, else $QUORATE_HOME, else the XDG data
    folder.
    """
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
    """Prints what is wrong on stderr and returns the exit to raise."""
    typer.echo(f"coordinator: {message}", err=True)
    return typer.Exit(status)


def database(text: str, folder: Path) -> "Database":
    """The database of the market's tables; ends the program when its URL cannot be used."""
    # Imported here: SQLAlchemy takes most of a second, which `health` need not wait for.
    from quorate_coordinator.reporting.database import database_of

    try:
        return database_of(text, folder)
    except Refused as error:
        raise fail(error.detail, EXIT_USAGE) from error


def proxies_of(networks: tuple[str, ...], header: str) -> Proxies:
    """The trusted proxies; ends the program when they cannot be read."""
    try:
        return Proxies.of(networks, header)
    except ValueError as error:
        raise fail(f"--trusted-proxy, --proxy-header: {error}", EXIT_USAGE) from error
