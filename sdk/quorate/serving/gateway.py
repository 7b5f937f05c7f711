"""The gateway of a service: keys, budgets and meters in front of its replicas.

Each request names a key, goes to one replica, and is counted. A request that no replica has begun
to answer goes to another one. Nothing of it is kept or logged but the counts.
"""

import asyncio
import io
import logging
import time
from collections import Counter as Counts
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field

import aiohttp
import msgspec
from aiohttp import web

from quorate.serving.key_book import Alert, Denied, Key, KeyBook, Rates, Usage, check_budget
from quorate.serving.meters import Meters, TokenCounter
from quorate.serving.replicas import DEAD_AFTER, Replica, Replicas, is_canary
from quorate.serving.service_file import Prices

BODY_BYTES_MAX = 32 << 20
BODY_SECONDS = 60.0
WRITE_SECONDS = 60.0
ANSWER_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=600.0)
CHUNK_BYTES = 64 << 10
TRIES_MAX = 3
MODEL_MAX = 128
UNNAMED = "-"
MILLION = 1_000_000
# Of one connection only, and what the gateway itself answers for.
_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "content-length", "host"),
    }
)
_SECRET = frozenset({"authorization", "x-api-key", "cookie"})
_ANY_USER = "x-user"
_BROKEN = (aiohttp.ClientError, ConnectionError, TimeoutError)

log = logging.getLogger(__name__)


class _Asked(msgspec.Struct):
    """What the gateway reads of a body."""

    model: str = ""
    user: str = ""
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Revisions:
    """Which revision takes requests, and which part of the users a canary has."""

    stable: str
    canary: str = ""
    share: float = 0.0


@dataclass(slots=True)
class _Request:
    """One request on its way. `part`: what it cost of the machine so far."""

    key: Key
    asked: _Asked
    revision: str
    body: bytes
    began: float
    part: float = 0.0
    cost: int = 0  # as counted among requests under way
    first_at: float = 0.0
    counter: TokenCounter = field(default_factory=lambda: TokenCounter(is_stream=False))


