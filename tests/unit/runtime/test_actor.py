"""Tests that the actor replies and performs effects only after the event is durable.

Replay gives the same state, and each effect is performed at least once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count, pairwise

import pytest
from prometheus_client import CollectorRegistry

from quorate_protocol.codec.hashing import sha256
from quorate_protocol.refusals import Code, Refused, Unavailable
from quorate_protocol.units import Amount, Hash32, UnixSeconds
from quorate_runtime.actor.actor import Actor
from quorate_runtime.actor.journal_port import JournalFailed
from quorate_runtime.actor.outbox import OnRefused
from quorate_runtime.process.health import clock_problem
from quorate_runtime.process.metrics import exposition
from support.journal.ledger_core import (
    Closed,
    Effect,
    Event,
    Farewell,
    Ledger,
    Notify,
    Paid,
    ledger_codec,
)
from support.journal.memory_journal import MemoryDisk, MemoryJournal
from support.virtual_clock import VirtualClock, run_virtual

EffectPerformer = Callable[[Effect], Awaitable[None]]


class LedgerDaemon:
    """One daemon whose disk survives it."""

    def __init__(
        self,
        clock: VirtualClock,
        disk: MemoryDisk,
        perform: EffectPerformer | None = None,
        on_refused: OnRefused[Effect] | None = None,
        **options: object,
    ) -> None:
        self.done: list[Effect] = []
        self.clock, self.disk, self.core, self.registry = clock, disk, Ledger(), CollectorRegistry()
        numbers = count(len(disk.events))
        self.actor: Actor[Event, Effect] = Actor(
            self.core,
            MemoryJournal(disk),
            clock,
            ledger_codec(),
            lambda: sha256(str(next(numbers)).encode()),
            registry=self.registry,
            **options,  # type: ignore[arg-type]
        )
        self.actor.bind(perform or self._note, on_refused)
        self.task: asyncio.Task[None] | None = None

    async def up(self) -> "LedgerDaemon":
        await self.actor.start()
        self.task = asyncio.create_task(self.actor.run())
        return self

    async def crash(self) -> None:
        self.disk.crash()
        await self.stop()

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])

    async def _note(self, effect: Effect) -> None:
        self.done.append(effect)


def pay(name: str, amount: int) -> Paid:
    return Paid(name, Amount(amount))


def test_submit_replies_journals_and_performs() -> None:
    async def main(clock: VirtualClock) -> None:
        market = await LedgerDaemon(clock, MemoryDisk()).up()
        assert await market.actor.submit(pay("ada", 5)) == 5
        assert await market.actor.submit(pay("ada", 2)) == 7
        await clock.sleep(1)
        assert market.done == [Notify("ada", Amount(5), 1), Notify("ada", Amount(7), 2)]
        assert len(market.disk.events) == 2 and all(
            is_done for _, is_done in market.disk.outbox.values()
        )
        await market.stop()

    run_virtual(main)


def test_refused_events_change_nothing_and_are_not_journaled() -> None:
    async def main(clock: VirtualClock) -> None:
        market = await LedgerDaemon(clock, MemoryDisk()).up()
        await market.actor.submit(pay("ada", 5))
        before = market.core.snapshot()
        with pytest.raises(Refused) as refused:
            await market.actor.submit(pay("ada", 0))
        with pytest.raises(Refused):
            await market.actor.submit(Closed("nobody"))
        assert refused.value.code is Code.BAD_AMOUNT
        assert market.core.snapshot() == before and len(market.disk.events) == 1
        assert 'quorate_refused_total{code="unknown"} 1' in exposition(market.registry).decode()
        await market.stop()

    run_virtual(main)


@pytest.mark.rule("5.65")
def test_no_reply_or_effect_comes_before_the_append_is_durable() -> None:
    async def main(clock: VirtualClock) -> None:
        market = await LedgerDaemon(clock, MemoryDisk()).up()
        waiting = asyncio.create_task(market.actor.submit(pay("ada", 5)))
        for _ in range(10):
            if market.core.balances:  # stepped in memory ...
                break
            await asyncio.sleep(0)
        assert (
            market.core.balances
            and not waiting.done()
            and not market.done
            and not market.disk.events
        )  # ... and not yet on disk
        await waiting
        assert len(market.disk.events) == 1
        await market.stop()

    run_virtual(main)


def test_a_snapshot_comes_after_a_minute_when_a_thousand_events_came() -> None:
    async def main(clock: VirtualClock) -> None:
        disk = MemoryDisk()
        market = await LedgerDaemon(clock, disk).up()

        async def offset_after(events: int, seconds: float) -> int:
            clock.forward(seconds)
            for _ in range(events):
                await market.actor.submit(pay("ada", 1))
            return disk.snapshot.offset if disk.snapshot is not None else 0

        assert await offset_after(999, 0) == 0
        assert await offset_after(1, 0) == 1000  # the first is overdue
        assert await offset_after(1500, 59) == 1000
        assert await offset_after(1, 1) == 2501
        assert await offset_after(999, 600) == 2501
        assert await offset_after(1, 0) == 3501
        await market.crash()
        again = await LedgerDaemon(clock, disk).up()
        assert again.core.snapshot() == market.core.snapshot()
        await again.stop()

    run_virtual(main)


@pytest.mark.parametrize("snapshot_every", [1, 7, 10_000])
def test_replay_gives_the_same_state(snapshot_every: int) -> None:
    async def main(clock: VirtualClock) -> None:
        disk = MemoryDisk()
        market = await LedgerDaemon(clock, disk, snapshot_every=snapshot_every).up()
        for index in range(40):
            await market.actor.submit(pay(f"name {index % 6}", index + 1))
            await clock.sleep(3)
            if index % 9 == 8:
                await market.actor.submit(Closed(f"name {index % 6}"))
            if index % 5 == 0:
                with pytest.raises(Refused):
                    await market.actor.submit(Closed("nobody"))
        expected, performed = market.core.snapshot(), list(market.done)
        assert (disk.snapshot is None) == (snapshot_every > 44)
        await market.crash()
        again = await LedgerDaemon(VirtualClock(1.0), disk, snapshot_every=snapshot_every).up()
        assert again.core.snapshot() == expected
        assert (
            again.done == [] and len(performed) == 42
        )  # two farewells were performed before, and are not performed again
        # A clock that fell behind does not make events fall behind.
        await again.actor.submit(pay("late", 1))
        assert again.core.newest.at >= int(clock.now()) - 3
        await again.stop()

    run_virtual(main)


def test_clock_far_behind_the_journal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        disk = MemoryDisk()
        market = await LedgerDaemon(clock, disk).up()
        await market.actor.submit(pay("ada", 5))
        await market.crash()
        behind = VirtualClock(clock.now() - 3600)
        again = await LedgerDaemon(behind, disk).up()
        for _ in range(3):
            await again.actor.submit(pay("ada", 1))
        told = clock_problem(UnixSeconds(int(behind.now())), again.actor.newest_at)
        assert [
            record.getMessage()
            for record in caplog.records
            if "behind the journal" in record.getMessage()
        ] == [told]
        assert told.startswith("the clock is 3600 s behind the journal: no deadline passes")
        assert again.core.newest.at == int(clock.now())
        await again.stop()

    run_virtual(main)


def test_an_effect_is_performed_again_after_a_crash_before_it_was_marked_done() -> None:
    async def main(clock: VirtualClock) -> None:
        disk, seen = MemoryDisk(), list[Effect]()

        async def perform_and_die(effect: Effect) -> None:
            seen.append(effect)
            disk.crash()

        market = await LedgerDaemon(clock, disk, perform_and_die).up()
        await market.actor.submit(pay("ada", 5))
        await clock.sleep(1)
        await market.stop()
        assert seen == [Notify("ada", Amount(5), 1)]
        again = await LedgerDaemon(clock, disk).up()
        await clock.sleep(1)
        assert again.done == seen
        await again.crash()
        third = await LedgerDaemon(clock, disk).up()
        await clock.sleep(1)
        assert third.done == []
        await third.stop()

    run_virtual(main)


def test_a_key_is_queued_once() -> None:
    async def main(clock: VirtualClock) -> None:
        market = await LedgerDaemon(clock, MemoryDisk()).up()
        for _ in range(2):
            await market.actor.submit(pay("ada", 5))
            await market.actor.submit(Closed("ada"))
        await clock.sleep(1)
        assert market.done.count(Farewell("ada")) == 1
        await market.stop()

    run_virtual(main)


def test_unavailable_is_retried_more_and_more_slowly_in_lane_order() -> None:
    async def main(clock: VirtualClock) -> None:
        attempts: list[tuple[float, str]] = []
        done: list[Effect] = []
        start = clock.now()

        async def perform(effect: Effect) -> None:
            attempts.append((clock.now() - start, effect.lane))
            if effect.lane == "ada" and clock.now() - start < 200:
                raise Unavailable("peer away", 0.0)
            done.append(effect)

        market = await LedgerDaemon(clock, MemoryDisk(), perform).up()
        for event in (pay("ada", 1), pay("ada", 2), pay("bob", 3)):
            await market.actor.submit(event)
        await clock.sleep(1)
        assert done == [Notify("bob", Amount(3), 3)]  # the other lane did not wait
        await clock.sleep(300)
        assert done[1:] == [Notify("ada", Amount(1), 1), Notify("ada", Amount(3), 2)]
        times = [at for at, lane in attempts if lane == "ada"]
        gaps = [b - a for a, b in pairwise(times) if b - a > 0]
        assert (
            gaps == sorted(gaps)
            and gaps[0] == pytest.approx(0.1)
            and gaps[-1] == pytest.approx(30.0)
        )
        await market.stop()

    run_virtual(main)


def test_a_new_effect_of_a_lane_makes_it_try_again_at_once() -> None:
    """A peer that comes back after an outage writes first. What answers it may have a deadline."""

    async def main(clock: VirtualClock) -> None:
        done: list[tuple[float, Effect]] = []
        is_away = True

        async def perform(effect: Effect) -> None:
            if is_away:
                raise Unavailable("peer away", 0.0)
            done.append((clock.now(), effect))

        market = await LedgerDaemon(clock, MemoryDisk(), perform).up()
        await market.actor.submit(pay("ada", 1))
        await market.actor.submit(pay("bob", 1))
        await clock.sleep(110)  # both lanes wait 30 s from one try to the next
        is_away, back_at = False, clock.now()
        await market.actor.submit(pay("ada", 2))
        await clock.sleep(1)
        first, second = done
        assert first == (pytest.approx(back_at, abs=0.1), Notify("ada", Amount(1), 1))
        assert second == (pytest.approx(back_at, abs=0.1), Notify("ada", Amount(3), 3))
        await clock.sleep(30)
        assert done[2][1] == Notify("bob", Amount(1), 2)
        await market.stop()

    run_virtual(main)


def test_refused_effect_is_reported_to_the_core_and_not_repeated() -> None:
    async def main(clock: VirtualClock) -> None:
        async def perform(effect: Effect) -> None:
            if isinstance(effect, Notify):
                raise Refused(Code.EXPIRED, "peer said no")

        async def on_refused(effect: Effect, refusal: Refused) -> None:
            await market.actor.submit(Closed(effect.lane))

        market = LedgerDaemon(clock, MemoryDisk(), perform, on_refused=on_refused)
        await market.up()
        await market.actor.submit(pay("ada", 1))
        await clock.sleep(100)
        assert not market.core.balances and all(
            is_done for _, is_done in market.disk.outbox.values()
        )
        assert (
            'quorate_effects_total{effect="Notify",result="refused"} 1'
            in exposition(market.registry).decode()
        )
        await market.stop()

    run_virtual(main)


def test_a_failed_append_ends_the_actor_and_acknowledges_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        disk = MemoryDisk(events_max=2)
        market = await LedgerDaemon(clock, disk).up()
        waiting = [asyncio.create_task(market.actor.submit(pay("ada", 1))) for _ in range(5)]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert results[:2] == [1, 2] and all(isinstance(r, JournalFailed) for r in results[2:])
        assert market.task is not None
        with pytest.raises(ExceptionGroup) as ended:
            await market.task
        assert ended.group_contains(JournalFailed)
        assert len(market.done) <= 2 and len(disk.events) == 2
        with pytest.raises(Unavailable):
            await market.actor.submit(pay("ada", 1))

    run_virtual(main)


@pytest.mark.parametrize("where", ["step", "perform"])
def test_bug_ends_the_actor_and_fails_all_waiting_submitters(where: str) -> None:
    async def main(clock: VirtualClock) -> None:
        async def perform(effect: Effect) -> None:
            raise ZeroDivisionError

        market = await LedgerDaemon(
            clock, MemoryDisk(), perform if where == "perform" else None
        ).up()
        event = pay("ada", 1) if where == "perform" else "no event at all"
        first = asyncio.create_task(market.actor.submit(event))  # type: ignore[arg-type]
        assert market.task is not None
        with pytest.raises(ExceptionGroup) as ended:
            await market.task
        assert ended.group_contains(ZeroDivisionError if where == "perform" else AssertionError)
        if where == "step":
            with pytest.raises(Unavailable):
                await first
        else:
            assert await first == 1

    run_virtual(main)


def test_the_inbox_is_bounded() -> None:
    async def main(clock: VirtualClock) -> None:
        market = LedgerDaemon(clock, MemoryDisk(), inbox_max=4)
        await market.actor.start()
        early = [asyncio.create_task(market.actor.submit(pay("ada", n))) for n in range(1, 5)]
        late = asyncio.create_task(market.actor.submit(pay("ada", 10)))  # waits for room
        await asyncio.sleep(0)
        assert market.actor._inbox.qsize() == 4
        market.task = asyncio.create_task(market.actor.run())
        assert [await item for item in (*early, late)] == [1, 3, 6, 10, 20]
        await market.stop()

    run_virtual(main)


def test_a_submitter_that_gives_up_does_not_undo_its_event() -> None:
    async def main(clock: VirtualClock) -> None:
        market = await LedgerDaemon(clock, MemoryDisk()).up()
        given_up = asyncio.create_task(market.actor.submit(pay("ada", 1)))
        await asyncio.sleep(0)
        given_up.cancel()
        assert await market.actor.submit(pay("ada", 1)) == 2
        await market.stop()

    run_virtual(main)


def test_random_values_come_from_the_source() -> None:
    async def main(clock: VirtualClock) -> None:
        market = await LedgerDaemon(clock, MemoryDisk()).up()
        await market.actor.submit(pay("ada", 1))
        assert market.core.newest.random == sha256(b"0") == market.disk.events[0].random
        assert isinstance(market.core.newest.random, bytes) and Hash32(market.core.newest.random)
        await market.stop()

    run_virtual(main)
