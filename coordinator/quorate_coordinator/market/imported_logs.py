"""Imports the public logs of other coordinators, whose URLs the operator named.

What they say changes nothing in this coordinator's own table of trust; people see both beside each
other (PROTOCOL §7).
"""

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from quorate_coordinator.market.imported_log import ImportedLog
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.messages.ports import Clock
from quorate_protocol.messages.views import ImportedReputation, ImportedView
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules.reputation import fold
from quorate_protocol.units import Address
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.reputation.log_download import LogDownload

FOLDER = "imported"
SHOWN_MAX = 1_000  # providers of one log in one answer
KeyOf = Callable[[Address], Awaitable[Address]]
"""Gives a bonded coordinator's statement key by the chain, or the zero address."""
log = logging.getLogger(__name__)


class ImportedLogs:
    """The logs at some URLs, as far as they were checked. `run` keeps them up to date."""

    def __init__(
        self,
        urls: tuple[str, ...],
        folder: Path,
        domain: Domain,
        own: Address,
        key_of: KeyOf,
        clock: Clock,
        every: float,
    ) -> None:
        """`every` is in seconds."""
        self._logs = {url: ImportedLog(folder, sha256(url.encode()).hex()[:16]) for url in urls}
        self._problems = dict.fromkeys(urls, "")
        self._domain, self._own, self._key_of = domain, own, key_of
        self._clock, self._every = clock, every

    async def run(self) -> None:
        if not self._logs:
            return
        await self.load()
        while True:
            for url in self._logs:
                await self.look(url)
            await self._clock.sleep(self._every)

    async def load(self) -> None:
        """A damaged one is downloaded again."""
        for url, known in list(self._logs.items()):
            try:
                await asyncio.to_thread(known.load)
            except (Refused, OSError) as error:
                # Not re-raised: the source has the log.
                log.warning("the imported log of %s is read again from its source: %s", url, error)
                self._logs[url] = ImportedLog(known.folder, known.name)
                await asyncio.to_thread(self._logs[url].remove_files)

    async def look(self, url: str) -> None:
        """A log that is refused stays as it was before."""
        try:
            await self._import(url, self._logs[url])
            self._set_problem(url, "")
        except Refused as refused:
            self._set_problem(url, f"refused: {refused.detail}")
        except Unavailable as away:
            log.info("the log of another coordinator waits: %s", away)

    def view(self, provider: Address | None = None) -> tuple[ImportedView, ...]:
        return tuple(
            ImportedView(url, known.head, self._problems[url], _of(known, provider))
            for url, known in self._logs.items()
        )

    async def _import(self, url: str, known: ImportedLog) -> None:
        with tempfile.TemporaryFile() as body:
            async with plain_session() as session:
                download = LogDownload(url, session, body, known.log.count)
                head = await download.head()
                known.check_head(head, self._domain)
                if head.coordinator == self._own:
                    raise Refused(Code.MALFORMED, "log: it is this coordinator's own")
                if await self._key_of(head.coordinator) != head.statement_key:
                    raise Refused(
                        Code.WRONG_SIGNER,
                        f"log: 0x{head.statement_key.hex()} is not the statement key of a bonded "
                        f"coordinator 0x{head.coordinator.hex()}",
                    )
                await download.fetch(head)
            try:
                await asyncio.to_thread(known.extend, head, body)
            except OSError as error:
                raise Unavailable(f"{known.folder}: {error}", retry_after=self._every) from error

    def _set_problem(self, url: str, text: str) -> None:
        if text and text != self._problems[url]:
            log.error("the log at %s is %s", url, text)
        self._problems[url] = text


def _of(known: ImportedLog, provider: Address | None) -> tuple[ImportedReputation, ...]:
    named = sorted(known.trusts)[:SHOWN_MAX] if provider is None else [provider]
    return tuple(
        ImportedReputation(one, fold.view_of(known.trusts[one]))
        for one in named
        if one in known.trusts
    )
