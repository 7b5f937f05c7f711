"""Performs durable effects: in order within a lane, and lanes in parallel.

An effect that is `Unavailable` is tried again: at growing intervals, and as soon as its lane gets
another effect. An effect leaves the outbox only after it was performed, so a crash in between
performs it once more.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry

from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Refused, Unavailable
from quorate_protocol.step import Effect
from quorate_runtime.actor.journal_port import JournalFailed, JournalPort
from quorate_runtime.process.crash_points import crash_point
from quorate_runtime.process.metrics import LabelledCounter, add_gauge

F = TypeVar("F", bound=Effect)

PARALLEL_MAX = 256  # effects performed at one time
RETRY_FIRST_SECONDS = 0.1
RETRY_MAX_SECONDS = 30.0
QUIET_SECONDS = 60.0  # a trouble that lasts less ends by itself

Perform = Callable[[F], Awaitable[None]]
OnRefused = Callable[[F, Refused], Awaitable[None]]

log = logging.getLogger(__name__)
is_performing: ContextVar[bool] = ContextVar("is_performing", default=False)
"""Whether this task performs an effect. Such a task may submit events even while the actor takes no
events from others.
"""


class Outbox(Generic[F]):
    """Keeps the effects of each lane in order, and performs them. The actor bounds their number: it
    takes no events while too many effects are pending.
    """

    def __init__(
        self,
        journal: JournalPort,
        clock: Clock,
        registry: CollectorRegistry,
        on_done_failed: Callable[[BaseException], None],
    ) -> None:
        self._journal, self._clock, self._on_done_failed = journal, clock, on_done_failed
        self._perform: Perform[F] | None = None  # until `bind`
        self._on_refused: OnRefused[F] | None = None
        self._lanes: dict[str, deque[F]] = {}
        # lanes that wait before they try again; done: the lane tries at once
        self._pauses: dict[str, asyncio.Future[None]] = {}
        self._slots = asyncio.Semaphore(PARALLEL_MAX)
        self._idle_lanes: list[str] = []  # lanes with effects and no task yet
        self._done: list[str] = []  # keys of performed effects, marked in this turn of the loop
        self._wake = asyncio.Event()
        self.pending = 0
        self._results = LabelledCounter(
            registry,
            "quorate_effects_total",
            "Attempts at effects, by effect and result.",
            ("effect", "result"),
        )
        add_gauge(
            registry,
            "quorate_effects_pending",
            "Effects decided and not yet performed.",
            lambda: self.pending,
        )

    def bind(self, perform: Perform[F], on_refused: OnRefused[F] | None = None) -> None:
        """Says how effects are performed. Call it once. The outbox awaits `on_refused` before it
        marks an effect done, so that an event which it submits is durable first.
        """
        assert self._perform is None, "an outbox is bound once"
        self._perform, self._on_refused = perform, on_refused

    @property
    def is_bound(self) -> bool:
        return self._perform is not None

    async def run(self) -> None:
        """Performs effects until it is cancelled. It starts all tasks of lanes itself: a task made
        anywhere else could outlive a cancellation.
        """
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._wake.clear()
                    for lane in self._idle_lanes:
                        group.create_task(self._run_lane(lane), name=f"lane {lane}")
                    self._idle_lanes.clear()
                    await self._wake.wait()
        finally:
            self._mark_done()

    def add(self, effect: F) -> None:
        self.pending += 1
        name = effect.lane
        lane = self._lanes.get(name)
        if lane is not None:
            lane.append(effect)
            # Its cause is often a message of the peer that was away, and may have a deadline.
            pause = self._pauses.get(name)
            if pause is not None and not pause.done():
                pause.set_result(None)
            return
        self._lanes[name] = deque([effect])
        self._idle_lanes.append(name)
        self._wake.set()

    async def _run_lane(self, lane: str) -> None:
        is_performing.set(True)
        effects = self._lanes[lane]
        while effects:
            await self._finish(effects[0])
            effects.popleft()
            self.pending -= 1
        del self._lanes[lane]

    async def _finish(self, effect: F) -> None:
        """Performs the effect until it works or is refused. Another exception is a bug, and ends
        the actor.
        """
        assert self._perform is not None, "bind comes before run"
        kind = type(effect).__name__
        delay, began_at = RETRY_FIRST_SECONDS, self._clock.now()
        while True:
            try:
                async with self._slots:
                    crash_point("effect.before", effect)
                    await self._perform(effect)
                    crash_point("effect.after", effect)
            except Unavailable as error:
                # The effect stays pending and is tried again without end, at growing intervals.
                self._results.add(kind, "unavailable")
                # A trouble that lasts is worth a person's look.
                has_lasted = self._clock.now() - began_at >= QUIET_SECONDS
                level = logging.WARNING if has_lasted else logging.DEBUG
                log.log(level, "%s %s is retried: %s", kind, effect.key, error)
                seconds = min(max(delay, error.retry_after), RETRY_MAX_SECONDS)
                is_woken = await self._pause(effect.lane, seconds)
                delay = RETRY_FIRST_SECONDS if is_woken else min(2 * delay, RETRY_MAX_SECONDS)
                continue
            except Refused as refusal:
                # A peer will never take it. `on_refused` may tell the core, and says what is lost.
                self._results.add(kind, "refused")
                level = logging.WARNING if self._on_refused is None else logging.INFO
                log.log(level, "%s %s was refused: %s", kind, effect.key, refusal)
                if self._on_refused is not None:
                    await self._on_refused(effect, refusal)
            else:
                self._results.add(kind, "done")
            break
        if not self._done:
            asyncio.get_running_loop().call_soon(self._mark_done)
        self._done.append(effect.key)

    async def _pause(self, lane: str, seconds: float) -> bool:
        """Waits for some seconds, or until the lane gets another effect; returns whether it got
        one.
        """
        woken = self._pauses[lane] = asyncio.get_running_loop().create_future()
        asleep = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((woken, asleep), return_when=asyncio.FIRST_COMPLETED)
            return woken.done()
        finally:
            asleep.cancel()
            del self._pauses[lane]

    def _mark_done(self) -> None:
        """Marks all effects that finished in one turn of the loop, in one call. After a crash
        before the mark, the effect is performed again.
        """
        keys, self._done = self._done, []
        if not keys:
            return
        try:
            self._journal.mark_done(keys).add_done_callback(self._marked)
        except JournalFailed as error:
            # An append failed before: that ends the actor.
            self._on_done_failed(error)

    def _marked(self, future: asyncio.Future[None]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._on_done_failed(error)
