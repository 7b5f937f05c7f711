"""Changes the price of an offer while the daemon is up."""

import asyncio
import logging

from quorate_node.base.gpu_settings import ALL, SIZE_MAX, GpuPrice, with_price
from quorate_node.core import events
from quorate_node.core.provider_core import ProviderCore
from quorate_node.core.terms import RunSlots
from quorate_node.gpu.gpu_slots import price_of
from quorate_node.market.frame_handler import EventSink
from quorate_protocol.messages.offer import PRICE_MAX
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Price, usd
from quorate_protocol.values import replace

log = logging.getLogger(__name__)


class PriceChange:
    """Journals a new price and publishes the offer. `node.json` decides after a restart, so its
    command writes it first.
    """

    def __init__(
        self,
        core: ProviderCore,
        actor: EventSink,
        is_on_offer: asyncio.Event,
        gpu_prices: tuple[GpuPrice, ...] = (),
    ) -> None:
        self._core, self._actor, self._is_on_offer = core, actor, is_on_offer
        self._gpu_prices = gpu_prices

    async def set_by_owner(self, price: Price, gpu: str = "") -> None:
        """Millionths of a USD per hour, of a CPU slot or of one GPU ("all": without a price of
        their own; "": CPU slots). Running leases keep their price. Raises `Refused(BAD_AMOUNT)` for
        0, below the floor or above the bound, `Refused(UNKNOWN)` for a GPU not on offer.
        """
        terms = self._core.terms
        least, most = max(1, terms.policy.price_floor), PRICE_MAX // (SIZE_MAX if gpu else 1)
        if not least <= price <= most:
            raise Refused(
                Code.BAD_AMOUNT,
                f"price: {usd(price)} USD is not between {usd(least)} and {usd(most)} per "
                f"{'GPU' if gpu else 'slot'}-hour; choose another, or lower the floor with "
                "`quorate node init --price-floor`",
            )
        if gpu:
            classes = self._with_gpu_price(
                terms.classes, GpuPrice(price, "" if gpu == ALL else gpu)
            )
        else:
            classes = tuple(item if item.groups else _priced(item, price) for item in terms.classes)
        await self._actor.submit(events.Configured(replace(terms, classes=classes)))
        each = f"GPU-hour of {gpu}" if gpu else "slot-hour"
        log.info("the owner changed the price: %s USD per %s", usd(price), each)
        if self._is_on_offer.is_set():
            await self._actor.submit(events.OfferDue())

    def _with_gpu_price(self, classes: tuple[RunSlots, ...], new: GpuPrice) -> tuple[RunSlots, ...]:
        if not any(item.groups and price_of(item.offer.gpu, (new,)) for item in classes):
            raise Refused(
                Code.UNKNOWN,
                f"gpu: no slot with a GPU called {new.model!r} is on offer; `quorate node status` "
                "shows the slots, and the price counts from the next start",
            )
        self._gpu_prices = with_price(self._gpu_prices, new)
        return tuple(
            _priced(item, price_of(item.offer.gpu, self._gpu_prices)) if item.groups else item
            for item in classes
        )


def _priced(item: RunSlots, price: Price) -> RunSlots:
    count = item.offer.host.world_size if item.groups else 1
    return replace(item, offer=replace(item.offer, on_demand=Price(price * count)))
