"""Several servers of one account as one: a peer is asked over its newest connection."""

from quorate_protocol.messages.ports import PeerServer
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Seconds


class JoinedPeers:
    """`ports.PeerServer` over several transports."""

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
