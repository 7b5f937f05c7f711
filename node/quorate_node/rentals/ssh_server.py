"""The SSH server of rentals, over sockets that somebody else has connected.

Its host key is the provider's peer key, which offers name, and it lets in the keys that the job's
spec names. So nobody who passes the bytes on, such as a coordinator, can read them or join.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field

import asyncssh
from asyncssh.channel import SSHChannel
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from quorate_node.executors.base.inside import Inside
from quorate_node.rentals.channels import PACKET_BYTES, WINDOW_BYTES, FlowControl, bounded
from quorate_node.rentals.links import START, ForwardSession, Link
from quorate_node.rentals.session import Session
from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Hash32
from quorate_runtime.keys.crypto import PeerKey

CONNECTIONS_MAX = 16  # of one lease, also before they have shown a key
CHANNELS_MAX = 64  # of one lease
LOGIN_SECONDS = 20.0
KEEPALIVE_SECONDS = 30.0
KEEPALIVES_MAX = 4  # without an answer
LOOPBACK = ("localhost", "127.0.0.1", "::1", "")
# Ciphers that the processor computes: with others a copy takes several times the CPU time.
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
NO_REMOTE_FORWARDS = "quorate: a rental cannot forward ports to you (ssh -R); use ssh -L"
NO_AGENT = "quorate: a rental does not take your agent (ssh -A); copy what it needs"
NO_X11 = "quorate: a rental shows no windows (ssh -X)"
log = logging.getLogger(__name__)
# What one connection would reveal to the log: names of users, commands.
asyncssh.set_log_level(logging.ERROR)


@dataclass
class LeaseStreams:
    """The connections of one lease, and when its client last used one of them."""

    used_at: float
    connections: set["Connection"] = field(default_factory=set)
    joining: int = 0

    def channels(self) -> int:
        return sum(item.channels for item in self.connections)


class SshServer:
    """`access_of` names the public keys that may use a lease, as in authorized_keys."""

    def __init__(
        self,
        key: PeerKey,
        inside: Inside,
        access_of: Callable[[Hash32], tuple[str, ...]],
        clock: Clock,
        env_of: Callable[[str], dict[str, str]],
    ) -> None:
        """`env_of`: variables of what is started in a lease, by its id."""
        self.inside, self.clock, self.env_of = inside, clock, env_of
        self._access_of = access_of
        self._host_key = host_key(key)
        self._streams: dict[str, LeaseStreams] = {}

    async def serve(self, sock: socket.socket, assignment_hash: Hash32) -> None:
        """Serves one connected client until it leaves or the container ends; closes the socket.

        Raises Refused for a lease without access, or with too many connections.
        """
        lease_id = assignment_hash.hex()
        streams = self._streams.setdefault(lease_id, LeaseStreams(self.clock.now()))
        try:
            if streams.joining >= CONNECTIONS_MAX:
                raise Refused(
                    Code.BUSY, f"a rental has at most {CONNECTIONS_MAX} connections; close some"
                )
            keys = authorised(self._access_of(assignment_hash))
            if not keys:
                raise Refused(Code.NOT_YOURS, "access: the job names no key for this rental")
        except Refused:
            sock.close()
            raise
        connection = Connection(self, lease_id, streams, keys)
        streams.joining += 1
        try:
            await self._serve(sock, connection)
        finally:
            streams.joining -= 1
            streams.connections.discard(connection)
            sock.close()

    def used_at(self, assignment_hash: Hash32) -> float:
        """When somebody last typed, forwarded or copied something; 0 if that was never."""
        streams = self._streams.get(assignment_hash.hex())
        return streams.used_at if streams else 0.0

    def warn(self, assignment_hash: Hash32, text: str) -> None:
        """Shows a line in every open terminal of a rental."""
        streams = self._streams.get(assignment_hash.hex())
        for connection in tuple(streams.connections) if streams else ():
            connection.warn(text)

    def forget_all_but(self, leases: Collection[Hash32]) -> None:
        """What is kept of leases that have ended."""
        kept = {lease.hex() for lease in leases}
        for lease_id in [name for name in self._streams if name not in kept]:
            if not self._streams[lease_id].joining:
                del self._streams[lease_id]

    async def _serve(self, sock: socket.socket, server: "Connection") -> None:
        async with asyncio.TaskGroup() as group:
            server.group = group
            try:
                connection = await asyncssh.run_server(
                    sock,
                    config=None,
                    server_factory=lambda: server,
                    server_host_keys=[self._host_key],
                    encryption_algs=CIPHERS,
                    compression_algs=None,
                    login_timeout=LOGIN_SECONDS,
                    connect_timeout=LOGIN_SECONDS,
                    keepalive_interval=KEEPALIVE_SECONDS,
                    keepalive_count_max=KEEPALIVES_MAX,
                    agent_forwarding=False,
                    x11_forwarding=False,
                    gss_host=None,
                    line_editor=False,
                    encoding=None,
                )
            except (asyncssh.Error, OSError, TimeoutError) as error:
                log.info("rental %s: nobody came in: %s", server.lease_id, error)
                return
            watch = group.create_task(self._close_at_end(connection, server))
            try:
                await connection.wait_closed()
            finally:
                watch.cancel()
                connection.abort()

    async def _close_at_end(
        self, connection: asyncssh.SSHServerConnection, server: "Connection"
    ) -> None:
        await self.inside.ended(server.lease_id)
        server.warn("quorate: the rental has ended")
        connection.disconnect(asyncssh.DISC_BY_APPLICATION, "the rental has ended")


class Connection(asyncssh.SSHServer):
    """One client. Nothing but the container's shell, files and loopback can be reached."""

    group: asyncio.TaskGroup
    flow: FlowControl

    def __init__(
        self, server: SshServer, lease_id: str, streams: LeaseStreams, keys: frozenset[bytes]
    ) -> None:
        self.inside, self.lease_id, self.env_of = server.inside, lease_id, server.env_of
        self.notes: list[str] = []
        self._server, self._streams, self._keys = server, streams, keys
        self._sessions: set[Session] = set()
        self._forwards: dict[object, Link | None] = {}  # None while it connects
        self._is_lost = False

    @property
    def channels(self) -> int:
        return len(self._sessions) + len(self._forwards)

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self.flow = FlowControl(conn)
        conn.create_agent_listener = self._no_agent  # type: ignore[method-assign]
        conn.attach_x11_listener = self._no_x11  # type: ignore[assignment, method-assign]
        self._streams.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        for link in self._forwards.values():
            if link is not None:
                link.close()

    def begin_auth(self, username: str) -> bool:
        return True  # any name; the key alone counts

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return key.public_data in self._keys

    def session_requested(self) -> tuple[asyncssh.SSHServerChannel[bytes], Session]:
        self._check_room()
        channel = self._connection.create_server_channel(None, "strict", WINDOW_BYTES, PACKET_BYTES)
        session = Session(self)
        self._sessions.add(session)
        return bounded(channel), session

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> tuple[asyncssh.SSHTCPChannel[bytes], Coroutine[None, None, ForwardSession]]:
        if dest_host not in LOOPBACK:
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED,
                f"only localhost of the rental can be reached, not {dest_host[:100]}",
            )
        self._check_room()
        channel = self._connection.create_tcp_channel(None, "strict", WINDOW_BYTES, PACKET_BYTES)
        self._forwards[channel] = None
        return bounded(channel), self._forward(channel, dest_port)

    def server_requested(self, listen_host: str, listen_port: int) -> bool:
        self.notes.append(NO_REMOTE_FORWARDS)
        return False

    def unix_server_requested(self, listen_path: str) -> bool:
        return self.server_requested("", 0)

    def used(self) -> None:
        self._streams.used_at = self._server.clock.now()

    def start(self, work: Awaitable[None]) -> None:
        self.group.create_task(_finished(work))

    def forget(self, session: Session) -> None:
        self._sessions.discard(session)

    def warn(self, text: str) -> None:
        for session in tuple(self._sessions):
            if session.has_terminal:
                session.say(text)

    async def _forward(self, channel: SSHChannel[bytes], port: int) -> ForwardSession:
        try:
            made = await self.inside.connect(self.lease_id, port)
            link = Link(channel, self.flow, self.used, is_forward=True)
            link.hold(START, True)
            await link.open(made)
            self._forwards[channel] = link
            if self._is_lost:
                link.close()
        except (OSError, OverflowError, Unavailable) as error:
            self._forwards.pop(channel, None)
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_CONNECT_FAILED, f"port {port} of the rental: {error}"
            ) from error
        return ForwardSession(link, lambda: self._forwards.pop(channel, None))

    async def _no_agent(self) -> bool:
        self.notes.append(NO_AGENT)
        return False

    async def _no_x11(self, *_: object) -> None:
        self.notes.append(NO_X11)

    def _check_room(self) -> None:
        if self._streams.channels() >= CHANNELS_MAX:
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_RESOURCE_SHORTAGE,
                f"a rental has at most {CHANNELS_MAX} open channels; close some",
            )


def host_key(key: PeerKey) -> asyncssh.SSHKey:
    private = Ed25519PrivateKey.from_private_bytes(key.seed)
    return asyncssh.import_private_key(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )


def authorised(access: tuple[str, ...]) -> frozenset[bytes]:
    """Leaves out lines that are no key: options before a key are not understood here."""
    found = set()
    for line in access:
        try:
            found.add(asyncssh.import_public_key(line).public_data)
        except asyncssh.KeyImportError as error:
            log.warning("access: %s", error)
    return frozenset(found)


async def _finished(work: Awaitable[None]) -> None:
    try:
        await work
    except (OSError, asyncssh.Error, Refused, Unavailable) as error:
        # Not re-raised: it would end the connection's other sessions.
        log.info("a session of a rental ended: %s", error)
