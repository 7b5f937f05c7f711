"""Gossip of one topic with three verdicts, on top of libp2p's Pubsub.

libp2p keeps each verdict under the message's id, which a stranger may choose; it delivers to a
queue of 32; and it neither knows "ignore" nor blames the sender of a false signature.
"""

import logging
import math
import time
from typing import Protocol

from libp2p.abc import IHost
from libp2p.crypto.serialization import deserialize_public_key
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.score import ScoreParams, TopicScoreParams
from libp2p.pubsub.validators import signature_validator

from quorate_protocol.messages.ports import GOSSIP_BYTES_MAX, Verdict

RPC_BYTES_MAX = 256 << 10
SEEN_SECONDS = 300
PROTOCOL = TProtocol("/meshsub/1.1.0")

log = logging.getLogger(__name__)


class Intake(Protocol):
    """Takes a topic's messages. It is called in the trio thread and must be quick."""

    def judge(self, data: bytes, forwarder: str) -> Verdict:
        """What to do with a message that the peer id `forwarder` passed on."""

    def deliver(self, data: bytes) -> None: ...


def new_router() -> GossipSub:
    """A gossip router.

    Loss appears as soon as `degree_high` prunes the mesh, because the repair path leaves pruned
    peers out for `prune_back_off` seconds. So it stays above the neighbours that a node dials, and
    the messages kept for repair (`gossip_window`) outlast it. Weights of penalties are positive.
    """
    return GossipSub(
        protocols=[PROTOCOL],
        degree=8,
        degree_low=6,
        degree_high=16,
        heartbeat_interval=1,
        gossip_window=12,
        gossip_history=15,
        prune_back_off=8,
        unsubscribe_back_off=2,
        spam_protection_enabled=False,  # it is silent, and counts forwarders
        adaptive_gossip_enabled=False,
        eclipse_protection_enabled=False,
        score_params=ScoreParams(
            p4_invalid_messages=TopicScoreParams(weight=10.0, cap=100.0, decay=0.995),
            publish_threshold=-100.0,
            gossip_threshold=-50.0,
            graylist_threshold=-200.0,
            accept_px_threshold=math.inf,  # nobody tells us whom to dial
        ),
    )


class GuardedPubsub(Pubsub):
    """The gossip of one topic."""

    def __init__(self, host: IHost, router: GossipSub, topic: str) -> None:
        super().__init__(
            host,
            router,
            strict_signing=True,
            seen_ttl=SEEN_SECONDS,
            max_inbound_rpc_size=RPC_BYTES_MAX,
            allowed_topics={topic},
        )
        self.topic = topic
        self.intake: Intake | None = None
        assert router.scorer is not None, "a gossip router keeps scores"
        self._scores = router.scorer
        # libp2p starts from the seconds of the time, which repeat after a quick restart.
        self.counter = time.time_ns()

    @property
    def has_listener(self) -> bool:
        return any(peer in self.peers for peer in self.peer_topics.get(self.topic, ()))

    def listens(self, peer: bytes) -> bool:
        return ID(peer) in self.peer_topics.get(self.topic, ())

    async def _handle_new_peer(self, peer_id: ID) -> None:
        """Opens a stream to a peer, also if the one of an earlier connection is still listed."""
        self._drop_dead_stream(peer_id)
        await super()._handle_new_peer(peer_id)

    async def handle_dead_peer_queue(self) -> None:
        """Forgets peers whose connections have ended.

        libp2p keeps the stream of an ended connection if the peer has another one. So a peer that
        restarts quickly would never learn that we listen.
        """
        async with self.dead_peer_receive_channel:
            self.event_handle_dead_peer_queue_started.set()
            async for peer_id in self.dead_peer_receive_channel:
                if not self._peer_is_connected(peer_id):
                    self._handle_dead_peer(peer_id)
                elif self._drop_dead_stream(peer_id):
                    self._schedule_peer_stream_retry(peer_id)

    def _drop_dead_stream(self, peer_id: ID) -> bool:
        """Drops the stream to a peer if its connection has ended. Its subscriptions stay, because
        they may have come over another connection.
        """
        stream = self.peers.get(peer_id)
        if stream is None or not stream.muxed_conn.is_closed:
            return False
        del self.peers[peer_id]
        if peer_id in self.peer_queues:
            self.peer_queues.pop(peer_id).close()
        self.router.remove_peer(peer_id)
        return True

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        is_own = msg_forwarder == self.my_id
        if self._is_msg_seen(msg):
            return
        if not is_own and not self._is_accepted(msg_forwarder, msg):
            return
        self._mark_msg_seen(msg)
        if not is_own:
            self._scores.on_first_delivery(msg_forwarder, self.topic)
            if self.intake is not None:
                self.intake.deliver(bytes(msg.data))
        await self.router.publish(msg_forwarder, msg)

    def _is_accepted(self, forwarder: ID, message: rpc_pb2.Message) -> bool:
        if not self._scores.allow_publish(forwarder, [self.topic]):
            return False
        if message.from_id == self.my_id.to_bytes() or self.intake is None:
            return False  # ours, from before a restart; or nobody here listens any more
        verdict = Verdict.REJECT
        is_well_formed = (
            list(message.topicIDs) == [self.topic] and len(message.data) <= GOSSIP_BYTES_MAX
        )
        if is_well_formed and is_signed(message):
            verdict = self.intake.judge(bytes(message.data), forwarder.to_base58())
        if verdict is Verdict.REJECT:
            self._scores.on_invalid_message(forwarder, self.topic)
        elif verdict is Verdict.IGNORE:
            self._mark_msg_seen(message)
        return verdict is Verdict.ACCEPT


def is_signed(message: rpc_pb2.Message) -> bool:
    """Whether the sender signed the message.

    libp2p raises for a key that cannot be read, and does not look whose key it is. Other
    implementations reject a foreign key, and would blame us for passing it on.
    """
    try:
        if message.key:
            owner = ID.from_pubkey(deserialize_public_key(message.key))
            if owner.to_bytes() != message.from_id:
                return False
        return signature_validator(message)
    except Exception:
        log.debug("a message's key cannot be read", exc_info=True)
        return False
