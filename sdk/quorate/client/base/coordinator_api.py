"""A typed client of the coordinator's HTTP API: one method per route, bounded answers, few retries.

It checks the form of answers, not their truth. Redirects are errors, so that no token goes to
another server. Errors: `RefusedError` as the coordinator answered; `UnavailableError` if it cannot
be reached or its answer is unreadable.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp

from quorate.base.errors import (
    EvidenceError,
    QuorateError,
    RefusedError,
    UnavailableError,
    UsageError,
    from_answer,
)
from quorate.client.base.timeouts import (
    ANSWER_SECONDS,
    STALL_SECONDS,
    STORED_SECONDS,
    STREAM_SECONDS,
    DownloadSpeedCheck,
    Timeouts,
    WaitTimer,
)
from quorate_protocol.codec import canonical
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.market_history import MarketPeriodView
from quorate_protocol.messages.signed import Session, Stop, Voucher, Witness
from quorate_protocol.messages.views import (
    AccountView,
    AckView,
    AllowanceRequest,
    CaseView,
    GiveBackRequest,
    InfoView,
    JobEvent,
    OfferView,
    PlanRequest,
    PlanView,
    ProviderView,
    RunView,
)
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.orders import Submission
from quorate_protocol.units import ZERO_HASH, Address, Amount, Hash32
from quorate_runtime.http.byte_streams import MESSAGE_BYTES_MAX, PING_SECONDS
from quorate_runtime.http.coordinator_routes import BYTES, CAR, Route, Routes

# Reads server-sent events as the coordinator sends them: `id:`, `data:`, and comments as keep-
# alive.
#
# Standard: WHATWG HTML, "Server-sent events".

EVENT_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: its last `id` or "", and its `data` lines joined."""

    id: str
    data: str


async def server_events(
    chunks: AsyncIterator[bytes], bytes_max: int = EVENT_BYTES_MAX
) -> AsyncIterator[ServerEvent]:
    """Yields the events of a byte stream. Raises UnavailableError if a line or an event exceeds
    `bytes_max` bytes.
    """
    identity, size = "", 0
    data: list[str] = []
    async for line in _lines(chunks, bytes_max):
        if not line:
            if data:
                yield ServerEvent(identity, "\n".join(data))
            data, size = [], 0
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            identity = value
        elif name == "data":
            size += (
                len(value) + 1
            )  # empty lines count too, because an event may have any number of them
            if size > bytes_max:
                raise _too_long("an event", bytes_max)
            data.append(value)


async def _lines(chunks: AsyncIterator[bytes], bytes_max: int) -> AsyncIterator[str]:
    """Yields lines. Each byte is searched and moved once, however small the received pieces are."""
    pending = bytearray()
    async for chunk in chunks:
        begun, seen = 0, len(pending)
        pending += chunk
        while (end := pending.find(b"\n", seen)) >= 0:
            if end - begun > bytes_max:
                raise _too_long("a line", bytes_max)
            yield pending[begun:end].removesuffix(b"\r").decode(errors="replace")
            begun = seen = end + 1
        del pending[:begun]
        if len(pending) > bytes_max:
            raise _too_long("a line", bytes_max)


def _too_long(what: str, bytes_max: int) -> UnavailableError:
    return UnavailableError(f"the coordinator sent {what} of more than {bytes_max} bytes")


ANSWER_BYTES_MAX = 16 << 20
RECEIPT_BYTES_MAX = 16 << 20
OFFERS_PAGE, OFFER_PAGES_MAX = 1_000, 200
HISTORY_PAGES_MAX = 100
TRIES = 3
RETRY_SECONDS = 0.3
RESUMED_BYTES_LEAST = 1 << 20  # with less a download counts as failed once more
PIECE_BYTES = 64 << 10
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5)  # `Timeouts` bounds the rest
NO_HEADERS: Mapping[str, str] = {}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ContentStat:
    """What a store says about a CID. `size_bytes` is known for files only."""

    is_stored: bool
    size_bytes: int | None


