"""One run of a libp2p host in the trio thread: built, listening, and closed whole."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import trio
from libp2p import new_host
from libp2p.abc import IHost, INetStream
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as new_noise_key
from libp2p.custom_types import TProtocol
from libp2p.network.config import ConnectionConfig
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.rcmgr import ResourceManager
from libp2p.rcmgr.manager import ResourceLimits
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

from quorate_protocol.codec.peer_ids import peer_id_bytes
from quorate_protocol.refusals import Refused, Unavailable
from quorate_runtime.p2p.host import guard
from quorate_runtime.p2p.host.connection_places import ConnectionPlaces
from quorate_runtime.p2p.host.guarded_pubsub import GuardedPubsub, Intake, new_router
from quorate_runtime.p2p.host.guarded_yamux import GuardedYamux
from quorate_runtime.p2p.host.host_config import HostConfig, PeerAddress
from quorate_runtime.p2p.host.stream_pump import StreamPump, remote_of
from quorate_runtime.p2p.host.stream_socket import StreamSocket

# Dials a peer at all of its addresses.
#
# libp2p's own dialer tries the first address only, without a deadline, and then refuses to dial
# the peer for a minute.

ADDRESSES_MAX = 8  # of one peer; the rest is not tried
ADDRESS_SECONDS = 6.0  # for the connection and both handshakes
STAGGER_SECONDS = 0.2  # the next address starts so much later


def swarm_of(host: IHost) -> Swarm:
    """The host's network, as the class whose private parts this package uses."""
    network = host.get_network()
    assert isinstance(network, Swarm), "hosts of this package have a swarm"
    return network


def is_connected(host: IHost, peer: ID) -> bool:
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


STREAMS_MAX = 20_000
ENDING_MAX = 64  # connections
CLOSE_SECONDS = 5.0
NEVER_SECONDS = 86_400.0
PUBLISH_PAUSE_SECONDS = 0.003  # the queue to a neighbour holds 32 messages and drops the rest

Accept = Callable[[StreamSocket], None]
"""Takes an inbound stream. It is called in the asyncio loop."""

log = logging.getLogger(__name__)


def build_host(config: HostConfig) -> IHost:
    """A host that speaks noise and Yamux over TCP only, with bounded connections and streams. The
    default host also accepts unencrypted connections, in which anybody can claim any peer id.
    """
    guard.install()
    keys = create_new_key_pair(config.seed)
    # More than there are places, for those that are ending.
    connections = config.connections_max + ENDING_MAX
    host = new_host(
        key_pair=keys,
        listen_addrs=[Multiaddr(address) for address in config.listen],
        announce_addrs=[Multiaddr(address) for address in config.announce] or None,
        sec_opt={NOISE: NoiseTransport(keys, noise_privkey=new_noise_key().private_key)},
        muxer_opt={TProtocol(YAMUX): GuardedYamux},
        resource_manager=ResourceManager(
            limits=ResourceLimits(max_connections=2 * connections, max_streams=STREAMS_MAX),
            enable_circuit_breaker=False,
            enable_graceful_degradation=False,
            enable_connection_tracking=False,
            enable_memory_limits=False,
            enable_rate_limiting=False,
        ),
        connection_config=ConnectionConfig(
            min_connections=0,
            low_watermark=0,
            high_watermark=connections,
            max_connections=connections,
            max_connections_per_peer=4,
            auto_connect_interval=NEVER_SECONDS,
            enable_health_monitoring=True,
            health_initial_delay=15.0,
            health_check_interval=20.0,
            ping_timeout=8.0,
            unhealthy_grace_period=2,
            abort_connection_on_ping_failure=True,
        ),
        negotiate_timeout=10,
    )
    guard.places_of[swarm_of(host)] = ConnectionPlaces(config.connections_max)
    return host


