"""The staging store's routes: accounts upload content under their quota; anybody who may read gets it as from a gateway."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from quorate_content.bounds import MIB
from quorate_content.cid import Cid, parse
from quorate_content.gateway import CAR_TYPE, Library, MayRead, add_gateway_routes, answers_refusals
from quorate_content.store import ContentStore, Stat
from quorate_protocol.codec import loads
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.sessions import read_bounded

ANSWER_BYTES_MAX = 64 * 1024
KEEP_SECONDS = 7 * 86_400.0
UPLOAD_SECONDS = 3_600.0
UPLOAD_BYTES_MAX = 64 << 30
UPLOADS_MAX = 48  # a quarter of the store's threads stays for readers
ACCOUNT_UPLOADS_MAX = 16

Authorize = Callable[[web.Request], Awaitable[str]]
"""The account that a request acts for, as text; raises `Refused` when it may not upload."""


def add_staging_routes(
    app: web.Application, store: ContentStore, authorize: Authorize, prefix: str = "/v1/content",
    may_read: MayRead | None = None, bytes_max: int = UPLOAD_BYTES_MAX, keep_seconds: float = KEEP_SECONDS,
    now: Callable[[], float] = time.time, pace: "Pace | None" = None, library: Library | None = None,
) -> None:  # fmt: skip
    """PUT `<prefix>` (a file; or with `?root=<cid>` and the type of a CAR, a whole DAG) and the gateway's routes below it.

    Answers {"cid", "size"}. The upload is pinned for the account for `keep_seconds` and counts against its quota. `library`: what is
    served, when that is more than the store.
    """
    places, wanted = Places(), pace or Pace()

    async def put(request: web.Request) -> web.StreamResponse:
        account = await authorize(request)
        if (request.content_length or 0) > 2 * bytes_max:
            raise Refused(Code.OVERSIZE, f"at most {bytes_max} bytes")
        root = parse(request.query.get("root", "")) if request.content_type == CAR_TYPE else None
        with places.taken(account):
            body, until = wanted.held(request.content.iter_chunked(MIB)), now() + keep_seconds
            try:
                if root is not None:
                    stat = await store.import_car(body, bytes_max, account, root, until, UPLOAD_SECONDS)
                else:
                    stat = await store.put(body, account, until, bytes_max, UPLOAD_SECONDS)
            except (aiohttp.ClientError, ConnectionError) as error:
                raise Refused(Code.MALFORMED, "the upload was cut") from error
        return web.json_response({"cid": str(stat.cid), "size": stat.size})

    app.router.add_put(prefix, answers_refusals(put))
    add_gateway_routes(app, library or store, prefix, may_read)


@dataclass(frozen=True, slots=True)
class Pace:
    """How slow an upload may be. Each holds a thread of the store, so one that stands still keeps others out."""

    pause_seconds: float = 30.0  # without a byte
    grace_seconds: float = 60.0  # before the average counts
    bytes_per_second: float = 16 * 1024

    async def held(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same pieces; `Refused(TOO_LATE)` when they come too slowly."""
        begun, total = time.monotonic(), 0
        while True:
            try:
                async with asyncio.timeout(self.pause_seconds):
                    piece = await anext(pieces, b"")
            except TimeoutError as error:
                raise Refused(Code.TOO_LATE, f"upload: nothing came for {self.pause_seconds:g} s") from error
            if not piece:
                return
            total += len(piece)
            lasted = time.monotonic() - begun
            if lasted > self.grace_seconds and total < lasted * self.bytes_per_second:
                raise Refused(Code.TOO_LATE, f"upload: at least {self.bytes_per_second:g} bytes a second are needed")
            yield piece


class Places:
    """Uploads at once: so many of one account, so many in all, fewer than the store has threads."""

    def __init__(self) -> None:
        self._by_account: Counter[str] = Counter()

    @contextmanager
    def taken(self, account: str) -> Iterator[None]:
        """One place, given back at the end. `Refused(BUSY)` when there is none."""
        if self._by_account[account] >= ACCOUNT_UPLOADS_MAX or self._by_account.total() >= UPLOADS_MAX:
            raise Refused(Code.BUSY, f"upload: at most {ACCOUNT_UPLOADS_MAX} at once for one account, {UPLOADS_MAX} in all; come again")
        self._by_account[account] += 1
        try:
            yield
        finally:
            self._by_account[account] -= 1
            if not self._by_account[account]:
                del self._by_account[account]


async def upload(
    session: aiohttp.ClientSession, url: str, store: ContentStore, cid: Cid, headers: dict[str, str] | None = None
) -> Stat:
    """Sends stored content to a staging store at `url` (its prefix) as a CAR. The answer must name the same CID.

    `Refused` with the code the store answered; `Unavailable` when it cannot be reached.
    """
    sent = {"Content-Type": CAR_TYPE, **(headers or {})}
    try:
        async with session.put(url, params={"root": str(cid)}, data=store.export_car(cid), headers=sent, allow_redirects=False) as response:
            return await _read_answer(response, cid)
    except aiohttp.ClientError as error:
        raise Unavailable(f"{url}: {error}", retry_after=5.0) from error


async def upload_file(session: aiohttp.ClientSession, url: str, path: Path, cid: Cid, headers: dict[str, str] | None = None) -> Stat:
    """Sends one file that is not in a store, such as a sealed output of `cid`."""
    try:
        async with session.put(url, data=_pieces(path), headers=headers, allow_redirects=False) as response:
            return await _read_answer(response, cid)
    except aiohttp.ClientError as error:
        raise Unavailable(f"{url}: {error}", retry_after=5.0) from error


async def _read_answer(response: aiohttp.ClientResponse, cid: Cid) -> Stat:
    if response.status in (429, 502, 503, 504):
        raise Unavailable(f"status {response.status}", retry_after=5.0)
    if response.content_type != "application/json":
        raise Unavailable(f"status {response.status} and {response.content_type}", retry_after=5.0)
    try:
        answer = loads(await read_bounded(response, ANSWER_BYTES_MAX))
        if not isinstance(answer, dict):
            raise ValueError("no object")
    except ValueError as error:
        raise Unavailable(f"status {response.status} without JSON", retry_after=5.0) from error
    if response.status != 200:
        code = answer.get("code", "")
        raise Refused(Code(code) if code in set(Code) else Code.MALFORMED, str(answer.get("detail", ""))[:500])
    if answer.get("cid") != str(cid):
        raise Unavailable(f"the staging store answered {str(answer.get('cid'))[:100]} for {cid}", retry_after=60.0)
    size = answer.get("size")
    if type(size) is not int or size < 0:
        raise Unavailable(f"the staging store answered no size for {cid}", retry_after=60.0)
    return Stat(cid, size)


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while piece := await asyncio.to_thread(file.read, MIB):
            yield piece
