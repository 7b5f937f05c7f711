"""The operator's choices and the coordinator's configuration.

A field of `Settings` is all that there is of a setting: flag of `quorate coordinator init`, line of
the settings file, and field of the process's `Config`.
"""

from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from msgspec import Struct
from msgspec.structs import asdict

from quorate_contracts.deploy import Deployment
from quorate_coordinator.base.request_limits import RequestBounds
from quorate_coordinator.base.storage_sizes import DAY_SECONDS, Keeping, StagingQuota
from quorate_protocol.limits import USD
from quorate_protocol.units import Amount, Bps
from quorate_runtime.http.client_networks import FORWARDED, X_FORWARDED_FOR, Proxies
from quorate_runtime.http.urls import chain_urls, web_url
from quorate_runtime.process.settings_flags import Option

GIB = 1 << 30
ARCHIVE, DOCUMENTS, TRANSACTIONS = FILES_KEPT = (
    "archive.sqlite",
    "documents.sqlite",
    "transactions.sqlite",
)
LOGS = "logs.bin"  # text of runs; without it their logs are empty
# A file in a restored home, until its journal has been compared. It is empty, or says why the last
# start ended with an older journal.
RESTORED = "restored"
DOCUMENTS_GIB = 50
DOCUMENTS_DAYS = 180  # receipts prove a provider's trust, whose strikes last 90 days: twice that
ARCHIVE_GIB = 50  # enough for about ten million runs
ACCUSE_USD = 20
ARCHIVE_DAYS = 180  # as long as the receipts of the runs
CHAIN_URL, BEACON_URL = "http://127.0.0.1:8545", "http://127.0.0.1:8546"
MARKET_EXAMPLE = "https://market.example"
IMPORTS_MAX = 16


def _networks(texts: Sequence[str], flag: str) -> tuple[str, ...]:
    try:
        return tuple(str(ip_network(text)) for text in texts)
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from error


def _logs(texts: Sequence[str], flag: str) -> tuple[str, ...]:
    urls = tuple(dict.fromkeys(texts))
    if len(urls) > IMPORTS_MAX:
        raise ValueError(f"{flag}: {len(urls)}, at most {IMPORTS_MAX}")
    return tuple(web_url(flag, text, MARKET_EXAMPLE) for text in urls)


class Settings(Struct, frozen=True):
    """The operator's choices. A change is told of in the order of the fields."""

    deployment: Deployment
    # named to owners and clients too
    chain_url: Annotated[
        str,
        Option(
            f"Chain node (default: the devnet's, else {CHAIN_URL}). Name two: only what both say "
            "counts",
            "--rpc --chain-url",
            read=lambda texts, _: chain_urls(texts, CHAIN_URL)[0],
            is_repeated=True,
        ),
    ]
    beacon_url: Annotated[
        str,
        Option(
            f"Beacon (default: the devnet's, else {BEACON_URL})",
            read=lambda text, flag: web_url(flag, text, BEACON_URL),
        ),
    ]
    host: Annotated[str, Option("Address to listen on")] = "127.0.0.1"
    port: Annotated[int, Option("Port to serve on; 0 = any", most=65535)] = 7700
    public_url: Annotated[
        str,
        Option(
            "How others reach the coordinator (default: host and port)",
            read=lambda text, flag: web_url(flag, text, MARKET_EXAMPLE),
        ),
    ] = ""  # http://host:port as bound
    fee_bps: Annotated[Bps, Option("Fee, in hundredths of a percent", most=2000)] = Bps(200)
    trusted_proxies: Annotated[
        tuple[str, ...],
        Option(
            "Network of reverse proxies, such as 10.0.0.0/8; repeatable",
            "--trusted-proxy",
            read=lambda texts, _: tuple(texts),
        ),
    ] = ()
    proxy_header: Annotated[
        str, Option(f"Header that the proxies set: {X_FORWARDED_FOR} or {FORWARDED}")
    ] = X_FORWARDED_FOR
    fee_cap_gwei: Annotated[
        int,
        Option(
            "The most that a transaction may pay per gas", least=1, most=1_000_000, after="fee_bps"
        ),
    ] = 500
    database: Annotated[
        str,
        Option(
            "PostgreSQL for the market's tables, postgresql+asyncpg://USER@HOST/DATABASE "
            "(default: a SQLite file)"
        ),
    ] = ""  # a SQLite file in `home`
    # In the file "" = the port after the HTTP port, and "off" = no libp2p. In `Config` "" = none.
    p2p_listen: Annotated[
        str,
        Option(
            "Multiaddr for libp2p, such as /ip4/0.0.0.0/tcp/7701, or off (default: the port after "
            "--port)",
            after="public_url",
        ),
    ] = ""
    p2p_announce: Annotated[
        tuple[str, ...],
        Option(
            "Multiaddr at which others dial libp2p (default: where it listens); repeatable",
            read=lambda texts, _: tuple(dict.fromkeys(texts)),
            after="p2p_listen",
        ),
    ] = ()
    metrics_from: Annotated[
        tuple[str, ...],
        Option(
            "Network that may read /metrics, such as 10.0.0.0/8 (default: this machine); "
            "repeatable",
            read=_networks,
        ),
    ] = ()
    import_logs: Annotated[
        tuple[str, ...],
        Option(
            "URL of another coordinator whose public log is read and shown; repeatable",
            "--import-log",
            read=_logs,
        ),
    ] = ()
    second_chain_url: Annotated[
        str, Option(read=lambda texts, _: chain_urls(texts, CHAIN_URL)[1], flag_of="chain_url")
    ] = ""  # if named, only what both nodes say counts
    backup: str = ""  # the second place, to which the files are copied as they grow; "" = none
    accuse_usd: Annotated[
        int,
        Option(
            "USD that it burns in 30 days to accuse providers by itself; 0 = never",
            most=1_000_000,
            after="fee_cap_gwei",
        ),
    ] = ACCUSE_USD


class Config(Settings, frozen=True, kw_only=True):
    """All choices for one process. No module but those of `cli` reads flags or the environment."""

    home: Path
    own_urls: tuple[str, ...] = ()  # where an earlier process of this folder may still serve
    staging: StagingQuota = StagingQuota()  # disk space for what clients and providers upload
    # Finished runs; none is deleted while somebody may still need it.
    archive: Keeping = Keeping(ARCHIVE_GIB * GIB, ARCHIVE_DAYS * DAY_SECONDS)
    # Own specs and receipts, which have their own file.
    documents: Keeping = Keeping(DOCUMENTS_GIB * GIB, DOCUMENTS_DAYS * DAY_SECONDS)
    # What one address and one account may ask; None = by the deployment's limits.
    bounds: RequestBounds | None = None
    begin_anew: frozenset[str] = frozenset()  # lost files that the start makes again, empty
    # The operator says that this journal is the newest, whatever others show.
    is_newest: bool = False
    ipfs_gateways: tuple[str, ...] = ()  # that have inputs which clients did not upload
    ready_file: Path | None = None  # written with the bound URL once it serves

    @classmethod
    def of(cls, settings: Settings, home: Path, **now: object) -> "Config":
        return cls(home=home, **{**asdict(settings), **now})

    @property
    def accuse_budget(self) -> Amount:
        """Of 30 days, to accuse providers by itself."""
        return Amount(self.accuse_usd * USD)

    @property
    def proxies(self) -> Proxies:
        return Proxies.of(self.trusted_proxies, self.proxy_header)

    def path(self, name: str) -> Path:
        return self.home / name
