"""What the provider knows of its credit: its core's Statements, and proofs of coordinators."""

from collections.abc import Mapping
from dataclasses import dataclass

from quorate_contracts.watch.watch_file import ShownLeaf
from quorate_node.core.provider_core import ProviderCore
from quorate_node.messaging.coordinator_client import Coordinator
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Statement
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address


@dataclass(frozen=True, slots=True)
class OwnEvidence:
    """The core's Statements, and the proofs that coordinators give to this provider."""

    core: ProviderCore
    coordinators: Mapping[Address, Coordinator]

    def statement(self, coordinator: Address) -> Envelope[Statement] | None:
        """Returns the newest Statement of a coordinator, or None."""
        return self.core.statements.get(coordinator)

    async def leaf(self, coordinator: Address, epoch: int) -> ShownLeaf:
        """Returns this provider's leaf as the coordinator shows it. Refused or Unavailable."""
        asked = self.coordinators.get(coordinator)
        if asked is None:
            raise Refused(Code.UNKNOWN, f"coordinator 0x{coordinator.hex()} is not configured")
        view = await asked.proof(epoch)
        return ShownLeaf(view.epoch, view.leaf, view.proof)
