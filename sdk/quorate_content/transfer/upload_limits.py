"""What an account may upload, and how uploads share places and lines: nobody's slow or many
uploads keep others out.
"""

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
UPLOADS_MAX = 48  # a quarter of the store's threads stays for readers
ACCOUNT_UPLOADS_MAX = 16

Line = Callable[[int], Awaitable[None]]
"""Called with the size of each piece that came; waits as long as whoever sends has to wait."""


@dataclass(slots=True, eq=False)
class Place:
    """One upload under way."""

    account: str
    network: str
    weight: int
    is_cut: bool = False


class Places:
    """Uploads at once: so many of one account and of one network, so many in all, fewer than the
    store has threads.
    """

    def __init__(
        self,
        most: int = UPLOADS_MAX,
        account_most: int = ACCOUNT_UPLOADS_MAX,
        network_most: int | None = None,
    ) -> None:
        self._most, self._account_most, self._network_most = (
            most,
            account_most,
            most if network_most is None else network_most,
        )
        self._by_account: Counter[str] = Counter()
        self._by_network: Counter[str] = Counter()
        self._held: dict[Place, None] = {}

    @contextmanager
    def taken(self, account: str, network: str = "", weight: int = 1) -> Iterator[Place]:
        """One place, given back at the end. `Refused(BUSY)` when there is none; the lightest of
        those who are lighter is then cut, so that there is one when the account comes again.
        """
        if (
            self._by_account[account] >= self._account_most
            or self._by_network[network] >= self._network_most
        ):
            mosts = (
                f"{self._account_most} at once for one account, {self._network_most} from one "
                f"network"
            )
            raise Refused(Code.BUSY, f"upload: at most {mosts}; come again")
        if len(self._held) >= self._most:
            lightest = min(self._held, key=lambda place: (not place.is_cut, place.weight))
            lightest.is_cut = lightest.is_cut or lightest.weight < weight
            raise Refused(Code.BUSY, f"upload: at most {self._most} at once in all; come again")
        place = Place(account, network, weight)
        self._held[place] = None
        self._by_account[account] += 1
        self._by_network[network] += 1
        try:
            yield place
        finally:
            del self._held[place]
            for counter, key in ((self._by_account, account), (self._by_network, network)):
                counter[key] -= 1
                if not counter[key]:
                    del counter[key]


@dataclass(frozen=True, slots=True)
class Pace:
    """How slow an upload may be. Each holds a thread of the store, so one that stands still
    keeps others out.
    """

    pause_seconds: float = 30.0  # without a byte
    grace_seconds: float = 60.0  # before the average counts
    bytes_per_second: float = 16 * 1024

    async def held(
        self, pieces: AsyncIterator[bytes], line: Line | None = None, place: Place | None = None
    ) -> AsyncIterator[bytes]:
        """The same pieces; `Refused(TOO_LATE)` when they come too slowly. Waiting that `line`
        asked for does not count.
        """
        begun, total = time.monotonic(), 0
        while True:
            try:
                async with asyncio.timeout(self.pause_seconds):
                    piece = await anext(pieces, b"")
            except TimeoutError as error:
                raise Refused(
                    Code.TOO_LATE, f"upload: nothing came for {self.pause_seconds:g} s"
                ) from error
            if not piece:
                return
            if place is not None and place.is_cut:
                raise Refused(
                    Code.BUSY,
                    "upload: others who have more money here needed its place; come again",
                )
            total += len(piece)
            lasted = time.monotonic() - begun
            if lasted > self.grace_seconds and total < lasted * self.bytes_per_second:
                raise Refused(
                    Code.TOO_LATE,
                    f"upload: at least {self.bytes_per_second:g} bytes a second are needed",
                )
            if line is not None:
                waited = time.monotonic()
                await line(len(piece))
                begun += time.monotonic() - waited
            yield piece


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to upload once. `is_awaited`: a full store is the store's matter and not the
    uploader's, who tries again.
    """

    store: ContentStore
    owner: Owner
    places: Places = field(default_factory=Places)
    until: float | None = None
    bytes_max: int = UPLOAD_BYTES_MAX
    line: Line | None = None
    is_awaited: bool = False
