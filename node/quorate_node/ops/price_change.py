"""Changes the price of an offer while the daemon is up."""

import asyncio

from quorate_node.core import events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.messaging.frame_handler import EventSink
from quorate_protocol.messages.offer import PRICE_MAX
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Price, usd
from quorate_protocol.values import replace


class PriceChange:
    """Journals a new price and publishes the changed offer.

    The setting in `node.json` decides after a restart, so `quorate node price` writes it first.
    """

    def __init__(self, core: ProviderCore, actor: EventSink, is_on_offer: asyncio.Event) -> None:
        self._core, self._actor, self._is_on_offer = core, actor, is_on_offer

    async def set_by_owner(self, price: Price) -> None:
        """Takes an on-demand price in millionths of a USD per slot-hour, for all CPU slots.

        Running leases keep the price of their Assignment. Raises `Refused(BAD_AMOUNT)` for a price
        of 0, below the owner's floor, or above the protocol's bound.
        """
        terms = self._core.terms
        least = max(1, terms.policy.price_floor)
        if not least <= price <= PRICE_MAX:
            raise Refused(
                Code.BAD_AMOUNT,
                f"price: {usd(price)} USD is not between {usd(least)} and {usd(PRICE_MAX)} per "
                "slot-hour; choose another, or lower the floor with `quorate node init "
                "--price-floor`",
            )
        classes = tuple(
            item if item.groups else replace(item, offer=replace(item.offer, on_demand=price))
            for item in terms.classes
        )
        await self._actor.submit(events.Configured(replace(terms, classes=classes)))
        if self._is_on_offer.is_set():
            await self._actor.submit(events.OfferDue())
