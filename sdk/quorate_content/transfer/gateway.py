"""The store as a trustless gateway: what is here, as raw block, CAR or plain file bytes. It
never fetches; absent is 404.

Source: https://specs.ipfs.tech/http-gateways/trustless-gateway/ (raw, car with order=dfs and
dups=y, dag-scope, entity-bytes=from:*, HEAD, only-if-cached). `?format=` wins over Accept.
Blocks are served under the CIDs that were stored, not under those of inner blocks.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from quorate_content.dag.car import frame_head, header
from quorate_content.dag.cid import Cid, parse
from quorate_content.store.content_store import ContentStore, Lease
from quorate_protocol.refusals import MEANINGS, Code, Refused, Unavailable
from quorate_runtime.http.client_networks import network_of

RAW_TYPE = "application/vnd.ipld.raw"
CAR_TYPE = "application/vnd.ipld.car"
CAR_ANSWER_TYPE = f"{CAR_TYPE}; version=1; order=dfs; dups=y"
RESPONSES_MAX = 64
NETWORK_RESPONSES_MAX = 48
IMMUTABLE = {
    "Cache-Control": "public, max-age=29030400, immutable",
    "X-Content-Type-Options": "nosniff",
}
ENTITY_BYTES = re.compile(r"([0-9]{1,18}):\*")

MayRead = Callable[[web.Request, Cid], Awaitable[bool]]
"""Whether whoever asks may read this CID; False answers 404, as if it were absent."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Library:
    """Several stores read as one, and single blocks that lie in none of them."""

    stores: tuple[ContentStore, ...]
    block: Callable[[Cid], Awaitable[bytes | None]] | None = None

    async def find(self, cid: Cid) -> ContentStore | bytes | None:
        """The store that has it, or the block itself. Where blocks cannot be read, what lies in
        a store is found all the same.
        """
        trouble: Unavailable | None = None
        try:
            block = await self.block(cid) if self.block is not None else None
        except Unavailable as error:
            block, trouble = None, error  # not re-raised: below, unless a store has it
        if block is not None:
            return block
        for store in self.stores:
            if await store.stat(cid) is not None:
                return store
        if trouble is not None:
            raise trouble
        return None


def add_gateway_routes(
    app: web.Application,
    store: ContentStore | Library,
    prefix: str = "/ipfs",
    may_read: MayRead | None = None,
) -> None:
    """GET and HEAD `<prefix>/<cid>`; `format=raw|car`, else plain bytes of a file."""
    library = store if isinstance(store, Library) else Library((store,))
    gateway = Gateway(library, may_read or _everybody)
    app.router.add_get(prefix + "/{cid}", gateway.get, allow_head=True)


async def _everybody(request: web.Request, cid: Cid) -> bool:
    return True


def refusal_response(error: Refused | Unavailable) -> web.Response:
    """How both errors look over HTTP: {"code", "sentence", "detail"}."""
    if isinstance(error, Refused):
        wait = {"Retry-After": "2"} if error.code is Code.BUSY else None
        tree = {
            "code": error.code.value,
            "sentence": MEANINGS[error.code].sentence,
            "detail": error.detail,
        }
        return web.json_response(tree, status=MEANINGS[error.code].status, headers=wait)
    headers = {"Retry-After": str(max(1, round(error.retry_after)))}
    tree = {"code": "unavailable", "sentence": "Try again later.", "detail": str(error)}
    return web.json_response(tree, status=503, headers=headers)


