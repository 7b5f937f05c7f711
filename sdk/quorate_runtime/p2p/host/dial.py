"""Dials a peer at all of its addresses.

libp2p's own dialer tries the first address only, without a deadline, and then refuses to dial the
peer for a minute.
"""

from collections.abc import Sequence

import trio
from libp2p.abc import IHost
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from multiaddr import Multiaddr

ADDRESSES_MAX = 8  # of one peer; the rest is not tried
ADDRESS_SECONDS = 6.0  # for the connection and both handshakes
STAGGER_SECONDS = 0.2  # the next address starts so much later


def swarm_of(host: IHost) -> Swarm:
    """The host's network, as the class whose private parts this package uses."""
    network = host.get_network()
    assert isinstance(network, Swarm), "hosts of this package have a swarm"
    return network


def is_connected(host: IHost, peer: ID) -> bool:
    """Whether a connection to the peer is open."""
    return any(not connection.is_closed for connection in swarm_of(host).get_connections(peer))


async def dial(host: IHost, peer: ID, addresses: Sequence[Multiaddr]) -> None:
    """Connects to the peer, unless it is connected. The first address that answers counts.

    ConnectionError names each address and what was wrong with it.
    """
    if is_connected(host, peer):
        return
    problems: list[str] = []
    async with trio.open_nursery() as nursery:

        async def attempt(number: int, address: Multiaddr) -> None:
            await trio.sleep(number * STAGGER_SECONDS)
            with trio.move_on_after(ADDRESS_SECONDS) as scope:
                try:
                    await swarm_of(host)._dial_addr_single_attempt(address, peer)
                    nursery.cancel_scope.cancel()
                except Exception as error:  # noqa: BLE001 - named below if no address answers
                    cause = error.__cause__ or error
                    problems.append(f"{address}: {str(cause) or type(cause).__name__}"[:200])
            if scope.cancelled_caught:
                problems.append(f"{address}: no answer within {ADDRESS_SECONDS} s")

        for number, address in enumerate(addresses[:ADDRESSES_MAX]):
            nursery.start_soon(attempt, number, address)
    if not is_connected(host, peer):
        raise ConnectionError(f"{peer}: no address answers: {'; '.join(problems) or 'none given'}")