@dataclass(slots=True)
class Gateway:
    """Serves one service. `wait_seconds`: how long a request may wait for a first replica."""

    name: str
    keys: KeyBook
    replicas: Replicas
    revisions: Callable[[], Revisions]
    session: aiohttp.ClientSession
    prices: Prices = Prices()
    wait_seconds: float = 300.0
    on_alert: Callable[[Alert], None] = lambda alert: None
    clock: Callable[[], float] = time.time
    meters: Meters = field(default_factory=Meters)
    rates: Rates = field(default_factory=Rates)
    # By key: what it had spent by the newest reading, and what requests under way cost so far.
    spent: dict[str, int] = field(default_factory=dict)
    under_way: Counts[str] = field(default_factory=Counts)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_get("/-/status", self._get_status)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            found = await self._read(request)
        except Denied as denied:
            self.meters.denied(denied.code)
            return _denial(denied)
        try:
            return await self._forward(request, found)
        finally:
            self._count(found)

    async def _read(self, request: web.Request) -> _Request:
        """Raises Denied."""
        now = self.clock()
        key = self.keys.allow(_key_text(request), now)
        self.spent[key.name] = int(key.spent)
        check_budget(key, self.spent[key.name] + self.under_way[key.name])
        self.rates.take(key, now)
        if request.headers.get("Upgrade"):
            raise Denied(501, "unsupported", "connections are not upgraded here; use plain HTTP")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            most = BODY_BYTES_MAX >> 20
            raise Denied(413, "too_large", f"body: at most {most} MiB are taken") from error
        except TimeoutError as error:
            text = f"body: it did not arrive within {BODY_SECONDS:.0f} s"
            raise Denied(408, "timeout", text) from error
        asked, revisions = _asked(request, body), self.revisions()
        user = asked.user or request.headers.get(_ANY_USER, "") or key.name
        has_canary = revisions.canary and self.replicas.ready(revisions.canary)
        goes = has_canary and is_canary(user, revisions.share)
        revision = revisions.canary if goes else revisions.stable
        return _Request(key, asked, revision, body, now)

    # ---------------------------------------------------------------------------------- forwarding

    async def _forward(self, request: web.Request, found: _Request) -> web.StreamResponse:
        tried: list[Replica] = []
        while len(tried) < TRIES_MAX:
            replica = self.replicas.choose(found.revision, *tried)
            if replica is None and not tried:
                replica = await self.replicas.wait_for(found.revision, self.wait_seconds)
            if replica is None:
                break
            tried.append(replica)
            answer = await self._try(request, found, replica)
            if answer is not None:
                return answer
        self.meters.failed(found.asked.model)
        text = f"no replica of {self.name} answers now; try again"
        return _denial(Denied(503, "unavailable", text, 5.0))

    async def _try(
        self, request: web.Request, found: _Request, replica: Replica
    ) -> web.StreamResponse | None:
        """None if the replica had not begun to answer: another one may."""
        async with self._taken(found, replica):
            try:
                upstream = await self.session.request(
                    request.method,
                    replica.url + request.raw_path,
                    headers=_passed(request.headers),
                    data=io.BytesIO(found.body) if found.body else None,
                    allow_redirects=False,
                    timeout=ANSWER_TIMEOUT,
                )
            except _BROKEN as error:
                replica.failures += 1
                log.info("replica %s does not answer: %s", replica.name, type(error).__name__)
                if replica.failures >= DEAD_AFTER:
                    self.replicas.changed()
                return None
            async with upstream:
                return await self._answer(request, found, replica, upstream)

    async def _answer(
        self,
        request: web.Request,
        found: _Request,
        replica: Replica,
        upstream: aiohttp.ClientResponse,
    ) -> web.StreamResponse:
        is_stream = upstream.content_type == "text/event-stream"
        found.counter = TokenCounter(is_stream)
        answer = web.StreamResponse(status=upstream.status, headers=_passed(upstream.headers))
        if not is_stream and upstream.content_length is not None:
            answer.content_length = upstream.content_length
        try:
            await answer.prepare(request)
            async for data in self._pieces(upstream, found, replica):
                await _write(answer, data)
            if is_stream and found.asked.stream and not _is_whole(upstream, found.counter):
                raise aiohttp.ServerDisconnectedError
            replica.failures = 0
            await answer.write_eof()
        except Denied as denied:
            await _end_stream(answer, denied, is_stream)
        except _BROKEN as error:
            # Not re-raised: the caller left, or the replica broke off. What came is counted.
            is_callers = request.transport is None or request.transport.is_closing()
            if not is_callers:
                replica.failures += 1
                self.meters.failed(found.asked.model)
                text = f"the replica ended before its answer did ({type(error).__name__})"
                takes_event = is_stream and not found.counter.is_in_line
                await _end_stream(answer, Denied(502, "replica_gone", text), takes_event)
        return answer

    async def _pieces(
        self, upstream: aiohttp.ClientResponse, found: _Request, replica: Replica
    ) -> AsyncIterator[bytes]:
        """Raises Denied once the key's budget is used up, as far as this process knows."""
        begun, before = replica.shared, found.part
        async for data in upstream.content.iter_chunked(CHUNK_BYTES):
            if not found.first_at:
                found.first_at = self.clock()
            found.counter.feed(data)
            if found.key.budget is not None:
                part = before + replica.reading(self.clock()) - begun
                self._check_budget(found, self.prices.cost(found.counter, part))
            yield data

    def _check_budget(self, found: _Request, cost: int) -> None:
        name = found.key.name
        self.under_way[name] += cost - found.cost
        found.cost = cost
        check_budget(found.key, self.spent[name] + self.under_way[name])

    @asynccontextmanager
    async def _taken(self, found: _Request, replica: Replica) -> AsyncIterator[None]:
        begun = replica.take(self.clock())
        try:
            yield
        finally:
            found.part += replica.give(self.clock(), begun)
            self.replicas.changed()

    def _count(self, found: _Request) -> None:
        found.counter.finish()
        model = found.asked.model or UNNAMED
        used = Usage(
            found.counter.tokens_in,
            found.counter.tokens_out,
            self.prices.cost(found.counter, found.part),
        )
        first = found.first_at - found.began if found.first_at else 0.0
        self.meters.answered(model, used, first, self.clock() - found.began, found.part)
        name = found.key.name
        self.under_way[name] -= found.cost
        self.spent[name] = self.spent.get(name, 0) + used.spent
        for alert in self.keys.charge(name, model, used):
            self.on_alert(alert)

    # ------------------------------------------------------------------------------- own addresses

    async def _get_status(self, request: web.Request) -> web.Response:
        if request.remote not in ("127.0.0.1", "::1"):
            return _denial(Denied(403, "forbidden", "only this machine may read the status"))
        now = self.clock()
        return web.json_response(
            {
                "service": self.name,
                "revisions": asdict(self.revisions()),
                "replicas": [_replica_json(it, now) for it in self.replicas.found],
                "models": self.meters.summary(),
            }
        )

    async def _get_metrics(self, request: web.Request) -> web.Response:
        if request.remote not in ("127.0.0.1", "::1"):
            return _denial(Denied(403, "forbidden", "only this machine may read the metrics"))
        return web.Response(body=self.meters.exposition(self.replicas), content_type="text/plain")