def answers_refusals(handler: Handler) -> Handler:
    """A handler whose refusals become responses."""

    async def run(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except (Refused, Unavailable) as error:  # not re-raised: this is the answer
            return refusal_response(error)

    return run


@dataclass(frozen=True, slots=True)
class Query:
    """What was asked for. `form` is "raw", "car" or "" (plain)."""

    cid: Cid
    form: str
    from_byte: int
    only_root: bool


def read_query(request: web.Request) -> Query:
    """The request's CID, format and range; `Refused(MALFORMED)`."""
    form = request.query.get("format", "")
    if not form:
        accept = request.headers.get("Accept", "")
        form = "raw" if RAW_TYPE in accept else "car" if CAR_TYPE in accept else ""
        if form == "car" and re.search(r"version=(?!1\b)", accept):
            raise Refused(Code.MALFORMED, "only CAR version 1 is served")
    if form not in ("", "raw", "car") or request.query.get("car-version", "1") != "1":
        raise Refused(Code.MALFORMED, "format is raw or car (version 1)")
    scope = request.query.get("dag-scope", "all")
    if scope not in ("all", "entity", "block"):
        raise Refused(Code.MALFORMED, "dag-scope is all, entity or block")
    found = ENTITY_BYTES.fullmatch(request.query.get("entity-bytes", "0:*"))
    if found is None:
        raise Refused(Code.MALFORMED, "entity-bytes is served as from:* only")
    return Query(parse(request.match_info["cid"]), form, int(found[1]), scope == "block")


class Gateway:
    """Handlers over one store, at most `RESPONSES_MAX` bodies at once."""

    def __init__(self, library: Library, may_read: MayRead) -> None:
        self._library, self._may_read = library, may_read
        self._bodies: Counter[str] = Counter()  # being sent, by network

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Answers GET and HEAD."""
        return await answers_refusals(self._get)(request)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        query = read_query(request)
        place = (
            await self._library.find(query.cid)
            if await self._may_read(request, query.cid)
            else None
        )
        if place is None:
            if "only-if-cached" in request.headers.get("Cache-Control", ""):
                return web.Response(status=412)
            raise Refused(Code.UNKNOWN, f"{query.cid} is not here")
        tag = f'"{query.cid}{"." + query.form if query.form else ""}"'
        if request.headers.get("If-None-Match") == tag and not query.from_byte:
            return web.Response(status=304, headers={"ETag": tag})
        with self._slot(network_of(request.remote)):
            headers = {**IMMUTABLE, "ETag": tag, "X-Ipfs-Path": f"/ipfs/{query.cid}"}
            if isinstance(place, bytes):
                return _block_answer(query, place, headers)
            return await self._answer(request, place, query, headers)

    @contextmanager
    def _slot(self, network: str) -> Iterator[None]:
        """One of the bodies at once: so many in all, a quarter fewer of one network."""
        if self._bodies.total() >= RESPONSES_MAX or self._bodies[network] >= NETWORK_RESPONSES_MAX:
            raise Unavailable("too many downloads at once", retry_after=2.0)
        self._bodies[network] += 1
        try:
            yield
        finally:
            self._bodies[network] -= 1
            if not self._bodies[network]:
                del self._bodies[network]

    async def _answer(
        self, request: web.Request, store: ContentStore, query: Query, headers: dict[str, str]
    ) -> web.StreamResponse:
        if query.form == "raw":
            return _raw_answer(query, await store.block(query.cid), headers)
        if query.form == "car":
            return await self._car(request, store, query, headers)
        lease = await store.lease(query.cid)
        if lease.path.is_dir():
            lease.release()
            raise Refused(Code.UNSUPPORTED, "a directory is served as format=car only")
        return LeasedFile(lease, headers)

    async def _car(
        self, request: web.Request, store: ContentStore, query: Query, headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**headers, **_car_headers(query)})
        await response.prepare(request)
        if request.method != "HEAD":
            try:
                async for piece in store.export_car(query.cid, query.from_byte, query.only_root):
                    await response.write(piece)
            except (Refused, Unavailable) as error:
                # Half of an answer is out: only a cut connection says so.
                raise ConnectionResetError(f"{query.cid} went away while it was sent") from error
        await response.write_eof()
        return response


def _raw_answer(query: Query, block: bytes, headers: dict[str, str]) -> web.Response:
    name = {"Content-Disposition": f'attachment; filename="{query.cid}.bin"'}
    return web.Response(body=block, content_type=RAW_TYPE, headers={**headers, **name})


def _car_headers(query: Query) -> dict[str, str]:
    name = f'attachment; filename="{query.cid}.car"'
    return {"Content-Disposition": name, "Accept-Ranges": "none", "Content-Type": CAR_ANSWER_TYPE}


def _block_answer(query: Query, block: bytes, headers: dict[str, str]) -> web.Response:
    """A raw block that is all there is of its CID: as itself, as the file that it is, or as a
    CAR of one block.
    """
    if query.form == "raw":
        return _raw_answer(query, block, headers)
    if query.form == "car":
        car = header(query.cid) + frame_head(query.cid, len(block)) + block
        return web.Response(body=car, headers={**headers, **_car_headers(query)})
    return web.Response(body=block, headers={**headers, "Content-Type": "application/octet-stream"})


class LeasedFile(web.FileResponse):
    """A file sent under its lease (ranges and sendfile are aiohttp's)."""

    def __init__(self, lease: Lease, headers: dict[str, str]) -> None:
        super().__init__(
            lease.path,
            chunk_size=1 << 20,
            headers={**headers, "Content-Type": "application/octet-stream"},
        )
        self._lease = lease

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Sends the whole file and ends the lease."""
        try:
            return await super().prepare(request)
        finally:
            self._lease.release()
