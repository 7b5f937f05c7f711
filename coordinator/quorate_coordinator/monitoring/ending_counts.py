"""Counts how jobs end and how long they take, from the moment when a process starts.

The core knows only its jobs of today. So this follows the table of jobs: a job counts once, when it
first has a verdict or ends without one. It reads the times from the job's history.
"""

from collections import Counter, deque
from statistics import median

from prometheus_client import CollectorRegistry, Histogram

from quorate_coordinator.core.entities import Decided, Ended, Job
from quorate_coordinator.core.state import State
from quorate_protocol.units import Hash32
from quorate_runtime.process.metrics import LabelledCounter

ENDINGS = ("accepted", "unresolved", "cannot_verify", "lapsed", "stopped", "unmatched")
STAGES = ("matched", "decided")
BUCKETS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600, 14_400)  # seconds
REMEMBERED_MAX = 1_000  # newest times of which medians are taken


def ending_of(job: Job) -> str:
    """Returns one of `ENDINGS`; "" while the job is under way."""
    if isinstance(job.phase, Decided):
        return job.phase.verdict.message.outcome.name.lower()
    if isinstance(job.phase, Ended):
        return "unmatched" if job.stop is None else "stopped"
    return ""


class EndingCounts:
    """Counters and times, also as metrics. Make it once the state is replayed."""

    def __init__(self, state: State, registry: CollectorRegistry) -> None:
        self._state = state
        self._changed = state.jobs.follow(lambda before, after: before.phase is not after.phase)
        self._over = {job.id for job in state.jobs.values() if ending_of(job)}
        self._changed.clear()
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
        """Counts what has ended since the last call."""
        changed = list(self._changed)
        self._changed.clear()
        for job_id in changed:
            job = self._state.jobs.get(job_id)
            if job is None:
                self._over.discard(job_id)
            elif job_id not in self._over and (ending := ending_of(job)):
                self._over.add(job_id)
                self._count(job, ending)

    def seconds_median(self, stage: str) -> int:
        """Returns the median of the newest times of a stage; 0 before the first."""
        seconds = self._seconds[stage]
        return int(median(seconds)) if seconds else 0

    def _count(self, job: Job, ending: str) -> None:
        self.counts[ending] += 1
        self._orders.add(ending)
        for stage, event in (("matched", "assigned"), ("decided", "verdict")):
            at = self._time_of(job.id, event)
            if at is not None:
                seconds = max(0, at - job.created_at)
                self._seconds[stage].append(seconds)
                self._histogram.labels(stage).observe(seconds)

    def _time_of(self, job_id: Hash32, event: str) -> int | None:
        lines = self._state.events.get(job_id) or ()
        return next((line.at for line in lines if line.name == event), None)