def _replica_json(replica: Replica, now: float) -> dict[str, str | float]:
    load = replica.ready_at - replica.began if replica.ready_at else now - replica.began
    return {
        "name": replica.name,
        "revision": replica.revision,
        "state": replica.health.value,
        "inFlight": replica.in_flight,
        "loadSeconds": round(load, 3),
        "usdPerHour": replica.price / MILLION,
    }


def _key_text(request: web.Request) -> str:
    header = request.headers.get("Authorization", "")
    kind, _, text = header.partition(" ")
    found = text.strip() if kind.lower() == "bearer" else request.headers.get("X-Api-Key", "")
    if not found:
        raise Denied(401, "invalid_api_key", "send a key: Authorization: Bearer KEY")
    return found


def _asked(request: web.Request, body: bytes) -> _Asked:
    if request.content_type != "application/json":
        return _Asked()
    try:
        asked = msgspec.json.decode(body, type=_Asked)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Asked()  # not re-raised: the replica answers to what it is sent
    asked.model = asked.model[:MODEL_MAX]
    return asked


def _passed(headers: "aiohttp.typedefs.LooseHeaders") -> list[tuple[str, str]]:
    """A caller's key and cookies stay here: the machine belongs to somebody else."""
    items = headers.items()  # type: ignore[union-attr]
    named = {word.strip().lower() for name, value in items if name.lower() == "connection"
             for word in value.split(",")}  # fmt: skip
    dropped = _HOP | _SECRET | named
    return [(name, value) for name, value in items if name.lower() not in dropped]


def _denial(denied: Denied) -> web.Response:
    headers = {"Retry-After": str(max(1, round(denied.retry_after)))} if denied.retry_after else {}
    return web.json_response(_error(denied), status=denied.status, headers=headers)


def _error(denied: Denied) -> dict[str, dict[str, str | None]]:
    """In the form of OpenAI's API, so that its clients show the text."""
    told = {"message": denied.text, "type": denied.code, "param": None, "code": denied.code}
    return {"error": told}


def _is_whole(upstream: aiohttp.ClientResponse, counter: TokenCounter) -> bool:
    """Of HTTP/1.0 a stream that broke off ends as any other does: only its last event tells."""
    is_framed = {"Transfer-Encoding", "Content-Length"} & set(upstream.headers)
    return bool(is_framed) or counter.is_done


async def _write(answer: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(WRITE_SECONDS):
        await answer.write(data)


async def _end_stream(answer: web.StreamResponse, denied: Denied, takes_event: bool) -> None:
    """A stream ends with an event that says why. Another answer is broken off, and so is a stream
    within a line: nobody takes it for whole.
    """
    try:
        if takes_event:
            await _write(answer, b"\n\ndata: " + msgspec.json.encode(_error(denied)) + b"\n\n")
            await answer.write_eof()
        else:
            request = answer._req
            if request is not None and request.transport is not None:
                request.transport.abort()
    except _BROKEN:
        return  # not re-raised: the caller has left
