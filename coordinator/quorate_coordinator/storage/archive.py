"""The archive's interface, and an archive in memory for tests. `storage/archive_file.py` is the one
on disk.

The archive stores finished runs that have left the state. Only it has these runs, so nothing can
rebuild it. `storage/retention.py` deletes old runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.storage.document_readers import EVERYBODY, rows_of
from quorate_coordinator.storage.document_readers import Row as DocumentRow
from quorate_protocol.codec import packed
from quorate_protocol.units import ZERO_ADDRESS, ZERO_HASH, Address, Hash32

LogLine = tuple[int, bytes]
"""A line of the public log: its number, and the canonical bytes of its envelope."""
Row = Mapping[str, str | int | None]
RUNS_PER_LOOK = 512  # of one client, for a stream that reconnects after a long time


@dataclass(frozen=True, slots=True)
class Readers:
    """The accounts that may read a sealed output, and the assignment that made it. Everybody may
    read one that `is_public`.
    """

    assignment_hash: Hash32
    provider: Address
    client: Address
    is_public: bool = False

    def has(self, account: Address | None) -> bool:
        """Whether this account may read the output."""
        return self.is_public or account in (self.provider, self.client)


class RunArchive(Protocol):
    """Stores finished runs. Look-ups are short and come from the event loop's thread. `keep` may
    come from another thread.
    """

    def keep(self, runs: Sequence[ArchivedRun]) -> None:
        """Writes runs, all or none. They are durable when it returns. A run that is stored already
        is replaced.
        """

    def run(self, job_id: Hash32) -> ArchivedRun | None:
        """Returns one run; None when the archive does not have it."""

    def runs_of(self, client: Address, limit: int) -> list[ArchivedRun]:
        """Returns a client's newest runs."""

    def runs_after(self, client: Address, line: int) -> list[ArchivedRun]:
        """Returns a client's runs with a history line after `line`, at most `RUNS_PER_LOOK`. Those
        with the newest lines come first.
        """

    def newest_line(self, client: Address) -> int:
        """Returns the sequence number of the newest history line of a client's runs; 0 when there
        are none.
        """

    def since(self, line: int, limit: int) -> list[tuple[int, Row]]:
        """Returns (newest line, row of the SQL tables) of runs whose newest line is after `line`,
        oldest first.
        """

    def readers(self, output: Hash32) -> Readers | None:
        """Returns who may read the ciphertext with this digest; None when the archive does not know
        it.
        """

    def has_document(self, document: Hash32, account: Address | None) -> bool:
        """Whether a stored run lets this account (None: any) read its spec or receipt with this
        digest.
        """

    def count(self) -> int:
        """Returns how many runs were ever written, deleted ones included."""

    def used_bytes(self) -> int:
        """Returns the bytes that the archive takes on the disk."""

    def ended_before(
        self, moment: int, after: "EndPosition", limit: int
    ) -> "list[tuple[EndPosition, ArchivedRun]]":
        """Returns runs that ended before a moment and come after a position, oldest first. Other
        threads may call it.
        """

    def forget(self, runs: Sequence[ArchivedRun], stored: frozenset[Hash32]) -> None:
        """Deletes these runs for good. For outputs in `stored` it keeps who may read them. Threads
        as for `keep`.
        """

    def forgotten_outputs(self, after: Hash32, limit: int) -> list[Hash32]:
        """Returns the digests after one, sorted, of outputs of deleted runs whose readers are still
        kept. Any thread may call it.
        """

    def forget_outputs(self, outputs: Sequence[Hash32]) -> None:
        """Deletes who may read these outputs, because the content store no longer has them. Threads
        as for `keep`.
        """

    def append(self, lines: Sequence[LogLine]) -> None:
        """Writes lines of the public log, all or none. What is stored already is replaced. Threads
        as for `keep`.
        """

    def lines_after(self, seq: int, limit: int) -> list[LogLine]:
        """Returns the lines of the public log after a number, in order. Any thread may call it."""

    def line_count(self) -> int:
        """Returns how many lines of the public log there are."""

    @property
    def problem(self) -> str:
        """Why the archive cannot be used, as a sentence; "" when it can."""

    def close(self) -> None:
        """Closes its files."""


EndPosition = tuple[int, Hash32]
"""(second in which a run ended, its job): the order in which old runs are deleted."""
BEFORE_ALL_RUNS: EndPosition = (0, ZERO_HASH)


