"""Merkle roots over sets of hashes ("roots Merkle over sorted H(entry)", PROTOCOL), and over
logs that only grow.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from quorate_protocol.crypto.hashing import hash_tuple, keccak256
from quorate_protocol.units import ZERO_HASH, Amount, Hash32


def merkle_root(entries: frozenset[Hash32]) -> Hash32:
    """Root over the sorted entries; a lone node at the end of a level moves up unhashed; no
    entries give zero.
    """
    level = sorted(entries)
    if not level:
        return ZERO_HASH
    while len(level) > 1:
        paired = [
            keccak256(left + right) for left, right in zip(level[::2], level[1::2], strict=False)
        ]
        level = paired + ([level[-1]] if len(level) % 2 else [])
    return Hash32(level[0])


# --------------------------------------------------------------------------------------- grown logs


class Log(Struct, frozen=True):
    """A Merkle mountain range: what is left of a log of hashes to append to it and to give its
    root (docs/decisions/0004).

    `peaks` are the roots of perfect trees over the entries in order, the largest first: one for
    each bit of `count`, so a million entries leave at most twenty. Appending hashes twice on
    average, a root hashes once a peak.
    """

    count: int = 0
    peaks: tuple[Hash32, ...] = ()

    def append(self, entry: Hash32) -> "Log":
        """The log with one more entry."""
        peaks, node, size = list(self.peaks), entry, self.count
        while size & 1:
            node = _above(peaks.pop(), node)
            size >>= 1
        return Log(self.count + 1, (*peaks, node))

    def root(self) -> Hash32:
        """H(count, the peaks folded from the smallest); the count fixes the place of every
        entry. An empty log gives zero.
        """
        return _bagged(self.count, self.peaks)


class Inclusion(Struct, frozen=True):
    """Entry `index` of a log of `count`: siblings up to its peak, and all peaks but its own, the
    largest first.
    """

    index: int
    count: int
    siblings: tuple[Hash32, ...]
    other_peaks: tuple[Hash32, ...]


def credit_entry(assignment_id: Hash32, pay: Amount) -> Hash32:
    """Entry of a provider's log of credits. The last entry of an assignment counts: one that was
    taken back is followed by 0.
    """
    return hash_tuple(assignment_id, pay)


class FullLog:
    """A log with every node kept: making one hashes as often as it has entries, a proof of one
    entry then hashes nothing.
    """

    __slots__ = ("_levels",)

    def __init__(self, entries: Sequence[Hash32]) -> None:
        self._levels = [list(entries)]
        while len(level := self._levels[-1]) > 1:
            self._levels.append(
                [_above(left, right) for left, right in zip(level[::2], level[1::2], strict=False)]
            )

    def __len__(self) -> int:
        return len(self._levels[0])

    def changed(self, entries: Mapping[int, Hash32]) -> "FullLog":
        """The log with these entries in the places of others: hashes only what stands above
        them.
        """
        new = FullLog(())
        new._levels = [list(level) for level in self._levels]
        for index, entry in entries.items():
            new._levels[0][index] = entry
        touched = set(entries)
        for below, level in zip(new._levels, new._levels[1:], strict=False):
            touched = {index >> 1 for index in touched if index >> 1 < len(level)}
            for index in touched:
                level[index] = _above(below[2 * index], below[2 * index + 1])
        return new

    def root(self) -> Hash32:
        """As of the `Log` of the same entries."""
        return _bagged(len(self), self._peaks())

    def prove(self, index: int) -> Inclusion:
        """Shows that an entry stands in the log."""
        count, first, mine = len(self), 0, 0
        assert 0 <= index < count, "an entry of this log"
        for size in _sizes(count):
            if index < first + size:
                break
            first, mine = first + size, mine + 1
        siblings = tuple(
            self._levels[height][index >> height ^ 1] for height in range(size.bit_length() - 1)
        )
        peaks = self._peaks()
        return Inclusion(index, count, siblings, (*peaks[:mine], *peaks[mine + 1 :]))

    def _peaks(self) -> tuple[Hash32, ...]:
        """Roots of the perfect trees, the largest first: each the last node of its level that
        was not paired on the way up.
        """
        count = len(self)
        return tuple(
            self._levels[size.bit_length() - 1][(count >> size.bit_length() - 1) - 1]
            for size in _sizes(count)
        )


def prove(entries: Sequence[Hash32], index: int) -> Inclusion:
    """Shows that an entry stands in a log, from all its entries; what anybody can do who kept
    the receipts in order.
    """
    return FullLog(entries).prove(index)


def is_included(root: Hash32, entry: Hash32, shown: Inclusion) -> bool:
    """Whether the entry stands at that place of the log with this root."""
    if not 0 <= shown.index < shown.count < 1 << 64:
        return False
    first, mine = 0, 0
    for size in _sizes(shown.count):
        if shown.index < first + size:
            break
        first, mine = first + size, mine + 1
    if (
        len(shown.siblings) != size.bit_length() - 1
        or len(shown.other_peaks) != shown.count.bit_count() - 1
    ):
        return False
    node, place = entry, shown.index - first
    for sibling in shown.siblings:
        node = _above(sibling, node) if place & 1 else _above(node, sibling)
        place >>= 1
    return (
        _bagged(shown.count, (*shown.other_peaks[:mine], node, *shown.other_peaks[mine:])) == root
    )


def _sizes(count: int) -> list[int]:
    """Of the perfect trees, the largest first."""
    return [1 << bit for bit in range(count.bit_length() - 1, -1, -1) if count >> bit & 1]


def _above(left: Hash32, right: Hash32) -> Hash32:
    return Hash32(keccak256(left + right))


def _bagged(count: int, peaks: Sequence[Hash32]) -> Hash32:
    if not peaks:
        return ZERO_HASH
    folded = peaks[-1]
    for peak in reversed(peaks[:-1]):
        folded = _above(peak, folded)
    return hash_tuple(count, folded)
