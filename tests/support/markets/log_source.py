"""Another coordinator's public log: whole, longer, forged. A test changes what it serves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from quorate_protocol.codec import canonical
from quorate_protocol.codec.merkle import Log
from quorate_protocol.messages.envelope import Envelope, seal
from quorate_protocol.messages.signed import Summary
from quorate_protocol.messages.views import ReputationHead, ReputationLog
from quorate_protocol.units import Sequence
from quorate_protocol.values import replace
from quorate_runtime.keys.crypto import KeySigner
from support.http_server import on_loopback
from support.markets.logged_market import sixty_jobs
from support.markets.scripted_market import DOMAIN

OTHER = KeySigner(b"\x66" * 32)
PAGE = 16


@dataclass
class LogSource:
    """What the other coordinator serves now. It signs with `OTHER`, as account and as key."""

    lines: list[Envelope[Summary]] = field(default_factory=list)
    key: KeySigner = OTHER

    def sign(self, count: int, cut: int | None = None) -> None:
        """Signs the first lines of another market as its own. In line `cut` one execution is
        missing.
        """
        log, self.lines = Log(), []
        for line in sixty_jobs().lines[:count]:
            message = replace(
                line.message,
                coordinator=OTHER.address,
                seq=Sequence(log.count),
                previous_root=log.root(),
                executions=line.message.executions[1 if log.count == cut else None :],
            )
            self.lines.append(seal(DOMAIN, message, self.key.sign))
            log = log.append(self.lines[-1].digest(DOMAIN))

    def head(self) -> ReputationHead:
        """The head that fits the lines."""
        log = Log()
        for line in self.lines:
            log = log.append(line.digest(DOMAIN))
        return ReputationHead(
            OTHER.address,
            self.key.address,
            DOMAIN.chain_id,
            DOMAIN.verifying_contract,
            len(self.lines),
            log.root(),
        )

    async def get_head(self, _: web.Request) -> web.Response:
        return _answer(self.head())

    async def get_lines(self, request: web.Request) -> web.Response:
        first = int(request.query.get("after", "-1")) + 1
        return _answer(ReputationLog(tuple(self.lines[first : first + PAGE])))


@asynccontextmanager
async def serving(source: LogSource) -> AsyncIterator[str]:
    """Serves the log; yields its URL."""
    app = web.Application()
    app.router.add_get("/v1/reputation", source.get_head)
    app.router.add_get("/v1/reputation/log", source.get_lines)
    async with on_loopback(app) as url:
        yield url


def _answer(value: object) -> web.Response:
    return web.Response(body=canonical.encode(value), content_type="application/json")
