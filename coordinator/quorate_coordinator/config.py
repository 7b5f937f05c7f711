"""One frozen `Config` of the coordinator, built once in `cli.py` from flags, environment, file
and defaults.
"""

from dataclasses import dataclass
from pathlib import Path

from quorate_contracts.deploy import Deployment
from quorate_coordinator.request_limits import Bounds
from quorate_coordinator.storage.document_file import DAY_SECONDS, Keeping
from quorate_coordinator.storage.staging_quota import StagingQuota
from quorate_protocol.units import Bps
from quorate_runtime.http.client_networks import Proxies

GIB = 1 << 30
ARCHIVE, DOCUMENTS, TRANSACTIONS = FILES_KEPT = (
    "archive.sqlite",
    "documents.sqlite",
    "transactions.sqlite",
)
DOCUMENTS_GIB = 50
DOCUMENTS_DAYS = 180  # two half-lives of reputation, which is a fold over receipts
ARCHIVE_GIB = 50  # some ten million runs
FEE_CAP_GWEI = 500
ARCHIVE_DAYS = 180  # as long as their receipts


@dataclass(frozen=True, slots=True)
class Config:
    """Everything the coordinator is told."""

    home: Path
    deployment: Deployment
    chain_url: str
    beacon_url: str
    host: str = "127.0.0.1"
    port: int = 7700
    public_url: str = ""  # how others reach it; empty = http://host:port as bound
    fee_bps: Bps = Bps(200)
    staging: StagingQuota = StagingQuota()  # what clients and providers may store
    archive: Keeping = Keeping(
        ARCHIVE_GIB * GIB, ARCHIVE_DAYS * DAY_SECONDS
    )  # finished runs; none goes while it may be demanded
    documents: Keeping = Keeping(
        DOCUMENTS_GIB * GIB, DOCUMENTS_DAYS * DAY_SECONDS
    )  # own specs and receipts, beside the staging store
    fee_cap_gwei: int = FEE_CAP_GWEI  # the most that a transaction pays per gas
    proxies: Proxies = Proxies()  # reverse proxies whose word on who is asking is taken
    bounds: Bounds | None = (
        None  # what one address and one account may take; None = those of the deployment's limits
    )
    # pays the gas of everybody's claims; else providers claim for themselves, one period later
    claims_for_all: bool = True
    begin_anew: frozenset[str] = (
        frozenset()
    )  # files that are gone for good: made, with nothing in them
    is_newest: bool = False  # the operator says that no journal is newer, whatever others show
    database: str = ""  # URL of the tables that people query; "" = a SQLite file in `home`
    ready_file: Path | None = None  # written with the bound URL once it serves

    def path(self, name: str) -> Path:
        """A file or folder of this coordinator."""
        return self.home / name
