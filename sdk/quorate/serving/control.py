"""The control loop of a service: starts, probes, replaces and ends replicas.

A revision takes requests once enough of its replicas are ready; until then the one before it goes
on. A replica that does not start, or answers nothing, is replaced, and its rental ends at once.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

import aiohttp

from quorate.base.errors import QuorateError
from quorate.serving.gateway import Revisions
from quorate.serving.replicas import DEAD_AFTER, Health, Replica, Replicas
from quorate.serving.scaling import Backoff, Scaler
from quorate.serving.service_file import Revision, Service
from quorate_protocol.units import Amount, usd

LOOK_SECONDS = 1.0
PROBE_SECONDS = 2.0  # between probes of a replica that is ready, and of one that loads
PROBE_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
WAIT_SECONDS = 30.0  # after which a replica that has no machine is told, and why
DRAIN_SECONDS = 60.0  # a replica that takes no more requests has so long for those it has

log = logging.getLogger(__name__)


class Machine(Protocol):
    """One rental in which a replica runs."""

    price: int  # millionths of a USD by the hour

    @property
    def name(self) -> str: ...

    async def url(self) -> str:
        """Waits until the service's port can be asked, and returns its URL. Raises QuorateError if
        the machine cannot start, or has ended.
        """

    async def why_waits(self) -> str:
        """Returns why it does not run yet, or "" if it does. May raise QuorateError."""

    async def wait_end(self) -> str:
        """Returns why it ended, once it has."""

    async def stop(self) -> None:
        """Ends it now. It costs nothing from then on."""


class Machines(Protocol):
    """Where machines come from. Another run of this program finds those of a service again."""

    async def start(self, revision: Revision) -> Machine:
        """Raises QuorateError if none can be had now."""

    async def adopt(self) -> list[tuple[str, Machine]]:
        """Returns those that an earlier run of this program left, with the revision of each."""


@dataclass(slots=True)
class _Running:
    replica: Replica
    machine: Machine
    task: asyncio.Task[None]
    draining_since: float = 0.0


@dataclass(slots=True)
class Control:
    """Keeps one service running. `load`: reads the service's file again; None if it is the same.
    `tell`: what becomes of its replicas, in sentences.
    """

    service: Service
    machines: Machines
    replicas: Replicas
    session: aiohttp.ClientSession
    load: Callable[[], Service | None] = lambda: None
    tell: Callable[[str], None] = log.info
    on_want: Callable[[bool], None] = lambda is_wanting: None  # whether it lacks a machine
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    stable: Revision = field(init=False)  # the one that takes requests
    _running: dict[str, _Running] = field(default_factory=dict)
    _starting: dict[str, int] = field(default_factory=dict)  # revision -> orders under way
    _scalers: dict[str, Scaler] = field(default_factory=dict)
    _backoffs: dict[str, Backoff] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.stable = self.service.stable

    def revisions(self) -> Revisions:
        canary = self.service.canary
        return Revisions(
            self.stable.digest, "" if canary is None else canary.digest, self.service.share
        )

    async def run(self) -> None:
        """Until cancelled. Machines run on then, and the next run adopts them."""
        try:
            for revision, machine in await self.machines.adopt():
                self._add(revision, machine, "found again")
            while True:
                await self.look()
                await self.sleep(LOOK_SECONDS)
        finally:
            tasks = [*self._tasks, *(it.task for it in self._running.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stop_all(self) -> None:
        """Ends every machine of the service."""
        machines = [item.machine for item in self._running.values()]
        await asyncio.gather(*(_quietly(machine) for machine in machines))

    async def look(self) -> None:
        """One turn of the loop: what each revision should have, and what has ended."""
        changed = await asyncio.to_thread(self.load)
        if changed is not None:
            self.tell(f"service {changed.name}: revision {changed.stable.digest} comes")
            self.service = changed
        self._move_on()
        wanted = self._wanted()
        for revision in wanted:
            self._scale(revision)
        self._end_others()
        failures = [self._backoff(revision.digest).failures for revision in wanted]
        await asyncio.to_thread(self.on_want, any(failures))

    # ------------------------------------------------------------------------------------ revisions

    def _wanted(self) -> list[Revision]:
        """The one that takes requests first; the new one beside it until it is ready."""
        canary = self.service.canary
        found = [self.stable, self.service.stable, *([] if canary is None else [canary])]
        return list({item.digest: item for item in found}.values())

    def _move_on(self) -> None:
        """A new revision takes over once as many of its replicas are ready as requests need."""
        new = self.service.stable
        if new.digest == self.stable.digest:
            self.stable = new
            return
        scaler = self._scalers.get(new.digest)
        needed = max(1, scaler.wanted if scaler else 0)
        is_idle = not self.replicas.of(self.stable.digest) and not self.service.scale.least
        if is_idle or len(self.replicas.ready(new.digest)) >= needed:
            self.tell(f"service {self.service.name}: revision {new.digest} takes all requests")
            self.stable = new

    def _scale(self, revision: Revision) -> None:
        digest, now, scale = revision.digest, self.clock(), self.service.scale
        is_coming = digest == self.service.stable.digest != self.stable.digest
        scaler = self._scalers.get(digest)
        if scaler is None:
            old = self._scalers.get(self.stable.digest) if is_coming else None
            scaler = self._scalers[digest] = old.copy() if old else Scaler(scale, now)
        scaler.scale = scale
        demand = self.replicas.demand(digest, now)
        if digest != self.stable.digest:
            # It prepares for the requests that the stable one has, or for its share of them.
            part = 1.0 if is_coming else self.service.share
            demand = max(demand, ceil(part * self.replicas.demand(self.stable.digest, now)))
        want = scaler.want(demand, now)
        is_leaving = digest == self.stable.digest != self.service.stable.digest
        have = self.replicas.of(digest)
        for _ in range(want - len(have) - self._starting.get(digest, 0)):
            if is_leaving and have:
                break
            self._start(revision)
        # Those that are not ready go first, then those with the fewest requests.
        order = sorted(have, key=lambda it: (it.health is Health.READY, it.in_flight, -it.began))
        if not is_leaving:
            for replica in order[: max(0, len(have) - want)]:
                self._drain(replica)

    def _end_others(self) -> None:
        now, wanted = self.clock(), {revision.digest for revision in self._wanted()}
        for item in list(self._running.values()):
            replica = item.replica
            if replica.revision not in wanted and replica.health in (Health.STARTING, Health.READY):
                self._drain(replica)
            is_late = item.draining_since and now - item.draining_since > DRAIN_SECONDS
            is_dead = replica.failures >= DEAD_AFTER and replica.health is Health.READY
            if is_dead:
                self.tell(f"replica {replica.name} answers no requests: it is replaced")
                self._backoff(replica.revision).failed(now)
            if is_dead or (item.draining_since and (is_late or not replica.in_flight)):
                self._end(item)

    def _drain(self, replica: Replica) -> None:
        self.tell(f"replica {replica.name} is stopped, once its requests have ended")
        replica.health = Health.DRAINING
        self._running[replica.name].draining_since = self.clock()

    # ------------------------------------------------------------------------------------- machines

    def _backoff(self, revision: str) -> Backoff:
        return self._backoffs.setdefault(revision, Backoff())

    def _start(self, revision: Revision) -> None:
        if self.clock() < self._backoff(revision.digest).not_before:
            return
        self._starting[revision.digest] = self._starting.get(revision.digest, 0) + 1
        self._spawn(self._order(revision))

    async def _order(self, revision: Revision) -> None:
        try:
            self._add(revision.digest, await self.machines.start(revision), "ordered")
        except QuorateError as error:
            pause = self._backoff(revision.digest).failed(self.clock())
            self.tell(f"no replica now: {error}; again in {pause:.0f} s")
        finally:
            self._starting[revision.digest] -= 1

    def _add(self, revision: str, machine: Machine, how: str) -> None:
        self.tell(f"replica {machine.name} is {how}")
        replica = Replica(machine.name, revision, price=machine.price, began=self.clock())
        self.replicas.found.append(replica)
        task = asyncio.create_task(self._follow(replica, machine))
        self._running[replica.name] = _Running(replica, machine, task)

    async def _follow(self, replica: Replica, machine: Machine) -> None:
        """From its order to its end: loads, is ready, is probed."""
        ended = asyncio.create_task(machine.wait_end())
        probed = asyncio.create_task(self._probe(replica, machine))
        waits = asyncio.create_task(self._tell_wait(replica, machine))
        try:
            await asyncio.wait({ended, probed}, return_when=asyncio.FIRST_COMPLETED)
            why = ended.result() if ended.done() else _why(probed)
            if replica.health is not Health.DRAINING:
                self.tell(f"replica {replica.name} is over: {why}")
                if replica.health is Health.STARTING:
                    self._backoff(replica.revision).failed(self.clock())
        finally:
            for task in (ended, probed, waits):
                task.cancel()
            await asyncio.gather(ended, probed, waits, return_exceptions=True)
        self._forget(replica)
        self._spawn(_quietly(machine))

    async def _tell_wait(self, replica: Replica, machine: Machine) -> None:
        told = ""
        while not replica.url:
            await self.sleep(WAIT_SECONDS)
            try:
                why = await machine.why_waits()
            except QuorateError as error:
                why = str(error)  # not re-raised: the coordinator may come again
            if why not in ("", told):
                self.tell(f"replica {replica.name} waits: {why}")
                told = why

    async def _probe(self, replica: Replica, machine: Machine) -> None:
        """Ends by an error when it is not ready in time, or answers no probe any more."""
        began, failures = self.clock(), 0
        replica.url = await machine.url()
        replica.price = machine.price
        while failures < DEAD_AFTER:
            is_good = await self._answers(replica)
            if replica.health is Health.STARTING and is_good:
                self._is_ready(replica)
            elif replica.health is Health.STARTING:
                if self.clock() - began > self.service.load_seconds:
                    raise QuorateError(
                        f"it did not answer within {self.service.load_seconds:.0f} s"
                    )
            else:
                failures = 0 if is_good else failures + 1
            await self.sleep(PROBE_SECONDS if replica.ready_at else PROBE_SECONDS / 4)
        raise QuorateError(f"it answered none of {DEAD_AFTER} probes")

    def _is_ready(self, replica: Replica) -> None:
        now = self.clock()
        replica.health, replica.ready_at = Health.READY, now
        self._backoff(replica.revision).worked()
        self.replicas.changed()
        took, price = now - replica.began, usd(Amount(replica.price))
        self.tell(f"replica {replica.name} is ready after {took:.1f} s, at {price} USD an hour")

    async def _answers(self, replica: Replica) -> bool:
        try:
            async with self.session.get(
                replica.url + self.service.probe, timeout=PROBE_TIMEOUT, allow_redirects=False
            ) as answer:
                return answer.status < 400
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            return False  # not re-raised: it is the answer

    def _end(self, item: _Running) -> None:
        item.task.cancel()
        self._forget(item.replica)
        self._spawn(_quietly(item.machine))

    def _forget(self, replica: Replica) -> None:
        replica.health = Health.GONE
        self._running.pop(replica.name, None)
        if replica in self.replicas.found:
            self.replicas.found.remove(replica)
        self.replicas.changed()

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _why(task: asyncio.Task[None]) -> str:
    error = task.exception()
    return str(error) if error is not None else "its probe ended"


async def _quietly(machine: Machine) -> None:
    try:
        await machine.stop()
    except QuorateError as error:
        # Not re-raised: without vouchers the rental ends within two minutes by itself.
        log.warning("machine %s is not stopped: %s", machine.name, error)
