"""The `Gossip` port in memory, for tests and the simulator.

Its hub may drop, delay, repeat and so reorder messages. Inside `clock.run_virtual` delays are
virtual, and the same conditions give the same order of events.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from quorate_protocol.messages.ports import Clock, Validate, Verdict
from quorate_protocol.refusals import Unavailable
from quorate_runtime.peers.gossip_subscription import GossipSubscription, check_size


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message on its way to one member; `number` counts all deliveries of the hub."""

    number: int
    sender: str
    to: str
    data: bytes


Conditions = Callable[[Delivery], tuple[float, ...]]
"""Delays in seconds after which copies of the message arrive: () drops it, two repeat it."""


def lossless(_: Delivery) -> tuple[float, ...]:
    """Every message arrives once and at once."""
    return (0.0,)


class MemoryGossipHub:
    """One topic. `async with` owns the messages on their way.

    Every member is every other one's neighbour, so `forwarder` is the sender.
    """

    def __init__(self, clock: Clock, conditions: Conditions = lossless) -> None:
        """`conditions` may be replaced at any time."""
        self.conditions = conditions
        self.verdicts: dict[tuple[str, Verdict], int] = {}  # (sender, verdict) -> messages
        self._clock = clock
        self._members: dict[str, GossipSubscription] = {}
        self._group = asyncio.TaskGroup()
        self._flying: set[asyncio.Task[None]] = set()
        self._deliveries = 0

    async def __aenter__(self) -> "MemoryGossipHub":
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for subscription in self._members.values():
            subscription.close()
        for task in self._flying:
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    def join(self, name: str) -> "MemoryGossip":
        """A member of the topic. Its name is unique, as a peer id is."""
        return MemoryGossip(self, name)

    def subscribe(self, name: str, subscription: GossipSubscription) -> None:
        """Lets a member listen."""
        assert name not in self._members, "one subscription for each member"
        self._members[name] = subscription

    def leave(self, name: str) -> None:
        """Ends a member's subscription. Messages on their way to it are lost."""
        subscription = self._members.pop(name, None)
        if subscription is not None:
            subscription.close()

    def send(self, sender: str, data: bytes) -> None:
        """Sends a message to all other members that listen. Unavailable if none does."""
        others = [name for name in self._members if name != sender]
        if not others:
            raise Unavailable("no neighbour listens to the topic yet", 1.0)
        for name in others:
            self._deliveries += 1
            delivery = Delivery(self._deliveries, sender, name, data)
            for delay in self.conditions(delivery):
                task = self._group.create_task(self._deliver(delivery, delay))
                self._flying.add(task)
                task.add_done_callback(self._flying.discard)

    async def _deliver(self, delivery: Delivery, delay: float) -> None:
        await self._clock.sleep(delay)
        subscription = self._members.get(delivery.to)
        if subscription is None:
            return  # the member left meanwhile
        verdict = subscription.judge(delivery.data, delivery.sender)
        key = (delivery.sender, verdict)
        self.verdicts[key] = self.verdicts.get(key, 0) + 1
        if verdict is Verdict.ACCEPT:
            subscription.put(delivery.data)


class MemoryGossip:
    """`ports.Gossip` of one member of a hub."""

    def __init__(self, hub: MemoryGossipHub, name: str) -> None:
        """Use `MemoryGossipHub.join`."""
        self._hub, self._name = hub, name

    async def publish(self, data: bytes) -> None:
        """See `ports.Gossip`."""
        check_size(data)
        self._hub.send(self._name, data)

    def subscribe(self, validate: Validate) -> GossipSubscription:
        """See `ports.Gossip`."""
        subscription = GossipSubscription(validate)
        self._hub.subscribe(self._name, subscription)
        return subscription

    async def close(self) -> None:
        """See `ports.Gossip`."""
        self._hub.leave(self._name)
