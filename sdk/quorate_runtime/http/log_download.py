"""Downloads the public log of a coordinator page by page, to check and fold it afterwards."""

import asyncio
from typing import BinaryIO, TypeVar

import aiohttp

from quorate_protocol.codec import canonical
from quorate_protocol.messages import envelope
from quorate_protocol.messages.views import ImportedView, ProviderView, ReputationHead
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules.reputation.log_document import LINES_MAX
from quorate_protocol.units import Address
from quorate_runtime.http.client_sessions import read_bounded
from quorate_runtime.http.coordinator_routes import Route, Routes

PAGE_LINES = 256
PAGE_BYTES_MAX = 16 << 20
ANSWER_SECONDS = 30.0
WAITS_MAX, WAIT_SECONDS = 40, 0.25  # for lines that the coordinator has not written to its disk yet
TIMEOUT = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=5)
T = TypeVar("T")


class LogDownload:
    """Reads one coordinator's log into a file. The caller owns the session and the file. Answers
    are bounded and of the right form. Nothing is believed before it is folded.
    """

    def __init__(
        self, url: str, session: aiohttp.ClientSession, body: BinaryIO, known: int = 0
    ) -> None:
        """`body` is an empty file. It gets the lines after the first `known`, and not the head."""
        self.url = url.rstrip("/")
        self.providers: set[Address] = set()  # that the lines so far name
        self._session, self._body, self._lines = session, body, known

    async def head(self) -> ReputationHead:
        """Returns length and root of the log. Raises Unavailable, Refused."""
        return await self._get(Routes.REPUTATION)

    async def fetch(self, head: ReputationHead) -> None:
        """Appends the lines that `head` counts and the file has not. Raises Unavailable, Refused. A
        line is served once it is on the coordinator's disk, so the newest may take a moment.
        """
        if head.length > LINES_MAX:
            raise Refused(Code.OVERSIZE, f"log: {head.length} lines are more than {LINES_MAX}")
        waits = 0
        while self._lines < head.length:
            after = {"after": self._lines - 1} if self._lines else {}
            page = await self._get(Routes.REPUTATION_LOG, limit=PAGE_LINES, **after)
            lines = page.lines[: head.length - self._lines]
            for line in lines:
                self._body.write(envelope.encode(line) + b"\n")
                self.providers |= {item.provider for item in line.message.executions}
            self._lines += len(lines)
            if lines:
                waits = 0
                continue
            waits += 1
            if waits > WAITS_MAX:
                raise Unavailable(
                    f"{self.url} says that its log has {head.length} lines, and serves "
                    f"{self._lines}; try again later"
                )
            await asyncio.sleep(WAIT_SECONDS)

    async def provider(self, provider: Address) -> ProviderView | None:
        """Returns a provider's record; None if the coordinator does not know it."""
        raw = await self._read(Routes.PROVIDER.at(address=provider), may_be_absent=True)
        return None if raw is None else self._form(ProviderView, raw)

    async def imported(self, provider: Address | None) -> tuple[ImportedView, ...]:
        asked = {} if provider is None else {"provider": provider}
        return (await self._get(Routes.REPUTATION_IMPORTED, **asked)).logs

    async def _get(self, route: Route[T], **values: bytes | int) -> T:
        raw = await self._read(route.at(**values))
        assert raw is not None, "an answer of 404 raises here"
        return self._form(route.answer, raw)

    async def _read(self, path: str, may_be_absent: bool = False) -> bytes | None:
        try:
            async with self._session.get(
                self.url + path, timeout=TIMEOUT, allow_redirects=False
            ) as response:
                if response.status == 404 and may_be_absent:
                    return None
                if response.status != 200:
                    raise Unavailable(f"{self.url}{path} answered {response.status}")
                return await read_bounded(response, PAGE_BYTES_MAX)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(f"the coordinator {self.url} does not answer ({reason})") from error

    def _form(self, kind: type[T], raw: bytes) -> T:
        try:
            return canonical.from_json(kind, canonical.parse(raw, PAGE_BYTES_MAX))
        except Refused as refused:
            raise Unavailable(
                f"{self.url}: its answer cannot be read as {kind.__name__}: {refused.detail}"
            ) from refused
