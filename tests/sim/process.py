"""A simulated daemon: a core, its disk, its outbox. It can crash at any moment.

After a crash it has only what the disk holds. The order is that of `quorate_runtime.actor.actor`:
step, append event and effects, acknowledge, perform. The outbox is the same too: one effect after
the other within a lane, with growing pauses while performing fails. All is synchronous here, so
that a run is a pure function of its seed.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Generic, Protocol, TypeVar

from quorate_protocol.refusals import Refused
from quorate_protocol.step import Core, Effect, Input, StepOutcome
from quorate_protocol.units import Hash32, UnixSeconds
from quorate_runtime.actor.actor_codec import PackedCodec
from quorate_runtime.actor.outbox import RETRY_FIRST_SECONDS, RETRY_MAX_SECONDS
from sim.clock import clock_of
from sim.network import Silence
from sim.plan import Plan
from sim.schedule import Schedule

SNAPSHOT_EVERY = 150  # records
E = TypeVar("E")
F = TypeVar("F", bound=Effect)


@dataclass(frozen=True, slots=True)
class Again:
    """A temporary failure: perform the effect again after at least this many seconds."""

    seconds: float


Result = Again | Refused | None
"""The result of an effect; None = done."""

Finish = Callable[[Result], None]


class Watcher(Protocol):
    """Sees every step of every process."""

    def stepped(self, process: str, event: object, outcome: StepOutcome[Effect]) -> None:
        """Called after a durable step."""

    def refused(self, process: str, event: object, refused: Refused) -> None:
        """Called after a step that was refused."""

    def rebuilt(self, process: str) -> None:
        """Called when a process was started again and its state was compared with the state at its
        crash.
        """


@dataclass(slots=True)
class Disk:
    """What survives a crash: events with time and randomness, effects and their marks, a
    snapshot.
    """

    records: list[tuple[UnixSeconds, Hash32, bytes]] = field(default_factory=list)
    outbox: dict[str, tuple[bytes, bool]] = field(default_factory=dict)
    snapshot: tuple[int, UnixSeconds, bytes] | None = None  # (events covered, time, state)


class Process(Generic[E, F]):
    """One daemon. Subclasses perform effects and take frames."""

    def __init__(
        self, name: str, plan: Plan, schedule: Schedule, watcher: Watcher, codec: PackedCodec[E, F]
    ) -> None:
        self.name, self.plan, self.schedule, self.watcher = name, plan, schedule, watcher
        self.random, self.clock = plan.stream(name), clock_of(name, schedule, plan.clocks)
        self.crash_chance = plan.crash_chance
        self.disk = Disk()
        self.life = 0  # callbacks from before a crash must not run after it
        self.is_up = False
        self.asleep_until = 0  # milliseconds
        self._codec = codec
        self._at = UnixSeconds(0)
        self._lanes: dict[str, deque[F]] = {}
        self._expected: bytes | None = None  # state at the crash, if the disk knows all of it
        self.trace = sha256()

    # -------------------------------------------------------------------- what a subclass must have

    def fresh_core(self) -> Core[E, F]:
        """A core as it is before the first event."""
        raise NotImplementedError

    @property
    def any_core(self) -> Core[E, F]:
        """The current core."""
        raise NotImplementedError

    def set_core(self, core: Core[E, F]) -> None:
        """Sets the core after a start."""
        raise NotImplementedError

    def perform(self, effect: F, finish: Finish) -> None:
        """Performs an effect; `finish` is called once, now or later."""
        raise NotImplementedError

    def effect_refused(self, effect: F, refused: Refused) -> None:
        """Called before an effect is marked done that a peer refused for good."""

    def awake(self) -> None:
        """Called after each start, when the replay is done."""

    # ---------------------------------------------------------------------------------------- lives

    def boot(self) -> None:
        """Starts from the disk."""
        self.life += 1
        core = self.fresh_core()
        offset = 0
        if self.disk.snapshot is not None and self.random.random() < 0.7:
            offset, self._at, state = self.disk.snapshot
            core.restore(state)
        for at, random, payload in self.disk.records[offset:]:
            core.step(Input(at, random, self._codec.decode_event(self._codec.version, payload)))
            self._at = at
        if self._expected is not None:
            assert core.snapshot() == self._expected, (
                f"I6: {self.name} came back with another state than it had"
            )
        self._expected = None
        self.set_core(core)
        self.is_up = True
        self.watcher.rebuilt(self.name)
        self._lanes = {}
        for payload, is_done in list(self.disk.outbox.values()):
            if not is_done:
                self._queue(self._codec.decode_effect(self._codec.version, payload))
        self.awake()

    def die(self, is_disk_complete: bool = True) -> None:
        """Crashes; it starts again after a while, perhaps after every deadline."""
        if not self.is_up:
            return
        if is_disk_complete and self.random.random() < 0.5:
            self._expected = self.any_core.snapshot()
        self.is_up = False
        self.life += 1
        down = self.random.choice([0.1, 1.0, 3.0, 12.0])
        self.schedule.after(down * self.random.uniform(0.5, 1.5), self._come_back)

    def sleep(self, seconds: float) -> None:
        """Is off for so long, whatever else happens to it."""
        self.asleep_until = self.schedule.now_ms + round(1000 * seconds)
        self.is_up = False
        self.life += 1
        self.schedule.after(seconds, self._come_back)

    def _come_back(self) -> None:
        if not self.is_up and self.schedule.now_ms >= self.asleep_until:
            self.boot()

    @property
    def at(self) -> UnixSeconds:
        """The time of its last step, as its journal has it."""
        return self._at

    @property
    def now(self) -> UnixSeconds:
        """The time of its next step; if the clock went back, it stands still."""
        return max(self._at, self.clock.now)

    def in_this_life(self, action: Callable[[], None]) -> Callable[[], None]:
        """The action, unless the process has crashed in between."""
        life = self.life

        def act() -> None:
            if self.is_up and self.life == life:
                action()

        return act

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        """Repeats an action until the process crashes."""

        def act() -> None:
            action()
            self.schedule.after(seconds, self.in_this_life(act))

        self.schedule.after(self.random.uniform(0, seconds), self.in_this_life(act))

    # ---------------------------------------------------------------------------------------- steps

    def submit(self, event: E) -> object:
        """Submits one event, as `Actor.submit`: it is durable on return.

        Raises Refused, or Silence when the process crashes during it.
        """
        if not self.is_up:
            raise Silence
        # The event is stepped as it came in, as in the actor. A replay steps the decoded event and
        # must come to the same state.
        at, random = self.now, Hash32(self.random.randbytes(32))
        try:
            outcome = self.any_core.step(Input(at, random, event))
        except Refused as refused:
            self.watcher.refused(self.name, event, refused)
            raise
        if self._is_struck():
            self.die(is_disk_complete=False)
            raise Silence
        self._at = at
        self._append(at, random, self._codec.encode_event(event), outcome)
        self.watcher.stepped(self.name, event, outcome)
        if self._is_struck():
            self.die()
            raise Silence
        return outcome.reply

    def report(self, event: E) -> None:
        """Submits an event of the daemon's own shell; a refusal has no further effect."""
        try:
            self.submit(event)
        except (Refused, Silence):
            # Counted by the watcher, or lost in a crash, after which the shell finds it out again.
            pass

    def _append(
        self, at: UnixSeconds, random: Hash32, payload: bytes, outcome: StepOutcome[F]
    ) -> None:
        self.disk.records.append((at, random, payload))
        self.trace.update(at.to_bytes(8, "big") + payload)
        fresh: list[F] = []
        keys = [effect.key for effect in outcome.effects]
        assert len(set(keys)) == len(keys), (
            f"{self.name}: two effects of one step have the same key"
        )
        for effect in outcome.effects:
            if effect.key not in self.disk.outbox:
                encoded = self._codec.encode_effect(effect)
                self.disk.outbox[effect.key] = (encoded, False)
                fresh.append(effect)
                self.trace.update(encoded)
        for effect in fresh:
            self._queue(effect)
        if len(self.disk.records) % SNAPSHOT_EVERY == 0:
            self.disk.snapshot = (len(self.disk.records), at, self.any_core.snapshot())

    def _is_struck(self) -> bool:
        return self.crash_chance > 0 and self.random.random() < self.crash_chance

    # --------------------------------------------------------------------------------------- outbox

    def _queue(self, effect: F) -> None:
        lane = self._lanes.setdefault(effect.lane, deque())
        lane.append(effect)
        if len(lane) == 1:
            self.schedule.after(0, self.in_this_life(lambda: self._work(lane, RETRY_FIRST_SECONDS)))

    def _work(self, lane: deque[F], delay: float) -> None:
        effect, life = lane[0], self.life
        is_finished = [False]

        def finish(result: Result) -> None:
            if is_finished[0] or not self.is_up or self.life != life:
                return
            is_finished[0] = True
            if isinstance(result, Again):
                wait = min(max(delay, result.seconds), RETRY_MAX_SECONDS)
                self.schedule.after(wait, self.in_this_life(lambda: self._work(lane, 2 * delay)))
                return
            if isinstance(result, Refused):
                self.effect_refused(effect, result)
            if self.is_up and self.life == life:
                self._done(lane, effect)

        self.perform(effect, finish)

    def _done(self, lane: deque[F], effect: F) -> None:
        if self._is_struck():
            self.die()  # performed, but not marked: it will be performed again
            return
        self.disk.outbox[effect.key] = (b"", True)
        lane.popleft()
        if lane:
            self.schedule.after(0, self.in_this_life(lambda: self._work(lane, RETRY_FIRST_SECONDS)))
