"""Checks gossiped offers against the chain: operator key, stake, and all that a peer checks."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from quorate.trust.offer_listener import HeardOffer
from quorate_contracts.calls import ask
from quorate_contracts.deploy import Contracts
from quorate_contracts.encodings import is_active
from quorate_contracts.generated.contract_calls import Query
from quorate_protocol.messages.offer import WITHDRAWN
from quorate_protocol.refusals import Unavailable
from quorate_protocol.rules.offer_gate import Judgement, MarketSnapshot, OfferGate, OwnerStanding
from quorate_protocol.units import Address, Hash32
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.keys.crypto import recover

if TYPE_CHECKING:
    from quorate.trust.attestation_verification import CheckedSlot

T = TypeVar("T")
CALLS_PARALLEL = 8
PAGE_SLOTS = 64
SLOTS_MAX = 100_000  # of one pool
CLASSES_MAX = 256


@dataclass(frozen=True, slots=True)
class JudgedOffer:
    """An offer, and why it must not be believed; "" if nothing was found. `slots` is what was found
    about each slot's attestation, if it was checked.
    """

    heard: HeardOffer
    problem: str
    slots: "tuple[CheckedSlot, ...]" = ()


async def judged(
    offers: Iterable[HeardOffer], client: ChainClient, contracts: Contracts, now: float
) -> tuple[JudgedOffer, ...]:
    """Judges offers by the rules of gossip, with what the chain says now about their providers.
    Withdrawals that are genuine are left out. Raises Unavailable if the chain does not answer.
    """
    heard = tuple(offers)
    snapshot = await _snapshot(heard, client, contracts)
    deployment = contracts.deployment
    gate = OfferGate(deployment.domain(), deployment.constants().offer_ttl, recover, snapshot)
    found = []
    for offer in heard:
        result = gate.judge(offer.data, now)
        problem = "" if result.judgement is Judgement.ACCEPT else result.reason
        if problem or offer.envelope.offer.expires != WITHDRAWN:
            found.append(JudgedOffer(offer, problem))
    return tuple(found)


async def _snapshot(
    heard: tuple[HeardOffer, ...], client: ChainClient, contracts: Contracts
) -> MarketSnapshot:
    """Asks only for providers that were heard, and classes of offers that their keys signed."""
    places = asyncio.Semaphore(CALLS_PARALLEL)

    async def asked(query: Query[T]) -> T:
        async with places:
            return await ask(client, query)

    owners = sorted({offer.envelope.offer.provider for offer in heard})
    keys = await asyncio.gather(*(asked(contracts.stakes.operator_key(owner)) for owner in owners))
    key_of = dict(zip(owners, keys, strict=True))
    classes = dict.fromkeys(
        slot.pool.id()
        for offer in heard
        if offer.key == key_of[offer.envelope.offer.provider]
        for slot in offer.envelope.offer.slots
    )
    block = (await client.head()).number
    staked: dict[Hash32, dict[Address, int]] = {}
    for pool in list(classes)[:CLASSES_MAX]:
        count = await asked(contracts.stakes.slot_count(pool))
        if count > SLOTS_MAX:
            raise Unavailable(f"pool 0x{pool.hex()} has {count} stake slots", 0)
        pages = await asyncio.gather(
            *(
                asked(contracts.stakes.slot_page(pool, start))
                for start in range(0, count, PAGE_SLOTS)
            )
        )
        counts: dict[Address, int] = {}
        staked[pool] = counts
        for slot in (slot for page in pages for slot in page if is_active(slot, block)):
            counts[slot.owner] = counts.get(slot.owner, 0) + 1
    return MarketSnapshot(
        {
            owner: OwnerStanding(
                key, {name: counts[owner] for name, counts in staked.items() if owner in counts}
            )
            for owner, key in key_of.items()
            if any(key)
        }
    )
