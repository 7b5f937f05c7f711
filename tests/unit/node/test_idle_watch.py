"""Rentals that nobody uses end after a warning, and used ones do not."""

from collections.abc import Collection

import pytest

from quorate_node.core import events
from quorate_node.core.phases import Execution, Live
from quorate_node.core.provider_core import ProviderCore
from quorate_node.machine.gpu_manners import GpuUse
from quorate_node.rentals.idle_watch import (
    BUSY_PERCENT,
    Due,
    IdleWatch,
    due,
    is_busy,
    unwatched_seconds,
)
from quorate_protocol.limits import DEVNET
from quorate_protocol.messages.ports import Clock
from quorate_protocol.units import Hash32, JobKind, Seconds, UnixSeconds
from quorate_protocol.values import replace
from support.markets.provider_world import Driver, make_spec, make_terms

IDLE_STOP = Seconds(1800)


class Streams:
    """What the watch asks of the SSH server and the executor."""

    def __init__(self) -> None:
        self.at = 0.0
        self.now_at = 1_000.0
        self.said: list[str] = []
        self.noted: list[str] = []
        self.stopped: list[str] = []
        self.kept: Collection[Hash32] = ()
        self.kept_for: list[tuple[str, float]] = []

    def used_at(self, lease: Hash32) -> float:
        return self.at

    def warn(self, lease: Hash32, text: str) -> None:
        self.said.append(text)

    def forget_all_but(self, leases: Collection[Hash32]) -> None:
        self.kept = leases

    def keep_for(self, lease_id: str, seconds: float) -> None:
        self.kept_for.append((lease_id, seconds))

    async def note(self, lease_id: str, text: str) -> None:
        self.noted.append(text)

    async def stop(self, lease_id: str) -> None:
        self.stopped.append(lease_id)

    def now(self) -> float:
        return self.now_at

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("the test looks by itself")


def watched(idle_stop: Seconds = IDLE_STOP) -> tuple[IdleWatch, Streams, Execution]:
    terms = make_terms(1)
    kinds = (JobKind.TASK, JobKind.DEV_ENVIRONMENT)
    driver = Driver(ProviderCore(replace(terms, policy=replace(terms.policy, kinds=kinds))))
    spec = replace(make_spec("machine", 3_600), kind=JobKind.DEV_ENVIRONMENT, idle_stop=idle_stop)
    lease = driver.assign(1, spec)
    for event in (events.AcceptDelivered(lease), events.InputsFetched(lease)):
        driver.do(event)
    driver.do(events.TaskStarted(lease))
    streams = Streams()
    clock: Clock = streams
    watch = IdleWatch(
        core=driver.core,
        server=streams,  # type: ignore[arg-type]
        inside=streams,  # type: ignore[arg-type]
        stop=streams.stop,
        read_gpu_use=lambda: (),
        clock=clock,
    )
    return watch, streams, driver.core.executions[lease]


@pytest.mark.rule("12.21", "12.22", "12.23")
async def test_idle_rental_is_warned_once_and_then_stopped() -> None:
    watch, streams, rental = watched()
    for seconds, said, stopped in ((0, 0, 0), (1499, 0, 0), (1500, 1, 0), (1799, 1, 0)):
        streams.now_at = 1_000.0 + seconds
        await watch.look()
        assert streams.kept_for[-1] == (rental.lease_id, unwatched_seconds(DEVNET))
        assert (len(streams.said), len(streams.stopped)) == (said, stopped), seconds
    streams.at = streams.now_at  # somebody typed
    await watch.look()
    streams.now_at += 1_600
    await watch.look()
    assert len(streams.said) == 2 and not streams.stopped and "200 s" in streams.said[1]
    streams.now_at += 200
    await watch.look()
    assert streams.stopped == [rental.lease_id] and streams.noted == streams.said
    assert set(streams.kept) == {rental.assignment_hash}


@pytest.mark.rule("12.21")
async def test_a_rental_without_idle_stop_never_ends_by_itself() -> None:
    watch, streams, _ = watched(Seconds(0))
    for _ in range(3):
        await watch.look()
        streams.now_at += 1_000_000
    assert not streams.said and not streams.stopped


@pytest.mark.rule("12.38")
async def test_who_is_in_a_rental_that_gives_way_is_told_once_and_each_look_keeps_it() -> None:
    watch, streams, rental = watched(Seconds(0))
    await watch.look()
    phase = rental.phase
    assert isinstance(phase, Live)
    gives_way = replace(phase, gives_way_at=UnixSeconds(1_010), gives_way_to="its owner plays")
    watch.core.executions[rental.assignment_hash] = rental.to(gives_way)
    await watch.look()
    await watch.look()
    assert streams.said == ["quorate: its owner plays; this rental ends in 10 s"] == streams.noted
    assert [lease for lease, _ in streams.kept_for] == [rental.lease_id] * 3


@pytest.mark.rule("12.21")
def test_only_its_own_gpus_count_and_silent_ones_are_idle() -> None:
    uses = {"a": GpuUse("a", percent=BUSY_PERCENT), "b": GpuUse("b", percent=BUSY_PERCENT - 1)}
    assert is_busy(("a", "b"), uses) and not is_busy(("b",), uses)
    assert not is_busy(("gone",), uses) and not is_busy((), uses)


@pytest.mark.rule("12.22")
def test_short_limits_are_warned_of_halfway() -> None:
    assert due(29, Seconds(60)) is Due.NOTHING and due(30, Seconds(60)) is Due.WARNING
    assert due(60, Seconds(60)) is Due.STOP
