"""Tests what the driver's library reports, and the watch that tells which GPUs came and went."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quorate_node.core import events
from quorate_node.machine.nvml_probe import LOOK_SECONDS, TRIES, GpuWatch, NvmlProbe, uuids_of
from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.messages.ports import GpuProbe
from quorate_protocol.refusals import Unavailable
from quorate_protocol.values import replace
from quorate_runtime.process.health import Board
from support.gpu.recorded_inventories import (
    DRIVER_NOT_LOADED,
    NAMES,
    UNKNOWN_ERROR,
    FakeLibraryProbe,
    RecordedProbe,
    recorded,
)
from support.virtual_clock import VirtualClock

WHOLE = recorded("four-rtx-4090")
UUIDS = uuids_of(WHOLE)


class _Probe:
    """Implements `GpuProbe` with inventories that a test sets; None = the driver is away."""

    def __init__(self) -> None:
        self.found: GpuInventory | None = WHOLE
        self.asked = 0

    def inventory(self) -> GpuInventory:
        self.asked += 1
        if self.found is None:
            raise Unavailable("the driver does not answer", 1.0)
        return self.found


class _Core:
    """Keeps what is submitted."""

    def __init__(self) -> None:
        self.read: list[frozenset[str]] = []

    async def submit(self, event: events.Event) -> None:
        assert isinstance(event, events.GpusRead)
        self.read.append(frozenset(event.uuids))


def watched() -> tuple[GpuWatch, _Probe, _Core, Board, VirtualClock]:
    probe, core, board, clock = _Probe(), _Core(), Board(), VirtualClock()
    return GpuWatch(probe, core, clock, board, lambda: UUIDS), probe, core, board, clock


def without(number: int) -> GpuInventory:
    return replace(WHOLE, devices=WHOLE.devices[:number], paths=())


async def test_only_changes_are_submitted_and_the_owner_hears_of_lost_gpus() -> None:
    watch, probe, core, board, _ = watched()
    await watch.look()
    await watch.look()
    assert core.read == [UUIDS] and not board.problems()
    probe.found = without(3)
    await watch.look()
    assert core.read[-1] == UUIDS - {WHOLE.devices[3].uuid}
    [problem] = board.problems()
    assert WHOLE.devices[3].uuid in problem.text and "nvidia-smi" in problem.text
    probe.found = WHOLE
    await watch.look()
    assert core.read[-1] == UUIDS and not board.problems()


async def test_a_driver_that_is_away_for_several_tries_has_lost_all_gpus() -> None:
    watch, probe, core, _, clock = watched()
    await watch.look()
    probe.found, probe.asked = None, 0
    before = clock.now()
    await watch.look()
    assert clock.now() - before >= TRIES - 1, "it waits between its tries"
    assert probe.asked == TRIES and core.read[-1] == frozenset()


async def test_partitions_count_as_gpus() -> None:
    inventory = recorded("a100-mig")
    parts = {part.uuid for device in inventory.devices for part in device.partitions}
    assert parts and parts < uuids_of(inventory)
    assert LOOK_SECONDS > 0


Make = Callable[[GpuInventory, Path], GpuProbe]
MAKERS = [
    pytest.param(lambda inventory, _: RecordedProbe(inventory), id="recorded"),
    pytest.param(FakeLibraryProbe, id="library", marks=pytest.mark.cc),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_probe_reports_every_device_and_path(make: Make, name: str, tmp_path: Path) -> None:
    found = make(recorded(name), tmp_path).inventory()
    found.validate()
    assert found == recorded(name)


@pytest.mark.cc
def test_a_lost_gpu_is_left_out(tmp_path: Path) -> None:
    whole = recorded("four-rtx-4090")
    gone = whole.devices[1].uuid
    found = FakeLibraryProbe(whole, tmp_path, lost=frozenset({gone})).inventory()
    assert [device.uuid for device in found.devices] == [
        device.uuid for device in whole.devices if device.uuid != gone
    ]
    assert {path.second for path in found.paths} == {1, 2}, "places count what is left"


@pytest.mark.cc
def test_a_driver_that_is_not_loaded_means_no_gpus(tmp_path: Path) -> None:
    probe = FakeLibraryProbe(recorded("one-t4"), tmp_path, result=DRIVER_NOT_LOADED)
    assert probe.inventory() == GpuInventory()


@pytest.mark.cc
def test_a_broken_driver_is_named_with_the_remedy(tmp_path: Path) -> None:
    probe = FakeLibraryProbe(recorded("one-t4"), tmp_path, result=UNKNOWN_ERROR)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        probe.inventory()
    assert b"Unavailable: NVIDIA driver: " in failed.value.stderr
    assert b"nvidia-smi" in failed.value.stderr


def test_a_machine_without_a_driver_has_no_gpus() -> None:
    assert not NvmlProbe().inventory().devices or NvmlProbe().inventory().driver_version