@dataclass(slots=True)
class HostSession:
    """A running host. All methods but the constructor run in the trio thread."""

    host: IHost
    pubsub: GuardedPubsub | None
    nursery: trio.Nursery
    loop: asyncio.AbstractEventLoop

    def listen_addresses(self) -> tuple[str, ...]:
        return tuple(str(address) for address in self.host.get_transport_addrs())

    async def connect(self, peer: PeerAddress) -> ID:
        peer_id = ID(peer_id_bytes(peer.peer_key))
        await dial(self.host, peer_id, _multiaddrs(peer.addresses))
        return peer_id

    async def open_stream(self, peer: PeerAddress, protocol: str) -> StreamSocket:
        """Opens a stream. ConnectionError if the peer is away or does not know the protocol."""
        peer_id = await self.connect(peer)
        try:
            stream = await self.host.new_stream(peer_id, [TProtocol(protocol)])
        except Exception as error:
            raise ConnectionError(f"{peer_id}: no stream of {protocol}: {error}") from error
        opened = StreamSocket(remote_of(stream))
        self.nursery.start_soon(StreamPump(stream, opened, self.loop).run)
        return opened

    async def publish(self, data: bytes) -> None:
        """Sends a message to the topic. Unavailable if no neighbour takes it."""
        assert self.pubsub is not None, "the config names a topic"
        if not self.pubsub.has_listener:
            raise Unavailable("no neighbour listens to the topic yet", 1.0)
        try:
            await self.pubsub.publish(self.pubsub.topic, data)
        except Exception as error:
            # Whatever libp2p raises for a lost neighbour must not end the daemon.
            raise ConnectionError(f"the message was not published: {error!r}") from error
        await trio.sleep(PUBLISH_PAUSE_SECONDS)

    async def listen(self, intake: Intake) -> None:
        assert self.pubsub is not None, "the config names a topic"
        self.pubsub.intake = intake
        await self.pubsub.subscribe(self.pubsub.topic)

    async def leave(self) -> None:
        assert self.pubsub is not None, "the config names a topic"
        self.pubsub.intake = None
        await self.pubsub.unsubscribe(self.pubsub.topic)

    async def _serve(self, stream: INetStream, accept: Accept) -> None:
        try:
            taken = StreamSocket(remote_of(stream))
        except Refused as refusal:
            log.info("a stream is refused: %s", refusal)
            await stream.reset()
            return
        pump = StreamPump(stream, taken, self.loop)
        self.loop.call_soon_threadsafe(accept, taken)
        await pump.run()

    def serve(self, protocol: str, accept: Accept) -> None:
        async def handle(stream: INetStream) -> None:
            await self._serve(stream, accept)

        self.host.set_stream_handler(TProtocol(protocol), handle)


def _multiaddrs(texts: Sequence[str]) -> list[Multiaddr]:
    """Returns the addresses that are multiaddrs. A stranger may announce any text."""
    found = []
    for text in texts:
        try:
            found.append(Multiaddr(text))
        except ValueError as error:
            log.info("%s is no multiaddr: %s", text, error)
    return found


@asynccontextmanager
async def host_session(
    config: HostConfig,
    loop: asyncio.AbstractEventLoop,
    services: Mapping[str, Accept],
    intake: Intake | None,
) -> AsyncIterator[HostSession]:
    """Runs a host. OSError if it cannot listen."""
    check_ports(config.listen)
    host = build_host(config)
    async with AsyncExitStack() as stack:
        addresses = [Multiaddr(address) for address in config.listen]
        await stack.enter_async_context(host.run(addresses))
        # Leaving `run` does not close sockets, so the host is closed first.
        stack.push_async_callback(_close, host)
        if len(host.get_transport_addrs()) < len(addresses):
            raise OSError(f"cannot listen on {', '.join(config.listen)}")
        pubsub = await _gossip(host, config.topic, stack) if config.topic else None
        if pubsub is not None:
            guard.places_of[swarm_of(host)].listens = pubsub.listens
        nursery = await stack.enter_async_context(trio.open_nursery())
        session = HostSession(host, pubsub, nursery, loop)
        for protocol, accept in services.items():
            session.serve(protocol, accept)
        if intake is not None:
            await session.listen(intake)
        yield session
        nursery.cancel_scope.cancel()


async def _gossip(host: IHost, topic: str, stack: AsyncExitStack) -> GuardedPubsub:
    router = new_router()
    pubsub = GuardedPubsub(host, router, topic)
    stack.callback(pubsub.seen_messages.stop)  # it has a thread
    await stack.enter_async_context(background_trio_service(pubsub))
    await stack.enter_async_context(background_trio_service(router))
    await pubsub.wait_until_ready()
    return pubsub


async def _close(host: IHost) -> None:
    with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS):
        await host.close()


def check_ports(listen: Sequence[str]) -> None:
    """OSError with the remedy if another program listens on one of the addresses. libp2p would
    share the port with it, and each would get some of the connections.
    """
    for address in listen:
        parts = address.split("/")
        if len(parts) < 5 or parts[1] not in ("ip4", "ip6") or parts[3] != "tcp":
            raise OSError(f"{address}: listen on /ip4/.../tcp/... or /ip6/.../tcp/...")
        family = socket.AF_INET6 if parts[1] == "ip6" else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((parts[2], int(parts[4])))
            except OSError as error:
                raise OSError(
                    f"cannot listen on {address}: {error.strerror}; stop the other program or "
                    "choose another port"
                ) from error
