"""Servers of files that know nothing of content addressing: plain ones, a hub, an object store."""

from collections import Counter
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(slots=True)
class WebFiles:
    """Files by path. `busy`: answers 429 so often first. `cut`: breaks off after so many bytes,
    once. `moved`: redirects. `locked`: answers 401.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    busy: Counter[str] = field(default_factory=Counter)
    cut: dict[str, int] = field(default_factory=dict)
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
        stops = self.cut.pop(path, len(data))
        await answer.write(data[at:stops])
        self.sent += len(data[at:stops])
        if stops < len(data):
            raise ConnectionResetError("it is cut")
        await answer.write_eof()
        return answer
