"""Takes offers that arrive by gossip, from providers that need not be connected.

They are in the book, but only heartbeats over the provider's own connection make it alive.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from quorate_coordinator.core.model.entities import Provider
from quorate_coordinator.core.model.state import State
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.limits import Limits
from quorate_protocol.messages import offer_gossip
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.ports import Clock, Gossip, Verdict
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.rules.offer_gate import MarketSnapshot, OfferGate, OwnerStanding
from quorate_protocol.units import Address, BlockNumber, Hash32
from quorate_runtime.keys.crypto import recover

SNAPSHOT_SECONDS = 1.0

log = logging.getLogger(__name__)


class _Owners(Mapping[Address, OwnerStanding]):
    """For the thread of the network. It looks a provider up when asked, because a copy of all would
    be large. One look-up in a table is safe in any thread.
    """

    def __init__(
        self, find: Callable[[Address], Provider | None], staked: dict[Hash32, dict[Address, int]]
    ) -> None:
        """`staked` has the active stake slots of each pool and owner, and never changes."""
        self._find, self._staked = find, staked

    def __getitem__(self, owner: Address) -> OwnerStanding:
        provider = self._find(owner)
        if provider is None:
            raise KeyError(owner)
        slots = {pool: counts[owner] for pool, counts in self._staked.items() if owner in counts}
        return OwnerStanding(provider.operator_key, slots)

    def __iter__(self) -> Iterator[Address]:
        raise NotImplementedError("the gate looks owners up one at a time")

    def __len__(self) -> int:
        raise NotImplementedError("the gate looks owners up one at a time")


@dataclass(slots=True)
class GossipedOffers:
    """Judges gossiped offers in the network's thread, and gives the valid ones to `take`."""

    gossip: Gossip
    state: State
    domain: Domain
    limits: Limits
    clock: Clock
    take: Callable[[OfferEnvelope], Awaitable[None]]
    _gate: OfferGate = field(init=False)
    _shown_block: BlockNumber = field(init=False)  # the block of the gate's snapshot

    def __post_init__(self) -> None:
        self._gate = OfferGate(self.domain, self.limits.offer_ttl, recover, self._snapshot())

    async def run(self) -> None:
        async for data in self.gossip.subscribe(self._judge):
            offer = offer_gossip.decode(data).offer
            try:
                await self.take(offer)
            except Refused as refused:
                # Not re-raised: the state has changed since the gate judged the offer.
                log.info("gossiped offer of 0x%s: %s", offer.offer.provider.hex(), refused)
            except Unavailable as error:
                # Not re-raised: the coordinator is busy. The provider's next offer follows soon.
                log.warning("gossiped offer of 0x%s: %s", offer.offer.provider.hex(), error)

    async def refresh(self) -> None:
        while True:
            await self.clock.sleep(SNAPSHOT_SECONDS)
            if self.state.own.block != self._shown_block:
                self._gate.replace_snapshot(self._snapshot())

    def _snapshot(self) -> MarketSnapshot:
        self._shown_block = self.state.own.block
        staked = {pool: self.state.market.stake_slots(pool) for pool in self.state.pool_slots}
        return MarketSnapshot(_Owners(self.state.providers.get, staked))

    def _judge(self, data: bytes, forwarder: str) -> Verdict:
        judged = self._gate.judge(data, self.clock.now())
        if judged.reason:
            log.debug("gossip passed on by %s: %s", forwarder, judged.reason)
        return Verdict(judged.judgement.value)
