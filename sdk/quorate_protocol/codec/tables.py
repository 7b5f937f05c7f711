"""The tables of a core's state, which can take back the writes of a step that fails.

A step that raises `Refused` must change nothing. A copy of the state before each step would cost
O(state). A second layer over the state would slow every read, though nearly all steps succeed. So a
write changes the row at once, and the table notes the earlier row. A deletion waits for the commit,
because taking it back would put its row at the end of the table.

Rows are frozen values: replace them, never change them. Iteration is in insertion order, and a
snapshot keeps that order. So a restored core reads its rows in the same order as before.
"""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar, cast, overload

from msgspec import Raw

from quorate_protocol.codec import packed
from quorate_protocol.codec.declared_types import memo
from quorate_protocol.codec.packed import Packed
from quorate_protocol.refusals import Code, Refused

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class _Missing:
    """Type of the mark for "no such row". None cannot be that mark, because None may be a row."""


_MISSING = _Missing()


class Part(Protocol):
    """A part of the state, such as a `Table`, that takes part in the transactions of `Tables`."""

    def join(self, waiting: "list[Part]") -> None:
        """Makes the part add itself to `waiting` at its first write in each transaction. The owner
        of the list clears it after a commit or a rollback.
        """

    def is_clean(self) -> bool:
        """Whether no write waits for the commit."""

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def pack(self) -> bytes: ...

    def load(self, data: bytes) -> None:
        """Replaces the state. Raises `Refused` if the bytes are not a state of this part."""


@memo
def _rows_of(kinds: tuple[object, object]) -> Packed[list[tuple[object, object]]]:
    """It is made once for each pair of types, because replay and tests make a core many times."""
    return Packed(list[tuple[kinds[0], kinds[1]]])  # type: ignore[valid-type]


class Table(MutableMapping[K, V], Generic[K, V]):
    """A dict with transactions. `key_kind` and `value_kind` are the types of keys and values in
    snapshots. They may be unions.
    """

    def __init__(self, key_kind: object, value_kind: object) -> None:
        self._packed = _rows_of((key_kind, value_kind))
        self._rows: dict[K, V] = {}
        # The earlier row of each write, the oldest write first.
        self._earlier_rows: list[tuple[K, V | _Missing]] = []
        self._deleted: set[K] = set()  # still in `_rows`
        # A copy of all committed rows, made when a step writes a row that it has deleted.
        self._committed: dict[K, V] | None = None
        self._followers: list[set[K]] = []
        self._selective_followers: list[tuple[set[K], Callable[[V, V], bool]]] = []
        self._waiting: list[Part] | None = None

    def join(self, waiting: list[Part]) -> None:
        self._waiting = waiting
        if not self.is_clean():
            waiting.append(self)

    def follow(self, matters: Callable[[V, V], bool] | None = None) -> set[K]:
        """Returns a set that collects the key of every row that may have changed. It begins with
        all keys.

        An index that is derived from the table uses it: the index takes the keys out of the set and
        derives their rows again. With `matters(before, after)` the set is selective: it collects
        only the writes for which that is true, and all deletions, rollbacks and loads.
        """
        follower = set(self)
        if matters is None:
            self._followers.append(follower)
        else:
            self._selective_followers.append((follower, matters))
        return follower

    def __getitem__(self, key: K) -> V:
        if self._deleted and key in self._deleted:
            raise KeyError(key)
        return self._rows[key]

    @overload
    def get(self, key: K, /) -> V | None: ...

    @overload
    def get(self, key: K, /, default: V) -> V: ...

    @overload
    def get(self, key: K, /, default: D) -> V | D: ...

    def get(self, key: K, /, default: D | None = None) -> V | D | None:
        """Does the same as `dict.get`. `Mapping.get` would raise and catch an exception for each
        missing row.
        """
        if self._deleted and key in self._deleted:
            return default
        return self._rows.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._rows and key not in self._deleted

    def __setitem__(self, key: K, value: V) -> None:
        if self._selective_followers:
            self._report_to_selective_followers(key, value)
        rows, before = self._rows, self._earlier_rows
        if self._deleted:
            self._move_to_end(key)
        elif not before and self._waiting is not None:
            self._waiting.append(self)
        before.append((key, rows.get(key, _MISSING)))
        rows[key] = value
        for follower in self._followers:
            follower.add(key)

    def _move_to_end(self, key: K) -> None:
        """Moves a row that a step has deleted and now writes again to the end, as a dict does. No
        rule does that, so taking it back may copy the whole table.
        """
        if key in self._deleted:
            if self._committed is None:
                self._committed = self._with_writes_taken_back(dict(self._rows))
            self._deleted.discard(key)
            del self._rows[key]

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        if self._waiting is not None and self.is_clean():
            self._waiting.append(self)
        self._deleted.add(key)
        for follower in self._all_followers():
            follower.add(key)

    def __iter__(self) -> Iterator[K]:
        if not self._deleted:
            return iter(self._rows)
        return iter([key for key in self._rows if key not in self._deleted])

    def __len__(self) -> int:
        return len(self._rows) - len(self._deleted)

    def is_clean(self) -> bool:
        return not self._earlier_rows and not self._deleted

    def commit(self) -> None:
        if self._deleted:
            for key in self._deleted:
                del self._rows[key]
            self._deleted.clear()
        self._earlier_rows.clear()
        self._committed = None

    def rollback(self) -> None:
        for follower in self._all_followers():
            follower.update([key for key, _ in self._earlier_rows], self._deleted)
        self._rows = (
            self._with_writes_taken_back(self._rows) if self._committed is None else self._committed
        )
        self._earlier_rows.clear()
        self._deleted.clear()
        self._committed = None

    def _with_writes_taken_back(self, rows: dict[K, V]) -> dict[K, V]:
        """Takes the writes back in `rows`, and returns it. A new row is at the end and is removed.
        Any other row gets its earlier value, where it is.
        """
        for key, value in reversed(self._earlier_rows):
            if isinstance(value, _Missing):
                del rows[key]
            else:
                rows[key] = value
        return rows

    def pack(self) -> bytes:
        assert self.is_clean(), "a snapshot holds committed rows only"
        return packed.encode_rows(list(self._rows.items()))

    def load(self, data: bytes) -> None:
        rows = cast(list[tuple[K, V]], self._packed.decode(data))
        self.rollback()
        gone, self._rows = self._rows, dict(rows)
        for follower in self._all_followers():
            follower.update(gone, self._rows)

    def _all_followers(self) -> list[set[K]]:
        return [*self._followers, *(follower for follower, _ in self._selective_followers)]

    def _report_to_selective_followers(self, key: K, value: V) -> None:
        """Reports a write to the followers that collect only some writes. It compares the row with
        the one before this write. So if two writes cancel each other out, it reports both.
        """
        is_there = key in self
        for follower, matters in self._selective_followers:
            if not is_there or matters(self[key], value):
                follower.add(key)


