"""Listens to the offers of a market that only its deployment and a chain node name."""

import asyncio
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass

from quorate.base.errors import UnavailableError, translated
from quorate.trust.chain_standing import JudgedOffer, judged
from quorate.trust.offer_listener import OfferListener
from quorate_contracts.announced_coordinators import AnnouncedCoordinator, announced_coordinators
from quorate_contracts.chain_check import check_chain
from quorate_contracts.deploy import Contracts, Deployment
from quorate_protocol.messages.ports import Clock
from quorate_protocol.units import Seconds
from quorate_runtime.chain.client import ChainClient
from quorate_runtime.chain.rpc import Rpc
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.keys.crypto import recover
from quorate_runtime.p2p import available

CONNECT_SECONDS = Seconds(15)
NEIGHBOURS_MAX = 6


@dataclass(frozen=True, slots=True)
class GossipedMarket:
    """What was heard: the bootstrap list, how many of its peers answered, and judged offers."""

    coordinators: tuple[AnnouncedCoordinator, ...]
    reached: int
    offers: tuple[JudgedOffer, ...]
    refused: int  # messages that were no valid offer


def listening_seconds(deployment: Deployment) -> int:
    """Returns how long to listen until each provider has refreshed its offer once."""
    return int(deployment.constants().offer_refresh * 1.2) + 5


async def listen(
    deployment: Deployment, chain_url: str, seconds: int, clock: Clock
) -> GossipedMarket:
    """Dials peers of the chain's bootstrap list, and collects offers for so many seconds.

    Raises UnavailableError, with the remedy, if libp2p cannot be imported here, if no coordinator
    announced an address, if none answers, or if the chain node does not answer. RefusedError if the
    chain node serves another chain.
    """
    missing = available()
    if missing:
        raise UnavailableError(f"--p2p: {missing}")
    contracts = Contracts.of(deployment)
    async with plain_session() as session:
        client = ChainClient(Rpc(chain_url, session))
        with translated():
            await check_chain(client, deployment)
            known = await announced_coordinators(client, contracts)
            if not known:
                raise UnavailableError(
                    "no coordinator has announced an address on this chain; ask one by its URL: "
                    "quorate offers, without --p2p"
                )
            listener = OfferListener(
                deployment.domain(), deployment.constants().offer_ttl, recover, clock.now
            )
            reached = await _collect(deployment, known, listener, seconds, clock)
            offers = await judged(listener.heard(), client, contracts, clock.now())
    return GossipedMarket(known, reached, offers, listener.refused)


async def _collect(
    deployment: Deployment,
    known: Sequence[AnnouncedCoordinator],
    listener: OfferListener,
    seconds: int,
    clock: Clock,
) -> int:
    """Listens, and returns how many peers were reached. UnavailableError if none was."""
    # Imported here because it imports libp2p, which takes a second and may be absent.
    from quorate_runtime.p2p.host.host_config import HostConfig, PeerAddress, offers_topic
    from quorate_runtime.p2p.libp2p_gossip import Libp2pGossip
    from quorate_runtime.p2p.p2p_node import P2pNode

    topic = offers_topic(deployment.domain())
    node = P2pNode(HostConfig(os.urandom(32), (), topic=topic), clock)
    gossip = Libp2pGossip(node)
    gossip.subscribe(listener.judge)
    chosen = random.sample(known, min(NEIGHBOURS_MAX, len(known)))

    async def reach(one: AnnouncedCoordinator) -> bool:
        try:
            await node.connect(PeerAddress(one.peer_key, one.addresses), CONNECT_SECONDS)
        except (ConnectionError, TimeoutError):
            return False  # not re-raised: others may answer
        return True

    host, up = asyncio.create_task(node.run()), asyncio.create_task(node.wait_until_up())
    try:
        end = clock.now() + seconds
        await asyncio.wait([host, up], return_when=asyncio.FIRST_COMPLETED)
        if host.done():
            await host  # it raises why the host cannot start
        reached = sum(await asyncio.gather(*map(reach, chosen)))
        if not reached:
            raise UnavailableError(
                f"none of {len(chosen)} coordinators answers at its address on chain; try again "
                "later, or ask one by its URL, without --p2p"
            )
        await clock.sleep(max(0.0, end - clock.now()))
        return reached
    finally:
        up.cancel()
        if not host.done():
            await gossip.close()
            await node.close()
            await host
