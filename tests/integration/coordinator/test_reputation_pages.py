"""The routes of the public log: pages, their bounds, and a download that needs several pages."""

import io

import aiohttp
import pytest

from quorate_coordinator.api.routes import LINES_MAX
from quorate_protocol.codec import canonical
from quorate_protocol.messages import envelope
from quorate_protocol.messages.views import ReputationHead, ReputationLog
from quorate_runtime.http import log_download
from quorate_runtime.http.client_sessions import plain_session
from support.markets.logged_market import serving_log, sixty_jobs


async def page(session: aiohttp.ClientSession, url: str, query: str) -> tuple[int, bytes]:
    async with session.get(f"{url}/v1/reputation/log{query}") as response:
        return response.status, await response.read()


@pytest.mark.rule("7.20")
async def test_pages_give_every_line_once_and_in_order() -> None:
    market = sixty_jobs()
    wanted, found = [envelope.encode(line) for line in market.lines], list[bytes]()
    async with serving_log(market, market.lines) as url, plain_session() as session:
        while True:
            after = f"&after={len(found) - 1}" if found else ""
            status, body = await page(session, url, f"?limit=7{after}")
            lines = canonical.decode(ReputationLog, body).lines
            assert status == 200 and len(lines) == min(7, len(wanted) - len(found))
            found += [envelope.encode(line) for line in lines]
            if not lines:
                break
        assert found == wanted
        _, whole = await page(session, url, "")
        assert len(canonical.decode(ReputationLog, whole).lines) == min(LINES_MAX, len(wanted))
        _, none = await page(session, url, f"?after={10**17}")
        assert not canonical.decode(ReputationLog, none).lines


@pytest.mark.parametrize(
    "query", ["?limit=0", "?limit=257", "?limit=-1", "?limit=x", "?after=-1", "?after=1e3"]
)
async def test_a_page_out_of_bounds_is_refused_by_name(query: str) -> None:
    market = sixty_jobs()
    async with serving_log(market, market.lines) as url, plain_session() as session:
        status, body = await page(session, url, query)
    assert status == 400 and query[1:].split("=", maxsplit=1)[0].encode() in body


@pytest.mark.rule("7.29")
async def test_a_download_goes_from_page_to_page(monkeypatch: pytest.MonkeyPatch) -> None:
    market, body = sixty_jobs(), io.BytesIO()
    monkeypatch.setattr(log_download, "PAGE_LINES", 7)
    async with serving_log(market, market.lines) as url, plain_session() as session:
        download = log_download.LogDownload(url, session, body)
        head = await download.head()
        await download.fetch(head)
        await download.fetch(head)
    assert isinstance(head, ReputationHead) and head.length == len(market.lines)
    assert body.getvalue().splitlines() == [envelope.encode(line) for line in market.lines]
    named = {item.provider for line in market.lines for item in line.message.executions}
    assert download.providers == named
