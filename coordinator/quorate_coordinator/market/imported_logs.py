"""Imports the public logs of other coordinators, whose URLs the operator named.

What they say changes nothing in this coordinator's own table of trust; people see both beside each
other (PROTOCOL §7).
"""

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from quorate_protocol.codec import canonical
from quorate_protocol.codec.eip712 import Domain
from quorate_protocol.codec.hashing import sha256
from quorate_protocol.codec.merkle import Log
from quorate_protocol.messages import envelope
from quorate_protocol.messages.ports import Clock
from quorate_protocol.messages.signed import Summary
from quorate_protocol.messages.views import ImportedReputation, ImportedView, ReputationHead
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.rules.reputation import fold
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.rules.reputation.public_log import LogOf, after_line
from quorate_protocol.units import Address
from quorate_runtime.files import write_atomic
from quorate_runtime.http.client_sessions import plain_session
from quorate_runtime.http.log_download import LogDownload
from quorate_runtime.http.log_file import lines_of
from quorate_runtime.keys.crypto import recover

FOLDER = "imported"
PROVIDERS_MAX = 100_000
COPY_BYTES = 1 << 20
SHOWN_MAX = 1_000  # providers of one log in one answer
KeyOf = Callable[[Address], Awaitable[Address]]
"""Gives a bonded coordinator's statement key by the chain, or the zero address."""
log = logging.getLogger(__name__)


@dataclass(slots=True)
class ImportedLog:
    """What was checked so far of another coordinator's log.

    `<number of the account>.jsonl` has the lines, and `.head` says how many were checked. A crash
    leaves more lines at most, which the next start cuts off.
    """

    folder: Path
    name: str  # of its files
    head: ReputationHead | None = None
    log: Log = Log()
    trusts: dict[Address, Trusts] = field(default_factory=dict)

    def load(self) -> None:
        """Checks every line again. Raises Refused if the files were damaged; OSError."""
        if not self._path(".head").exists():
            return
        head = canonical.decode(ReputationHead, self._path(".head").read_bytes())
        with self._path(".jsonl").open("r+b") as file:
            self._take(head, file, head.length)
            file.truncate(file.tell())

    def check_head(self, head: ReputationHead, domain: Domain) -> None:
        """Raises Refused unless it may follow the known one."""
        if Domain(head.chain_id, head.stakes) != domain:
            raise Refused(Code.WRONG_CHAIN, "log: it is of another market")
        known = self.head
        if known is None:
            return
        if (head.coordinator, head.statement_key) != (known.coordinator, known.statement_key):
            raise Refused(
                Code.WRONG_SIGNER,
                f"log: it was that of coordinator 0x{known.coordinator.hex()} and its key, and now "
                f"it is another's",
            )
        if head.length < known.length:
            raise Refused(
                Code.EQUIVOCATION,
                f"log: it had {known.length} lines and now has {head.length}; the lines from "
                f"{head.length} on were dropped",
            )

    def extend(self, head: ReputationHead, body: BinaryIO) -> None:
        """Raises Refused, with the number of the line, and changes nothing then."""
        body.seek(0)
        self._take(head, body, head.length - self.log.count)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        body.seek(0)
        with self._path(".jsonl").open("ab") as file:
            while piece := body.read(COPY_BYTES):
                file.write(piece)
        write_atomic(self._path(".head"), canonical.encode(head))

    def remove_files(self) -> None:
        """The next download begins at the first line. Raises OSError."""
        for end in (".head", ".jsonl"):
            self._path(end).unlink(missing_ok=True)

    def _take(self, head: ReputationHead, file: BinaryIO, count: int) -> None:
        """After `count` lines the log must have the head's root."""
        domain = Domain(head.chain_id, head.stakes)
        log_of = LogOf(domain, head.coordinator, head.statement_key, recover)
        log, changed = self.log, dict[Address, Trusts]()
        lines = lines_of(file)
        for _ in range(count):
            data = next(lines, None)
            if data is None:
                raise Refused(Code.MALFORMED, f"log: line {log.count} is missing")
            line = envelope.decode(data, Summary)
            log = after_line(log, line, log_of)
            known = {item.provider for item in line.message.executions} - changed.keys()
            changed |= {one: self.trusts[one] for one in known if one in self.trusts}
            changed |= fold.after_summary(changed, line.message)
        if log.root() != head.root:
            raise Refused(
                Code.MALFORMED,
                f"log: the root of its {log.count} lines is not the one of its head; a line was "
                f"rewritten",
            )
        if len(self.trusts.keys() | changed.keys()) > PROVIDERS_MAX:
            raise Refused(Code.OVERSIZE, f"log: it names more than {PROVIDERS_MAX} providers")
        self.head, self.log = head, log
        self.trusts |= changed

    def _path(self, end: str) -> Path:
        return self.folder / f"{self.name}{end}"


@dataclass(slots=True)
class ImportedLogs:
    """The logs at some URLs, as far as they were checked. `run` keeps them up to date."""

    urls: tuple[str, ...]
    folder: Path
    domain: Domain
    own: Address
    key_of: KeyOf
    clock: Clock
    every: float  # seconds
    _logs: dict[str, ImportedLog] = field(init=False)
    _problems: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self._logs = {
            url: ImportedLog(self.folder, sha256(url.encode()).hex()[:16]) for url in self.urls
        }
        self._problems = dict.fromkeys(self.urls, "")

    async def run(self) -> None:
        if not self._logs:
            return
        await self.load()
        while True:
            for url in self._logs:
                await self.look(url)
            await self.clock.sleep(self.every)

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
                known.check_head(head, self.domain)
                if head.coordinator == self.own:
                    raise Refused(Code.MALFORMED, "log: it is this coordinator's own")
                if await self.key_of(head.coordinator) != head.statement_key:
                    raise Refused(
                        Code.WRONG_SIGNER,
                        f"log: 0x{head.statement_key.hex()} is not the statement key of a bonded "
                        f"coordinator 0x{head.coordinator.hex()}",
                    )
                await download.fetch(head)
            try:
                await asyncio.to_thread(known.extend, head, body)
            except OSError as error:
                raise Unavailable(f"{known.folder}: {error}", retry_after=self.every) from error

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
