"""A provider with recorded GPUs: real daemon, journal, chain and contracts, a scripted coordinator.

No GPU is in this machine, and the executor runs nothing.
"""

import dataclasses
import subprocess

import pytest

from quorate_contracts.calls import ask
from quorate_node.base.config import SLOTS_BY_GPUS
from quorate_node.base.gpu_settings import GpuLayout, GpuPrice
from quorate_node.cli.control import ask_daemon
from quorate_node.core.phases import Committed, Declined, Lapsed, Running
from quorate_node.daemon import ProviderDaemon
from quorate_node.executors.noop_executor import NoopExecutor
from quorate_node.machine import nvml_probe
from quorate_node.machine.gpu_manners import GpuUse
from quorate_node.status.gpu_container import GpuTrial
from quorate_protocol.messages import frames
from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.messages.job_spec import MIB, GpuRequest, Resources
from quorate_protocol.messages.offer import WITHDRAWN, Offer
from quorate_protocol.messages.ports import Sandbox, Task
from quorate_protocol.refusals import Refused
from quorate_protocol.units import DeclineReason, Hash32, Price
from quorate_protocol.values import replace
from quorate_runtime.clock import SystemClock
from support.gpu.recorded_inventories import recorded
from support.markets.scripted_coordinator import OWNER, SPEC, Stage, in_phase, running, until

FOUR = recorded("four-rtx-4090")
UUIDS = tuple(device.uuid for device in FOUR.devices)
PAIR = GpuRequest(2, "RTX 4090", 24 * 10**9, 89)
JOB = replace(SPEC, resources=Resources(100, 64 * MIB, 16 * MIB, gpu=PAIR))
LONG_MS = 60_000


class FadingProbe:
    """Implements `GpuProbe` with an inventory from which a test takes GPUs."""

    def __init__(self) -> None:
        self.found: GpuInventory = FOUR

    def inventory(self) -> GpuInventory:
        return self.found

    def lose(self, uuid: str) -> None:
        """The driver does not list this GPU any more."""
        devices = tuple(device for device in FOUR.devices if device.uuid != uuid)
        self.found = replace(FOUR, devices=devices, paths=())


class RecordingExecutor(NoopExecutor):
    """Runs nothing, and remembers which GPUs each task got."""

    gpus: dict[str, tuple[str, ...]]

    async def start(self, task: Task) -> None:
        self.gpus = {**getattr(self, "gpus", {}), task.lease_id: task.gpus}
        await super().start(task)


def provider(market: Stage, probe: FadingProbe) -> tuple[ProviderDaemon, RecordingExecutor]:
    """A provider with one CPU slot and two slots of two GPUs."""
    executor = RecordingExecutor(market.home / "noop", SystemClock(), LONG_MS)
    plain = market.daemon(market.coordinator.url, executor=executor)
    layout, price = (GpuLayout(size=2),), (GpuPrice(Price(25_000)),)
    config = replace(plain.config, slots=1, gpu_slots=layout, gpu_prices=price)
    return dataclasses.replace(plain, config=config, probe=probe), executor


async def test_gpus_that_no_container_reaches_stop_the_daemon_before_it_stakes(
    market: Stage,
) -> None:
    """The recorded machine has no container toolkit."""
    daemon, executor = provider(market, FadingProbe())
    executor.sandbox = Sandbox.DOCKER_RUNC
    daemon.config = replace(daemon.config, slots=SLOTS_BY_GPUS)

    async def lacking() -> str:
        return "the engine has neither toolkit nor CDI"

    daemon.trial = GpuTrial(engine_problem=lacking)
    with pytest.raises(
        Refused, match="no GPU is on offer: .* 0 of 2 slots: the engine has neither"
    ):
        await daemon.run()
    assert await ask(market.client, market.contracts.stakes.role_of(OWNER.address)) == 0


async def assign(market: Stage, daemon: ProviderDaemon, number: int) -> Hash32:
    assert daemon.core is not None
    pool = daemon.core.terms.slots[1].pool.id()
    sent = market.coordinator.assignment(JOB, number, pool)
    await market.coordinator.send(sent)
    return market.coordinator.hash(sent.assignment.message)