_SNAPSHOT: Packed[dict[str, Raw]] = Packed(dict[str, Raw])


class Tables:
    """State made of `Table` attributes, set in `__init__`. One transaction spans them all."""

    _all: dict[str, Part] | None = None  # set at the first use

    def begin(self) -> None:
        """Begins a transaction. The last one must have been committed or rolled back."""
        self._parts()
        assert not self._waiting, "the last transaction was neither committed nor rolled back"

    def commit(self) -> None:
        self._parts()
        for part in self._waiting:
            part.commit()
        self._waiting.clear()

    def rollback(self) -> None:
        self._parts()
        for part in self._waiting:
            part.rollback()
        self._waiting.clear()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits the writes of the block at its end, or takes them back if the block raises."""
        self.begin()
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()

    def snapshot(self) -> bytes:
        """Returns MessagePack bytes of the committed state: a map from each table's name to its
        rows. Equal states with equal histories give equal bytes.
        """
        self.begin()
        parts = sorted(self._parts().items())
        return packed.encode({name: Raw(part.pack()) for name, part in parts})

    def restore(self, data: bytes) -> None:
        """Raises `Refused(MALFORMED)` if the snapshot has other tables."""
        tables = _SNAPSHOT.decode(data)
        parts = self._parts()
        if tables.keys() != parts.keys():
            raise Refused(Code.MALFORMED, f"snapshot: the tables {sorted(parts)} are expected")
        for name, part in parts.items():
            part.load(bytes(tables[name]))
        self._waiting.clear()

    def _parts(self) -> dict[str, Part]:
        if self._all is None:
            self._all = {name: part for name, part in vars(self).items() if isinstance(part, Table)}
            # The parts with writes, in the order of their first writes. A step writes to few parts.
            self._waiting: list[Part] = []
            for part in self._all.values():
                part.join(self._waiting)
        return self._all
