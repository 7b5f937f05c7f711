"""How the price of a slot stands among the offers of a coordinator's book."""

import statistics
from collections import Counter
from collections.abc import Iterable

import aiohttp
from msgspec import Struct

from quorate_node.market.coordinator_client import get_json
from quorate_protocol.codec import canonical
from quorate_protocol.messages.views import OfferView
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.units import Address, Hash32, Price, usd

PPM = 1_000_000


class Standing(Struct, frozen=True):
    """One pool's other offers, of providers that are alive; prices of one slot and hour. `rank`:
    matching takes the lowest price times the weight of reputation first.
    """

    others: int
    attested: int
    quartiles: tuple[Price, ...]
    rank: int = 0  # 0 = this provider is not in the book

    def __str__(self) -> str:
        if not self.others:
            return "no other owner is on offer in this pool"
        low, middle, high = (usd(price) for price in self.quartiles)
        place = f"matching takes yours as number {self.rank}; " if self.rank else ""
        return (
            f"{place}{self.others} others ask {low}, {middle} and {high} USD (quartiles), "
            f"{self.attested} of them attested"
        )


async def offer_book(session: aiohttp.ClientSession, url: str) -> list[OfferView]:
    tree = await get_json(session, f"{url}/v1/offers")
    rows = tree.get("offers", []) if isinstance(tree, dict) else []
    return [canonical.from_json(OfferView, row) for row in rows]


async def offer_books(session: aiohttp.ClientSession, urls: Iterable[str]) -> list[OfferView]:
    """Of all coordinators that answer."""
    found: list[OfferView] = []
    for url in urls:
        try:
            found += await offer_book(session, url)
        except (Unavailable, Refused):
            continue  # not re-raised: the status says which coordinator is away
    return found


def standing(book: Iterable[OfferView], pool: Hash32, provider: Address) -> Standing:
    mine, others, attested = 0, dict[Address, tuple[int, Price]](), 0
    for row in book:
        for number, slot in enumerate(row.offer.slots):
            if slot.pool.id() != pool or not slot.price or not row.is_alive:
                continue
            ppm = int(row.rank_ppm[number]) if number < len(row.rank_ppm) else PPM
            if row.offer.provider == provider:
                mine = slot.price * ppm
            elif row.offer.provider not in others:
                others[row.offer.provider] = (slot.price * ppm, slot.price)
                attested += (
                    number < len(row.attestation_levels) and row.attestation_levels[number] > 0
                )
    prices = sorted(price for _, price in others.values())
    quartiles = statistics.quantiles(prices, n=4, method="inclusive") if prices[1:] else prices * 3
    rank = 1 + sum(weighed < mine for weighed, _ in others.values()) if mine else 0
    return Standing(len(others), attested, tuple(Price(int(price)) for price in quartiles), rank)


def decline_counts(declined: Iterable[canonical.Json]) -> str:
    """Such as "3 price, 1 busy"; the most frequent reason first."""
    counts = Counter(item["reason"] for item in declined)
    return ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