@dataclass(slots=True)
class MemoryArchive:
    """`RunArchive` in memory, for tests."""

    by_id: dict[Hash32, ArchivedRun] = field(default_factory=dict)
    outputs: dict[Hash32, Readers] = field(default_factory=dict)
    left: dict[Hash32, None] = field(default_factory=dict)  # outputs of deleted runs
    gone: int = 0  # how many runs were deleted
    lines: dict[int, bytes] = field(default_factory=dict)
    problem: str = ""

    def keep(self, runs: Sequence[ArchivedRun]) -> None:
        """As `RunArchive`."""
        for run in runs:
            self.by_id[run.run.job_id] = run
            for digest, readers in readers_of(run):
                self.outputs.setdefault(
                    digest, readers
                )  # the first execution that committed to it keeps it

    def run(self, job_id: Hash32) -> ArchivedRun | None:
        """As `RunArchive`."""
        return self.by_id.get(job_id)

    def runs_of(self, client: Address, limit: int) -> list[ArchivedRun]:
        """As `RunArchive`."""
        mine = (run for run in self.by_id.values() if run.run.client == client)
        return sorted(mine, key=lambda run: (run.run.created_at, run.last_line), reverse=True)[
            :limit
        ]

    def runs_after(self, client: Address, line: int) -> list[ArchivedRun]:
        """As `RunArchive`."""
        mine = (
            run for run in self.by_id.values() if run.run.client == client and run.last_line > line
        )
        return sorted(mine, key=lambda run: run.last_line, reverse=True)[:RUNS_PER_LOOK]

    def newest_line(self, client: Address) -> int:
        """As `RunArchive`."""
        return max(
            (run.last_line for run in self.by_id.values() if run.run.client == client), default=0
        )

    def since(self, line: int, limit: int) -> list[tuple[int, Row]]:
        """As `RunArchive`."""
        found = sorted(
            (run for run in self.by_id.values() if run.last_line > line),
            key=lambda run: run.last_line,
        )
        return [(run.last_line, row_of(run)) for run in found[:limit]]

    def readers(self, output: Hash32) -> Readers | None:
        """As `RunArchive`."""
        return self.outputs.get(output)

    def has_document(self, document: Hash32, account: Address | None) -> bool:
        """As `RunArchive`."""
        rows = (row for run in self.by_id.values() for row in document_rows_of(run))
        readers = [to for digest, to in rows if digest == document]
        return bool(readers) and (account is None or account in readers or EVERYBODY in readers)

    def count(self) -> int:
        """As `RunArchive`."""
        return len(self.by_id) + self.gone

    def used_bytes(self) -> int:
        """As `RunArchive`: the size of the encoded runs."""
        return sum(len(packed.encode(run)) for run in self.by_id.values())

    def ended_before(
        self, moment: int, after: EndPosition, limit: int
    ) -> list[tuple[EndPosition, ArchivedRun]]:
        """As `RunArchive`."""
        found = ((end_position_of(run), run) for run in self.by_id.values())
        return sorted(
            (item for item in found if after < item[0] < (moment, ZERO_HASH)),
            key=lambda item: item[0],
        )[:limit]

    def forget(self, runs: Sequence[ArchivedRun], stored: frozenset[Hash32]) -> None:
        """As `RunArchive`."""
        for run in runs:
            self.gone += self.by_id.pop(run.run.job_id, None) is not None
            for digest, _ in readers_of(run):
                if digest in stored:
                    self.left[digest] = None
                else:
                    self.outputs.pop(digest, None)

    def forgotten_outputs(self, after: Hash32, limit: int) -> list[Hash32]:
        """As `RunArchive`."""
        return sorted(digest for digest in self.left if digest > after)[:limit]

    def forget_outputs(self, outputs: Sequence[Hash32]) -> None:
        """As `RunArchive`."""
        for digest in outputs:
            if self.left.pop(digest, "") is None:
                del self.outputs[digest]

    def append(self, lines: Sequence[LogLine]) -> None:
        """As `RunArchive`."""
        self.lines.update(lines)

    def lines_after(self, seq: int, limit: int) -> list[LogLine]:
        """As `RunArchive`."""
        return sorted(item for item in self.lines.items() if item[0] > seq)[:limit]

    def line_count(self) -> int:
        """As `RunArchive`."""
        return len(self.lines)

    def close(self) -> None:
        """As `RunArchive`."""


def end_position_of(over: ArchivedRun) -> EndPosition:
    """Returns the second in which a run ended, which is that of its newest history line, and its
    job.
    """
    return (over.lines[-1].at if over.lines else over.run.created_at), over.run.job_id


def row_of(over: ArchivedRun) -> Row:
    """Returns the run's row in the SQL tables. It is made once, when the run is archived.
    `reporting.rows.run_row` makes the same row of a run in the state.
    """
    run = over.run
    outcome = run.verdict.message.outcome.name.lower() if run.verdict is not None else None
    is_stopped = any(line.name == "stopped" for line in over.lines)
    ending = "" if run.phase != "ended" else "stopped" if is_stopped else "unmatched"
    published = [execution for execution in run.executions if execution.role != "unknown"]
    return {
        "job_id": run.job_id.hex(),
        "client": run.client.hex(),
        "name": run.name,
        "host_class": over.ack.message.host_class.hex(),
        "phase": run.phase,
        "rule": run.rule.name.lower(),
        "outcome": outcome,
        "ending": outcome or ending,
        "executions": len(published),
        "audits": max(0, len(published) - 1),
        "outvoted": sum(execution.agreed is False for execution in published)
        if outcome == "accepted"
        else 0,
        "charged": run.charged,
        "fee": over.fee,
        "created_at": run.created_at,
        "receipt_cid": run.receipt_cid,
    }


def readers_of(run: ArchivedRun) -> Iterator[tuple[Hash32, Readers]]:
    """Yields (ciphertext, who may read it) for every output that a provider committed to. The
    client of a run that was not charged may read none, and `ZERO_ADDRESS` stands in its place.
    """
    client = run.run.client if run.run.output is not None else ZERO_ADDRESS
    for lease in run.leases:
        if lease.output is not None:
            is_public = run.is_public and run.run.output is not None
            yield (lease.output, Readers(lease.assignment_hash, lease.provider, client, is_public))


def document_rows_of(run: ArchivedRun) -> tuple[DocumentRow, ...]:
    """Returns who may read the run's receipt, and its spec and terms if they are kept."""
    kept = (run.spec_hash, run.terms_hash) if run.is_paid_for else ()
    return rows_of(kept, run.run.receipt_cid, run.run.client, run.is_public)
