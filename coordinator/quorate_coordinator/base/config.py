"""The operator's choices and the coordinator's configuration.

A field of `Settings` is all that there is of a setting: flag of `quorate coordinator init`, line of
the settings file, and field of the process's `Config`.
"""

from collections.abc import Callable, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from msgspec import Struct
from msgspec.structs import asdict

from quorate_contracts.deploy import Deployment
from quorate_coordinator.base.request_limits import RequestBounds
from quorate_coordinator.base.storage_sizes import DAY_SECONDS, LEAST_SECONDS, Keeping, StagingQuota
from quorate_protocol.limits import USD
from quorate_protocol.quantity_input import size_bytes, span_seconds
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
GATEWAY_EXAMPLE = "http://127.0.0.1:8080"
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


def _size(text: str, flag: str) -> int:
    try:
        found = size_bytes(text)
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from error
    if found < GIB:
        raise ValueError(f"{flag}: {text} is too little; write 1GiB or more")
    return found


def _staging(text: str, flag: str) -> StagingQuota:
    return StagingQuota(_size(text, flag))


def _gib(value: int) -> str:
    return f"{value // GIB}GiB"


def _age_of(least_seconds: int) -> Callable[[str, str], int]:
    def read(text: str, flag: str) -> int:
        try:
            found = span_seconds(text)
        except ValueError as error:
            raise ValueError(f"{flag}: {error}") from error
        if found < least_seconds:
            least = least_seconds // DAY_SECONDS
            raise ValueError(f"{flag}: {text} is too short; write {least}d or more")
        return found

    return read


def _days(value: int) -> str:
    return f"{value // DAY_SECONDS}d"


def _gateways(texts: Sequence[str], flag: str) -> tuple[str, ...]:
    return tuple(web_url(flag, text, GATEWAY_EXAMPLE) for text in texts)


def _lost_files(texts: Sequence[str], flag: str) -> frozenset[str]:
    lost = frozenset(texts)
    if lost - set(FILES_KEPT):
        names = ", ".join(FILES_KEPT)
        raise ValueError(f"{flag} {min(lost - set(FILES_KEPT))}: it is one of {names}")
    return lost


class Config(Settings, frozen=True, kw_only=True):
    """All choices for one process: the settings, and those below, of which some are flags of
    `quorate coordinator up`.
    """

    home: Path
    own_urls: tuple[str, ...] = ()  # where an earlier process of this folder may still serve
    # Written with the bound URL.
    ready_file: Annotated[Path | None, Option("File to write the URL to, once it serves")] = None
    # Of finished runs; none is deleted while somebody may still need it.
    archive_bytes: Annotated[
        int,
        Option(
            "Disk space for finished runs, such as 50GiB", "--archive-size", read=_size, show=_gib
        ),
    ] = ARCHIVE_GIB * GIB
    archive_seconds: Annotated[
        int,
        Option(
            "How long finished runs are kept, such as 180d",
            "--archive-age",
            read=_age_of(DAY_SECONDS),
            show=_days,
        ),
    ] = ARCHIVE_DAYS * DAY_SECONDS
    staging: Annotated[
        StagingQuota,
        Option(
            "Disk space for what clients and providers upload (default: half of the disk)",
            "--store-size",
            read=_staging,
        ),
    ] = StagingQuota()
    ipfs_gateways: Annotated[
        tuple[str, ...],
        Option(
            "IPFS gateway from which inputs that clients did not upload are taken; repeatable",
            "--ipfs-gateway",
            read=_gateways,
        ),
    ] = ()
    # Of own specs and receipts, which have their own file.
    documents_bytes: Annotated[
        int,
        Option(
            "Disk space for own specs and receipts, such as 50GiB",
            "--documents-size",
            read=_size,
            show=_gib,
        ),
    ] = DOCUMENTS_GIB * GIB
    documents_seconds: Annotated[
        int,
        Option(
            "How long own specs and receipts are kept (23d or more)",
            "--documents-age",
            read=_age_of(LEAST_SECONDS),
            show=_days,
        ),
    ] = DOCUMENTS_DAYS * DAY_SECONDS
    begin_anew: Annotated[
        frozenset[str],
        Option(
            f"Make a lost file again, empty ({', '.join(FILES_KEPT)}); repeatable",
            read=_lost_files,
            is_repeated=True,
        ),
    ] = frozenset()
    is_newest: Annotated[
        bool,
        Option(
            "Start although others show signatures of these keys that the journal does not know",
            "--journal-is-newest",
        ),
    ] = False
    # What one address and one account may ask; None = by the deployment's limits.
    bounds: RequestBounds | None = None

    @classmethod
    def of(cls, settings: Settings, home: Path, **now: object) -> "Config":
        return cls(home=home, **{**asdict(settings), **now})

    @property
    def archive(self) -> Keeping:
        """How much the file of finished runs keeps."""
        return Keeping(self.archive_bytes, self.archive_seconds)

    @property
    def documents(self) -> Keeping:
        """How much the file of own specs and receipts keeps."""
        return Keeping(self.documents_bytes, self.documents_seconds)

    @property
    def accuse_budget(self) -> Amount:
        """Of 30 days, to accuse providers by itself."""
        return Amount(self.accuse_usd * USD)

    @property
    def proxies(self) -> Proxies:
        return Proxies.of(self.trusted_proxies, self.proxy_header)

    def path(self, name: str) -> Path:
        return self.home / name
