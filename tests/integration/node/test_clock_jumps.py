"""A machine's clock jumps an hour under a real provider daemon, and is corrected again.

Nothing lapses, and nothing false is signed.
"""

import asyncio
import time

import pytest

from quorate_node.core.phases import Committed, Receipted, Running
from quorate_protocol.messages import frames
from quorate_runtime.clock import DOUBT_SECONDS, JUMP_SECONDS, SystemClock
from support.clocks import WrongClock
from support.markets.scripted_coordinator import Stage, in_phase, running, until

HOUR = 3600.0


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_job_survives_a_clock_that_jumps_an_hour_and_back(market: Stage, jump: float) -> None:
    coordinator, watch = market.coordinator, WrongClock()
    daemon = market.daemon(coordinator.url, 1500)
    daemon.clock = SystemClock(watch)
    async with running(market, daemon):
        lease = await market.assign(daemon, 1)
        await in_phase(daemon, lease, Running)
        watch.error = jump
        commit = (await coordinator.first(frames.CommitSent)).commit
        assert commit.message.assignment_hash == lease
        await in_phase(daemon, lease, Committed)
        await coordinator.send(coordinator.receipt(commit.message))
        await in_phase(daemon, lease, Receipted)
        again = await market.assign(daemon, 2)
        await until(lambda: coordinator.got(frames.AcceptSent)[1:] or None)
        watch.error = 0.0
        await until(lambda: coordinator.got(frames.CommitSent)[1:] or None)
        accepts = [item.accept.message for item in coordinator.got(frames.AcceptSent)]
        assert [item.assignment_hash for item in accepts] == [lease, again]
        assert all(abs(item.time - time.time()) < JUMP_SECONDS for item in accepts), (
            "what is signed bears the true time"
        )
        assert not coordinator.got(frames.DeclineSent)


class Hands:
    """A clock over two times that a test sets: the machine's time and the one that never jumps."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000.0, 50.0
        self.clock = SystemClock(lambda: self.wall, lambda: self.steady)

    def pass_time(self, seconds: float, error: float = 0.0) -> float:
        """Moves time on, with the machine's time off by `error` more, and returns the clock's
        time.
        """
        self.wall += seconds + error
        self.steady += seconds
        return self.clock.now()


def test_lasting_jump_is_followed_later_and_small_steps_at_once() -> None:
    hands = Hands()
    pass_time = hands.pass_time
    assert pass_time(1) == 1_000_001
    assert pass_time(1, error=JUMP_SECONDS - 1) == hands.wall
    before = hands.wall
    assert pass_time(1, error=HOUR) == before + 1
    assert pass_time(DOUBT_SECONDS / 2) == before + 1 + DOUBT_SECONDS / 2
    assert pass_time(1, error=-HOUR) == hands.wall, "taken back: as if it had never been"
    assert pass_time(1, error=-HOUR) == hands.wall + HOUR
    assert pass_time(DOUBT_SECONDS) == hands.wall, "it stayed"


@pytest.mark.rule("9.7")
def test_jump_that_newer_blocks_contradict_is_never_followed() -> None:
    hands = Hands()
    clock, pass_time = hands.clock, hands.pass_time
    for jump in (HOUR, -HOUR):
        pass_time(1)
        true = clock.now()
        clock.witness(true - 10)  # a block is some seconds old when it appears
        pass_time(1, error=jump)
        assert pass_time(2 * DOUBT_SECONDS) == true + 1 + 2 * DOUBT_SECONDS
        assert pass_time(HOUR) == true + 1 + 2 * DOUBT_SECONDS + HOUR, (
            "also when no block has come since"
        )
        assert pass_time(1, error=-jump) == hands.wall, "put right, it is followed at once"
    true = clock.now()
    pass_time(1, error=HOUR)
    clock.witness(true + HOUR)
    assert pass_time(2 * DOUBT_SECONDS) == hands.wall, (
        "the chain went on while this machine had an old time"
    )


async def test_suspended_machine_is_not_a_clock_jump() -> None:
    clock = SystemClock()
    await asyncio.sleep(0.01)
    assert abs(clock.now() - time.time()) < 1