def counts(market: Stage) -> list[int]:
    """Run slots of each class in the newest offer."""
    return [slot.count for slot in newest(market).slots]


def gave_up(market: Stage, lease: Hash32) -> bool:
    sent = [item.decline.message for item in market.coordinator.got(frames.DeclineSent)]
    said = {(item.assignment_hash, item.reason) for item in sent}
    return (lease, DeclineReason.GAVE_UP) in said


@pytest.mark.rule("I2", "I6", "2.12", "4.34", "4.35")
async def test_gpu_slots_are_staked_leased_once_and_given_up_when_a_gpu_is_gone(
    market: Stage,
) -> None:
    probe = FadingProbe()
    daemon, executor = provider(market, probe)
    async with running(market, daemon):
        assert daemon.core is not None
        for slot, count in zip(daemon.core.terms.slots, (1, 2), strict=True):
            page = await ask(market.client, market.contracts.stakes.slot_page(slot.pool.id(), 0))
            owned = [item for item in page if item.owner == OWNER.address]
            assert len(owned) == count, "each class has its own stake slots"
        await market.coordinator.first(frames.OfferSent)
        assert counts(market) == [1, 2]
        [plain, pair] = daemon.core.terms.slots
        assert (plain.gpu, pair.gpu, pair.on_demand) == ("", "RTX 4090", 50_000)
        first, second = [await assign(market, daemon, number) for number in (1, 2)]
        for lease in (first, second):
            await in_phase(daemon, lease, Running)
        given = [executor.gpus[lease.hex()] for lease in (first, second)]
        assert {uuid for group in given for uuid in group} == set(UUIDS), "each GPU once"
        await in_phase(daemon, await assign(market, daemon, 3), Declined)
    # The daemon comes back as after a crash: its journal says who has which GPU.
    again, executor = provider(market, probe)
    async with running(market, again):
        assert again.core is not None
        await in_phase(again, first, Running)
        late = await assign(market, again, 4)
        await in_phase(again, late, Declined)
        assert [item.free for item in again.core.free_slots()] == [1, 0]
        probe.lose(given[0][0])
        await in_phase(again, first, Lapsed)
        await until(lambda: True if gave_up(market, first) else None)
        await until(lambda: True if counts(market) == [1, 1] else None)
        assert not isinstance(again.core.executions[second].phase, Committed | Lapsed)
        assert "gpu" in {problem.name for problem in again.board.problems()}


async def test_a_game_withdraws_its_gpus_until_it_ends(
    market: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that runs on them goes on, and so does its heartbeat."""
    monkeypatch.setattr(nvml_probe, "LOOK_SECONDS", 0.1)
    game, uses = subprocess.Popen(["sleep", "60"]), list[GpuUse]()
    daemon, _ = provider(market, FadingProbe())
    daemon.config = replace(daemon.config, slots=0)
    daemon.read_gpu_use = lambda: tuple(uses)
    try:
        async with running(market, daemon):
            assert daemon.core is not None
            await market.coordinator.first(frames.OfferSent)
            pool = daemon.core.terms.slots[0].pool.id()
            sent = market.coordinator.assignment(JOB, 1, pool)
            await market.coordinator.send(sent)
            lease = market.coordinator.hash(sent.assignment.message)
            await in_phase(daemon, lease, Running)
            uses += [GpuUse(uuid, (game.pid,)) for uuid in UUIDS]
            await until(lambda: True if newest(market).expires == WITHDRAWN else None)
            status = await ask_daemon(daemon.config.home, "GET", "/v1/status")
            assert f"your process {game.pid} (sleep) uses it" in status["notOnOffer"]
            assert isinstance(daemon.core.executions[lease].phase, Running)
            uses.clear()
            await until(lambda: True if newest(market).expires != WITHDRAWN else None)
    finally:
        game.kill()
        game.wait()


def newest(market: Stage) -> Offer:
    sent = market.coordinator.got(frames.OfferSent)
    return max((item.offer.offer for item in sent), key=lambda offer: offer.seq)
