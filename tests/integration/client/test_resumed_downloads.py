"""A download whose connection is cut goes on where it was."""

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from quorate.base.errors import EvidenceError, UnavailableError
from quorate.client.base import coordinator_api
from quorate.client.base.coordinator_api import Api
from support.http_server import on_loopback

MIB = 1 << 20
CONTENT = bytes(range(256)) * (4 * MIB // 256)


class Cutting:
    """Sends at most `piece` bytes on each connection."""

    def __init__(self, piece: int, knows_ranges: bool = True) -> None:
        self.piece, self.knows_ranges = piece, knows_ranges
        self.asked: list[int] = []

    async def serve(self, request: web.Request) -> web.StreamResponse:
        start = request.http_range.start or 0
        self.asked.append(start)
        start = start if self.knows_ranges else 0
        answer = web.StreamResponse(status=206 if start else 200)
        answer.content_length = len(CONTENT) - start
        await answer.prepare(request)
        await answer.write(CONTENT[start : start + self.piece])
        if start + self.piece < len(CONTENT):
            assert request.transport is not None
            request.transport.abort()
        return answer


async def download(server: Cutting, target: Path, most: int = 1 << 30) -> None:
    app = web.Application()
    app.router.add_get("/{path:.*}", server.serve)
    async with on_loopback(app) as url, aiohttp.ClientSession() as session:
        api = Api(url, session, lambda: "", lambda text: None)
        await api.get_content("bafy", target, most, lambda done: None)


async def test_it_goes_on_where_it_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_api, "RETRY_SECONDS", 0.01)
    server = Cutting(MIB + MIB // 2)
    await download(server, tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == CONTENT
    assert server.asked[0] == 0 and sorted(server.asked) == server.asked and len(server.asked) > 2


async def test_it_ends_where_no_more_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_api, "RETRY_SECONDS", 0.01)
    server = Cutting(MIB // 4, knows_ranges=False)
    with pytest.raises(UnavailableError):
        await download(server, tmp_path / "got")
    assert len(server.asked) == coordinator_api.TRIES
    with pytest.raises(EvidenceError, match="larger than"):
        await download(Cutting(1 << 30), tmp_path / "large", most=MIB)
