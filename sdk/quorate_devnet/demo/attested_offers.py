"""Waits until the demo's providers are attested, and checks their records as any client can.

The machine's CPU is attested under its true name. No provider of the demo claims a GPU.
"""

import asyncio
from dataclasses import dataclass

from quorate.client.market import Market
from quorate_protocol.units import Address

WAIT_SECONDS = 60.0
LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ShownOffer:
    """The attestation level that a provider's slots have, and whether this client verified it."""

    provider: Address
    level: int
    is_verified: bool


async def attested_offers(market: Market, providers: int) -> tuple[ShownOffer, ...]:
    """Returns the offers of all providers, once the coordinator believes them all or time is up.

    This client checks them all again, and asks the chain whose keys signed.
    """
    for _ in range(round(WAIT_SECONDS / LOOK_SECONDS)):
        if await _are_believed(market, providers):
            break
        await asyncio.sleep(LOOK_SECONDS)
    rows = await market.checked_offers(is_on_chain=True)
    rows = await market.with_attestation(rows, is_on_chain=True)
    return tuple(
        ShownOffer(
            row.view.offer.provider,
            min(slot.level for slot in row.slots),
            not row.problem and all(slot.is_verified for slot in row.slots),
        )
        for row in rows
    )


async def _are_believed(market: Market, providers: int) -> bool:
    rows = await market.offers()
    return len(rows) == providers and all(min(row.attestation_levels) > 0 for row in rows)
