"""Serves the store as a trustless gateway: raw blocks, CARs or plain files. It never fetches;
absent content is 404.

Source: https://specs.ipfs.tech/http-gateways/trustless-gateway/ (raw, car with order=dfs and
dups=y, dag-scope, entity-bytes=from:*, HEAD, only-if-cached). `?format=` takes precedence over
Accept. `from-entry=a/b` is our own: a CAR without the entries of the directory before that one. It
serves the CIDs that were stored, each block below them as raw, each file, directory and part of a
sharded directory inside them like a stored one, and identity CIDs from themselves.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from quorate_content.dag.car import frame_head, header
from quorate_content.dag.cid import Cid, Codec, parse
from quorate_content.dag.walk import TreePath
from quorate_content.store.block_index import BlockPlace
from quorate_content.store.content_store import ContentStore
from quorate_content.store.lease import Lease
from quorate_protocol.refusals import MEANINGS, Code, Refused, Unavailable
from quorate_runtime.http.client_networks import network_of

RAW_TYPE = "application/vnd.ipld.raw"
CAR_TYPE = "application/vnd.ipld.car"
CAR_ANSWER_TYPE = f"{CAR_TYPE}; version=1; order=dfs; dups=y"
RESPONSES_MAX = 64
NETWORK_RESPONSES_MAX = 48
CACHED_SECONDS = 29_030_400
IMMUTABLE = {
    "Cache-Control": f"public, max-age={CACHED_SECONDS}, immutable",
    "X-Content-Type-Options": "nosniff",
}
# A proxy must not keep what only some readers may have.
IMMUTABLE_PRIVATE = {
    **IMMUTABLE,
    "Cache-Control": f"private, max-age={CACHED_SECONDS}, immutable",
    "Vary": "Authorization",
}
ENTITY_BYTES = re.compile(r"([0-9]{1,18}):\*")

MayRead = Callable[[web.Request, Cid], Awaitable[bool]]
"""Returns whether the requester may read a stored root. False answers 404, as if it were absent. A
block inside an object may be read with any root that has it and that the requester may read.
"""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class CombinedStores:
    """Several stores read as one, and single blocks that are in none of them."""

    stores: tuple[ContentStore, ...]
    block: Callable[[Cid], Awaitable[bytes | None]] | None = None

    async def find(
        self, cid: Cid, reads: bool = False
    ) -> tuple[ContentStore | bytes | None, list[tuple[ContentStore, BlockPlace]]]:
        """Returns the store that has the CID, or the block itself, and where it is inside of stored
        objects. `reads`: a block inside of one is returned itself. If blocks cannot be read, the
        stores are still searched.
        """
        trouble: Unavailable | None = None
        try:
            block = await self.block(cid) if self.block is not None else None
        except Unavailable as error:
            block, trouble = None, error  # raised below unless a store has it
        found: ContentStore | bytes | None = block
        places: list[tuple[ContentStore, BlockPlace]] = []
        for store in self.stores:
            located = await store.locate(cid, reads)
            if found is None:
                found = store if located.is_stored else located.block
            places += [(store, place) for place in located.places]
        if trouble is not None and found is None and not places:
            raise trouble
        return found, places


def add_gateway_routes(
    app: web.Application,
    store: ContentStore | CombinedStores,
    prefix: str = "/ipfs",
    may_read: MayRead | None = None,
) -> None:
    """Adds GET and HEAD `<prefix>/<cid>` with `format=raw|car`; the default is the plain bytes of a
    file.
    """
    library = store if isinstance(store, CombinedStores) else CombinedStores((store,))
    gateway = Gateway(library, may_read)
    app.router.add_get(prefix + "/{cid}", gateway.get, allow_head=True)


def refusal_response(error: Refused | Unavailable) -> web.Response:
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
    async def run(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except (Refused, Unavailable) as error:
            return refusal_response(error)

    return run


@dataclass(frozen=True, slots=True)
class Query:
    """What a request asks for. `form` is "raw", "car" or "" (plain)."""

    cid: Cid
    form: str
    from_byte: int
    only_root: bool
    from_entry: TreePath


def read_query(request: web.Request) -> Query:
    """Returns the request's CID, format and range. Raises `Refused(MALFORMED)`."""
    form = request.query.get("format", "")
    if not form:
        accept = request.headers.get("Accept", "")
        form = "raw" if RAW_TYPE in accept else "car" if CAR_TYPE in accept else ""
        if form == "car" and re.search(r"version=(?!1\b)", accept):
            raise Refused(Code.MALFORMED, "only CAR version 1 is served")
    if form not in ("", "raw", "car") or request.query.get("car-version", "1") != "1":
        raise Refused(Code.MALFORMED, "format must be raw or car (version 1)")
    scope = request.query.get("dag-scope", "all")
    if scope not in ("all", "entity", "block"):
        raise Refused(Code.MALFORMED, "dag-scope must be all, entity or block")
    found = ENTITY_BYTES.fullmatch(request.query.get("entity-bytes", "0:*"))
    if found is None:
        raise Refused(Code.MALFORMED, "entity-bytes is supported as from:* only")
    name = request.query.get("from-entry", "").encode(errors="replace")
    entry = tuple(name.split(b"/")) if name else ()
    return Query(parse(request.match_info["cid"]), form, int(found[1]), scope == "block", entry)


@dataclass(frozen=True, slots=True)
class _Inner:
    """A block inside an object of a store."""

    store: ContentStore
    place: BlockPlace


