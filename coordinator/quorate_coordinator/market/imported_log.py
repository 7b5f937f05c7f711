"""Another coordinator's log: lines checked, folded and kept in a file.

`<number of the account>.jsonl` has the lines, and `.head` says how many were checked. A crash
leaves more lines at most, which the next start cuts off.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from quorate_protocol.codec import canonical
from quorate_protocol.crypto.eip712 import Domain
from quorate_protocol.crypto.merkle import Log
from quorate_protocol.messages import envelope
from quorate_protocol.messages.signed import Summary
from quorate_protocol.messages.views import ReputationHead
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.rules.reputation import fold
from quorate_protocol.rules.reputation.fold import Trusts
from quorate_protocol.rules.reputation.public_log import LogOf, after_line
from quorate_protocol.units import Address
from quorate_runtime.files import write_atomic
from quorate_runtime.keys.crypto import recover
from quorate_runtime.reputation.log_file import lines_of

PROVIDERS_MAX = 100_000
COPY_BYTES = 1 << 20


@dataclass(slots=True)
class ImportedLog:
    """What was checked so far of another coordinator's log."""

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
