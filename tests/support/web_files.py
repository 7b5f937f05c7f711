"""Servers of files that know nothing of content addressing: plain ones, a hub, an object store."""

import base64
import functools
import hashlib
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import quote

from aiohttp import web

PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Sparse:
    """A file of any size that nobody holds: zeros, with its number at the start of each MiB."""

    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> bytes:
        at, stop, _ = part.indices(self.size)
        first, numbers = at // PIECE, range(at // PIECE, -(-stop // PIECE))
        whole = b"".join(number.to_bytes(8, "big") + bytes(PIECE - 8) for number in numbers)
        return whole[at - first * PIECE : stop - first * PIECE]


def sha256_of(data: bytes | Sparse) -> str:
    return _of_sparse(data) if isinstance(data, Sparse) else hashlib.sha256(data).hexdigest()


@functools.cache
def _of_sparse(data: Sparse) -> str:
    digest = hashlib.sha256()
    for at in range(0, data.size, PIECE):
        digest.update(data[at : at + PIECE])
    return digest.hexdigest()


@dataclass(slots=True)
class WebFiles:
    """Files by path. `busy`: answers 429 so often first. `cut`: where the next answers
    end. `moved`: redirects. `locked`: answers 401.
    """

    files: dict[str, bytes | Sparse] = field(default_factory=dict)
    busy: Counter[str] = field(default_factory=Counter)
    cut: dict[str, list[int]] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    locked: set[str] = field(default_factory=set)
    asked: list[tuple[str, str]] = field(default_factory=list)  # (path, range)
    headers: list[dict[str, str]] = field(default_factory=list)
    sent: int = 0
    etag: str = ""

    def app(self) -> web.Application:
        made = web.Application()
        self.add_to(made)
        return made

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/{path:.*}", self.answer, allow_head=True)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path, wanted = request.path, request.headers.get("Range", "")
        self.asked.append((path, wanted))
        self.headers.append(dict(request.headers))
        if self.busy[path] > 0:
            self.busy[path] -= 1
            return web.Response(status=429, headers={"Retry-After": "1"})
        if path in self.locked:
            return web.Response(status=401)
        if path in self.moved:
            return web.Response(status=302, headers={"Location": self.moved[path]})
        if path not in self.files:
            return web.Response(status=404)
        data = self.files[path]
        at = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        answer = web.StreamResponse(status=206 if wanted else 200)
        if wanted:
            answer.headers["Content-Range"] = f"bytes {at}-{len(data) - 1}/{len(data)}"
        if self.etag:
            answer.headers["ETag"] = self.etag
        answer.content_length = len(data) - at
        await answer.prepare(request)
        if request.method == "HEAD":
            return answer
        stops = self.cut[path].pop(0) if self.cut.get(path) else len(data)
        for start in range(at, stops, PIECE):
            await answer.write(piece := data[start : min(start + PIECE, stops)])
            self.sent += len(piece)
        if stops < len(data):
            raise ConnectionResetError("it is cut")
        await answer.write_eof()
        return answer


LARGE_BYTES = 64  # from here on the hub keeps a file in LFS


@dataclass(slots=True)
class Hub:
    """A hub of models: its API, its files, and large files elsewhere behind a redirect. `behind`
    replaces what a file is, behind the back of its revision.
    """

    repos: dict[str, dict[str, bytes | Sparse]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    behind: dict[str, bytes] = field(default_factory=dict)
    revision: str = "main"
    files: WebFiles = field(default_factory=WebFiles)

    def commit(self, repo: str) -> str:
        return hashlib.sha1(repr(sorted(self.repos[repo].items())).encode()).hexdigest()

    def app(self) -> web.Application:
        made = web.Application()
        made.router.add_get("/api/models/{repo:.*}/revision/{revision}", self.listed)
        made.router.add_get("/api/datasets/{repo:.*}/revision/{revision}", self.listed)
        self.files.add_to(made)
        return made

    async def listed(self, request: web.Request) -> web.Response:
        repo = request.match_info["repo"]
        if repo not in self.repos:
            return web.json_response({"error": "Repository not found"}, status=401)
        commit = self.commit(repo)
        if request.match_info["revision"] not in (self.revision, commit):
            return web.json_response({"error": "Invalid rev id"}, status=404)
        kind = "/datasets/" if "/datasets/" in request.path else "/"
        rows = []
        for path, data in self.repos[repo].items():
            digest, place = sha256_of(data), f"{kind}{repo}/resolve/{commit}/{path}"
            row: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": digest[:40]}
            sent = self.behind.get(path, data)
            if len(data) >= LARGE_BYTES:
                row["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
                self.files.moved[place] = f"/cdn/{digest}?signature=1"
                self.files.files[f"/cdn/{digest}"] = sent
            else:
                self.files.files[place] = sent
            rows.append(row)
        gated = "manual" if repo in self.gated else False
        return web.json_response({"id": repo, "sha": commit, "gated": gated, "siblings": rows})


@dataclass(slots=True)
class ObjectStore:
    """A bucket `data` of an S3-compatible store, listed in pages. Keys in `summed` have a checksum,
    and `parts` have that of their parts.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    summed: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    page: int = 1000
    pages: int = 0
    prolog: str = '<?xml version="1.0" encoding="UTF-8"?>'
    files: WebFiles = field(default_factory=WebFiles)

    def app(self) -> web.Application:
        made = web.Application()
        made.router.add_get("/data", self.listed)
        made.router.add_get("/data/{key:.*}", self.object, allow_head=True)
        return made

    async def listed(self, request: web.Request) -> web.Response:
        self.pages += 1
        query = request.query
        assert query["list-type"] == "2" and query["encoding-type"] == "url"
        start = query.get("continuation-token", "")
        keys = [key for key in sorted(self.objects) if key.startswith(query["prefix"])]
        rest = [key for key in keys if key > start]
        shown = rest[: self.page]
        rows = "".join(f"<Contents><Key>{quote(key)}</Key></Contents>" for key in shown)
        more = len(rest) > len(shown)
        token = f"<NextContinuationToken>{shown[-1]}</NextContinuationToken>" if more else ""
        name = "http://s3.amazonaws.com/doc/2006-03-01/"
        text = (
            f'{self.prolog}<ListBucketResult xmlns="{name}"><EncodingType>url</EncodingType>'
            f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{rows}{token}"
            "</ListBucketResult>"
        )
        return web.Response(text=text, content_type="application/xml")

    async def object(self, request: web.Request) -> web.StreamResponse:
        key = request.match_info["key"]
        if key not in self.objects:
            return web.Response(status=404)
        data = self.objects[key]
        if request.method == "HEAD":
            digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
            headers = {
                "ETag": f'"{hashlib.md5(data).hexdigest()}"',
                "Content-Length": str(len(data)),
            }
            if key in self.summed | self.parts:
                assert request.headers["x-amz-checksum-mode"] == "ENABLED"
                headers["x-amz-checksum-sha256"] = digest
                headers["x-amz-checksum-type"] = "COMPOSITE" if key in self.parts else "FULL_OBJECT"
            return web.Response(headers=headers)
        self.files.files[request.path] = data
        return await self.files.answer(request)
