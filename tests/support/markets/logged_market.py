"""The scripted market with its public log, and the routes that serve the log."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, cast

from aiohttp import web

from quorate_coordinator.api.routes import Api
from quorate_coordinator.core.model.effects import AppendSummary, Effect
from quorate_coordinator.market.imported_logs import ImportedLogs
from quorate_coordinator.storage.run_reader import RunReader
from quorate_protocol.messages import envelope
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Summary
from quorate_runtime.http.error_responses import failures
from support.http_server import on_loopback
from support.markets.scripted_market import Market, Party
from support.memory_archive import MemoryArchive
from support.virtual_clock import VirtualClock

JOBS = 60


class LoggedMarket(Market):
    """Keeps the lines of the public log, as the file of the coordinator does."""

    ran_ms = 0
    offered = 3600

    def __init__(self, *parties: Party) -> None:
        self.lines: list[Envelope[Summary]] = []
        super().__init__(*parties)

    def _perform(self, effect: Effect) -> None:
        super()._perform(effect)
        if isinstance(effect, AppendSummary):
            self.lines.append(effect.line)


@cache
def sixty_jobs() -> LoggedMarket:
    """A market with one liar, one that never reveals, and one that answers nothing for a while."""
    market = LoggedMarket(
        Party(0, lies=True), Party(1, is_mute=True), *[Party(number) for number in range(2, 8)]
    )
    deaf = list(market.parties.values())[2]
    for number in range(1, JOBS + 1):
        deaf.is_deaf = number % 3 == 0
        market.until_decided(market.order(number % 2, number))
    return market


@asynccontextmanager
async def serving_log(
    market: Market, lines: list[Envelope[Summary]], imports: ImportedLogs | None = None
) -> AsyncIterator[str]:
    """Serves the coordinator's own routes of its log, with these lines in its archive, of its
    providers, and of what it imported. Yields the URL.
    """
    archive, nothing = MemoryArchive(), cast("Any", None)
    archive.append([(number, envelope.encode(line)) for number, line in enumerate(lines)])
    history = RunReader(market.core.state, archive)
    clock = VirtualClock(float(market.at))
    api = Api(
        *(market.core, nothing, nothing, nothing, clock, nothing, history, nothing),
        lambda: (),
        *(nothing, nothing, nothing, nothing, nothing),
        imports.view if imports is not None else lambda _: (),
    )
    app = web.Application(middlewares=[failures])
    app.router.add_get("/v1/reputation", api.get_reputation)
    app.router.add_get("/v1/reputation/log", api.get_reputation_log)
    app.router.add_get("/v1/reputation/imported", api.get_imported)
    app.router.add_get("/v1/providers/{address}", api.get_provider)
    async with on_loopback(app) as url:
        yield url
