"""Publishes the provider's newest offer by gossip, to coordinators that it is not connected to."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from quorate_protocol.messages import offer_gossip
from quorate_protocol.messages.offer import OfferEnvelope
from quorate_protocol.messages.ports import Clock, Gossip
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import ZERO_HASH, Hash32

RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


class OfferPublisher:
    """Holds the newest offer until a neighbour has taken it."""

    def __init__(self, gossip: Gossip, clock: Clock) -> None:
        self._gossip, self._clock = gossip, clock
        self._newest: OfferEnvelope | None = None
        self._news = asyncio.Event()
        self._document: Callable[[Hash32], Awaitable[bytes | None]] | None = None

    def bind(self, document: Callable[[Hash32], Awaitable[bytes | None]]) -> None:
        """Sets what returns an attestation document by its digest, or None if it is not here."""
        self._document = document

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
                await self._gossip.publish(await self._message(offer))
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

    async def _message(self, offer: OfferEnvelope) -> bytes:
        """Returns the message with the attestation documents that slots name, as far as they
        fit.
        """
        named = {slot.record for slot in offer.offer.slots} - {ZERO_HASH}
        found = [await self._document(record) for record in sorted(named)] if self._document else []
        return offer_gossip.encode_with(offer, [data for data in found if data is not None])
