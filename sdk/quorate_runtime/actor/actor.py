"""The actor of every daemon: it takes an event, steps the core, journals the event, and replies.

Then the outbox performs the effects of the step.

The actor does not wait for the disk. It takes further steps in memory, and holds back the replies
and effects of a step until the journal has its batch of events on disk. So a crash before that
loses nothing that a peer was told. After a later crash, a replay restores the state. If an append
fails, the memory is ahead of the disk: then the actor ends, and the process with it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry

from quorate_protocol.messages.ports import Clock
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.step import Core, Effect, Input, StepOutcome
from quorate_protocol.units import Hash32, UnixSeconds
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.actor.journal_port import Appended, JournalError, JournalPort, Record, Snapshot
from quorate_runtime.actor.outbox import OnRefused, Outbox, Perform, is_performing
from quorate_runtime.process.crash_points import crash_point
from quorate_runtime.process.health import clock_problem
from quorate_runtime.process.metrics import LabelledCounter, add_gauge

E = TypeVar("E")
F = TypeVar("F", bound=Effect)

INBOX_MAX = 1024
FLYING_MAX = 1024  # appends that may wait for the disk at one time
ROOM_RETRY_SECONDS = 5.0
PENDING_MAX = 100_000  # effects that may wait to be performed at one time
SNAPSHOT_EVERY = 10_000  # events from one snapshot to the next
# With few events a snapshot comes sooner, so that replay and memory stay small: after this time,
# if there were at least this many events.
SNAPSHOT_SECONDS = 60
SNAPSHOT_LEAST = 1_000

RandomSource = Callable[[], Hash32]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry(Generic[E]):
    event: E
    reply: asyncio.Future[object]


class Actor(Generic[E, F]):
    """Runs one core with its journal and its outbox, all on one event loop. Call `bind`, then
    `start`, then `run` in a TaskGroup.
    """

    def __init__(
        self,
        core: Core[E, F],
        journal: JournalPort,
        clock: Clock,
        codec: PackedCodec[E, F],
        random_source: RandomSource,
        *,
        inbox_max: int = INBOX_MAX,
        snapshot_every: int = SNAPSHOT_EVERY,
        registry: CollectorRegistry | None = None,
    ) -> None:
        registry = registry or CollectorRegistry()
        self.core, self._journal, self._clock, self._codec = core, journal, clock, codec
        self._random, self._snapshot_every = random_source, snapshot_every
        self._inbox: asyncio.Queue[_Entry[E]] = asyncio.Queue(inbox_max)
        self._flying: deque[tuple[_Entry[E], asyncio.Future[Appended]]] = deque()
        self._outbox: Outbox[F] = Outbox(journal, clock, registry, self._fail)
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._at = UnixSeconds(0)
        self._saved_offset, self._saved_at = 0, UnixSeconds(0)  # of the newest snapshot
        self._is_over, self._is_behind = False, False
        self._steps = LabelledCounter(
            registry, "quorate_events_total", "Events journaled, by type.", ("event",)
        )
        self._refusals = LabelledCounter(
            registry, "quorate_refused_total", "Events refused, by code.", ("code",)
        )
        for code in Code:
            self._refusals.add(code.value, amount=0)  # a rate needs the series before it counts
        add_gauge(registry, "quorate_inbox", "Events waiting for the loop.", self._inbox.qsize)

    def bind(self, perform: Perform[F], on_refused: OnRefused[F] | None = None) -> None:
        """Says how effects are performed. Call it once, before `start`.

        It is not part of the constructor, because `perform` mostly needs the actor to report back:
        it may await `submit`. If a peer refuses an effect, the outbox awaits `on_refused` before it
        marks the effect done.
        """
        self._outbox.bind(perform, on_refused)

    async def start(self) -> None:
        """Restores the newest snapshot, replays later events and queues effects that are not done.
        Raises `JournalError` for a journal that is damaged or of another version.
        """
        assert self._outbox.is_bound, "bind comes before start"
        offset = self._restore_snapshot()
        replayed = 0
        for stored in self._journal.replay(offset):
            record = stored.record
            self._at = record.at
            # The journal keeps the effects of these events, so the outcome is not needed. The core
            # accepted the event before, so a Refused here means another version of the program.
            with _of_this_version(f"event {stored.offset}"):
                self.core.step(
                    Input(
                        record.at,
                        record.random,
                        self._codec.decode_event(record.version, record.payload),
                    )
                )
            replayed += 1
            if replayed % 256 == 0:
                await asyncio.sleep(0)
        for pending in self._journal.pending_effects():
            with _of_this_version(f"effect {pending.key}"):
                self._outbox.add(self._codec.decode_effect(pending.version, pending.payload))
        log.info(
            "journal: %d events, %d replayed, %d effects pending",
            self._journal.last_offset,
            replayed,
            self._outbox.pending,
        )

    async def run(self) -> None:
        """Takes events and performs effects until it is cancelled. Raises what ends it: a failed
        append, or a bug in a step or in `perform`.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._raise_failure(), name="journal failure")
                group.create_task(self._take_all(), name="steps")
                group.create_task(self._outbox.run(), name="outbox")
        finally:
            self._is_over = True
            self._abandon()

    async def submit(self, event: E) -> object:
        """Steps the event, and returns the reply once the event and its effects are durable.

        Waits while the inbox is full. Raises the core's `Refused`, and `Unavailable` if the disk of
        the journal is full, too many effects are pending, or the actor has ended.
        """
        self._check_room()
        reply: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        await self._inbox.put(_Entry(event, reply))
        if self._is_over:
            self._abandon()
        return await reply

    @property
    def newest_at(self) -> UnixSeconds:
        return self._at

    async def save(self) -> None:
        if self._journal.last_offset:
            await self._save_snapshot()

    def is_settled(self) -> bool:
        return self._inbox.empty() and not self._flying and not self._outbox.pending

    # ---- one event

    async def _take_all(self) -> None:
        while True:
            entry = await self._inbox.get()
            if len(self._flying) >= FLYING_MAX:
                await asyncio.wait([self._flying[0][1]])
            try:
                self._take(entry)
            except BaseException:
                self._abandon(entry)
                raise

    def _take(self, entry: _Entry[E]) -> None:
        at = self._time()
        random = self._random()
        try:
            outcome = self.core.step(Input(at, random, entry.event))
        except Refused as refusal:
            # Nothing changed, so there is nothing to journal. The submitter gets the refusal.
            self._refusals.add(refusal.code.value)
            log.info("%s refused: %s", type(entry.event).__name__, refusal)
            if not entry.reply.done():
                entry.reply.set_exception(refusal)
            return
        self._at = at
        self._append(
            entry,
            outcome,
            Record(self._codec.version, at, random, self._codec.encode_event(entry.event)),
        )

    def _time(self) -> UnixSeconds:
        """Returns the time of the next event: now, but never before the newest event.

        Replay and every deadline depend on that order. If somebody sets the clock back, events keep
        the newest event's time until the clock has caught up.
        """
        now = UnixSeconds(int(self._clock.now()))
        problem = clock_problem(now, self._at)
        if problem and not self._is_behind:
            log.error("%s", problem)
        self._is_behind = bool(problem)
        return max(self._at, now)

    def _append(self, entry: _Entry[E], outcome: StepOutcome[F], record: Record) -> None:
        effects = [(effect.key, self._codec.encode_effect(effect)) for effect in outcome.effects]
        assert len({key for key, _ in effects}) == len(effects), (
            "two effects of one step have the same key"
        )
        crash_point("actor.before-append", entry.event)
        future = self._journal.append(record, effects)
        self._flying.append((entry, future))
        future.add_done_callback(partial(self._durable, outcome))
        if self._is_snapshot_due():
            self._save_snapshot()

    def _durable(self, outcome: StepOutcome[F], future: asyncio.Future[Appended]) -> None:
        """Replies and hands the effects to the outbox, because the event is on disk now.

        The journal calls this in the order of appends. Before this call no peer may learn what a
        step decided.
        """
        entry, flown = self._flying.popleft()
        assert flown is future, "appends become durable in order"
        error = future.exception()
        if error is not None:
            self._fail(error)
            if not entry.reply.done():
                entry.reply.set_exception(error)
            return
        crash_point("actor.after-append", entry.event)
        self._steps.add(type(entry.event).__name__)
        fresh = future.result().fresh
        for effect in outcome.effects:
            if effect.key in fresh:
                self._outbox.add(effect)
        if not entry.reply.done():
            entry.reply.set_result(outcome.reply)

    # ---- snapshots: 8 bytes of time, then the core's bytes

    def _is_snapshot_due(self) -> bool:
        events = self._journal.last_offset - self._saved_offset
        return events >= self._snapshot_every or (
            events >= SNAPSHOT_LEAST and self._at - self._saved_at >= SNAPSHOT_SECONDS
        )

    def _save_snapshot(self) -> asyncio.Future[None]:
        self._saved_offset, self._saved_at = self._journal.last_offset, self._at
        payload = self._at.to_bytes(8, "big") + self.core.snapshot()
        saved = self._journal.save_snapshot(
            Snapshot(self._saved_offset, self._codec.version, payload)
        )
        saved.add_done_callback(self._saved)
        return saved

    def _saved(self, future: asyncio.Future[None]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._fail(error)

    def _restore_snapshot(self) -> int:
        snapshot = self._journal.load_snapshot()
        if snapshot is None or snapshot.version != self._codec.version:
            # This program cannot read a snapshot of another version, so it replays all events.
            return 0
        self._at = UnixSeconds(int.from_bytes(snapshot.payload[:8], "big"))
        with _of_this_version(f"the snapshot at event {snapshot.offset}"):
            self.core.restore(snapshot.payload[8:])
        self._saved_offset, self._saved_at = snapshot.offset, self._at
        return snapshot.offset

    # ---- the end

    def _check_room(self) -> None:
        if self._is_over:
            raise Unavailable("the daemon is stopping")
        if self._journal.problem and not is_performing.get():
            raise Unavailable(self._journal.problem, ROOM_RETRY_SECONDS)
        if self._outbox.pending > PENDING_MAX and not is_performing.get():
            raise Unavailable(f"{self._outbox.pending} effects wait to be performed", 1.0)

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # marks it as seen: a shutdown may not await it
            log.critical("the actor ends: %s", error)

    async def _raise_failure(self) -> None:
        await self._failure

    def _abandon(self, *entries: _Entry[E]) -> None:
        """Ends the wait of every submitter with `Unavailable`. Their events may be on disk."""
        waiting = [*entries, *(entry for entry, _ in self._flying)]
        while not self._inbox.empty():
            waiting.append(self._inbox.get_nowait())
        for entry in waiting:
            if not entry.reply.done():
                entry.reply.set_exception(Unavailable("the daemon is stopping"))


@contextmanager
def _of_this_version(what: str) -> Iterator[None]:
    """Turns a refusal while reading the journal into a `JournalError` about its version. The
    checksum was right, so another version of this program wrote those bytes.
    """
    try:
        yield
    except Refused as refused:
        why = refused.detail or str(refused)
        raise JournalError(
            f"{what} in the journal was written by another version ({why}). Nothing was changed: "
            "start that version, or one that reads its journals"
        ) from refused
