"""Computes what the market offers at one moment: slots and prices of each host class. Pure."""

from collections import Counter
from dataclasses import dataclass, field

from quorate_coordinator.core.matching.offers import price_of
from quorate_coordinator.core.model.entities import Provider
from quorate_protocol.messages.classes import HostClass
from quorate_protocol.units import UnixSeconds

CLASSES_MAX = 1_024  # in one observation, those with the most slots


@dataclass(slots=True)
class ClassSupply:
    """One host class: slots by price, and how many providers offer it."""

    host: HostClass
    providers: int = 0
    slots_by_price: Counter[int] = field(default_factory=Counter)

    @property
    def slots(self) -> int:
        """Run slots on offer."""
        return self.slots_by_price.total()

    def price_at(self, percent: int) -> int:
        """Returns the nearest-rank percentile of prices, every slot counted once. That is the
        lowest price at or below which at least `percent` of the slots are on offer.
        """
        needed = -(-self.slots * percent // 100)
        reached = 0
        for price in sorted(self.slots_by_price):
            reached += self.slots_by_price[price]
            if reached >= needed:
                return price
        raise AssertionError("a class is made of at least one slot")


@dataclass(slots=True)
class Supply:
    """The supply of all classes. The caller adds one provider after the other."""

    by_class: dict[str, ClassSupply] = field(default_factory=dict)

    def add(self, provider: Provider, at: UnixSeconds) -> None:
        """Counts the live offer of a provider, if it has one."""
        if provider.offer is None or not provider.is_alive(at):
            return
        counted = set()
        for slot in provider.offer.slots:
            price = price_of(slot)
            if not price or not slot.count:
                continue
            name = slot.host.id().hex()
            found = self.by_class.setdefault(name, ClassSupply(slot.host))
            found.slots_by_price[price] += slot.count
            found.providers += name not in counted
            counted.add(name)

    def rows(self) -> list[dict[str, object]]:
        """Supply columns of `MarketPeriod` for the `CLASSES_MAX` classes with the most slots."""
        largest = sorted(self.by_class.items(), key=lambda item: -item[1].slots)[:CLASSES_MAX]
        return [
            {
                "host_class": name,
                "slots": found.slots,
                "providers": found.providers,
                "price_least": min(found.slots_by_price),
                "price_median": found.price_at(50),
                "price_p90": found.price_at(90),
            }
            for name, found in largest
        ]
