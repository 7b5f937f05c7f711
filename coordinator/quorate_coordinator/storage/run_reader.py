"""Finds runs for the API: in the state while they are under way, else in the archive.

A run is written into the archive before it leaves the state, and the reader reads both without a
pause in between. So it misses no run.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from quorate_coordinator.core import views
from quorate_coordinator.core.archived_run import ArchivedRun
from quorate_coordinator.core.jobs import log_reads
from quorate_coordinator.core.jobs.log_reads import LogAccess
from quorate_coordinator.core.model.entities import Decided, Ended
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.phase_names import words_apart
from quorate_coordinator.storage.archive import FileArchive
from quorate_coordinator.storage.document_readers import DocumentReaders
from quorate_protocol.messages.envelope import Envelope
from quorate_protocol.messages.signed import Ack
from quorate_protocol.messages.views import JobEvent, RunView
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Hash32

LINES_MAX = 2048  # of one client in one answer: the newest
GIVEN_UP = frozenset(words_apart(kind.__name__) for kind in log_reads.GIVEN_UP)
REMEMBERED = 256
# clients that asked for lines: more than there are streams, so that no open stream is forgotten
ACCOUNTS_REMEMBERED = 8192


@dataclass(slots=True, init=False)
class RunReader:
    """Reads one coordinator's runs. It derives from the tables which client has which run."""

    state: State
    archive: FileArchive
    documents: DocumentReaders
    _changed_jobs: set[Hash32]
    _changed_lines: set[Hash32]
    _client_of: dict[Hash32, Address] = field(default_factory=dict)
    _mine: dict[Address, dict[Hash32, None]] = field(default_factory=dict)
    _newest: dict[Address, int] = field(default_factory=dict)  # newest line in the state, by client
    # newest line in the archive, by client that asked
    _newest_over: OrderedDict[Address, int] = field(default_factory=OrderedDict)
    _remembered: OrderedDict[Hash32, ArchivedRun] = field(default_factory=OrderedDict)

    def __init__(self, state: State, archive: FileArchive) -> None:
        self.state, self.archive = state, archive
        self._changed_jobs, self._changed_lines = state.jobs.follow(), state.events.follow()
        self.documents = DocumentReaders(state)
        self._client_of, self._mine, self._newest = {}, {}, {}
        self._newest_over, self._remembered = OrderedDict(), OrderedDict()

    def refresh(self) -> None:
        """Call it regularly, also without requests, so that the list of changes stays short."""
        for job_id in sorted(self._changed_jobs - self._client_of.keys(), key=self._age):
            job = self.state.jobs.get(job_id)
            if job is not None:
                client = self._client_of[job_id] = job.order.client
                self._mine.setdefault(client, {})[job_id] = None
        for job_id in self._changed_lines:
            lines = self.state.events.get(job_id)
            if lines and job_id in self._client_of:
                client = self._client_of[job_id]
                self._newest[client] = max(self._newest.get(client, 0), lines[-1].seq)
        for job_id in self._changed_jobs:
            if job_id not in self.state.jobs and job_id in self._client_of:
                client = self._client_of.pop(job_id)
                del self._mine[client][job_id]
                if not self._mine[client]:
                    del self._mine[client]
                    self._newest.pop(client, None)  # all its lines are archived
        self._changed_jobs.clear()
        self._changed_lines.clear()
        self.documents.refresh()

    def kept(self, runs: Sequence[ArchivedRun]) -> None:
        """The archive now has them. Call it before the state forgets them."""
        self.refresh()
        for over in runs:
            client = over.run.client
            if client in self._newest_over:
                self._newest_over[client] = max(self._newest_over[client], over.last_line)

    def gone(self, runs: Sequence[ArchivedRun]) -> None:
        for over in runs:
            self._remembered.pop(over.run.job_id, None)

    def _age(self, job_id: Hash32) -> tuple[int, Hash32]:
        job = self.state.jobs.get(job_id)
        return (job.created_at if job is not None else 0), job_id

    # ---- one run

    def view(self, job_id: Hash32, is_client: bool) -> RunView:
        """For its client, or for a reader of its evidence. Raises Refused(UNKNOWN)."""
        job = self.state.jobs.get(job_id)
        if job is None:
            return self._over(job_id).view(is_client)
        return views.run_view(self.state, job, is_client)

    def is_over(self, job_id: Hash32) -> bool:
        """No further execution can start."""
        job = self.state.jobs.get(job_id)
        return job is None or isinstance(job.phase, Decided | Ended)

    def log_access(self, job_id: Hash32, assignment_hash: Hash32) -> LogAccess:
        job = self.state.jobs.get(job_id)
        if job is None:
            run = self._over(job_id).run
            phases = {item.assignment_hash: item.phase for item in run.executions}
            has_given_up = phases.get(assignment_hash, "") in GIVEN_UP
            is_paid = run.output is not None or (run.rental is not None and run.charged > 0)
            return LogAccess.FREE if is_paid or has_given_up else LogAccess.NONE
        return log_reads.access(self.state, job, self.state.leases[assignment_hash])

    def ack(self, job_id: Hash32) -> Envelope[Ack] | None:
        over = self.archived(job_id)
        return over.ack if over is not None else None

    def session_key(self, job_id: Hash32) -> Address | None:
        over = self.archived(job_id)
        return over.session_key if over is not None else None

    def lines_of_run(self, job_id: Hash32, after: int) -> list[JobEvent]:
        if job_id in self.state.jobs:
            return newer(self.state.events.get(job_id) or (), after)
        over = self.archived(job_id)
        return newer(over.lines, after) if over is not None and over.last_line > after else []

    # ---- all runs of a client

    def runs_of(self, client: Address, limit: int) -> list[RunView]:
        self.refresh()
        here = [self.state.jobs[job_id] for job_id in self._mine.get(client, ())]
        here = sorted(here, key=lambda job: (job.created_at, job.id), reverse=True)[:limit]
        found = {job.id: views.run_view(self.state, job, is_client=True) for job in here}
        for over in self.archive.runs_of(client, limit):
            found.setdefault(over.run.job_id, over.run)
        return sorted(found.values(), key=lambda view: view.created_at, reverse=True)[:limit]

    def lines(self, client: Address, after: int) -> list[JobEvent]:
        """With greater sequence numbers, oldest first; at most the newest `LINES_MAX`."""
        self.refresh()
        found: dict[int, JobEvent] = {}
        if self._newest_archived(client) > after:
            for over in self.archive.runs_after(client, after):
                found |= {line.seq: line for line in newer(over.lines, after)}
        if self._newest.get(client, 0) > after:
            for job_id in self._mine.get(client, ()):
                found |= {
                    line.seq: line for line in newer(self.state.events.get(job_id) or (), after)
                }
        return [found[seq] for seq in sorted(found)[-LINES_MAX:]]

    def _newest_archived(self, client: Address) -> int:
        """Anybody with a key may ask, so the number of remembered clients is limited. The client
        that has not asked for longest is dropped.
        """
        newest = self._newest_over.get(client)
        if newest is None:
            newest = self._newest_over[client] = self.archive.newest_line(client)
            if len(self._newest_over) > ACCOUNTS_REMEMBERED:
                self._newest_over.popitem(last=False)
        self._newest_over.move_to_end(client)
        return newest

    # ---- archived runs, with a small cache: a stream of a finished run asks several times a second

    def _over(self, job_id: Hash32) -> ArchivedRun:
        over = self.archived(job_id)
        if over is None:
            raise Refused(Code.UNKNOWN, f"run 0x{job_id.hex()}")
        return over

    def archived(self, job_id: Hash32) -> ArchivedRun | None:
        """A run that has left the state; None if the archive does not have it."""
        found = self._remembered.get(job_id)
        if (
            found is None
            and job_id not in self.state.jobs
            and (found := self.archive.run(job_id)) is not None
        ):
            self._remembered[job_id] = found
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)
        return found


def newer(lines: tuple[JobEvent, ...], after: int) -> list[JobEvent]:
    """Searches from the newest line: thousands of streams ask five times a second."""
    found = list(takewhile(lambda line: line.seq > after, reversed(lines)))
    return found[::-1]
