"""Makes provisional verdicts final once their provider has served W further jobs (PROTOCOL §5
Holding). `held_pay` has the other ways in which a hold ends.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

from quorate_coordinator.core.audit.trust import trust_class_of
from quorate_coordinator.core.matching import offers
from quorate_coordinator.core.model.entities import Job, JobHold, MedianPrice, Windows
from quorate_coordinator.core.model.lease import Lease
from quorate_coordinator.core.model.state import State
from quorate_coordinator.core.model.step_context import StepContext
from quorate_protocol.rules.hold_window import Window, after_job, window_jobs
from quorate_protocol.units import PPM_ONE, Address, Hash32, Price, UnixSeconds, VerifyTier

MEDIAN_SECONDS = 600  # how long a class's median price is used; it takes all offers to compute


def advance(context: StepContext, job: Job, primary: Lease) -> None:
    """Call `hold` for the job afterwards."""
    trust_class, order = trust_class_of(job), job.order
    known = context.state.windows.get(primary.provider) or Windows()
    window = known.by_class.get(trust_class) or Window()
    median = _median(context, job.pool.id())
    # One client may count for only a share of the jobs in a stretch (see `hold_window`). All
    # stretches have the length of the standard tier. Otherwise an order of another verify tier
    # would end a stretch early.
    length = window_jobs(VerifyTier.STANDARD, context.rules.limits)
    further = after_job(
        window, order.client, primary.assignment.message.price_per_hour, median, length
    )
    context.state.windows[primary.provider] = Windows({**known.by_class, trust_class: further})


def hold(context: StepContext, job: Job, primary: Lease) -> None:
    """`Decided.hold_until` bounds the hold in time, the table `held` by progress."""
    trust_class = trust_class_of(job)
    progress = context.state.windows[primary.provider].by_class[trust_class].progress_ppm
    length = window_jobs(job.order.verify_tier, context.rules.limits)
    context.state.held[job.id] = JobHold(primary.provider, trust_class, progress + length * PPM_ONE)


def _median(context: StepContext, pool: Hash32) -> Price:
    """It is stored, because a replay must use the same one."""
    known = context.state.median_prices.get(pool)
    if known is None or context.at >= known.until:
        known = context.state.median_prices[pool] = MedianPrice(
            offers.median_price(context, pool), UnixSeconds(context.at + MEDIAN_SECONDS)
        )
    return known.price


class HoldQueue:
    """Held jobs by the progress that ends their windows. Derived from `held` and `windows`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._changed, self._moved = state.held.follow(), state.windows.follow()
        self._heaps: dict[tuple[Address, Hash32], list[tuple[int, Hash32]]] = {}

    def over(self, most: int) -> Iterator[Job]:
        """Jobs whose windows have ended. The caller must remove each of them from `held`."""
        for job_id in sorted(self._changed):
            found = self._state.held.get(job_id)
            if found is not None:
                heappush(
                    self._heaps.setdefault((found.owner, found.trust_class), []),
                    (found.ends_at, job_id),
                )
                self._moved.add(found.owner)
        self._changed.clear()
        for owner in sorted(self._moved):
            for trust_class, window in (
                self._state.windows.get(owner) or Windows()
            ).by_class.items():
                for job_id in self._pop(owner, trust_class, window.progress_ppm):
                    if not most:
                        self._changed.add(job_id)
                        continue
                    most -= 1
                    yield self._state.jobs[job_id]
        self._moved.clear()

    def _pop(self, owner: Address, trust_class: Hash32, progress: int) -> list[Hash32]:
        heap = self._heaps.get((owner, trust_class), [])
        popped = []
        while heap and (heap[0][0] <= progress or heap[0][1] not in self._state.held):
            ends_at, job_id = heappop(heap)
            found = self._state.held.get(job_id)
            if found is not None and found.ends_at == ends_at:
                popped.append(job_id)
        if not heap:
            self._heaps.pop((owner, trust_class), None)
        return list(dict.fromkeys(popped))
