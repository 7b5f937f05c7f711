"""Publishes the provider's newest offer by gossip, to coordinators that it is not connected to."""

import asyncio
import logging

from quorate_protocol.messages import offer_gossip
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.offer_gossip import OfferGossip
from quorate_protocol.ports import Clock, Gossip
from quorate_protocol.refusals import Refused, Unavailable

RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


class OfferPublisher:
    """Holds the newest offer until a neighbour has taken it."""

    def __init__(self, gossip: Gossip, clock: Clock) -> None:
        self._gossip, self._clock = gossip, clock
        self._newest: OfferEnvelope | None = None
        self._news = asyncio.Event()

    def put(self, offer: OfferEnvelope) -> None:
        """Gives an offer to `run`, in place of an older one."""
        self._newest = offer
        self._news.set()

    async def run(self) -> None:
        """Publishes until cancelled. Gossip may lose a message; the next offer follows within
        minutes, and connected coordinators get each offer over their connection.
        """
        while True:
            await self._news.wait()
            offer = self._newest
            assert offer is not None, "put sets both"
            try:
                await self._gossip.publish(offer_gossip.encode(OfferGossip(offer)))
            except Unavailable as error:
                # Not re-raised: a neighbour may come soon.
                log.debug("the offer is not published yet: %s", error)
                await self._clock.sleep(RETRY_SECONDS)
                continue
            except Refused as refused:
                # Not re-raised: an offer that is too large still goes over the connections.
                log.warning("the offer cannot be published by gossip: %s", refused)
            if self._newest is offer:
                self._news.clear()
