"""The `Peers` port over libp2p, server side: one long-lived stream for each peer that dialed in."""

import asyncio
import logging
from collections.abc import Callable

from quorate_protocol.messages.key_binding import KnownBindings
from quorate_protocol.messages.ports import Handler
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address
from quorate_runtime.p2p.binding_hello import Greeter, refuse
from quorate_runtime.p2p.host.host_config import PEERS_PROTOCOL
from quorate_runtime.p2p.host.stream_socket import StreamSocket
from quorate_runtime.p2p.p2p_node import P2pNode
from quorate_runtime.peers.channel import Channel
from quorate_runtime.peers.peer_connections import HelloPlaces, PeerConnections

log = logging.getLogger(__name__)


class Libp2pPeers(PeerConnections):
    """`ports.PeerServer` over libp2p. A newer connection of an account replaces the older one."""

    def __init__(
        self,
        node: P2pNode,
        handler: Handler,
        greeter: Greeter,
        is_staked: Callable[[Address], bool] = lambda _: False,
    ) -> None:
        """`greeter` speaks for the server's account, and `is_staked` says whose connections keep
        their places first. Make it before the node runs.
        """
        super().__init__()
        self._handler, self._greeter, self._is_staked = handler, greeter, is_staked
        self._bindings = KnownBindings()
        self._hellos = HelloPlaces()
        self._streams: dict[int, StreamSocket] = {}  # by the number of the connection
        node.serve(PEERS_PROTOCOL, self._converse)

    async def close(self) -> None:
        """Ends all connections. The dialers reconnect while the node runs."""
        await asyncio.gather(*(stream.close("") for stream in list(self._streams.values())))

    async def _converse(self, stream: StreamSocket) -> None:
        account = await self._account_of(stream)
        if account is None:
            return
        stream.keep_place(self._is_staked(account))
        channel = Channel(stream, "0x" + account.hex(), self._handler)
        older = self.newest(account)
        connection = self.add(account, channel, stream.remote.address)
        self._streams[connection.number] = stream
        log.info("peer 0x%s connected from %s", account.hex(), stream.remote.address)
        try:
            await self._greeter.welcome(stream)
            if older is not None and older.number in self._streams:
                await self._streams[older.number].close("replaced")
            await channel.run()
        except ConnectionError:
            log.info("peer 0x%s went away", account.hex())
        finally:
            del self._streams[connection.number]
            self.remove(account, connection)

    async def _account_of(self, stream: StreamSocket) -> Address | None:
        remote = stream.remote.address
        try:
            if self._hellos.is_crowded(remote):
                raise Refused(Code.BUSY, "too many connections; try again later")
            with self._hellos.place(remote):
                signed = await self._greeter.receive(stream)
            self._bindings.learn(signed.binding)
        except Refused as refusal:
            log.info("peer at %s: hello refused: %s", remote, refusal)
            await refuse(stream, refusal)
            return None
        except (TimeoutError, ConnectionError) as error:
            log.info("peer at %s: no hello: %r", remote, error)
            return None
        return signed.binding.account
