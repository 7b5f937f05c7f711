"""What an account may upload, and limits that keep slow or many uploads from blocking others."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from quorate_content.store.content_store import ContentStore
from quorate_content.store.index import Owner
from quorate_protocol.refusals import Code, Refused

KEEP_SECONDS = 7 * 86_400.0
UPLOAD_BYTES_MAX = 64 << 30
UPLOADS_MAX = 48  # a quarter of the store's threads remains for readers
ACCOUNT_UPLOADS_MAX = 16

UploadThrottle = Callable[[int], Awaitable[None]]
"""Called with the size of each received piece. Waits as long as the sender must wait."""


@dataclass(slots=True, eq=False)
class UploadSlot:
    """One upload in progress."""

    account: str
    network: str
    weight: int
    is_cut: bool = False


class UploadSlots:
    """Bounds the uploads at once: per account, per network and in total. The total is below the
    store's threads.
    """

    def __init__(
        self,
        most: int = UPLOADS_MAX,
        account_most: int = ACCOUNT_UPLOADS_MAX,
        network_most: int | None = None,
    ) -> None:
        self._most = most
        self._account_most = account_most
        self._network_most = most if network_most is None else network_most
        self._by_account: Counter[str] = Counter()
        self._by_network: Counter[str] = Counter()
        self._held: dict[UploadSlot, None] = {}

    @contextmanager
    def taken(self, account: str, network: str = "", weight: int = 1) -> Iterator[UploadSlot]:
        """Takes one slot and gives it back at the end. Raises `Refused(BUSY)` if none is free.

        Then the upload with the least weight, if it is lighter, is cut off. So a slot is free when
        the account tries again.
        """
        if (
            self._by_account[account] >= self._account_most
            or self._by_network[network] >= self._network_most
        ):
            limits = (
                f"{self._account_most} at once for one account, {self._network_most} from one "
                f"network"
            )
            raise Refused(Code.BUSY, f"upload: at most {limits}; try again later")
        if len(self._held) >= self._most:
            lightest = min(self._held, key=lambda slot: (not slot.is_cut, slot.weight))
            lightest.is_cut = lightest.is_cut or lightest.weight < weight
            raise Refused(
                Code.BUSY, f"upload: at most {self._most} at once in all; try again later"
            )
        slot = UploadSlot(account, network, weight)
        self._held[slot] = None
        self._by_account[account] += 1
        self._by_network[network] += 1
        try:
            yield slot
        finally:
            del self._held[slot]
            for counter, key in ((self._by_account, account), (self._by_network, network)):
                counter[key] -= 1
                if not counter[key]:
                    del counter[key]


@dataclass(frozen=True, slots=True)
class UploadPace:
    """The slowest speed that an upload may have. Each upload holds a thread of the store, so a
    stalled one blocks others.
    """

    pause_seconds: float = 30.0  # the longest pause without a byte
    grace_seconds: float = 60.0  # before the average speed counts
    bytes_per_second: float = 16 * 1024

    async def held(
        self,
        pieces: AsyncIterator[bytes],
        line: UploadThrottle | None = None,
        slot: UploadSlot | None = None,
    ) -> AsyncIterator[bytes]:
        """Yields the same pieces. Raises `Refused(TOO_LATE)` if they come too slowly; waits ordered
        by `line` do not count.
        """
        begun, total = time.monotonic(), 0
        while True:
            try:
                async with asyncio.timeout(self.pause_seconds):
                    piece = await anext(pieces, b"")
            except TimeoutError as error:
                raise Refused(
                    Code.TOO_LATE, f"upload: no data came for {self.pause_seconds:g} s"
                ) from error
            if not piece:
                return
            if slot is not None and slot.is_cut:
                raise Refused(
                    Code.BUSY,
                    "upload: an account with more money here needed your slot; upload again",
                )
            total += len(piece)
            lasted = time.monotonic() - begun
            if lasted > self.grace_seconds and total < lasted * self.bytes_per_second:
                raise Refused(
                    Code.TOO_LATE,
                    f"upload: too slow; send at least {self.bytes_per_second:g} bytes a second",
                )
            if line is not None:
                waited = time.monotonic()
                await line(len(piece))
                begun += time.monotonic() - waited
            yield piece


@dataclass(frozen=True, slots=True)
class UploadGrant:
    """Permission for one upload. `is_awaited`: if the store is full, the uploader should wait and
    try again, because the fault is the store's.
    """

    store: ContentStore
    owner: Owner
    slots: UploadSlots = field(default_factory=UploadSlots)
    until: float | None = None
    bytes_max: int = UPLOAD_BYTES_MAX
    line: UploadThrottle | None = None
    is_awaited: bool = False
