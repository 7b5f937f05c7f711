"""What a stranger can send to a libp2p host: garbage, floods and false identities.

Import it after `require("libp2p")`. Each attack runs in the thread of the stranger's own host.
"""

import struct
from collections.abc import Awaitable, Callable

import trio
from libp2p import create_new_ed25519_key_pair, new_host
from libp2p.crypto.keys import KeyPair, PrivateKey, PublicKey
from libp2p.custom_types import TProtocol
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import PUBSUB_SIGNING_PREFIX
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.stream_muxer.yamux import yamux
from multiaddr import Multiaddr

from quorate_protocol.units import Hash32
from quorate_runtime.p2p.host.guarded_yamux import INBOUND_STREAMS_MAX
from quorate_runtime.p2p.host.host_session import HostSession, swarm_of
from quorate_runtime.p2p.host.stream_pump import ENDS
from support.p2p.p2p_nodes import LOOPBACK, TOPIC

MESHSUB, PUSH, PING = "/meshsub/1.1.0", "/ipfs/id/push/1.0.0", "/ipfs/ping/1.0.0"
Attack = Callable[[HostSession, ID], Awaitable[None]]


async def send(session: HostSession, victim: ID, protocol: str, data: bytes) -> None:
    """Opens a stream of a protocol and sends bytes."""
    stream = await session.host.new_stream(victim, [TProtocol(protocol)])
    await stream.write(data)


def sending(protocol: str, data: bytes) -> Attack:
    return lambda session, victim: send(session, victim, protocol, data)


def delimited(message: bytes) -> bytes:
    size = len(message)
    return (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + message


def rpc(**fields: object) -> bytes:
    return delimited(rpc_pb2.RPC(**fields).SerializeToString())  # type: ignore[arg-type]


def published(**fields: object) -> Attack:
    message = rpc_pb2.Message(data=b"x", topicIDs=[TOPIC], **fields)  # type: ignore[arg-type]
    return sending(MESHSUB, rpc(publish=[message]))


async def raw_stream(session: HostSession, victim: ID, data: bytes) -> None:
    """A stream on which no protocol was agreed."""
    stream = await swarm_of(session.host).new_stream(victim)
    await stream.write(data)


async def reset_in_negotiation(session: HostSession, victim: ID) -> None:
    stream = await swarm_of(session.host).new_stream(victim)
    await stream.write(b"\x13/multi")
    await stream.reset()


CONTROL = rpc_pb2.ControlMessage(
    ihave=[rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=[b"zz", b"00"])],
    iwant=[rpc_pb2.ControlIWant(messageIDs=[b"zz"])],
    graft=[rpc_pb2.ControlGraft(topicID="nope")],
    prune=[rpc_pb2.ControlPrune(topicID=TOPIC, backoff=2**60)],
)
IDENTIFY = Identify(
    public_key=b"\x01\x02",
    listen_addrs=[b"\xff\xff\xff"],
    protocols=["x"] * 10,
    observed_addr=b"\x99\x99",
).SerializeToString()
GARBAGE: dict[str, Attack] = {
    "gossip frame": sending(MESHSUB, b"\x05\xff\xff\xff\xff\xff"),
    "gossip length": sending(MESHSUB, b"\xff" * 20),
    "gossip without signature": published(from_id=b"\x01"),
    "gossip key": published(key=b"\x00\x01", signature=b"zz"),
    "gossip key of nobody": published(from_id=b"\x01", seqno=b"1", key=b"garbage", signature=b"zz"),
    "gossip control": sending(MESHSUB, rpc(control=CONTROL)),
    "gossip record": sending(MESHSUB, rpc(senderRecord=b"\xff\xfe\x01")),
    "identify frame": sending(PUSH, b"\x05\xff\xff\xff\xff\xff"),
    "identify fields": sending(PUSH, delimited(IDENTIFY)),
    "half a ping": sending(PING, b"x" * 7),
    "reset negotiation": reset_in_negotiation,
    "negotiation": lambda s, v: raw_stream(s, v, b"\xff\xfe\xfd\xfc" * 50),
    "protocol name": lambda s, v: raw_stream(
        s, v, b"\x13/multistream/1.0.0\n\x05\xff\xfe\xfd\xfc\n"
    ),
}

RAW = (
    b"GET / HTTP/1.0\r\n\r\n",
    b"\xff" * 100,
    b"\x13/multistream/1.0.0\n\x07/noise\n\x00\x01x",
    b"\x13/multistream/1.0.0\n\x05\xff\xfe\xfd\xfc\n",
)


