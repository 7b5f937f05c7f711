"""Reads from the chain where peers reach each coordinator: the bootstrap list of libp2p.

Coordinators announce peer key and addresses by events, and the newest one of each counts. A thief
of the posting key can announce anything. So the list says only whom to dial: a peer
proves its key when it is dialled, and a coordinator its account by a KeyBinding (PROTOCOL §3).
"""

import asyncio
import re
from dataclasses import dataclass

from quorate_contracts.calls import ask
from quorate_contracts.deploy import Contracts
from quorate_contracts.generated.stakes import Announced
from quorate_contracts.log_search import newest_logs, topic_of
from quorate_protocol.units import Address, BlockNumber, Hash32
from quorate_runtime.chain.client import ChainClient

ADDRESSES_MAX = 4
LISTED_MAX = 1_000  # coordinators; those that announced last are listed
PARALLEL = 8
_LINE = re.compile(r"/[\x21-\x7e]{1,254}")
_ACCOUNT_BYTES = 20


@dataclass(frozen=True, slots=True)
class AnnouncedCoordinator:
    """A registered coordinator and its newest announcement. An address starts with "/" and is
    printable; whether it is a multiaddr was not checked.
    """

    account: Address
    peer_key: Hash32
    addresses: tuple[str, ...]
    block: BlockNumber  # in which it was announced


async def announced_coordinators(
    client: ChainClient, contracts: Contracts
) -> tuple[AnnouncedCoordinator, ...]:
    """Returns the coordinators that have their bond, have not left, and announced an address. Those
    that announced last come first. Raises Unavailable if the chain node does not answer.
    """
    newest = await _newest(client, contracts, None)
    usable = [found for found in newest if found.addresses]
    places = asyncio.Semaphore(PARALLEL)

    async def is_active(account: Address) -> bool:
        async with places:
            bond = await ask(client, contracts.stakes.bond_of(account))
            return bond > 0 and await ask(client, contracts.stakes.exited_at(account)) == 0

    active = await asyncio.gather(*(is_active(found.account) for found in usable))
    return tuple(found for found, is_one in zip(usable, active, strict=True) if is_one)


async def newest_announcement(
    client: ChainClient, contracts: Contracts, coordinator: Address
) -> AnnouncedCoordinator | None:
    """Returns the newest announcement of one coordinator, or None if it made none. Unavailable."""
    found = await _newest(client, contracts, coordinator)
    return found[0] if found else None


def lines_of(data: bytes) -> tuple[str, ...]:
    """Returns the addresses of an announcement. None of them if one has a wrong form, because then
    they were not written by this software.
    """
    lines = data.decode("ascii", errors="replace").split("\n")
    is_right = len(lines) <= ADDRESSES_MAX and all(_LINE.fullmatch(line) for line in lines)
    return tuple(lines) if is_right else ()


async def _newest(
    client: ChainClient, contracts: Contracts, only: Address | None
) -> list[AnnouncedCoordinator]:
    """Returns the newest announcement of each coordinator, the newest first. It stops as soon as
    it has what it looks for.
    """
    place = None if only is None else Hash32(bytes(32 - _ACCOUNT_BYTES) + only)
    topics = (topic_of("Stakes", Announced), place)
    wanted = 1 if only else LISTED_MAX
    found: dict[Address, AnnouncedCoordinator] = {}
    start, head = contracts.deployment.start_block, (await client.head()).number
    ranges = newest_logs(client, contracts, contracts.stakes.address, topics, start, head)
    async for _, logs in ranges:
        for log in logs:
            event = contracts.event(log.address, log.topics, log.data)
            if isinstance(event, Announced) and event.coordinator not in found:
                found[event.coordinator] = AnnouncedCoordinator(
                    event.coordinator, event.peer_key, lines_of(event.addresses), log.block
                )
        if len(found) >= wanted:
            break
    return list(found.values())[:wanted]
