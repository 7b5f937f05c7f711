"""Gossip of offers that loses, delays and repeats messages, and brings old ones again."""

from collections.abc import Callable
from random import Random

from sim.plan import GossipFaults, Plan
from sim.schedule import Schedule

KEPT_MAX = 8  # messages of one source that can come again
CALM = GossipFaults(0.0, 0.0, 0.0, 0.0)


class OfferGossip:
    """One topic. A listener gets each message any number of times, also none, in any order."""

    def __init__(self, plan: Plan, schedule: Schedule) -> None:
        self.schedule, self.random = schedule, Random(f"gossip faults/{plan.seed}/{plan.salt}")
        self.faults = plan.gossip
        self.listeners: list[Callable[[bytes], None]] = []
        self._kept: dict[str, list[bytes]] = {}

    def heal(self) -> None:
        """Ends all faults."""
        self.faults = CALM if self.faults is not None else None

    def publish(self, source: str, data: bytes) -> None:
        """Brings a message of a source to all listeners, or does not. Nothing without gossip."""
        if self.faults is None:
            return
        kept = self._kept.setdefault(source, [])
        kept.append(data)
        del kept[:-KEPT_MAX]
        messages = [data]
        if self.random.random() < self.faults.rewind:
            messages.append(self.random.choice(kept))
        for listener in self.listeners:
            for message in messages:
                self._bring(listener, message, self.faults)

    def _bring(
        self, listener: Callable[[bytes], None], message: bytes, faults: GossipFaults
    ) -> None:
        if self.random.random() < faults.loss:
            return
        copies = 2 if self.random.random() < faults.repeat else 1
        for _ in range(copies):
            slow = self.random.random() < faults.slow
            delay = self.random.uniform(1, 30) if slow else self.random.uniform(0.01, 0.5)
            self.schedule.after(delay, lambda: listener(message))