def connection_to(session: HostSession, victim: ID) -> yamux.Yamux:
    (connection,) = swarm_of(session.host).get_connections(victim)
    muxed = connection.muxed_conn
    assert isinstance(muxed, yamux.Yamux)
    return muxed


async def open_streams(session: HostSession, victim: ID) -> int:
    """Opens streams until the victim closes the connection. How many it opened."""
    connection, opened = connection_to(session, victim), 0
    with trio.move_on_after(20):
        try:
            while opened < 20 * INBOUND_STREAMS_MAX and not connection.is_closed:
                await connection.open_stream()
                opened += 1
                connection.stream_backlog_semaphore.release()
        except ENDS:
            await connection.event_closed.wait()
    return opened


async def ignore_the_window(session: HostSession, victim: ID, protocol: str) -> int:
    """Sends more than the victim allowed. How many bytes went out before the connection ended."""
    connection, sent = connection_to(session, victim), 0
    stream = await session.host.new_stream(victim, [TProtocol(protocol)])
    block = bytes(60_000)
    head = struct.pack("!BBHII", 0, 0, 0, stream.muxed_stream.stream_id, len(block))  # type: ignore[attr-defined]
    with trio.move_on_after(20):
        try:
            while sent < 100 << 20 and not connection.is_closed:
                await connection._write_frame(head + block)
                sent += len(block)
        except ENDS:
            await connection.event_closed.wait()
    return sent


async def never_read(session: HostSession, victim: ID, begin: Callable[[], None]) -> None:
    """Sends more pings than a window of answers, and takes none of them. Calls `begin` when the
    stream is open.
    """

    async def never(_: int | None = None) -> bytes:
        await trio.sleep_forever()

    connection = connection_to(session, victim)
    stream = await session.host.new_stream(victim, [TProtocol(PING)])
    connection.secured_conn.read = never  # type: ignore[assignment,method-assign]
    block = bytes(32 * 1024)
    head = struct.pack("!BBHII", 0, 0, 0, stream.muxed_stream.stream_id, len(block))  # type: ignore[attr-defined]
    begin()
    try:
        for _ in range(12):
            await connection.secured_conn.write(head + block)  # for as long as it takes
    except ENDS:
        return  # it was cut off already


class StolenKey(PrivateKey):
    """Stands for a private key that the stranger does not have."""

    def __init__(self, public: PublicKey) -> None:
        self._public = public

    def get_public_key(self) -> PublicKey:
        return self._public

    def get_type(self) -> object:  # type: ignore[override]
        return self._public.get_type()

    def to_bytes(self) -> bytes:
        return b""

    def sign(self, data: bytes) -> bytes:
        return bytes(64)

    def serialize(self) -> bytes:
        return b""


async def impersonate(friend_key: PublicKey, attack: Callable[[str], Awaitable[None]]) -> None:
    """Runs a host that speaks plaintext only and claims to be the friend. Gives its address."""
    keys = KeyPair(StolenKey(friend_key), friend_key)
    host = new_host(
        key_pair=create_new_ed25519_key_pair(),
        sec_opt={TProtocol(PLAINTEXT_PROTOCOL_ID): InsecureTransport(keys)},
        listen_addrs=[Multiaddr(LOOPBACK[0])],
    )
    async with host.run([Multiaddr(LOOPBACK[0])]):
        await attack(str(host.get_transport_addrs()[0]))
        with trio.CancelScope(shield=True):
            await host.close()


def forged(session: HostSession, kind: str, seqno: bytes) -> rpc_pb2.Message:
    """A message of the topic that is not the one of its sender."""
    friend = create_new_ed25519_key_pair()
    own_id, friend_id = session.host.get_id(), ID.from_pubkey(friend.public_key)
    sender = friend_id if kind in ("from", "from and key") else own_id
    message = rpc_pb2.Message(
        data=b"forged: " + kind.encode(), topicIDs=[TOPIC], from_id=sender.to_bytes(), seqno=seqno
    )
    payload = PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString()
    message.signature = session.host.get_private_key().sign(payload)
    message.key = session.host.get_public_key().serialize()
    match kind:
        case "foreign key":
            message.key = friend.public_key.serialize()
        case "from":
            message.key = friend.public_key.serialize()
        case "unsigned":
            message.signature = b""
        case "changed":
            message.data += b"!"
        case "other topic":
            message.topicIDs.append("another")
        case _:
            assert kind in ("from and key", "none"), kind
    return message


FORGERIES = ("foreign key", "from", "from and key", "unsigned", "changed", "other topic")


def key_of(public: PublicKey) -> Hash32:
    """The 32 bytes of an Ed25519 public key."""
    return Hash32(public.to_bytes())
