"""Counts how jobs end and how long they take, from the moment when a process starts.

The core knows only its jobs of today. So this follows the table of jobs: a job counts once, when it
first has a verdict or ends without one.
"""

from collections import Counter, deque
from statistics import median

from prometheus_client import CollectorRegistry, Histogram

from quorate_coordinator.base.operator_view import ENDINGS
from quorate_coordinator.core.model.entities import Decided, Ended, Job, Matching
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.phase_names import ending_name, phase_name
from quorate_protocol.messages.ports import Clock
from quorate_protocol.units import Hash32
from quorate_runtime.process.metrics import LabelledCounter

STAGES = ("matched", "decided")
BUCKETS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600, 14_400)  # seconds
REMEMBERED_MAX = 1_000  # newest times of which medians are taken


def ending_of(job: Job) -> str:
    """Returns one of `ENDINGS`; "" while the job is under way."""
    verdict = job.phase.verdict.message if isinstance(job.phase, Decided) else None
    return ending_name(
        phase_name(job.phase),
        verdict.outcome.name.lower() if verdict else None,
        is_charged=job.split.charged > 0,
        is_stopped=job.stop is not None,
    )


class EndingCounts:
    """Counters and times, also as metrics. Make it once the state is replayed."""

    def __init__(self, state: State, clock: Clock, registry: CollectorRegistry) -> None:
        self._state, self._clock = state, clock
        self._changed = state.jobs.follow(self._note)
        self._changed.clear()
        self._over = {job.id for job in state.jobs.values() if ending_of(job)}
        # Of writes that a rollback may still take back. `refresh` asks the state.
        self._matched_at: dict[Hash32, int] = {}
        self._ended: dict[Hash32, tuple[Job, int]] = {}
        self.counts: Counter[str] = Counter()
        self._seconds: dict[str, deque[int]] = {
            stage: deque(maxlen=REMEMBERED_MAX) for stage in STAGES
        }
        self._orders = LabelledCounter(
            registry, "quorate_orders_total", "Orders that ended, by how they ended.", ("ending",)
        )
        for name in ENDINGS:
            self._orders.add(name, amount=0)
        self._histogram = Histogram(
            "quorate_order_seconds",
            "Seconds from an order to its first assignment, and to its verdict.",
            ("stage",),
            buckets=BUCKETS,
            registry=registry,
        )
        for stage in STAGES:
            self._histogram.labels(stage)

    def refresh(self) -> None:
        changed = list(self._changed)
        self._changed.clear()
        for job_id in changed:
            job, ended = self._state.jobs.get(job_id), self._ended.pop(job_id, None)
            is_over = job is None or bool(ending_of(job))
            if is_over and ended is not None and job_id not in self._over:
                self._count(*ended)
            if job is None:
                self._over.discard(job_id)
            elif is_over:
                self._over.add(job_id)
            if is_over:
                self._matched_at.pop(job_id, None)

    def seconds_median(self, stage: str) -> int:
        """Of the newest times; 0 before the first."""
        seconds = self._seconds[stage]
        return int(median(seconds)) if seconds else 0

    def _note(self, before: Job, after: Job) -> bool:
        """A finished job may leave the state before `refresh`."""
        if before.phase is after.phase:
            return False
        now = int(self._clock.now())
        if isinstance(before.phase, Matching) and not isinstance(after.phase, Matching | Ended):
            self._matched_at.setdefault(after.id, now)
        if ending_of(after):
            self._ended.setdefault(after.id, (after, now))
        return True

    def _count(self, job: Job, at: int) -> None:
        ending = ending_of(job)
        self.counts[ending] += 1
        self._orders.add(ending)
        if isinstance(job.phase, Decided):
            self._observe("decided", at - job.created_at)
        matched_at = self._matched_at.get(job.id)
        if matched_at is not None:
            self._observe("matched", matched_at - job.created_at)

    def _observe(self, stage: str, seconds: int) -> None:
        self._seconds[stage].append(max(0, seconds))
        self._histogram.labels(stage).observe(max(0, seconds))
