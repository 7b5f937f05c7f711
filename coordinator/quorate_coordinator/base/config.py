"""The coordinator's configuration. `cli.py` builds one `Config` from flags, environment, settings
file and defaults.
"""

from dataclasses import dataclass
from pathlib import Path

from quorate_contracts.deploy import Deployment
from quorate_coordinator.base.request_limits import RequestBounds
from quorate_coordinator.base.storage_sizes import DAY_SECONDS, Keeping, StagingQuota
from quorate_protocol.limits import USD
from quorate_protocol.units import Amount, Bps
from quorate_runtime.http.client_networks import Proxies

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
FEE_CAP_GWEI = 500
ACCUSE_USD = 20
ARCHIVE_DAYS = 180  # as long as the receipts of the runs


@dataclass(frozen=True, slots=True)
class Config:
    """All choices of the operator. No module but `cli*` reads flags or the environment."""

    home: Path
    deployment: Deployment
    chain_url: str  # named to owners and clients too
    beacon_url: str
    second_chain_url: str = ""  # if named, only what both nodes say counts
    host: str = "127.0.0.1"
    port: int = 7700
    public_url: str = ""  # URL at which others reach it; empty = http://host:port as bound
    own_urls: tuple[str, ...] = ()  # where an earlier process of this folder may still serve
    p2p_listen: str = ""  # multiaddr of the libp2p host; empty = providers use WebSocket only
    p2p_announce: tuple[str, ...] = ()  # multiaddrs that others dial; none = as it listens
    fee_bps: Bps = Bps(200)
    staging: StagingQuota = StagingQuota()  # disk space for what clients and providers upload
    archive: Keeping = Keeping(
        ARCHIVE_GIB * GIB, ARCHIVE_DAYS * DAY_SECONDS
    )  # finished runs; none is deleted while somebody may still need it
    documents: Keeping = Keeping(
        DOCUMENTS_GIB * GIB, DOCUMENTS_DAYS * DAY_SECONDS
    )  # own specs and receipts, which have their own file
    fee_cap_gwei: int = FEE_CAP_GWEI  # the highest price per gas of a transaction
    proxies: Proxies = Proxies()  # reverse proxies that are trusted to name the client's address
    bounds: RequestBounds | None = (
        None  # what one address and one account may ask; None = by the deployment's limits
    )
    # The most that this coordinator burns in 30 days to accuse providers by itself.
    accuse_budget: Amount = Amount(ACCUSE_USD * USD)
    begin_anew: frozenset[str] = (
        frozenset()
    )  # names of lost files that the start makes again, empty
    is_newest: bool = (
        False  # the operator says that this journal is the newest, whatever others show
    )
    database: str = ""  # URL of the tables that people query; "" = a SQLite file in `home`
    ipfs_gateways: tuple[str, ...] = ()  # that have inputs which clients did not upload
    import_logs: tuple[str, ...] = ()  # URLs of other coordinators whose public logs are read
    backup: Path | None = None  # the second place, to which the files are copied as they grow
    metrics_from: tuple[str, ...] = ()  # networks that may read metrics, beside this machine
    ready_file: Path | None = None  # written with the bound URL once it serves

    def path(self, name: str) -> Path:
        """Returns the path of a file or folder in the coordinator's folder."""
        return self.home / name
