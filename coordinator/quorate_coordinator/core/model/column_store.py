"""Stores rows as numpy columns: first a part sorted by key, then an unsorted tail."""

from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from quorate_protocol.messages.egress import wider
from quorate_protocol.units import Address

TAIL_MIN, TAIL_MAX = 512, 8192
_COLUMNS: tuple[tuple[str, type[np.generic]], ...] = (
    ("key", np.uint64),
    ("bits", np.uint64),
    ("until", np.int64),
    ("memory", np.int64),
    ("cpu_millis", np.int32),
    ("vram", np.int64),
    ("gpus", np.int16),
    ("model", np.int32),
    ("capability", np.int16),
    ("scratch", np.int64),
    ("output", np.int64),
    ("inputs", np.int64),
    ("cuda", np.int16),
    ("store", np.int64),
    ("bandwidth", np.int64),
    ("record", np.int32),
    ("local", np.int32),
)
"""The numbers of a `Row`, in its order, and the owner's local number."""


class ColumnStore:
    """The columns of one pool, and the position of each owner's row.

    A changed row goes to the tail, and its old position becomes a tombstone (a row without bits). A
    full tail is merged into the sorted part.
    """

    def __init__(self) -> None:
        self.owners: list[Address] = []  # by local number, which never changes
        self._locals: dict[Address, int] = {}
        self._places = np.full(TAIL_MIN, -1, np.int64)  # local number -> position, -1 = no row
        self._sorted = 0  # how many rows are sorted by key
        self._used = 0  # how many rows there are with the tail's
        self._columns: dict[str, NDArray[np.generic]] = {}
        self._allot({name: np.zeros(0, kind) for name, kind in _COLUMNS}, 0)

    def _local(self, owner: Address) -> int:
        local = self._locals.get(owner)
        if local is None:
            local = self._locals[owner] = len(self.owners)
            self.owners.append(owner)
            if local == self._places.size:
                self._places = np.concatenate([self._places, np.full(local, -1, np.int64)])
        return local

    def _allot(self, columns: dict[str, NDArray[np.generic]], rows: int) -> None:
        room = min(TAIL_MAX, max(TAIL_MIN, rows // 64))
        self._columns = {}
        for name, kind in _COLUMNS:
            column = np.zeros(rows + room, kind)
            column[:rows] = columns[name][:rows]
            self._columns[name] = column
        self._sorted = self._used = rows
        self._name_columns()

    def _name_columns(self) -> None:
        columns = self._columns
        self._numbers = [column for name, column in columns.items() if name != "local"]
        self._key, self._bits = columns["key"].view(np.uint64), columns["bits"].view(np.uint64)
        self._until, self._memory = (
            columns["until"].view(np.int64),
            columns["memory"].view(np.int64),
        )
        self._vram = columns["vram"].view(np.int64)
        self._cpu_millis = columns["cpu_millis"].view(np.int32)
        self._gpus, self._model = columns["gpus"].view(np.int16), columns["model"].view(np.int32)
        self._capability = columns["capability"].view(np.int16)
        self._scratch, self._output = (
            columns["scratch"].view(np.int64),
            columns["output"].view(np.int64),
        )
        self._inputs, self._store = (
            columns["inputs"].view(np.int64),
            columns["store"].view(np.int64),
        )
        self._bandwidth = columns["bandwidth"].view(np.int64)
        self._cuda = columns["cuda"].view(np.int16)
        self._record = columns["record"].view(np.int32)
        self._local_column = columns["local"].view(np.int32)
        self._sorted_key = self._key[: self._sorted]

    def _merge(self) -> None:
        kept = self._bits[: self._sorted] != 0
        tail = np.flatnonzero(self._bits[self._sorted : self._used]) + self._sorted
        tail = tail[self._key[tail].argsort()]
        targets = self._key[: self._sorted][kept].searchsorted(self._key[tail]) + np.arange(
            tail.size
        )
        rows = int(np.count_nonzero(kept)) + tail.size
        is_old = np.ones(rows, bool)
        is_old[targets] = False
        merged = {}
        for name, kind in _COLUMNS:
            column = np.empty(rows, kind)
            column[is_old] = self._columns[name][: self._sorted][kept]
            column[targets] = self._columns[name][tail]
            merged[name] = column
        self._allot(merged, rows)
        self._places[self._local_column[:rows]] = np.arange(rows)


Name = TypeVar("Name", bound=bytes | str)
_NOBODY: AbstractSet[int] = frozenset()


class OwnerLists(Generic[Name]):
    """The lists of names in offers, by owner (a local number) and by name: images, hosts."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[Name, ...]] = {}
        self._owners: dict[Name, set[int]] = {}

    def __len__(self) -> int:
        return len(self._names)

    def of(self, owner: int) -> tuple[Name, ...]:
        return self._names.get(owner, ())

    def put(self, owner: int, names: tuple[Name, ...]) -> None:
        for name in self._names.pop(owner, ()):
            owners = self._owners[name]
            owners.discard(owner)
            if not owners:
                del self._owners[name]
        if names:
            self._names[owner] = names
        for name in names:
            self._owners.setdefault(name, set()).add(owner)

    def with_name(self, name: Name) -> AbstractSet[int]:
        return self._owners.get(name, _NOBODY)


def allowing(lists: OwnerLists[str], hosts: tuple[str, ...]) -> AbstractSet[int]:
    """Owners that allow each host by a name that is not `*`."""
    found = [set().union(*(lists.with_name(name) for name in wider(host))) for host in hosts]
    return set.intersection(*found) if found else _NOBODY
