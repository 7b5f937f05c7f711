"""The coordinator's state: its tables, and what is derived from them."""

from quorate_coordinator.core.model.document_cache import DocumentCache
from quorate_coordinator.core.model.entities import Job
from quorate_coordinator.core.model.market_index import MarketIndex
from quorate_coordinator.core.model.tables import StateTables
from quorate_protocol.messages.eligible_list import EligibleList


class State(StateTables):
    """The tables, the index of the market's offers, and the cache of receipts. Snapshots contain
    only the tables.
    """

    def __init__(self) -> None:
        super().__init__()
        self.market = MarketIndex(self)
        self.receipts = DocumentCache()

    def eligible(self, job: Job) -> EligibleList:
        """The slots from which a job's auditors are drawn."""
        return self.market.list_of(job.ack.message.eligible_root)
