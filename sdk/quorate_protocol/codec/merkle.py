"""Merkle roots over sets of hashes and over logs that only grow, with proofs for logs.

The root of a set is the one of PROTOCOL's "roots Merkle over sorted H(entry)".
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from quorate_protocol.codec.hashing import hash_tuple, keccak256
from quorate_protocol.codec.identity_cache import Kept
from quorate_protocol.units import ZERO_HASH, Hash32


def merkle_root(entries: frozenset[Hash32]) -> Hash32:
    """Merkle root over the sorted entries; zero if there are none. If a level has an odd count of
    nodes, its last node moves up as it is.
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
    """A Merkle mountain range: a log of hashes without its entries (docs/decisions/0004).

    It has what is needed to append an entry and to compute the root. There is one perfect tree for
    each bit that is set in `count`, so a million entries need at most twenty peaks. To append
    costs two hashes on average; a root costs one hash for each peak.
    """

    count: int = 0  # count of entries
    peaks: tuple[Hash32, ...] = ()  # roots of perfect trees over the entries, the largest first

    def append(self, entry: Hash32) -> "Log":
        peaks, node, size = list(self.peaks), entry, self.count
        while size & 1:
            node = _above(peaks.pop(), node)
            size >>= 1
        return Log(self.count + 1, (*peaks, node))

    def root(self) -> Hash32:
        """Root of the log: H(count, the peaks folded from the smallest); zero for an empty log.

        The count is hashed too, because it fixes the place of every entry. Roots of the newest logs
        are cached, because several signed messages name one.
        """
        return _root_of(self)


_root_of: Kept[Log, Hash32] = Kept(lambda log: _bagged(log.count, log.peaks), 256)


class Inclusion(Struct, frozen=True):
    """A proof that a log has an entry at an index."""

    index: int  # of the entry, from 0
    count: int  # entries in the log
    siblings: tuple[Hash32, ...]  # from the entry up to its peak
    other_peaks: tuple[Hash32, ...]  # all peaks but the entry's own, the largest first


class FullLog:
    """A log with all its nodes. To make it costs one hash for each entry; proofs cost none."""

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
        """The log with new entries at some indices. It hashes only the nodes above them."""
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
        return _bagged(len(self), self._peaks())

    def prove(self, index: int) -> Inclusion:
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
        """Roots of the perfect trees, the largest first. Each is the last node of its level,
        because it has no partner there.
        """
        count = len(self)
        return tuple(
            self._levels[size.bit_length() - 1][(count >> size.bit_length() - 1) - 1]
            for size in _sizes(count)
        )


def prove(entries: Sequence[Hash32], index: int) -> Inclusion:
    return FullLog(entries).prove(index)


def is_included(root: Hash32, entry: Hash32, shown: Inclusion) -> bool:
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
    """Counts of entries of the perfect trees, the largest first."""
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
