"""One pool's offers as columns: finds the cheapest that fit without reading all of them.

Rows are sorted by price. Offers of one price form a ring, and a search enters it at a random point,
so that no provider is always first. The answer depends only on the rows, never on where they are
stored, so a restored core finds the same.

Alternatives: sorted Python lists with bisect were three times slower at 10^5 rows and ten times at
10^6. One flat table of all classes gets slower with every class. SQL was five to a hundred times
slower. `tests/bench/market.py` has the figures.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from quorate_coordinator.core.model.column_store import ColumnStore, OwnerLists, allowing
from quorate_coordinator.core.model.row import (
    ADDRESS_BYTES,
    FREE,
    LISTED,
    OPEN_EGRESS,
    PRICE_LIMIT,
    ROOM,
    SPREAD_BITS,
    SPREAD_MASK,
    Needs,
    Row,
    model_number,
    spot_row,
)
from quorate_protocol.messages.egress import lacking
from quorate_protocol.units import ZERO_HASH, Address, Hash32

Positions = NDArray[np.int64]
Truths = NDArray[np.bool_]

# Rows that one step of a search looks at. The first step is enough where most rows fit.
CHUNK_FIRST, CHUNK_MAX = 256, 65_536
# A tail is merged early after so many searches without a change: at least REST_MIN, and one more
# for each REST_ROWS rows.
REST_MIN, REST_ROWS = 16, 16
FAILED_MAX = 1024


class Bucket(ColumnStore):
    """The rows of one pool, and the needs for which no provider was found."""

    def __init__(self) -> None:
        super().__init__()
        self._searches = 0  # since the tail last grew
        self._present = 0  # owners that have a row
        self._failed: dict[Needs, int] = {}  # -> highest price at which no provider was found
        # -> lowest price at which a provider may now be found
        self._newly_meetable: dict[Needs, int] = {}
        self._seen_at = 0  # newest moment of a search
        self.has_staked = (
            False  # whether any owner has a stake in this class: then only such owners get work
        )
        # answers of `first` in the second `_cheapest_known_at`, while no row changes
        self._cheapest_known: dict[tuple[Needs, int], Positions] = {}
        self._cheapest_known_at = 0
        self._images: OwnerLists[Hash32] = OwnerLists()
        self._egress: OwnerLists[str] = OwnerLists()

    def __len__(self) -> int:
        return self._present

    def __contains__(self, owner: Address) -> bool:
        local = self._locals.get(owner)
        return local is not None and int(self._places[local]) >= 0

    # ---- changes

    def put(self, owner: Address, row: Row) -> None:
        local = self._local(owner)
        at = int(self._places[local])
        before = None
        if at >= 0:
            self._record[at] = row.record  # it decides the order of those that fit, not who fits
            before = self._row_at(at)
        if before == row and row.until > self._seen_at:
            return  # most changes of a provider change only its money
        self._cheapest_known.clear()
        if self._failed:
            self._note_change(row, before)
        if at >= 0 and int(self._key[at]) != row.key:
            self._bits[at], self._until[at] = 0, 0
            at = -1
        if at < 0:
            self._present += int(self._places[local]) < 0
            if self._used == self._key.size:
                self._merge()
            at = self._used
            self._used += 1
            self._searches = 0
            self._places[local], self._local_column[at] = at, local
        for column, value in zip(self._numbers, row[:-2], strict=True):
            column[at] = value
        self._images.put(local, row.images)
        self._egress.put(local, row.egress)

    def set_room(self, name: Address, room: int) -> None:
        """`room`: FREE and ROOM, as far as the row has them now."""
        at = int(self._places[self._locals[name]])
        before = int(self._bits[at])
        bits = before & ~(FREE | ROOM) | room
        if bits & ~before and self._failed:
            self.put(name, self._row_at(at)._replace(bits=bits))
        elif bits != before:
            self._bits[at] = bits

    def _row_at(self, at: int) -> Row:
        local = int(self._local_column[at])
        lists = self._images.of(local), self._egress.of(local)
        return Row._make([*(column.item(at) for column in self._numbers), *lists])

    def remove(self, owner: Address) -> None:
        if owner in self:
            self._cheapest_known.clear()
            at = int(self._places[self._locals[owner]])
            self._bits[at], self._until[at] = 0, 0
            self._places[self._locals[owner]] = -1
            self._images.put(self._locals[owner], ())
            self._egress.put(self._locals[owner], ())
            self._present -= 1

    def _note_change(self, row: Row, before: Row | None) -> None:
        was_alive = before is not None and before.until > self._seen_at
        if was_alive and before is not None and before._replace(until=row.until) == row:
            return
        price = row.key >> SPREAD_BITS
        for needs in [
            needs
            for needs, limit in self._failed.items()
            if price <= limit and self._row_meets(row, needs)
        ]:
            self._failed[needs] = price - 1
            self._newly_meetable[needs] = min(price, self._newly_meetable.get(needs, price))

    def _row_meets(self, row: Row, needs: Needs) -> bool:
        if (
            row.bits & needs.bits != needs.bits
            or row.memory < needs.memory
            or row.cpu_millis < needs.cpu_millis
            or row.scratch < needs.scratch
            or row.output < needs.output
            or row.inputs < needs.inputs
            or row.store < needs.store
            or row.bandwidth < needs.bandwidth
            or (row.images and needs.image not in (ZERO_HASH, *row.images))
            or lacking(row.egress, needs.egress)
        ):
            return False
        return (
            row.gpus >= needs.gpus
            and row.vram >= needs.vram
            and row.capability >= needs.capability
            and row.cuda >= needs.cuda
            and (not needs.models or row.model in map(model_number, needs.models))
        )

    # ---- needs for which no provider was found

    def fail(self, needs: Needs, price_max: int) -> bool:
        """Returns False if too many needs are remembered."""
        if needs not in self._failed and len(self._failed) >= FAILED_MAX:
            return False
        self._failed[needs] = max(price_max, self._failed.get(needs, 0))
        return True

    def has_failed(self) -> bool:
        return bool(self._failed)

    def is_idle(self) -> bool:
        return not self._present and not self._failed and not self._newly_meetable

    def newly_meetable(self) -> dict[Needs, int]:
        """With the price from which on a provider may now meet them."""
        found, self._newly_meetable = self._newly_meetable, {}
        return found

    def forget(self, needs: Needs) -> None:
        self._failed.pop(needs, None)
        self._newly_meetable.pop(needs, None)

    def forget_failures(self) -> None:
        self._newly_meetable |= dict.fromkeys(self._failed, 0)
        self._failed.clear()

    # ---- searches

    def cheapest(
        self,
        needs: Needs,
        price_max: int,
        at: int,
        start: int,
        limit: int,
        without: Sequence[Address] = (),
    ) -> Positions:
        """Rows of one price come in the order of their ring, from `start` on."""
        self._seen_at = max(self._seen_at, at)
        self._merge_if_rested()
        highest = min(price_max, PRICE_LIMIT) << SPREAD_BITS | SPREAD_MASK
        search = self._search(needs, at, without)
        end = int(self._sorted_key.searchsorted(np.uint64(highest), "right"))
        found = self._scan(search, 0, end, limit)
        if found.size >= limit:
            found = self._round_the_ring(search, found[:limit], start)
            # Rows of the tail with a higher price than the last of these cannot be among them.
            highest = min(highest, int(self._key[found[-1]]) | SPREAD_MASK)
        if self._used > self._sorted:
            found = self._with_tail(search, found, highest)
        keys = self._key[found]
        # Only where rows share a key (2^24 accounts apart) does their storage decide the order.
        order = (keys & _UNSPREAD) | ((keys - np.uint64(start)) & _SPREAD)
        first: Positions = found[order.argsort()[:limit]]
        return first

    def first(self, needs: Needs, price_max: int, at: int) -> Positions:
        """The cheapest row that fits, busy or not; empty if none fits. Kept for a second, because
        every order with the same needs asks for it.
        """
        assert not needs.bits & (FREE | ROOM), (
            "assignments change what is free, and do not clear these answers"
        )
        if at != self._cheapest_known_at or len(self._cheapest_known) >= FAILED_MAX:
            self._cheapest_known.clear()
            self._cheapest_known_at = at
        found = self._cheapest_known.get((needs, price_max))
        if found is None:
            found = self._cheapest_known[(needs, price_max)] = self.cheapest(
                needs, price_max, at, 0, 1
            )
        return found

    def count(self, needs: Needs, price_max: int, at: int) -> int:
        found = self._fitting(self._search(needs, at), 0, self._used)
        return int(np.count_nonzero(self.prices_at(found) <= price_max))

    def owners_at(self, positions: Positions) -> list[Address]:
        locals_found = self._local_column[positions].tolist()
        return [Address(self.owners[local][:ADDRESS_BYTES]) for local in locals_found]

    def row_of(self, position: int) -> tuple[Address, int]:
        name = self.owners[int(self._local_column[position])]
        return Address(name[:ADDRESS_BYTES]), int(self._key[position]) >> SPREAD_BITS

    def prices_at(self, positions: Positions) -> NDArray[np.int64]:
        prices: NDArray[np.int64] = (self._key[positions] >> _SPREAD_BITS).view(np.int64)
        return prices

    def numbers_at(self, positions: Positions) -> NDArray[np.uint64]:
        """In the ring of their price, wherever the rows are stored."""
        return self._key[positions] & _SPREAD

    def records_at(self, positions: Positions) -> NDArray[np.int64]:
        """What reputation adds to the factor of these rows' prices, in ppm."""
        return self._record[positions].astype(np.int64)

    def bits_at(self, positions: Positions) -> NDArray[np.uint64]:
        return self._bits[positions]

    def _scan(self, search: "_Search", begin: int, end: int, limit: int) -> Positions:
        parts, count, step = [], 0, CHUNK_FIRST
        while begin < end and count < limit:
            found = self._fitting(search, begin, min(begin + step, end))
            parts.append(found)
            count += found.size
            begin, step = begin + step, min(4 * step, CHUNK_MAX)
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else _NOBODY

    def _round_the_ring(self, search: "_Search", found: Positions, start: int) -> Positions:
        keys, last = self._sorted_key, int(found[-1])
        ring = int(keys[last]) >> SPREAD_BITS << SPREAD_BITS
        is_alone = (last == 0 or int(keys[last - 1]) < ring) and (
            last + 1 == keys.size or int(keys[last + 1]) > ring | SPREAD_MASK
        )
        if is_alone:
            return found
        low, middle, high = keys.searchsorted(
            np.array([ring, ring | start, ring + (1 << SPREAD_BITS)], np.uint64)
        ).tolist()
        below = found[self._key[found] < np.uint64(ring)]
        missing = found.size - below.size
        first = self._scan(search, middle, high, missing)[:missing]
        second = self._scan(search, low, middle, missing - first.size)[: missing - first.size]
        return np.concatenate([below, first, second])

    def _with_tail(self, search: "_Search", found: Positions, highest: int) -> Positions:
        """Adds rows of the unsorted tail up to a key. It compares all, because they are few."""
        cheap: Positions = (self._key[self._sorted : self._used] <= np.uint64(highest)).nonzero()[0]
        if not cheap.size:
            return found
        cheap += self._sorted
        return np.concatenate([found, cheap[self._fits(search, cheap)]])

    def _fitting(self, search: "_Search", begin: int, end: int) -> Positions:
        found: Positions = self._fits(search, slice(begin, end)).nonzero()[0]
        found += begin
        return found

    def _fits(self, search: "_Search", rows: "slice | Positions") -> Truths:
        """Comparing whole columns is cheaper than picking rows out in between."""
        needs = search.needs
        good: Truths = (self._bits[rows] & search.bits) == search.bits
        good &= self._until[rows] > search.at
        good &= self._memory[rows] >= needs.memory
        if needs.cpu_millis:
            good &= self._cpu_millis[rows] >= needs.cpu_millis
        if needs.output:
            good &= self._scratch[rows] >= needs.scratch
            good &= self._output[rows] >= needs.output
            good &= self._inputs[rows] >= needs.inputs
            good &= self._store[rows] >= needs.store
            good &= self._bandwidth[rows] >= needs.bandwidth
        if needs.gpus:
            self._keep_with_gpus(good, search, rows)
        if self._images and needs.image != ZERO_HASH:
            is_open = (self._bits[rows] & _LISTED) == 0
            good &= is_open | np.isin(self._local_column[rows], search.listed)
        if needs.egress:
            is_open = (self._bits[rows] & _OPEN_EGRESS) != 0
            good &= is_open | np.isin(self._local_column[rows], search.allowing)
        if search.without:
            good &= ~np.isin(self._local_column[rows], search.without)
        return good

    def _keep_with_gpus(self, good: Truths, search: "_Search", rows: "slice | Positions") -> None:
        needs = search.needs
        good &= self._gpus[rows] >= needs.gpus
        good &= self._vram[rows] >= needs.vram
        if needs.capability:
            good &= self._capability[rows] >= needs.capability
        if needs.cuda:
            good &= self._cuda[rows] >= needs.cuda
        if needs.models:
            good &= np.isin(self._model[rows], search.models)

    def _search(self, needs: Needs, at: int, without: Sequence[Address] = ()) -> "_Search":
        names = (name for owner in without for name in (owner, spot_row(owner)))
        left_out = [self._locals[name] for name in names if name in self._locals]
        listed = self._images.with_name(needs.image)
        return _Search(needs, at, left_out, listed, allowing(self._egress, needs.egress))

    def _merge_if_rested(self) -> None:
        """A tail is cheap to write to and expensive to search."""
        if self._used == self._sorted:
            return
        self._searches += 1
        if self._searches > max(REST_MIN, self._used // REST_ROWS):
            self._cheapest_known.clear()
            self._merge()


_UNSPREAD, _SPREAD, _SPREAD_BITS = (
    np.uint64((1 << 64) - 1 - SPREAD_MASK),
    np.uint64(SPREAD_MASK),
    np.uint64(SPREAD_BITS),
)
_LISTED, _OPEN_EGRESS = np.uint64(LISTED), np.uint64(OPEN_EGRESS)
_NOBODY: Positions = np.zeros(0, np.int64)


class _Search:
    __slots__ = ("allowing", "at", "bits", "listed", "models", "needs", "without")

    def __init__(
        self,
        needs: Needs,
        at: int,
        without: list[int],
        listed: Iterable[int],
        allowing: Iterable[int],
    ) -> None:
        self.needs, self.at, self.without = needs, at, without
        self.listed, self.allowing = list(listed), list(allowing)
        self.models = [model_number(name) for name in needs.models]
        self.bits = np.uint64(needs.bits)
