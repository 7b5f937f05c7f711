"""The coordinator's state: its tables, and what is derived from them."""

from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.core.model.market_index import MarketIndex
from quorate_coordinator.core.model.tables import StateTables
from quorate_protocol.messages.eligible_list import EligibleList

# Caches documents that the core has just built, until the shell stores them. No snapshot contains
# them.

BYTES_MAX = 16 << 20


class DocumentCache:
    """The newest documents by CID, up to `bytes_max`. A missing one can be built again."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._documents: dict[str, bytes] = {}
        self._bytes, self._bytes_max = 0, bytes_max

    def put(self, cid: str, data: bytes) -> None:
        self.take(cid)
        self._documents[cid] = data
        self._bytes += len(data)
        while self._bytes > self._bytes_max:
            self.take(next(iter(self._documents)))

    def take(self, cid: str) -> bytes | None:
        data = self._documents.pop(cid, None)
        self._bytes -= len(data or b"")
        return data


class State(StateTables):
    """The tables, the index of offers, and the cache of receipts. Snapshots contain only tables."""

    def __init__(self) -> None:
        super().__init__()
        self.market = MarketIndex(self)
        self.receipts = DocumentCache()

    def eligible(self, job: Job) -> EligibleList:
        return self.market.list_of(job.ack.message.eligible_root)