class Api:
    """One coordinator at a URL. The caller owns the session. `token` returns the Authorization
    value, or "" for none.
    """

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        token: Callable[[], str],
        notice: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._token = token
        self.sign_in: Callable[[], None] | None = None  # before asking again with a token
        self._timeouts = Timeouts(self.url, notice)

    async def info(self) -> InfoView:
        return await self._ask(Routes.INFO)

    async def offers(self) -> tuple[OfferView, ...]:
        """Returns all offers, page by page. Raises UnavailableError if a page brings nothing new or
        the pages do not end.
        """
        found: dict[Address, OfferView] = {}
        after: dict[str, Address] = {}
        for _ in range(OFFER_PAGES_MAX):
            page = (await self._ask(Routes.OFFERS, limit=OFFERS_PAGE, **after)).offers
            before = len(found)
            found |= {view.offer.provider: view for view in page}
            if len(page) < OFFERS_PAGE:
                return tuple(found.values())
            if len(found) == before:
                break
            after = {"after": page[-1].offer.provider}
        raise UnavailableError(
            f"{self.url}: the list of offers does not end ({len(found)} received); try again later"
        )

    async def market_history(
        self, by: str, since: int, pool: Hash32 = ZERO_HASH
    ) -> tuple[MarketPeriodView, ...]:
        """Returns the market's history, page by page, from `since` (Unix seconds) until now. Raises
        UnavailableError if the pages do not end.
        """
        wanted: dict[str, bytes | int | str] = {"by": by, "since": since}
        wanted |= {} if pool == ZERO_HASH else {"pool": pool}
        found: list[MarketPeriodView] = []
        for _ in range(HISTORY_PAGES_MAX):
            page = await self._ask(Routes.MARKET_HISTORY, **wanted)
            found += page.periods
            if page.next is None:
                return tuple(found)
            wanted["after"] = page.next
        raise UnavailableError(
            f"{self.url}: the market's history does not end ({len(found)} periods received); ask "
            f"for a shorter time or for one class"
        )

    async def plan(self, request: PlanRequest) -> PlanView:
        return await self._ask(Routes.PLAN, request)

    async def submit(self, submission: Submission) -> AckView:
        """Orders. Tries once, because only the caller knows whether repeating is safe."""
        order = Routes.ORDER
        raw = await self._request_once(order.method, order.path, canonical.encode(submission))
        return _view(AckView, raw)

    async def runs(self) -> tuple[RunView, ...]:
        return (await self._ask(Routes.RUNS)).runs

    async def run(self, job_id: Hash32) -> RunView:
        """Returns one run. Raises EvidenceError if the answer is about another run, because later
        checks rely on it.
        """
        view = await self._ask(Routes.RUN, job=job_id)
        if view.job_id != job_id:
            raise EvidenceError(
                f"run 0x{job_id.hex()[:12]}: the coordinator answered with another run, "
                f"0x{view.job_id.hex()[:12]}"
            )
        return view

    async def witness(self, witness: Envelope[Witness]) -> None:
        """Sends a witness. Repeating one changes nothing."""
        await self._post(Routes.WITNESS, witness)

    async def session(self, session: Envelope[Session]) -> None:
        """Announces a session without an order. Repeating one changes nothing."""
        await self._post(Routes.SESSION, session)

    async def voucher(self, voucher: Envelope[Voucher]) -> None:
        """Sends a voucher. Repeating one changes nothing."""
        await self._post(Routes.VOUCHER, voucher)

    async def give_back(self, amount: Amount) -> Amount:
        return (await self._ask(Routes.GIVE_BACK, GiveBackRequest(amount))).amount

    async def allow(self, job_id: Hash32, most: Amount) -> None:
        """Says how much a rental may cost in all. Repeating it changes nothing."""
        await self._ask(Routes.ALLOWANCE, AllowanceRequest(most), job=job_id)

    async def stop(self, stop: Envelope[Stop]) -> None:
        await self._post(Routes.STOP, stop, job=stop.message.job_id)

    async def secrets(self, job_id: Hash32, box: bytes) -> None:
        """Sends a box of secrets to the provider of a rental. Repeating it changes nothing."""
        await self._request("POST", Routes.SECRETS.at(job=job_id), box)

    async def receipt(self, job_id: Hash32) -> bytes:
        """Returns the bytes of a receipt file as sent, unchecked."""
        return await self._request("GET", Routes.RECEIPT.at(job=job_id), None, RECEIPT_BYTES_MAX)

    async def account(self, client: Address) -> AccountView:
        return await self._ask(Routes.ACCOUNT, address=client)

    async def provider(self, provider: Address) -> ProviderView:
        return await self._ask(Routes.PROVIDER, address=provider)

    async def cases(self) -> tuple[CaseView, ...]:
        return (await self._ask(Routes.CASES)).cases

    async def events(self, job_id: Hash32 | None, after: int) -> AsyncGenerator[JobEvent, None]:
        """Yields events with a seq above `after`, of one run or of all this client's runs, until
        the connection ends.
        """
        asked = Routes.RUN_EVENTS.at(job=job_id, after=after) if job_id else None
        async with self._stream(asked or Routes.EVENTS.at(after=after)) as response:
            async for event in server_events(self._chunks(response)):
                told = _view(JobEvent, event.data.encode())
                if job_id not in (None, told.job_id):
                    raise EvidenceError(
                        f"run 0x{job_id.hex()[:12]}: the coordinator sent an event of another "
                        f"run, 0x{told.job_id.hex()[:12]}"
                    )
                yield told

    async def stream(self, job_id: Hash32) -> aiohttp.ClientWebSocketResponse:
        """Opens the byte stream to a rental."""
        path = Routes.STREAM.at(job=job_id)
        try:
            return await self._session.ws_connect(
                self.url + path,
                headers=self._headers(),
                heartbeat=PING_SECONDS,
                max_msg_size=MESSAGE_BYTES_MAX + 1,
                compress=0,
            )
        except aiohttp.WSServerHandshakeError as error:
            await self._explain_no_stream(path)
            raise UnavailableError(
                f"run 0x{job_id.hex()[:12]}: its provider does not answer (HTTP status "
                f"{error.status}); try again soon"
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable(self.url, error) from error

    async def _explain_no_stream(self, path: str) -> None:
        """aiohttp drops the reason of a refused upgrade. A request without one has the same reason,
        or is refused for that alone.
        """
        try:
            await self._request_once("GET", path, None)
        except RefusedError as error:
            if error.code != Code.MALFORMED.value:
                raise

    async def logs(self, job_id: Hash32, follow: bool) -> AsyncGenerator[bytes, None]:
        """Yields log text in pieces. With `follow`, continues until the run ends and allows any
        pause between pieces.
        """
        silence = None if follow else STREAM_SECONDS
        path = Routes.RUN_LOGS.at(job=job_id, follow=int(follow))
        async with self._stream(path, silence) as response:
            async for chunk in self._chunks(response):
                yield chunk

    async def stat_content(self, cid: str) -> ContentStat:
        """Returns whether the staging store holds all of a CID, and its size in bytes if it is a
        file.
        """
        url, headers = self.url + Routes.CONTENT.at(cid=cid), self._headers()
        try:
            async with (
                self._timeouts.limited(ANSWER_SECONDS),
                self._session.head(
                    url, headers=headers, timeout=TIMEOUT, allow_redirects=False
                ) as response,
            ):
                if response.status == 200:
                    return ContentStat(True, response.content_length)
                # 501 means a directory, which is served as a CAR only
                if response.status in (404, 501):
                    return ContentStat(response.status == 501, None)
                raise UnavailableError(
                    f"{self.url}: asking for {cid} gave HTTP status {response.status}"
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable(self.url, error) from error

    async def put_content(
        self, cid: str, body: Callable[[], AsyncIterator[bytes]], is_car: bool
    ) -> None:
        """Uploads a file's bytes or a CAR. Each try calls `body` again. Raises EvidenceError if the
        store computes another CID.
        """
        url = self.url + (Routes.UPLOAD.at(root=cid) if is_car else Routes.UPLOAD.path)
        headers = {**self._headers(), "Content-Type": CAR if is_car else BYTES}
        for attempt in range(TRIES):
            try:
                async with (
                    self._timeouts.limited(STALL_SECONDS) as waiting,
                    self._session.put(
                        url,
                        data=_watched(body(), waiting),
                        headers=headers,
                        timeout=TIMEOUT,
                        allow_redirects=False,
                    ) as response,
                ):
                    raw = await _bounded(response, ANSWER_BYTES_MAX)
                    if response.status >= 300:
                        raise _error_from(response.status, raw)
                    stored = _tree(raw)
                    if not isinstance(stored, dict) or stored.get("cid") != cid:
                        raise EvidenceError(
                            f"{self.url}: the store computed another CID than {cid}; did the "
                            "file change during the upload?"
                        )
                    return
            except (aiohttp.ClientError, TimeoutError) as error:
                if attempt == TRIES - 1 or isinstance(error, TimeoutError):
                    raise _unreachable(self.url, error) from error
                await asyncio.sleep(RETRY_SECONDS * 2**attempt)

    async def read_content(self, cid: str, start: int, length: int) -> bytes:
        """Returns a part of a stored file, unverified."""
        part = {"Range": f"bytes={start}-{start + length - 1}"}
        async with await self._opened_stream(Routes.CONTENT.at(cid=cid), TIMEOUT, part) as response:
            return await _bounded(response, length)

    async def get_content(
        self, cid: str, destination: Path, bytes_max: int, progress: Callable[[int], None]
    ) -> None:
        """Downloads the bytes of a file CID to a new file. They are unverified; the caller must
        check them. It goes on where a connection was cut.
        """
        failures = 0
        while True:
            before = _held(destination)
            try:
                await self._append_content(cid, destination, bytes_max, progress)
                return
            except UnavailableError:
                done = _held(destination)
                failures = 0 if done - before >= RESUMED_BYTES_LEAST else failures + 1
                if not done or failures >= TRIES:
                    raise
                await asyncio.sleep(RETRY_SECONDS * 2**failures)

    async def _append_content(
        self, cid: str, destination: Path, bytes_max: int, progress: Callable[[int], None]
    ) -> None:
        done, pace = _held(destination), DownloadSpeedCheck(f"{self.url}: {cid}")
        path, wanted = Routes.CONTENT.at(cid=cid), {"Range": f"bytes={done}-"} if done else {}
        async with self._stream(path, STALL_SECONDS, wanted) as response:
            # A source that ignores ranges sends all of it again.
            is_rest = response.status == HTTPStatus.PARTIAL_CONTENT
            done = done if is_rest else 0
            with destination.open("ab" if is_rest else "wb") as file:
                async for chunk in self._chunks(response):
                    pace.received(len(chunk))
                    done += len(chunk)
                    if done > bytes_max:
                        raise EvidenceError(f"{self.url}: {cid} is larger than {bytes_max} bytes")
                    await asyncio.to_thread(file.write, chunk)
                    progress(done)

    def _headers(self) -> dict[str, str]:
        if self._session.closed:
            raise UsageError(
                "this Market is closed; use it and its runs inside `async with "
                "Market(profile) as market:`"
            )
        token = self._token()
        return {"Authorization": token} if token else {}

    async def _ask(self, route: Route[T], body: object = None, **values: bytes | int | str) -> T:
        return _view(route.answer, await self._post(route, body, **values))

    async def _post(self, route: Route[Any], body: object, **values: bytes | int | str) -> bytes:
        sent = None if body is None else canonical.encode(body)
        return await self._request(route.method, route.at(**values), sent)

    def _signs_in(self, headers: dict[str, str], error: QuorateError) -> bool:
        """Whether to ask again with a token, because the coordinator wants to know who asks."""
        is_unknown = isinstance(error, RefusedError) and error.code == Code.BAD_SIGNATURE.value
        if not is_unknown or "Authorization" in headers or self.sign_in is None:
            return False
        self.sign_in()
        return bool(self._token())

    async def _request(
        self, method: str, path: str, body: bytes | None, bytes_max: int = ANSWER_BYTES_MAX
    ) -> bytes:
        for attempt in range(TRIES - 1):
            headers = self._headers()
            try:
                return await self._request_once(method, path, body, bytes_max)
            except RefusedError as error:
                if not self._signs_in(headers, error):
                    raise
            except UnavailableError as error:
                # The next or the last try reports the error. A timeout is not repeated, because the
                # waits would add up.
                if isinstance(error.__cause__, TimeoutError):
                    raise
                await asyncio.sleep(RETRY_SECONDS * 2**attempt)
        return await self._request_once(method, path, body, bytes_max)

    async def _request_once(
        self, method: str, path: str, body: bytes | None, bytes_max: int = ANSWER_BYTES_MAX
    ) -> bytes:
        headers = self._headers() | (
            {"Content-Type": "application/json"} if body is not None else {}
        )
        try:
            async with (
                self._timeouts.limited(ANSWER_SECONDS),
                self._session.request(
                    method,
                    self.url + path,
                    data=body,
                    headers=headers,
                    timeout=TIMEOUT,
                    allow_redirects=False,
                ) as response,
            ):
                raw = await _bounded(response, bytes_max)
                if response.status >= 300:
                    raise _error_from(response.status, raw)
                return raw
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable(self.url, error) from error

    @asynccontextmanager
    async def _stream(
        self,
        path: str,
        silence: float | None = STREAM_SECONDS,
        also: Mapping[str, str] = NO_HEADERS,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Opens a stream. `silence` is the longest pause in seconds between two bytes; None allows
        any. `also`: headers.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=silence)
        async with await self._opened_stream(path, limits, also) as response:
            yield response

    async def _opened_stream(
        self, path: str, limits: aiohttp.ClientTimeout, also: Mapping[str, str] = NO_HEADERS
    ) -> aiohttp.ClientResponse:
        """Returns the response of a stream that the coordinator did not refuse. `also`: headers."""
        headers = self._headers() | dict(also)
        response: aiohttp.ClientResponse | None = None
        try:
            async with self._timeouts.limited(ANSWER_SECONDS):
                response = await self._session.get(
                    self.url + path, headers=headers, timeout=limits, allow_redirects=False
                )
                refusal = (
                    await _bounded(response, ANSWER_BYTES_MAX) if response.status >= 300 else None
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if response is not None:
                response.close()
            raise _unreachable(self.url, error) from error
        if refusal is None:
            return response
        response.close()
        refused = _error_from(response.status, refusal)
        if self._signs_in(headers, refused):
            return await self._opened_stream(path, limits, also)
        raise refused

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        # Only network errors are translated here. A full disk of the consumer must not look like an
        # absent coordinator.
        chunks = response.content.iter_any()
        while True:
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:  # not re-raised: the stream's ordinary end
                return
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise _unreachable(self.url, error) from error
            yield chunk


def _held(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


async def _watched(pieces: AsyncIterator[bytes], waiting: WaitTimer) -> AsyncIterator[bytes]:
    """Yields an upload's pieces. Each must be sent in time; then the answer gets its own limit."""
    async for piece in pieces:
        for start in range(0, len(piece), PIECE_BYTES):
            yield piece[start : start + PIECE_BYTES]
            waiting.restart(STALL_SECONDS)
    waiting.restart(STORED_SECONDS)


async def _bounded(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    raw = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        raw += chunk
        if len(raw) > bytes_max:
            raise UnavailableError(f"the coordinator's answer is larger than {bytes_max} bytes")
    return bytes(raw)


def _error_from(status: int, raw: bytes) -> QuorateError:
    if status < 400:
        return UnavailableError(
            f"the coordinator answered with a redirect ({status}); give the URL at which it serves"
        )
    return from_answer(status, _tree(raw))


def _tree(raw: bytes) -> object:
    try:
        return canonical.loads(raw)
    except ValueError:  # not re-raised: an answer without JSON counts as unavailable
        return None


def _unreachable(url: str, error: BaseException) -> UnavailableError:
    again = "is the devnet up? (quorate devnet up) Else" if _is_here(url) else "repeat it later, or"
    remedy = (
        f"{again} ask its operator, or choose another: quorate --home FOLDER init --coordinator URL"
    )
    return UnavailableError(
        f"the coordinator {url} does not answer ({str(error) or type(error).__name__}); {remedy}"
    )


def _is_here(url: str) -> bool:
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def _view(kind: type[T], raw: bytes) -> T:
    try:
        return canonical.from_json(kind, canonical.parse(raw, ANSWER_BYTES_MAX))
    except Refused as refused:
        raise UnavailableError(
            f"the coordinator's answer cannot be read as {kind.__name__.strip('_')}: "
            f"{refused.detail}"
        ) from refused
