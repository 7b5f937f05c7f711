"""What the journal knows of effects, in memory: which are pending, and which keys were there
before.

Bounded: pending effects by the actor, which takes no events while too many are; keys by
`forget`, which a snapshot calls. So a key is new again once the event that had it lies before
the older of the two snapshots that are kept, 1,000 events or more later; what performs effects
makes repeating them harmless, so a repetition costs work and nothing else.
"""

from collections.abc import Iterable, Sequence

from quorate_runtime.journal.journal_batch import Done, Event, Place
from quorate_runtime.journal.journal_port import KeyedEffect, Pending


class PendingEffects:
    """Pending effects and known keys, in the order in which they were decided."""

    def __init__(self) -> None:
        self._pending: dict[Place, Pending] = {}
        self._known: dict[str, Place] = {}

    @property
    def keys(self) -> int:
        """Number of keys that would not be new."""
        return len(self._known)

    def pending(self) -> list[Pending]:
        """Effects not done, in order."""
        return list(self._pending.values())

    def carried(self, until: int) -> list[tuple[Place, Pending]]:
        """Pending effects of events up to an offset."""
        return [(place, item) for place, item in self._pending.items() if place[0] <= until]

    def add(
        self, offset: int, version: int, effects: Sequence[KeyedEffect]
    ) -> Sequence[KeyedEffect]:
        """Those effects whose keys are new; from now on they are pending."""
        fresh: list[KeyedEffect] = []
        for key, payload in effects:
            if key not in self._known:
                place = (offset, len(fresh))
                self._known[key] = place
                self._pending[place] = Pending(key, offset, version, payload)
                fresh.append((key, payload))
        return fresh

    def done(self, keys: Iterable[str]) -> list[Place]:
        """Takes effects out; places of those that were pending."""
        places = [place for key in keys if (place := self._known.get(key)) is not None]
        return [place for place in places if self._pending.pop(place, None) is not None]

    def forget(self, until: int) -> None:
        """Drops keys of events up to an offset whose effects are done."""
        self._known = {
            key: place
            for key, place in self._known.items()
            if place[0] > until or place in self._pending
        }

    # ---- from what is on disk

    def restore(self, items: Iterable[tuple[Place, Pending]]) -> None:
        """Takes in effects that are pending as far as is known."""
        for place, item in items:
            self._known[item.key] = place
            self._pending[place] = item

    def replay(self, offset: int, part: Event | Done) -> None:
        """Takes in one part of a batch; `offset` is the event's."""
        if isinstance(part, Event):
            self.restore(part.pending(offset))
        else:
            for place in part.places:
                self._pending.pop(place, None)
