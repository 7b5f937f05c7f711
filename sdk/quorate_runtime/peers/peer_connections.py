"""The connections of one server: one for each account, the newest."""

import itertools
from dataclasses import dataclass

from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Seconds
from quorate_runtime.peers.channel import Channel

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
