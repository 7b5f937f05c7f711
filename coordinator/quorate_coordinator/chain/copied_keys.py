"""Refuses to start while another process serves under the same account, as after a copy of the
folder. Two such processes would sign different debts, and both would lose money by it.
"""

import asyncio
import json
import logging

import aiohttp

from quorate_contracts.announced_coordinators import newest_announcement
from quorate_contracts.deploy import Contracts
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Address
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.http.client_sessions import read_bounded
from quorate_runtime.p2p.multiaddrs import http_before

ANSWER_BYTES_MAX = 64 * 1024
ANSWER_SECONDS = 3.0
CHAIN_SECONDS = 10.0  # for the look-up of the own announcement

log = logging.getLogger(__name__)


async def refuse_beside_a_copy(
    session: aiohttp.ClientSession,
    client: ChainClient,
    contracts: Contracts,
    coordinator: Address,
    own_urls: tuple[str, ...],
) -> None:
    """Asks at the own URLs, and beside the addresses that were announced on chain, who serves. This
    process does not listen yet. Raises Refused if it is this coordinator; leaves out what does not
    answer.
    """
    announced = await _announced_urls(client, contracts, coordinator)
    urls = tuple(dict.fromkeys(url.rstrip("/") for url in (*own_urls, *announced) if url))
    for url, found in zip(
        urls, await asyncio.gather(*(_coordinator_at(session, url) for url in urls)), strict=True
    ):
        if found == coordinator:
            raise Refused(
                Code.BUSY,
                f"another process serves as coordinator 0x{coordinator.hex()} at {url}; stop it, "
                "or make a second coordinator with keys of its own: quorate coordinator init "
                "--home FOLDER",
            )


async def _announced_urls(
    client: ChainClient, contracts: Contracts, coordinator: Address
) -> tuple[str, ...]:
    try:
        async with asyncio.timeout(CHAIN_SECONDS):
            newest = await newest_announcement(client, contracts, coordinator)
    except (Refused, Unavailable, TimeoutError) as error:
        # Not re-raised: a coordinator that has worked starts without the chain.
        cause = str(error) or f"the chain did not answer within {CHAIN_SECONDS:g} s"
        log.warning("did not look on chain for another process with these keys: %s", cause)
        return ()
    return tuple(http_before(address) for address in newest.addresses) if newest else ()


async def _coordinator_at(session: aiohttp.ClientSession, url: str) -> Address | None:
    """The account of the coordinator that serves at a URL; None if none does."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    try:
        async with session.get(
            f"{url}/v1/info", timeout=timeout, allow_redirects=False
        ) as response:
            tree = json.loads(await read_bounded(response, ANSWER_BYTES_MAX))
            return Address(bytes.fromhex(tree["coordinator"].removeprefix("0x")))
    except (aiohttp.ClientError, OSError, Unavailable, ValueError, LookupError, TypeError):
        return None  # not re-raised: nobody serves there as a coordinator
    except AttributeError:  # not re-raised: the field is no text
        return None
