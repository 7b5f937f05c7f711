"""Moves finished jobs from the state to the archive (docs/decisions/0005).

A job is finished when it has ended, or when its verdict is final and its pay released. It stays as
long as a court may hear one of its executions. Then an effect writes it durably into the archive,
and only after that an event removes its rows. So a reader always finds it. After a crash in
between, it is written again, unchanged.
"""

from quorate_coordinator.core.audit import eligible_snapshots, faults
from quorate_coordinator.core.jobs.job_queue import Ranking
from quorate_coordinator.core.model.effects import ArchiveRuns
from quorate_coordinator.core.model.entities import Decided, Ended, Job
from quorate_coordinator.core.model.events import RunsArchived
from quorate_coordinator.core.model.market_index import drained
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.units import Hash32, UnixSeconds

BATCH_MAX = 64  # runs in one effect, written in one transaction
PER_TICK_MAX = 2048
LOOK_AGAIN_SECONDS = 30
ARCHIVED = "archived"


class RetirementQueue:
    """Finished jobs by when they may leave the state. Derived from the table `finished`."""

    def __init__(self, state: State) -> None:
        self._finished, self._changed = state.finished, state.finished.follow()
        self._ranking: Ranking[Hash32, tuple[UnixSeconds, Hash32]] = Ranking()

    def is_due(self, at: int | None) -> bool:
        """`at` None asks whether one ever may."""
        first = self._first()
        return first is not None and (at is None or first[0] <= at)

    def take(self, at: UnixSeconds, most: int) -> list[Hash32]:
        """In the order of their times. The caller must write to the rows of all of them."""
        found: list[Hash32] = []
        while len(found) < most and (first := self._first()) is not None and first[0] <= at:
            found.append(first[1])
            self._ranking.set(first[1], None)
        return found

    def _first(self) -> tuple[UnixSeconds, Hash32] | None:
        for job_id in drained(self._changed):
            over_at = self._finished.get(job_id)
            self._ranking.set(job_id, None if over_at is None else (over_at, job_id))
        first = self._ranking.first()
        return first[0] if first is not None else None


def archive_due(context: StepContext, retirement_queue: RetirementQueue) -> None:
    """Archives finished jobs that no case can name, and checks the others again later."""
    found = []
    named = faults.in_court(context)
    for job_id in dict.fromkeys(retirement_queue.take(context.at, PER_TICK_MAX)):
        until = _needed_until(context, context.state.jobs[job_id], named)
        if until > context.at:
            context.state.finished[job_id] = until
        else:
            del context.state.finished[job_id]
            found.append(job_id)
    for start in range(0, len(found), BATCH_MAX):
        batch = tuple(found[start : start + BATCH_MAX])
        context.emit(ArchiveRuns(f"archive-{batch[0].hex()}-{context.at}", batch))


def on_archived(context: StepContext, event: RunsArchived) -> None:
    named = faults.in_court(context)
    for job_id in event.jobs:
        job = context.state.jobs.get(job_id)
        if job is None or not is_over(job):
            continue
        until = _needed_until(context, job, named)
        if until > context.at:
            context.state.finished[job_id] = until
        else:
            _forget(context, job)


def is_over(job: Job) -> bool:
    return isinstance(job.phase, Ended) or (
        isinstance(job.phase, Decided) and job.phase.is_final and job.is_released
    )


def _needed_until(context: StepContext, job: Job, named: frozenset[Hash32]) -> UnixSeconds:
    if job.id in named:
        return UnixSeconds(context.at + LOOK_AGAIN_SECONDS)
    return max(context.at, faults.heard_until(context, job))


def _forget(context: StepContext, job: Job) -> None:
    state = context.state
    for digest in job.leases:
        lease = state.leases[digest]
        held = state.leases_in_slots.get(lease.provider) or ()
        if digest in held:
            state.leases_in_slots[lease.provider] = tuple(item for item in held if item != digest)
        del state.leases[digest]
        state.accepts.pop(digest, None)
        state.declines.pop(digest, None)
    for commit_hash in job.commits:
        state.commits.pop(commit_hash, None)
    eligible_snapshots.remove_job(context, job.ack.message.eligible_root)
    state.events.pop(job.id, None)
    state.finished.pop(job.id, None)
    del state.jobs[job.id]
    context.count(ARCHIVED)
