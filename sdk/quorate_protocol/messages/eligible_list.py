"""The eligible list of a job: the slots that may be drawn (docs/decisions/0007).

`Ack.eligibleRoot` is the root of a log (`merkle.Log`). The log has one entry for each index of the
pool's list in `Stakes`: the slot's hash if it was active at the Ack's block and its owner had not
withdrawn its offer, else zero. So the chain says who may be drawn, and not the coordinator. Where
several pools may audit, their lists follow each other in the order of the pools' ids.

A path of log2(length) hashes proves the entry at an index, be it a slot or zero. The coordinator
cannot prove two entries for one index. The root also fixes the list's length, by which every draw
divides.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from quorate_protocol.codec.merkle import FullLog, Inclusion, is_included
from quorate_protocol.messages.stake_slot import StakeSlot
from quorate_protocol.units import ZERO_HASH, Address, Hash32
from quorate_protocol.values import replace


class ShownSlot(Struct, frozen=True):
    """The entry at one index of an eligible list, with its proof."""

    slot: StakeSlot | None  # None when the slot at this index may not be drawn
    proof: Inclusion  # `proof.index` is the index, `proof.count` the list's length

    def is_under(self, root: Hash32) -> bool:
        if self.slot is not None and self.slot.index != self.proof.index:
            return False
        return is_included(root, _entry(self.slot), self.proof)


class EligibleList:
    """The slots that may be drawn, in order of their index. To make a list costs O(length) hashes;
    to look up a slot costs none.
    """

    __slots__ = ("_log", "_of_owner", "_places", "length", "root", "slots")

    def __init__(
        self, slots: Iterable[StakeSlot], length: int, like: "EligibleList | None" = None
    ) -> None:
        """Makes a list of `length` indices; reuses the hashes of `like` for equal entries."""
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
        """The slot at an index of the list; None when that slot is not eligible."""
        return self._places[index]

    def count_of(self, owner: Address) -> int:
        if self._of_owner is None:
            self._of_owner = Counter(slot.owner for slot in self.slots)
        return self._of_owner[owner]

    def show(self, indices: Iterable[int]) -> tuple[ShownSlot, ...]:
        return tuple(
            ShownSlot(self._places[index], self._log.prove(index)) for index in sorted(set(indices))
        )

    def changes(self, places: list[StakeSlot | None]) -> FullLog:
        pairs = enumerate(zip(places, self._places, strict=True))
        return self._log.changed(
            {index: _entry(new) for index, (new, old) in pairs if new is not old and new != old}
        )


def joined(lists: Sequence[tuple[StakeSlot, ...]]) -> tuple[StakeSlot, ...]:
    """The lists of several pools as one: the indices go on."""
    if len(lists) == 1:
        return lists[0]
    slots = (slot for listed in lists for slot in listed)
    return tuple(replace(slot, index=index) for index, slot in enumerate(slots))


def place_in(lengths: Sequence[int], index: int) -> tuple[int, int]:
    """(number of the list, index in it) of an index of joined lists. Raises IndexError if it is
    beyond the last one.
    """
    for number, length in enumerate(lengths):
        if index < length:
            return number, index
        index -= length
    raise IndexError("the index is beyond the joined lists")


def _log_of(places: list[StakeSlot | None], like: EligibleList | None) -> FullLog:
    if like is not None and like.length == len(places):
        return like.changes(places)
    return FullLog([_entry(slot) for slot in places])


def _entry(slot: StakeSlot | None) -> Hash32:
    return ZERO_HASH if slot is None else slot.entry()
