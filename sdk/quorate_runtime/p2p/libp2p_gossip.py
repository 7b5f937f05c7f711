"""The `Gossip` port over libp2p, and the neighbours that a node keeps for it."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from quorate_protocol.messages.ports import Clock, Validate, Verdict
from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Seconds
from quorate_runtime.p2p.host.host_config import PeerAddress
from quorate_runtime.p2p.p2p_node import P2pNode
from quorate_runtime.peers.gossip_subscription import GossipSubscription, check_size

PUBLISH_SECONDS = Seconds(5)
CONNECT_SECONDS = Seconds(15)
NEIGHBOURS_MAX = 6  # that a node dials; more would prune the mesh
LOOK_SECONDS = 5.0

log = logging.getLogger(__name__)


class _Intake:
    """`guarded_pubsub.Intake`: hands accepted messages from the trio thread to the loop."""

    def __init__(self, subscription: GossipSubscription) -> None:
        self._subscription, self._loop = subscription, asyncio.get_running_loop()

    def judge(self, data: bytes, forwarder: str) -> Verdict:
        return self._subscription.judge(data, forwarder)

    def deliver(self, data: bytes) -> None:
        try:
            self._loop.call_soon_threadsafe(self._subscription.put, data)
        except RuntimeError:
            log.debug("the loop of the subscription has ended")


class Libp2pGossip:
    """`ports.Gossip` over a node whose config names a topic."""

    def __init__(self, node: P2pNode) -> None:
        self._node = node
        self._subscription: GossipSubscription | None = None

    async def publish(self, data: bytes) -> None:
        check_size(data)
        try:
            await self._node.publish(data, PUBLISH_SECONDS)
        except (ConnectionError, TimeoutError) as error:
            raise Unavailable(f"the message was not published: {error}", 1.0) from error

    def subscribe(self, validate: Validate) -> GossipSubscription:
        assert self._subscription is None, "one subscription for each member"
        self._subscription = GossipSubscription(validate)
        self._node.listen(_Intake(self._subscription))
        return self._subscription

    async def close(self) -> None:
        if self._subscription is None:
            return
        self._subscription.close()
        try:
            await self._node.stop_listening(PUBLISH_SECONDS)
        except (ConnectionError, TimeoutError):
            pass  # without a host it takes part in nothing


class Neighbours:
    """Keeps a node connected to a few of the known peers, so that gossip reaches it."""

    def __init__(
        self,
        node: P2pNode,
        known: Callable[[], Sequence[PeerAddress]],
        clock: Clock,
        choose: Callable[[Sequence[PeerAddress], int], list[PeerAddress]] = random.sample,
    ) -> None:
        self._node, self._known, self._clock, self._choose = node, known, clock, choose
        self._chosen: list[PeerAddress] = []

    async def run(self) -> None:
        """Dials until cancelled. A peer that does not answer is replaced by another one."""
        while True:
            await self._node.wait_until_up()
            await self.look()
            await self._clock.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        known = [peer for peer in self._known() if peer.peer_key != self._node.peer_key]
        self._chosen = [peer for peer in self._chosen if peer in known]
        others = [peer for peer in known if peer not in self._chosen]
        room = min(NEIGHBOURS_MAX - len(self._chosen), len(others))
        self._chosen += self._choose(others, room)
        reached = await asyncio.gather(*(self._reach(peer) for peer in self._chosen))
        self._chosen = [peer for peer, is_up in zip(self._chosen, reached, strict=True) if is_up]

    async def _reach(self, peer: PeerAddress) -> bool:
        try:
            await self._node.connect(peer, CONNECT_SECONDS)
        except (ConnectionError, TimeoutError) as error:
            log.info("no gossip neighbour: %s", error)
            return False
        return True
