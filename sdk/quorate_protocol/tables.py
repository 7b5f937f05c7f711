"""State as tables with a transaction overlay: a step writes to the overlay, and all of it counts or none.

Iteration is in insertion order, and snapshots keep it, so that a restored machine decides exactly as the one that ran.
"""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from quorate_protocol import codec

K = TypeVar("K")
V = TypeVar("V")
_GONE: Any = object()


class Table(Generic[K, V]):
    """A dict of frozen values. Between `begin` and `commit` or `rollback`, writes are kept aside; commit costs O(changes)."""

    def __init__(self, key_type: Any, value_type: Any) -> None:
        """Types as the codec knows them, for snapshots."""
        self._key_type = key_type
        self._value_type = value_type
        self._rows: dict[K, V] = {}
        self._overlay: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Value or None."""
        value = self._overlay.get(key, self) if self._overlay else self
        if value is self:
            return self._rows.get(key)
        return None if value is _GONE else value  # type: ignore[return-value]

    def __getitem__(self, key: K) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._overlay[key] = value

    def __delitem__(self, key: K) -> None:
        self._overlay[key] = _GONE

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        size = len(self._rows)
        for key, value in self._overlay.items():
            size += (value is not _GONE) - (key in self._rows)
        return size

    def keys(self) -> Iterator[K]:
        """Keys in insertion order. Do not write while iterating: take a list first."""
        for key in self._rows:
            if self._overlay.get(key) is not _GONE:
                yield key
        for key, value in self._overlay.items():
            if key not in self._rows and value is not _GONE:
                yield key

    def items(self) -> Iterator[tuple[K, V]]:
        """(key, value) in insertion order."""
        for key in self.keys():  # noqa: SIM118 - a Table is not a dict
            yield key, self[key]

    def values(self) -> Iterator[V]:
        """Values in insertion order."""
        for key in self.keys():  # noqa: SIM118 - as above
            yield self[key]

    def commit(self) -> None:
        """The overlay becomes the table."""
        for key, value in self._overlay.items():
            if value is _GONE:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value
        self._overlay.clear()

    def rollback(self) -> None:
        """Forgets the overlay."""
        self._overlay.clear()

    def to_json(self) -> codec.Json:
        """Rows as [key, value] pairs in order."""
        return codec.encoder_of(tuple[tuple[self._key_type, self._value_type], ...])(tuple(self._rows.items()))  # type: ignore[name-defined]

    def load(self, tree: codec.Json) -> None:
        """Replaces all rows."""
        pairs = codec.decoder_of(tuple[tuple[self._key_type, self._value_type], ...])(tree, "")  # type: ignore[name-defined]
        self._rows = dict(pairs)
        self._overlay.clear()


class Tables:
    """A state made of the Table attributes of the subclass."""

    def tables(self) -> dict[str, Table[Any, Any]]:
        """All tables by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Table)}

    def begin(self) -> None:
        """Starts a step: no overlay may be left from the last."""
        assert not any(table._overlay for table in self.tables().values()), "the last step neither committed nor rolled back"

    def commit(self) -> None:
        """Every overlay counts."""
        for table in self.tables().values():
            table.commit()

    def rollback(self) -> None:
        """No overlay counts."""
        for table in self.tables().values():
            table.rollback()

    def snapshot(self) -> bytes:
        """Canonical bytes of all rows, in order."""
        return codec.canonical({name: table.to_json() for name, table in self.tables().items()})

    def restore(self, data: bytes) -> None:
        """Replaces all rows by a snapshot of this version."""
        tree = codec.parse(data, 1 << 40)
        for name, table in self.tables().items():
            table.load(tree.get(name, []))
