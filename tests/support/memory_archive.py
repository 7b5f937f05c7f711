"""An archive in memory. The tests of the archive run against it and against the one on disk."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.storage.archive import (
    RUNS_PER_LOOK,
    EndPosition,
    FileArchive,
    LogLine,
    Readers,
    Row,
    document_rows_of,
    end_position_of,
    readers_of,
    row_of,
)
from quorate_coordinator.storage.document_readers import EVERYBODY
from quorate_protocol.codec import packed
from quorate_protocol.units import ZERO_HASH, Address, Hash32


@dataclass(slots=True)
class MemoryArchive:
    """`FileArchive` in memory."""

    by_id: dict[Hash32, ArchivedRun] = field(default_factory=dict)
    outputs: dict[Hash32, Readers] = field(default_factory=dict)
    left: dict[Hash32, None] = field(default_factory=dict)  # outputs of deleted runs
    gone: int = 0  # how many runs were deleted
    lines: dict[int, bytes] = field(default_factory=dict)
    problem: str = ""

    def keep(self, runs: Sequence[ArchivedRun]) -> None:
        for run in runs:
            self.by_id[run.run.job_id] = run
            for digest, readers in readers_of(run):
                self.outputs.setdefault(
                    digest, readers
                )  # the first execution that committed to it keeps it

    def run(self, job_id: Hash32) -> ArchivedRun | None:
        return self.by_id.get(job_id)

    def runs_of(self, client: Address, limit: int) -> list[ArchivedRun]:
        mine = (run for run in self.by_id.values() if run.run.client == client)
        return sorted(mine, key=lambda run: (run.run.created_at, run.last_line), reverse=True)[
            :limit
        ]

    def runs_after(self, client: Address, line: int) -> list[ArchivedRun]:
        mine = (
            run for run in self.by_id.values() if run.run.client == client and run.last_line > line
        )
        return sorted(mine, key=lambda run: run.last_line, reverse=True)[:RUNS_PER_LOOK]

    def newest_line(self, client: Address) -> int:
        return max(
            (run.last_line for run in self.by_id.values() if run.run.client == client), default=0
        )

    def since(self, line: int, limit: int) -> list[tuple[int, Row]]:
        found = sorted(
            (run for run in self.by_id.values() if run.last_line > line),
            key=lambda run: run.last_line,
        )
        return [(run.last_line, row_of(run)) for run in found[:limit]]

    def readers(self, output: Hash32) -> Readers | None:
        return self.outputs.get(output)

    def has_document(self, document: Hash32, account: Address | None) -> bool:
        rows = (row for run in self.by_id.values() for row in document_rows_of(run))
        readers = [to for digest, to in rows if digest == document]
        return bool(readers) and (account is None or account in readers or EVERYBODY in readers)

    def count(self) -> int:
        return len(self.by_id) + self.gone

    def used_bytes(self) -> int:
        return sum(len(packed.encode(run)) for run in self.by_id.values())

    def ended_before(
        self, moment: int, after: EndPosition, limit: int
    ) -> list[tuple[EndPosition, ArchivedRun]]:
        found = ((end_position_of(run), run) for run in self.by_id.values())
        return sorted(
            (item for item in found if after < item[0] < (moment, ZERO_HASH)),
            key=lambda item: item[0],
        )[:limit]

    def forget(self, runs: Sequence[ArchivedRun], stored: frozenset[Hash32]) -> None:
        for run in runs:
            self.gone += self.by_id.pop(run.run.job_id, None) is not None
            for digest, _ in readers_of(run):
                if digest in stored:
                    self.left[digest] = None
                else:
                    self.outputs.pop(digest, None)

    def forgotten_outputs(self, after: Hash32, limit: int) -> list[Hash32]:
        return sorted(digest for digest in self.left if digest > after)[:limit]

    def forget_outputs(self, outputs: Sequence[Hash32]) -> None:
        for digest in outputs:
            if self.left.pop(digest, "") is None:
                del self.outputs[digest]

    def append(self, lines: Sequence[LogLine]) -> None:
        self.lines.update(lines)

    def lines_after(self, seq: int, limit: int) -> list[LogLine]:
        return sorted(item for item in self.lines.items() if item[0] > seq)[:limit]

    def line_count(self) -> int:
        return len(self.lines)

    def close(self) -> None:
        pass


RunArchive = FileArchive | MemoryArchive
