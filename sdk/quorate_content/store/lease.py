"""A lease: the right to read a stored object until it is released."""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from quorate_content.dag.cid import Cid
from quorate_content.store.locks import FileLock


@dataclass(frozen=True, slots=True)
class Stat:
    """A stored object. `size` is the number of bytes in its files."""

    cid: Cid
    size: int


class Lease:
    """The right to read `path`, a verified read-only file or directory, until released. Eviction
    skips leased objects.
    """

    def __init__(self, stat: Stat, place: str, lock: FileLock) -> None:
        self.cid, self.size = stat.cid, stat.size
        self._place, self._lock = place, lock

    @property
    def path(self) -> Path:
        return Path(self._place)

    def release(self) -> None:
        """Ends the lease. A second call does nothing."""
        self._lock.release()

    async def __aenter__(self) -> "Lease":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
