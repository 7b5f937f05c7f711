"""Keeps refreshes of offers until the next heartbeat of their provider carries them.

A refresh changes only the sequence number and the expiry of an offer that the state knows. Why it
has no journal entry of its own, and what happens when it is lost, stands in
`core.matching.heartbeats`.
"""

from dataclasses import dataclass, field

from quorate_coordinator.core.matching.offers import check_stake
from quorate_coordinator.core.model.events import OfferRefresh
from quorate_coordinator.core.model.state import State
from quorate_protocol.messages.offer import WITHDRAWN, OfferEnvelope, without_times
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address


@dataclass(slots=True)
class PendingRefreshes:
    """At most one refresh for each registered provider of the state."""

    state: State
    _pending: dict[Address, OfferRefresh] = field(default_factory=dict)

    def keep(self, envelope: OfferEnvelope, key: Address) -> bool:
        """Keeps a valid offer that `key` signed, if it is a refresh. True also for the offer that
        the state has. False if it is another one: then the core has to take it or to refuse it.
        `Refused(STALE)` for one older than what is kept, and `Refused(OVER_STAKE)` as for a new
        offer.
        """
        offer = envelope.offer
        provider = self.state.providers.get(offer.provider)
        known = provider.offer if provider is not None else None
        if provider is None or known is None or key != provider.operator_key:
            return False
        if offer == known:
            return True  # it came over the connection and by gossip
        is_refresh = (
            offer.seq > known.seq
            and WITHDRAWN not in (offer.expires, known.expires)
            and without_times(offer) == without_times(known)
        )
        if not is_refresh:
            return False
        made = OfferRefresh(known.seq, offer.seq, offer.expires, envelope.signature.sig)
        kept = self._pending.get(offer.provider)
        is_older = kept is not None and kept.base_seq == known.seq and made.seq <= kept.seq
        if kept is not None and is_older and made != kept:
            raise Refused(Code.STALE, f"offer: seq {offer.seq} is not above {kept.seq}")
        check_stake(self.state, offer)
        self._pending[offer.provider] = made
        return True

    def of(self, owner: Address) -> OfferRefresh | None:
        """The refresh that the next heartbeat of a provider carries."""
        return self._pending.get(owner)

    def carried(self, owner: Address, refresh: OfferRefresh | None) -> None:
        """Forgets a refresh that a heartbeat has carried, unless a newer one came meanwhile."""
        if refresh is not None and self._pending.get(owner) == refresh:
            del self._pending[owner]
