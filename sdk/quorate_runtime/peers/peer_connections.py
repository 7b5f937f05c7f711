"""The connections of one server: one for each account, the newest."""

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from quorate_protocol.messages.ports import PeerServer
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Seconds
from quorate_runtime.http.client_networks import network_of
from quorate_runtime.peers.channel import Channel

HELLOS_MAX, NETWORK_HELLOS_MAX = 512, 256
_numbers = itertools.count(1)  # over all servers, so that they can be compared


@dataclass(frozen=True, slots=True)
class PeerConnection:
    """One connection of a peer that proved its account."""

    channel: Channel
    remote: str  # the IP address from which it was seen
    number: int  # a newer connection has a higher one, whatever server it is at


class PeerConnections:
    """`ports.PeerServer`, except for `close`, over the connections of one server."""

    def __init__(self) -> None:
        self._newest: dict[Address, PeerConnection] = {}

    def add(self, account: Address, channel: Channel, remote: str) -> PeerConnection:
        connection = PeerConnection(channel, remote, next(_numbers))
        self._newest[account] = connection
        return connection

    def remove(self, account: Address, connection: PeerConnection) -> None:
        if self._newest.get(account) is connection:
            del self._newest[account]

    def newest(self, account: Address) -> PeerConnection | None:
        return self._newest.get(account)

    async def request(self, peer: Address, frame: bytes, deadline: Seconds) -> bytes:
        connection = self._newest.get(peer)
        if connection is None:
            raise Unavailable(f"0x{peer.hex()} is not connected", 2.0)
        return await connection.channel.request(frame, deadline)

    def connected(self) -> frozenset[Address]:
        return frozenset(self._newest)

    def network_of(self, peer: Address) -> str:
        connection = self._newest.get(peer)
        return "" if connection is None else connection.remote

    def connection_number(self, peer: Address) -> int:
        connection = self._newest.get(peer)
        return 0 if connection is None else connection.number


class HelloPlaces:
    """Bounds connections that have not said who they are, in total and for each network. So
    strangers cannot take the places of peers that proved their accounts.
    """

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def is_crowded(self, remote: str) -> bool:
        network = network_of(remote)
        return self._taken.total() >= HELLOS_MAX or self._taken[network] >= NETWORK_HELLOS_MAX

    @contextmanager
    def place(self, remote: str) -> Iterator[None]:
        network = network_of(remote)
        self._taken[network] += 1
        try:
            yield
        finally:
            self._taken[network] -= 1
            if not self._taken[network]:
                del self._taken[network]


class JoinedPeers:
    """`ports.PeerServer` over several transports: a peer is asked over its newest connection."""

    def __init__(self, *servers: PeerServer) -> None:
        """The servers serve the same account with the same handler."""
        self._servers = servers

    async def request(self, peer: Address, frame: bytes, deadline: Seconds) -> bytes:
        server = self._server_of(peer)
        if server is None:
            raise Unavailable(f"0x{peer.hex()} is not connected", 2.0)
        return await server.request(peer, frame, deadline)

    def connected(self) -> frozenset[Address]:
        return frozenset[Address]().union(*(server.connected() for server in self._servers))

    def network_of(self, peer: Address) -> str:
        server = self._server_of(peer)
        return "" if server is None else server.network_of(peer)

    def connection_number(self, peer: Address) -> int:
        return max((server.connection_number(peer) for server in self._servers), default=0)

    async def close(self) -> None:
        for server in self._servers:
            await server.close()

    def _server_of(self, peer: Address) -> PeerServer | None:
        found = [server for server in self._servers if server.connection_number(peer)]
        return max(found, key=lambda server: server.connection_number(peer), default=None)
