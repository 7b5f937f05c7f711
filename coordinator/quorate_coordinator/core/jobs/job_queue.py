"""Finds which job waits for what, and until when. Derived from the state's tables, so that no step
reads jobs that have nothing to do.

Jobs that wait for a primary are in lanes: queues of jobs of one client with the same needs. The
client with the fewest running executions comes first, and of its lanes the one with the oldest job.
A client whose executions fill its window waits. When no provider is found for a lane, it is parked
until a provider may meet its needs. Jobs that wait for a beacon round are listed under that round.
All other waits are listed under the second in which they end.

The choice follows from the tables alone, never from the order in which entries were made. Otherwise
a replay would choose differently.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from quorate_coordinator.core.audit.batches import CLOSINGS_MAX
from quorate_coordinator.core.model import lease as leases
from quorate_coordinator.core.model import skips
from quorate_coordinator.core.model.entities import (
    AwaitingRound,
    Decided,
    Job,
    Matching,
    Rented,
    Revealing,
    Running,
    open_leases,
)
from quorate_coordinator.core.model.market_index import drained
from quorate_coordinator.core.model.needs import needs_of
from quorate_coordinator.core.model.row import Needs
from quorate_coordinator.core.model.state import State
from quorate_protocol.limits import Limits
from quorate_protocol.units import ZERO_HASH, Address, Hash32, Price, Round, UnixSeconds

K = TypeVar("K")
P = TypeVar("P", bound=tuple[object, ...])
LaneKey = tuple[Address, Hash32, Needs, Price, Hash32]
"""Client, pool, needs, price. The last part is the job's id if it has a lane of its own,
because some providers have refused it; else zero.
"""


class Ranking(Generic[K, P]):
    """Keys by rank, lowest first. Each rank contains its key, so no two are equal."""

    def __init__(self) -> None:
        self._ranks: dict[K, P] = {}
        self._heap: list[tuple[P, K]] = []  # some entries are of older ranks

    def __len__(self) -> int:
        return len(self._ranks)

    def set(self, key: K, rank: P | None) -> None:
        if rank is None:
            self._ranks.pop(key, None)
        elif self._ranks.get(key) != rank:
            self._ranks[key] = rank
            heappush(self._heap, (rank, key))
            if len(self._heap) > 2 * len(self._ranks) + 64:
                self._heap = [(rank, key) for key, rank in self._ranks.items()]
                heapify(self._heap)

    def first(self) -> tuple[P, K] | None:
        while self._heap:
            rank, key = self._heap[0]
            if self._ranks.get(key) == rank:
                return rank, key
            heappop(self._heap)
        return None

    def take_until(self, at: int) -> list[K]:
        """Removes the keys whose rank begins with at most `at`, and returns them in order."""
        taken = []
        while (first := self.first()) is not None and first[0][0] <= at:  # type: ignore[operator]
            taken.append(first[1])
            del self._ranks[first[1]]
        return taken


@dataclass(slots=True)
class _Lane:
    key: LaneKey
    jobs: Ranking[Hash32, tuple[UnixSeconds, Hash32]] = field(default_factory=Ranking)
    is_parked: bool = False


@dataclass(slots=True)
class _Account:
    """Clients without running or waiting jobs have no entry."""

    running: int = 0
    lanes: Ranking[LaneKey, tuple[UnixSeconds, Hash32]] = field(default_factory=Ranking)


class _Wait(NamedTuple):
    not_before: UnixSeconds | None
    refused_by: tuple[Address, ...]
    round: Round | None


NO_WAIT = _Wait(None, (), None)


class JobQueue:
    """Live jobs by what they wait for."""

    def __init__(self, state: State, limits: Limits) -> None:
        self._state, self._market, self._limits = state, state.market, limits
        self._changed = (state.jobs.follow(), state.live.follow(), state.held.follow())
        self._changed_leases = state.leases.follow()
        self._changed_windows = state.client_windows.follow()
        self._waits: dict[Hash32, _Wait] = {}
        self._lane_of: dict[Hash32, LaneKey] = {}
        self._lanes: dict[LaneKey, _Lane] = {}
        self._parked: dict[Hash32, dict[Needs, list[tuple[Price, LaneKey]]]] = {}
        self._accounts: dict[Address, _Account] = {}
        self._ready: Ranking[Address, tuple[int, UnixSeconds, Hash32]] = Ranking()
        self._later: Ranking[Hash32, tuple[UnixSeconds, UnixSeconds, Hash32]] = Ranking()
        self._due: Ranking[Hash32, tuple[int, Hash32]] = Ranking()
        self._holds: Ranking[Hash32, tuple[UnixSeconds, Hash32]] = Ranking()
        self._rounds: dict[Round, set[Hash32]] = {}
        self._occupying: dict[Hash32, Address] = {}  # lease -> client
        # job -> providers that keep a place for it and have no free slot
        self._kept: dict[Hash32, tuple[Address, ...]] = {}
        self._keeping: dict[Address, set[Hash32]] = {}

    def refresh(self) -> None:
        if self._changed_leases:
            for digest in drained(self._changed_leases):
                self._derive_lease(digest)
        if self._changed_windows:
            for client in drained(self._changed_windows):
                self._rank_account(client, self._account(client))
        jobs, live, held = self._changed
        if jobs or live or held:
            job_ids = jobs | live | held
            for changed in self._changed:
                changed.clear()
            for job_id in job_ids:
                self._derive(job_id)

    # ---- what there is to do

    def rounds(self) -> list[Round]:
        self.refresh()
        return sorted(self._rounds)

    def awaiting(self, number: Round) -> list[Job]:
        self.refresh()
        return self._oldest_first(self._rounds.get(number, ()))

    def due(self, at: UnixSeconds) -> list[Job]:
        self.refresh()
        found = self._due.take_until(at)
        # They are ranked again in any case, because a deadline may change nothing and stay due.
        self._changed[0].update(found)
        return self._oldest_first(found)

    def releasable(self, at: UnixSeconds) -> list[Job]:
        self.refresh()
        found = self._holds.take_until(at)
        self._changed[0].update(found)
        return [self._state.jobs[job_id] for job_id in found]

    def kept_for(self, owner: Address) -> Job | None:
        """The job with a drawn execution that waits for a run slot of this provider: the one that
        `next` would return first. Repeats come last: the verdict of their job is clear.
        """
        self.refresh()
        found = [self._state.jobs[job_id] for job_id in self._keeping.get(owner, ())]
        return min(found, key=lambda job: (_is_repeated(job), self._rank_of(job)), default=None)

    def _rank_of(self, job: Job) -> tuple[int, UnixSeconds, Hash32]:
        account = self._accounts.get(job.order.client)
        return account.running if account else 0, job.created_at, job.id

    def _oldest_first(self, found: "set[Hash32] | tuple[()] | list[Hash32]") -> list[Job]:
        return sorted(
            (self._state.jobs[job_id] for job_id in found), key=lambda job: (job.created_at, job.id)
        )

    # ---- who is next

    def next(self, at: UnixSeconds) -> Job | None:
        self.refresh()
        self._market.refresh()
        self._unpark_lanes()
        for job_id in self._later.take_until(at):
            self._enter_lane(self._state.jobs[job_id])
        first = self._ready.first()
        return self._state.jobs[first[0][2]] if first is not None else None

    def park(self, job: Job) -> bool:
        """Returns False if the needs cannot be remembered; then the lane must be set aside."""
        lane = self._lanes[self._lane_of[job.id]]
        _, pool, needs, price, _ = lane.key
        bucket = self._market.bucket(pool)
        if bucket is None or not bucket.fail(needs, price):
            return False
        lane.is_parked = True
        insort(self._parked.setdefault(pool, {}).setdefault(needs, []), (price, lane.key))
        self._rank(lane)
        return True

    def set_aside(self, job: Job) -> None:
        self._leave_lane(job.id)

    def set_lane_aside(self, job: Job) -> list[Hash32]:
        lane = self._lanes[self._lane_of[job.id]]
        found = []
        while (first := lane.jobs.first()) is not None:
            found.append(first[1])
            self._leave_lane(first[1])
        return found

    def put_back(self, job_ids: list[Hash32]) -> None:
        for job_id in job_ids:
            self._waits.pop(job_id, None)
            self._changed[0].add(job_id)

    def _unpark_lanes(self) -> None:
        for pool in list(self._parked):
            bucket = self._market.bucket(pool)
            assert bucket is not None, "the bucket of a class with parked jobs stays"
            for needs, price in bucket.newly_meetable().items():
                waiting = self._parked[pool].get(needs, [])
                position = bisect_left(waiting, price, key=lambda item: item[0])
                for _, key in waiting[position:]:
                    self._lanes[key].is_parked = False
                    self._rank(self._lanes[key])
                del waiting[position:]
                self._forget_unused_needs(pool, needs)

    def _forget_unused_needs(self, pool: Hash32, needs: Needs) -> None:
        by_needs = self._parked[pool]
        if needs in by_needs and not by_needs[needs]:
            del by_needs[needs]
            self._market.buckets[pool].forget(needs)
        if not by_needs:
            del self._parked[pool]

    # ---- derivation

    def _derive_lease(self, digest: Hash32) -> None:
        lease = self._state.leases.get(digest)
        client = self._occupying.pop(digest, None)
        if client is not None:
            self._count(client, -1)
        if lease is None:
            return
        self._changed[0].add(lease.job_id)
        if lease.occupies_slot:
            client = self._state.jobs[lease.job_id].order.client
            self._occupying[digest] = client
            self._count(client, 1)

    def _count(self, client: Address, change: int) -> None:
        account = self._account(client)
        account.running += change
        self._rank_account(client, account)

    def _derive(self, job_id: Hash32) -> None:
        job = self._state.jobs.get(job_id)
        is_live = job is not None and job_id in self._state.live
        is_held = job is not None and job_id in self._state.held and isinstance(job.phase, Decided)
        phase = job.phase if is_held and job is not None else None
        hold_until = phase.hold_until if isinstance(phase, Decided) else None
        self._holds.set(job_id, None if hold_until is None else (hold_until, job_id))
        due = deadline_of(self._state, job, self._limits) if is_live and job is not None else None
        self._due.set(job_id, None if due is None else (due, job_id))
        self._derive_kept(job_id, _waiting_for(job) if is_live and job is not None else ())
        wait = _wait_of(job) if is_live and job is not None else NO_WAIT
        before = self._waits.get(job_id, NO_WAIT)
        if wait == before:
            return
        self._leave(job_id, before)
        if wait == NO_WAIT:
            self._waits.pop(job_id, None)
            return
        assert job is not None
        self._waits[job_id] = wait
        if wait.not_before is not None:
            self._later.set(job_id, (wait.not_before, job.created_at, job_id))
        if wait.round is not None:
            self._rounds.setdefault(wait.round, set()).add(job_id)

    def _derive_kept(self, job_id: Hash32, owners: tuple[Address, ...]) -> None:
        before = self._kept.get(job_id, ())
        if owners == before:
            return
        for owner in before:
            self._keeping[owner].discard(job_id)
            if not self._keeping[owner]:
                del self._keeping[owner]
        for owner in owners:
            self._keeping.setdefault(owner, set()).add(job_id)
        if owners:
            self._kept[job_id] = owners
        else:
            del self._kept[job_id]

    def _leave(self, job_id: Hash32, wait: _Wait) -> None:
        self._later.set(job_id, None)
        self._leave_lane(job_id)
        if wait.round is not None:
            waiting = self._rounds[wait.round]
            waiting.discard(job_id)
            if not waiting:
                del self._rounds[wait.round]

    # ---- lanes

    def _enter_lane(self, job: Job) -> None:
        order = job.order
        alone = job.id if job.refused_by else ZERO_HASH
        key = (
            order.client,
            job.pool.id(),
            needs_of(job.submission.spec),
            order.max_price_per_hour,
            alone,
        )
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key)
        lane.jobs.set(job.id, (job.created_at, job.id))
        self._lane_of[job.id] = key
        self._rank(lane)

    def _leave_lane(self, job_id: Hash32) -> None:
        key = self._lane_of.pop(job_id, None)
        if key is None:
            return
        lane = self._lanes[key]
        lane.jobs.set(job_id, None)
        self._rank(lane)
        if not len(lane.jobs):
            del self._lanes[key]
            if lane.is_parked:
                self._forget_parked(key)

    def _forget_parked(self, key: LaneKey) -> None:
        _, pool, needs, price, _ = key
        waiting = self._parked[pool][needs]
        del waiting[bisect_left(waiting, (price, key))]
        self._forget_unused_needs(pool, needs)

    def _account(self, client: Address) -> _Account:
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = _Account()
        return account

    def _rank(self, lane: _Lane) -> None:
        client = lane.key[0]
        account = self._account(client)
        first = lane.jobs.first()
        account.lanes.set(lane.key, None if lane.is_parked or first is None else first[0])
        self._rank_account(client, account)

    def _rank_account(self, client: Address, account: _Account) -> None:
        best = account.lanes.first()
        window = self._state.client_windows.get(client)
        may_begin = best is not None and (window is None or account.running < window)
        self._ready.set(client, (account.running, *best[0]) if may_begin and best else None)
        if best is None and not account.running:
            # A new entry would say the same. So a client with a new key for every job leaves no
            # entries behind.
            del self._accounts[client]


def _waiting_for(job: Job) -> tuple[Address, ...]:
    if not isinstance(job.phase, Running):
        return ()
    return tuple(
        dict.fromkeys(
            place.slot.owner for place in job.phase.places if place.assignment_hash is None
        )
    )


def _is_repeated(job: Job) -> bool:
    return isinstance(job.phase, Running) and job.phase.is_repeat


def _wait_of(job: Job) -> _Wait:
    match job.phase:
        case Matching(not_before):
            return _Wait(not_before, job.refused_by, None)
        case AwaitingRound(round=number):
            return _Wait(None, (), number)
        case _:
            return NO_WAIT


def deadline_of(state: State, job: Job, limits: Limits) -> int | None:
    """The first second in which time alone may change a job."""
    found: list[int] = []
    for digest in open_leases(job):
        lease = state.leases[digest]
        match lease.phase:
            case leases.Assigned():
                found.append(lease.assignment.message.accept_by + 1)
            case leases.Accepted() as phase:
                found.append(leases.lapses_after(phase, limits) + 1)
            case leases.Closed(_, reveal_by):
                found.append(reveal_by + 1)
            case _:
                pass
    match job.phase:
        case Matching():
            found.append(job.waits_until)
        case Running(places=places, skipped=skipped):
            found += [place.retry_at for place in places if place.assignment_hash is None]
            if not found and skipped:
                # All have committed. The batch is closed after a silent provider could accept.
                found.append(skips.silent_until(state, skipped) + 1)
        case Rented(heard_at=heard_at, stop_by=stop_by):
            found.append(stop_by or heard_at + limits.rental_ahead + 1)
        case Revealing(batch) if found and batch.closings < CLOSINGS_MAX:
            found.append(batch.commit_set.message.closed_at + limits.beacon_period + 2)
        case _:
            pass
    return min(found, default=None)
