"""Tests the in-memory hub when frames are dropped, delayed, repeated or reordered, in virtual
time.
"""

import asyncio

import pytest

from quorate_protocol.refusals import Unavailable
from quorate_protocol.units import Address, Seconds
from support.p2p.memory_peers import Hop, MemoryHub, fair_weather
from support.virtual_clock import VirtualClock, run_virtual

ADA, BOB = Address(b"\1" * 20), Address(b"\2" * 20)
TEN = Seconds(10)


async def echo(sender: str, frame: bytes) -> bytes:
    return frame


def test_dropped_frame_is_unavailable_after_its_deadline() -> None:
    async def main(clock: VirtualClock) -> None:
        async with MemoryHub(clock, lambda hop: () if hop.is_answer else (0.0,)) as hub:
            ada, _ = hub.join(ADA, echo), hub.join(BOB, echo)
            start = clock.now()
            with pytest.raises(Unavailable):
                await ada.request(BOB, b"x", TEN)
            assert clock.now() - start == pytest.approx(10)
            hub.conditions = fair_weather
            assert await ada.request(BOB, b"y", TEN) == b"y"

    run_virtual(main)


def test_delays_add_up_and_late_answers_are_dropped() -> None:
    async def main(clock: VirtualClock) -> None:
        async with MemoryHub(clock, lambda hop: (4.0,)) as hub:
            ada, _ = hub.join(ADA, echo), hub.join(BOB, echo)
            start = clock.now()
            assert await ada.request(BOB, b"x", TEN) == b"x"
            assert clock.now() - start == pytest.approx(8)
            with pytest.raises(Unavailable):
                await ada.request(BOB, b"x", Seconds(7))
            await clock.sleep(5)

    run_virtual(main)


def test_hub_repeats_and_reorders_frames_the_same_way_each_time() -> None:
    delays = {b"a": (2.0,), b"twice": (3.0, 0.5), b"b": (1.0,), b"c": (2.5,)}

    def weather(hop: Hop) -> tuple[float, ...]:
        return (0.0,) if hop.is_answer else delays[hop.frame]

    async def main(clock: VirtualClock) -> list[tuple[float, bytes]]:
        seen: list[tuple[float, bytes]] = []
        start = clock.now()

        async def note(sender: str, frame: bytes) -> bytes:
            seen.append((round(clock.now() - start, 3), frame))
            return b""

        async with MemoryHub(clock, weather) as hub:
            ada, _ = hub.join(ADA, echo), hub.join(BOB, note)
            await asyncio.gather(
                *(ada.request(BOB, frame, TEN) for frame in (b"a", b"twice", b"b", b"c"))
            )
            await clock.sleep(5)
        return seen

    seen = run_virtual(main)
    assert seen == [(0.5, b"twice"), (1.0, b"b"), (2.0, b"a"), (2.5, b"c"), (3.0, b"twice")]
    assert seen == run_virtual(main)


def test_peer_that_left_is_unavailable_and_answers_once_it_is_back() -> None:
    async def main(clock: VirtualClock) -> None:
        async def second(sender: str, frame: bytes) -> bytes:
            return b"second"

        async with MemoryHub(clock, lambda hop: (2.0,)) as hub:
            ada, _ = hub.join(ADA, echo), hub.join(BOB, echo)
            asked = asyncio.create_task(ada.request(BOB, b"x", TEN))
            await clock.sleep(1)
            hub.leave(BOB)
            with pytest.raises(Unavailable, match="did not answer"):
                await asked
            with pytest.raises(Unavailable, match="not connected"):
                await ada.request(BOB, b"x", TEN)
            hub.join(BOB, second)
            assert await ada.request(BOB, b"x", TEN) == b"second"

    run_virtual(main)


def test_bug_in_a_handler_is_raised_when_the_hub_ends() -> None:
    async def main(clock: VirtualClock) -> None:
        async def broken(sender: str, frame: bytes) -> bytes:
            raise ZeroDivisionError

        with pytest.raises(ExceptionGroup) as ended:
            async with MemoryHub(clock) as hub:
                ada, _ = hub.join(ADA, echo), hub.join(BOB, broken)
                await ada.request(BOB, b"x", TEN)
        assert ended.group_contains(ZeroDivisionError)

    run_virtual(main)
