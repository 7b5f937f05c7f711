"""HTTP routes and client of the staging store: accounts upload under their quota, and permitted
readers download.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from quorate_content.dag.cid import Cid, parse
from quorate_content.dag.content_limits import MIB, StoreFull
from quorate_content.store.content_store import ContentStore
from quorate_content.store.index import Owner
from quorate_content.store.lease import Stat
from quorate_content.transfer.gateway import (
    CAR_TYPE,
    CombinedStores,
    MayRead,
    add_gateway_routes,
    answers_refusals,
)
from quorate_content.transfer.upload_limits import (
    KEEP_SECONDS,
    UPLOAD_BYTES_MAX,
    UploadGrant,
    UploadPace,
    UploadSlots,
)
from quorate_protocol.codec.canonical import loads
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_runtime.http.client_networks import network_of
from quorate_runtime.http.client_sessions import read_bounded

ANSWER_BYTES_MAX = 64 * 1024
UPLOAD_SECONDS = 3_600.0
CONNECT_SECONDS = 10.0
FULL_RETRY_SECONDS = 5.0

Authorize = Callable[[web.Request], Awaitable[str | UploadGrant]]
"""Returns what a request may upload, or only the account that it acts for. Raises `Refused` if it
may not upload.
"""


def add_staging_routes(
    app: web.Application,
    store: ContentStore,
    authorize: Authorize,
    prefix: str = "/v1/content",
    may_read: MayRead | None = None,
    bytes_max: int = UPLOAD_BYTES_MAX,
    keep_seconds: float = KEEP_SECONDS,
    now: Callable[[], float] = time.time,
    pace: UploadPace | None = None,
    library: CombinedStores | None = None,
) -> None:
    """Adds PUT `<prefix>` and the gateway's routes below it. An upload is a file, or a DAG as a CAR
    with `?root=<cid>`.

    The answer is {"cid", "size"}. The grant says how long the upload is pinned and whose quota it
    uses. An account without a grant uses `store` and its quota there, for `keep_seconds`.
    `library`: what is served, if that is more than the store.
    """
    uploads = _Uploads(
        store=store,
        authorize=authorize,
        slots=UploadSlots(),
        pace=pace or UploadPace(),
        bytes_max=bytes_max,
        keep_seconds=keep_seconds,
        now=now,
    )
    app.router.add_put(prefix, answers_refusals(uploads.put))
    add_gateway_routes(app, library or store, prefix, may_read)


@dataclass(frozen=True, slots=True)
class _Uploads:
    store: ContentStore
    authorize: Authorize
    slots: UploadSlots
    pace: UploadPace
    bytes_max: int
    keep_seconds: float
    now: Callable[[], float]

    async def put(self, request: web.Request) -> web.StreamResponse:
        found = await self.authorize(request)
        grant = (
            found
            if isinstance(found, UploadGrant)
            else UploadGrant(self.store, Owner(found), self.slots)
        )
        bytes_max = min(self.bytes_max, grant.bytes_max)
        if (request.content_length or 0) > 2 * bytes_max:
            raise Refused(
                Code.OVERSIZE,
                f"upload: at most {bytes_max} bytes are allowed; {grant.owner.remedy}",
            )
        quota = grant.owner.quota_bytes
        if quota is not None and (request.content_length or 0) > 2 * quota:
            raise Refused(
                Code.QUOTA,
                (
                    f"upload: {request.content_length} bytes exceed the quota of {quota}; "
                    f"{grant.owner.remedy}"
                ),
            )
        root = parse(request.query.get("root", "")) if request.content_type == CAR_TYPE else None
        with grant.slots.taken(
            grant.owner.name, network_of(request.remote), grant.owner.weight
        ) as slot:
            body = self.pace.held(request.content.iter_chunked(MIB), grant.line, slot)
            until = self.now() + self.keep_seconds if grant.until is None else grant.until
            try:
                if root is not None:
                    stat = await grant.store.import_car(
                        body, bytes_max, grant.owner, root, until, UPLOAD_SECONDS
                    )
                else:
                    stat = await grant.store.put(
                        body, grant.owner, until, bytes_max, UPLOAD_SECONDS
                    )
            except (aiohttp.ClientError, ConnectionError) as error:
                raise Refused(Code.MALFORMED, "the upload was cut off; send it again") from error
            except StoreFull as error:
                if not grant.is_awaited:
                    raise
                raise Unavailable(
                    f"upload: {error.detail}", retry_after=FULL_RETRY_SECONDS
                ) from error
        return web.json_response({"cid": str(stat.cid), "size": stat.size})


async def upload(
    session: aiohttp.ClientSession,
    url: str,
    store: ContentStore,
    cid: Cid,
    headers: dict[str, str] | None = None,
) -> Stat:
    """Sends stored content as a CAR to a staging store at `url` (its prefix). The answer must name
    the same CID.

    Raises `Refused` with the store's code, or `Unavailable` if the store cannot be reached.
    """
    sent = {"Content-Type": CAR_TYPE, **(headers or {})}
    try:
        async with session.put(
            url,
            params={"root": str(cid)},
            data=store.export_car(cid),
            headers=sent,
            allow_redirects=False,
        ) as response:
            return await _read_answer(response, cid)
    except aiohttp.ClientError as error:
        raise Unavailable(f"{url}: {error}", retry_after=5.0) from error


async def upload_file(
    session: aiohttp.ClientSession,
    url: str,
    path: Path,
    cid: Cid,
    headers: dict[str, str] | None = None,
) -> Stat:
    try:
        async with session.put(
            url,
            data=_pieces(path),
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=UPLOAD_SECONDS, sock_connect=CONNECT_SECONDS),
        ) as response:
            return await _read_answer(response, cid)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Unavailable(f"{url}: {error}", retry_after=5.0) from error


async def _read_answer(response: aiohttp.ClientResponse, cid: Cid) -> Stat:
    if response.status in (429, 502, 503, 504):
        raise Unavailable(f"status {response.status}", retry_after=5.0)
    if response.content_type != "application/json":
        raise Unavailable(
            f"status {response.status} with type {response.content_type}", retry_after=5.0
        )
    try:
        answer = loads(await read_bounded(response, ANSWER_BYTES_MAX))
        if not isinstance(answer, dict):
            raise ValueError("the answer is not a JSON object")
    except ValueError as error:
        raise Unavailable(
            f"status {response.status} without a JSON object", retry_after=5.0
        ) from error
    if response.status != 200:
        code = answer.get("code", "")
        raise Refused(
            Code(code) if code in set(Code) else Code.MALFORMED, str(answer.get("detail", ""))[:500]
        )
    if answer.get("cid") != str(cid):
        raise Unavailable(
            f"the staging store answered CID {str(answer.get('cid'))[:100]} instead of {cid}",
            retry_after=60.0,
        )
    size = answer.get("size")
    if type(size) is not int or size < 0:
        raise Unavailable(f"the staging store answered without a size for {cid}", retry_after=60.0)
    return Stat(cid, size)


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while piece := await asyncio.to_thread(file.read, MIB):
            yield piece
