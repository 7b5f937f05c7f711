"""Public documents of jobs (spec, receipt): written from the state when they are stored, so that no effect carries them."""

from dataclasses import dataclass

from quorate_content.cid import parse
from quorate_content.store import ContentStore
from quorate_coordinator.core import receipts
from quorate_coordinator.core.core import Coordinator
from quorate_coordinator.core.effects import StoreReceipt, StoreSpec
from quorate_protocol.units import Hash32

OWN = "coordinator"


@dataclass(frozen=True, slots=True)
class Documents:
    """Harmless to repeat: the same job gives the same bytes."""

    core: Coordinator
    store: ContentStore

    async def perform(self, effect: StoreSpec | StoreReceipt) -> None:
        """Stores one document; nothing when its job has left the state, because then `keep` has seen to it."""
        data = receipts.document(self.core.state, self.core.rules, effect)
        if data is not None:
            await self.store.put(data, OWN)

    async def keep(self, job_id: Hash32) -> None:
        """Stores what is not stored yet of a job that is about to leave the state."""
        for cid, write in list(receipts.job_documents(self.core.state, self.core.rules, job_id)):
            if await self.store.stat(parse(cid)) is None:
                await self.store.put(write(), OWN)
