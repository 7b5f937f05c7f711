"""Collects gossiped offers. It is the validator of a subscription, and passes nothing on.

A listener does not know the stake of strangers while it listens, and a peer passes on only what it
has checked (PROTOCOL §3). So it ignores valid offers as far as gossip is concerned, and keeps them.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.messages import offer_gossip
from quorate_protocol.messages.envelope import Recover
from quorate_protocol.messages.offer import OfferEnvelope, validate
from quorate_protocol.messages.ports import Verdict
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Seconds, UnixSeconds

KEPT_MAX = 10_000  # offers
KEPT_OF_FORWARDER_MAX = 2_000  # so that one forger among the neighbours leaves room for others


@dataclass(frozen=True, slots=True)
class HeardOffer:
    """A message with an offer that its `key` signed. Whose key it is, only the chain can say."""

    data: bytes
    envelope: OfferEnvelope
    key: Address


class OfferListener:
    """Keeps the newest offer of each provider and key. `judge` runs in the network's thread."""

    def __init__(
        self, domain: Domain, offer_ttl: Seconds, recover: Recover, now: Callable[[], float]
    ) -> None:
        """`now` in Unix seconds. It and `recover` must be safe to call from several threads."""
        self.refused = 0  # messages that were no valid offer
        self._domain, self._offer_ttl = domain, offer_ttl
        self._recover, self._now = recover, now
        self._lock = threading.Lock()
        self._kept: dict[tuple[Address, Address], HeardOffer] = {}
        self._by_forwarder: Counter[str] = Counter()

    def judge(self, data: bytes, forwarder: str) -> Verdict:
        """See `ports.Gossip.subscribe`."""
        try:
            envelope = offer_gossip.decode(data).offer
            now = UnixSeconds(int(self._now()))
            key = validate(envelope, self._domain, self._recover, now, self._offer_ttl)
        except Refused as refused:
            # Not re-raised: it is the verdict. Clocks differ, so an expired offer is no fault.
            self.refused += 1
            return Verdict.IGNORE if refused.code is Code.EXPIRED else Verdict.REJECT
        self._keep(HeardOffer(data, envelope, key), forwarder)
        return Verdict.IGNORE

    def heard(self) -> tuple[HeardOffer, ...]:
        with self._lock:
            return tuple(offer for _, offer in sorted(self._kept.items()))

    def _keep(self, heard: HeardOffer, forwarder: str) -> None:
        """Two keys have a place each: a forger may sign for a provider with a key of its own."""
        place = (heard.envelope.offer.provider, heard.key)
        with self._lock:
            known = self._kept.get(place)
            if known is not None:
                if heard.envelope.offer.seq > known.envelope.offer.seq:
                    self._kept[place] = heard
                return
            if len(self._kept) < KEPT_MAX and self._by_forwarder[forwarder] < KEPT_OF_FORWARDER_MAX:
                self._by_forwarder[forwarder] += 1
                self._kept[place] = heard
