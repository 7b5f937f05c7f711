"""The replicas of a service: which one takes the next request, and what its machine costs."""

import asyncio
import hashlib
from dataclasses import dataclass, field
from enum import StrEnum

HOUR = 3600
RECENT_SECONDS = 2.0  # a short request may begin and end between two looks
DEAD_AFTER = 3  # probes in a row without an answer, or requests without one that had one


class Health(StrEnum):
    """Where a replica is between its order and its end."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"  # takes no more requests
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Replica:
    """One rented machine. `price`: millionths of a USD by the hour.

    `shared` adds up, for each second, the price divided by the requests in flight. So the part of
    one request is the difference of two readings.
    """

    name: str
    revision: str
    url: str = ""
    price: int = 0
    health: Health = Health.STARTING
    began: float = 0.0
    ready_at: float = 0.0
    in_flight: int = 0
    failures: int = 0  # in a row
    asked_at: float = 0.0
    shared: float = 0.0
    _shared_at: float = 0.0

    def reading(self, now: float) -> float:
        if self.in_flight:
            self.shared += (now - self._shared_at) * self.price / HOUR / self.in_flight
        self._shared_at = now
        return self.shared

    def take(self, now: float) -> float:
        """One more request is in flight. Returns the reading at its begin."""
        begun = self.reading(now)
        self.asked_at = now
        self.in_flight += 1
        return begun

    def give(self, now: float, begun: float) -> float:
        """It has ended. Returns its part of the machine's price."""
        part = self.reading(now) - begun
        self.in_flight -= 1
        return part


@dataclass(slots=True)
class Replicas:
    """All replicas of a service, whatever their revision."""

    found: list[Replica] = field(default_factory=list)
    waiting: dict[str, int] = field(default_factory=dict)  # revision -> requests without a replica
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def of(self, revision: str, *healths: Health) -> list[Replica]:
        wanted = healths or (Health.STARTING, Health.READY)
        return [it for it in self.found if it.revision == revision and it.health in wanted]

    def ready(self, revision: str) -> list[Replica]:
        return self.of(revision, Health.READY)

    def demand(self, revision: str, now: float) -> int:
        """Requests in flight, and those that wait for a replica; 1 if one came just now."""
        own = [it for it in self.found if it.revision == revision]
        is_asked = any(now - it.asked_at < RECENT_SECONDS for it in own)
        return max(is_asked, sum(it.in_flight for it in own) + self.waiting.get(revision, 0))

    def choose(self, revision: str, *tried: Replica) -> Replica | None:
        """The one with the fewest requests in flight, the longest ready of equals."""
        ready = [it for it in self.ready(revision) if it not in tried]
        return min(ready, key=lambda it: (it.in_flight, it.ready_at), default=None)

    async def wait_for(self, revision: str, seconds: float) -> Replica | None:
        """Returns one that is ready, or None after so many seconds."""
        self.waiting[revision] = self.waiting.get(revision, 0) + 1
        try:
            async with asyncio.timeout(seconds):
                while (found := self.choose(revision)) is None:
                    self._news.clear()
                    await self._news.wait()
                return found
        except TimeoutError:
            return None  # not re-raised: the caller answers the request
        finally:
            self.waiting[revision] -= 1

    def changed(self) -> None:
        """Wakes requests that wait."""
        self._news.set()


def is_canary(user: str, share: float) -> bool:
    """Whether a user's requests go to the canary. A greater share takes all that a smaller one
    had.
    """
    number = int.from_bytes(hashlib.sha256(user.encode(errors="replace")).digest()[:8], "big")
    return number < share * 2**64
