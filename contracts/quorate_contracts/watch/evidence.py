"""The evidence of a watcher: Statements, and leaves whose proofs lead to the root on chain."""

import logging
from dataclasses import dataclass
from typing import Protocol

from quorate_contracts.bindings.epochs import Epoch
from quorate_contracts.watch.acting import Acting
from quorate_contracts.watch.decisions import is_of
from quorate_contracts.watch.watch_file import ShownLeaf, Watched
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Statement
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address

log = logging.getLogger(__name__)


class Source(Protocol):
    """Where an account's evidence comes from."""

    def statement(self, coordinator: Address) -> Envelope[Statement] | None:
        """Returns the newest Statement that the coordinator signed for the account, or None."""

    async def leaf(self, coordinator: Address, epoch: int) -> ShownLeaf:
        """Returns the account's leaf as the coordinator shows it, unchecked.

        Raises Refused or Unavailable if it shows none.
        """


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the account's credit, checked against the chain."""

    acting: Acting
    source: Source

    def note_statement(self, coordinator: Address) -> None:
        """Keeps the newest Statement, if it is new."""
        newest = self.source.statement(coordinator)
        if newest is not None:
            self.acting.keep(self.acting.state.of(coordinator).with_statement(newest))

    async def shown(self, coordinator: Address, epoch: Epoch) -> ShownLeaf | None:
        """Returns the account's leaf in an epoch, or None if the coordinator shows none whose proof
        leads to the root on chain. A leaf that is kept is not asked for again.
        """
        kept = self.acting.state.of(coordinator).leaves
        known = next((item for item in kept if item.epoch == epoch.number), None)
        if known is not None and is_of(known, epoch, self.acting.account):
            return known
        try:
            found = await self.source.leaf(coordinator, epoch.number)
        except (Refused, Unavailable) as error:
            # Not re-raised: the chain can be asked to make the coordinator show it.
            log.debug("epoch %d of 0x%s: %s", epoch.number, coordinator.hex(), error)
            return None
        return found if is_of(found, epoch, self.acting.account) else None

    async def newest_leaf(self, kept: Watched, before: int) -> ShownLeaf | None:
        """Returns the kept leaf with the most final credit in an epoch that is not void and older
        than `before`.
        """
        older = [item for item in kept.leaves if item.epoch < before]
        for item in sorted(older, key=lambda item: item.leaf.final, reverse=True):
            query = self.acting.contracts.epochs.epoch(kept.coordinator, item.epoch)
            if is_of(item, await self.acting.ask(query), self.acting.account):
                return item
        return None
