"""The eligible list of a host class: who may be drawn, under one root that fixes who stands at
which index (docs/decisions/0007).

`Ack.eligibleRoot` is the root of a log (`merkle.Log`) with one entry for each index of the
class's list in `Stakes`: the slot's own entry where its owner was alive with audit capacity,
zero where nobody was. So one path of log2(length) hashes shows either, and nobody can show both
of one index; the root fixes the list's length too, which every draw divides by.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from quorate_protocol.crypto.merkle import FullLog, Inclusion, is_included
from quorate_protocol.rules.audit import StakeSlot
from quorate_protocol.units import ZERO_HASH, Address, Hash32


class ShownSlot(Struct, frozen=True):
    """What stands at index `proof.index` of the list of `proof.count`: a slot, or (None) nobody
    who may be drawn.
    """

    slot: StakeSlot | None
    proof: Inclusion

    def is_under(self, root: Hash32) -> bool:
        """Whether the list with this root has it there."""
        if self.slot is not None and self.slot.index != self.proof.index:
            return False
        return is_included(root, _entry(self.slot), self.proof)


class EligibleList:
    """Slots that may be drawn, in order of their index. Making one is linear in the list's
    length, each look at it is not.
    """

    __slots__ = ("_log", "_of_owner", "_places", "length", "root", "slots")

    def __init__(
        self, slots: Iterable[StakeSlot], length: int, like: "EligibleList | None" = None
    ) -> None:
        """`like`: a list of which this one may share most hashes."""
        self.slots, self.length = tuple(slots), length
        self._places: list[StakeSlot | None] = [None] * length
        for slot in self.slots:
            self._places[slot.index] = slot
        self._log = _log_of(self._places, like)
        self.root = self._log.root()
        self._of_owner: Counter[Address] | None = None

    def __iter__(self) -> Iterator[StakeSlot]:
        return iter(self.slots)

    def get(self, index: int, /) -> StakeSlot | None:
        """The slot at an index of the list; None when nobody is eligible there."""
        return self._places[index]

    def count_of(self, owner: Address) -> int:
        """How many slots are of one owner."""
        if self._of_owner is None:
            self._of_owner = Counter(slot.owner for slot in self.slots)
        return self._of_owner[owner]

    def show(self, indices: Iterable[int]) -> tuple[ShownSlot, ...]:
        """What stands at these indices, each once, in order: what a receipt holds of the list."""
        return tuple(
            ShownSlot(self._places[index], self._log.prove(index)) for index in sorted(set(indices))
        )

    def changes(self, places: list[StakeSlot | None]) -> FullLog:
        """The log of a list as long as this one."""
        pairs = enumerate(zip(places, self._places, strict=True))
        return self._log.changed(
            {index: _entry(new) for index, (new, old) in pairs if new is not old and new != old}
        )


def _log_of(places: list[StakeSlot | None], like: EligibleList | None) -> FullLog:
    if like is not None and like.length == len(places):
        return like.changes(places)
    return FullLog([_entry(slot) for slot in places])


def _entry(slot: StakeSlot | None) -> Hash32:
    return ZERO_HASH if slot is None else slot.entry()
