"""The journal's index of effects in memory: the pending ones, and the keys that are known.

Both are bounded. The actor takes no events while too many effects are pending, and each snapshot
calls `forget` for the keys. So a key counts as new again once its event lies before the older of
the two kept snapshots, at least 1,000 events later. Performing an effect twice is harmless, so a
repeated effect costs only work.
"""

from collections.abc import Iterable, Sequence

from quorate_runtime.journal.journal_batch import Done, Event, Place
from quorate_runtime.journal.journal_port import KeyedEffect, Pending


class PendingEffects:
    """The pending effects and the known keys, in the order of their decisions."""

    def __init__(self) -> None:
        self._pending: dict[Place, Pending] = {}
        self._known: dict[str, Place] = {}

    @property
    def keys(self) -> int:
        """The number of known keys."""
        return len(self._known)

    def pending(self) -> list[Pending]:
        """Returns the effects that are not done, in order."""
        return list(self._pending.values())

    def carried(self, until: int) -> list[tuple[Place, Pending]]:
        """Returns the pending effects of events up to offset `until`, each with its place."""
        return [(place, item) for place, item in self._pending.items() if place[0] <= until]

    def add(
        self, offset: int, version: int, effects: Sequence[KeyedEffect]
    ) -> Sequence[KeyedEffect]:
        """Adds the effects whose keys are new to the pending ones, and returns them."""
        fresh: list[KeyedEffect] = []
        for key, payload in effects:
            if key not in self._known:
                place = (offset, len(fresh))
                self._known[key] = place
                self._pending[place] = Pending(key, offset, version, payload)
                fresh.append((key, payload))
        return fresh

    def done(self, keys: Iterable[str]) -> list[Place]:
        """Removes pending effects. Returns the places of those that were pending."""
        places = [place for key in keys if (place := self._known.get(key)) is not None]
        return [place for place in places if self._pending.pop(place, None) is not None]

    def forget(self, until: int) -> None:
        """Removes the keys of events up to offset `until` whose effects are done."""
        self._known = {
            key: place
            for key, place in self._known.items()
            if place[0] > until or place in self._pending
        }

    # ---- from what is on disk

    def restore(self, items: Iterable[tuple[Place, Pending]]) -> None:
        """Adds effects from the disk. A later part of the journal may mark them done."""
        for place, item in items:
            self._known[item.key] = place
            self._pending[place] = item

    def replay(self, offset: int, part: Event | Done) -> None:
        """Applies one part of a batch. For an event, `offset` is its own."""
        if isinstance(part, Event):
            self.restore(part.pending(offset))
        else:
            for place in part.places:
                self._pending.pop(place, None)