class Gateway:
    """Request handlers over one store, with at most `RESPONSES_MAX` bodies at once."""

    def __init__(self, library: CombinedStores, may_read: MayRead | None) -> None:
        self._library, self._given_rule = library, may_read
        self._bodies: Counter[str] = Counter()  # being sent, by network

    async def get(self, request: web.Request) -> web.StreamResponse:
        return await answers_refusals(self._get)(request)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        query = read_query(request)
        place = await self._find(request, query)
        if place is None:
            if "only-if-cached" in request.headers.get("Cache-Control", ""):
                return web.Response(status=412)
            raise Refused(Code.UNKNOWN, self._absent(request, query.cid))
        tag = f'"{query.cid}{"." + query.form if query.form else ""}"'
        if request.headers.get("If-None-Match") == tag and not (
            query.from_byte or query.from_entry
        ):
            return web.Response(status=304, headers={"ETag": tag})
        with self._slot(network_of(request.remote)):
            common = IMMUTABLE if self._given_rule is None else IMMUTABLE_PRIVATE
            headers = {**common, "ETag": tag, "X-Ipfs-Path": f"/ipfs/{query.cid}"}
            if isinstance(place, bytes):
                return _block_answer(query, place, headers)
            if isinstance(place, _Inner):
                return await self._inner_answer(request, place, query, headers)
            return await self._answer(request, place, query, headers)

    def _absent(self, request: web.Request, cid: Cid) -> str:
        """The same text for absent content and for content that the requester may not read."""
        if self._given_rule is None:
            return f"{cid} is not here"
        if "Authorization" in request.headers:
            return f"{cid} is not here, or this account may not read it"
        return (
            f"{cid} is not here, or it is private: send `authorization` with the token of an "
            "account that may read it"
        )

    async def _may_read(self, request: web.Request, cid: Cid) -> bool:
        return self._given_rule is None or await self._given_rule(request, cid)

    async def _find(
        self, request: web.Request, query: Query
    ) -> "ContentStore | bytes | _Inner | None":
        """Returns what has the block, if the requester may read it."""
        cid, reads = query.cid, query.form == "raw" and self._given_rule is None
        if cid.inline is not None:
            return cid.inline
        # The rule is asked for absent content too, so that a bad token gets one answer for both.
        is_allowed = await self._may_read(request, cid)
        found, places = await self._library.find(cid, reads)
        if found is not None and is_allowed:
            return found
        for store, place in places:
            if await self._may_read(request, place.root):
                return _Inner(store, place)
        return None

    async def _inner_answer(
        self, request: web.Request, inner: "_Inner", query: Query, headers: dict[str, str]
    ) -> web.StreamResponse:
        if query.form == "car" and inner.place.may_be_root:
            return await self._car(request, inner.store, query, headers, inner.place)
        if query.form != "raw" and query.cid.codec == Codec.DAG_PB:
            raise Refused(Code.UNSUPPORTED, "a block inside stored content is served as raw only")
        return _block_answer(query, await inner.store.inner_block(query.cid, inner.place), headers)

    @contextmanager
    def _slot(self, network: str) -> Iterator[None]:
        """Takes one slot for a response body. The total is bounded, and one network may take three
        quarters of it.
        """
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
        self,
        request: web.Request,
        store: ContentStore,
        query: Query,
        headers: dict[str, str],
        place: BlockPlace | None = None,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**headers, **_car_headers(query)})
        await response.prepare(request)
        if request.method != "HEAD":
            try:
                async for piece in store.export_car(
                    query.cid, query.from_byte, query.only_root, place, query.from_entry
                ):
                    await response.write(piece)
            except (Refused, Unavailable) as error:
                # Half of the answer is sent, so only a broken connection can report the error.
                raise ConnectionResetError(f"{query.cid} was removed while it was sent") from error
            except ConnectionResetError:
                return response
        with suppress(ConnectionResetError):  # a reader with every block does not wait for the end
            await response.write_eof()
        return response


def _raw_answer(query: Query, block: bytes, headers: dict[str, str]) -> web.Response:
    name = {"Content-Disposition": f'attachment; filename="{query.cid}.bin"'}
    return web.Response(body=block, content_type=RAW_TYPE, headers={**headers, **name})


def _car_headers(query: Query) -> dict[str, str]:
    name = f'attachment; filename="{query.cid}.car"'
    return {"Content-Disposition": name, "Accept-Ranges": "none", "Content-Type": CAR_ANSWER_TYPE}


def _block_answer(query: Query, block: bytes, headers: dict[str, str]) -> web.Response:
    """Answers with one raw block that is a whole object: as raw, as a plain file, or as a CAR of
    one block.
    """
    if query.form == "raw":
        return _raw_answer(query, block, headers)
    if query.form == "car":
        car = header(query.cid) + frame_head(query.cid, len(block)) + block
        return web.Response(body=car, headers={**headers, **_car_headers(query)})
    return web.Response(body=block, headers={**headers, "Content-Type": "application/octet-stream"})


class LeasedFile(web.FileResponse):
    """Sends a file under its lease. aiohttp handles ranges and sendfile."""

    def __init__(self, lease: Lease, headers: dict[str, str]) -> None:
        super().__init__(
            lease.path,
            chunk_size=1 << 20,
            headers={**headers, "Content-Type": "application/octet-stream"},
        )
        self._lease = lease

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        try:
            return await super().prepare(request)
        finally:
            self._lease.release()
