"""The probe reads what the driver's library reports; a recorded inventory passes the same test."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quorate_node.gpu.nvml_probe import NvmlProbe
from quorate_protocol.messages.gpu_inventory import GpuInventory
from quorate_protocol.messages.ports import GpuProbe
from support.gpu.recorded_inventories import (
    DRIVER_NOT_LOADED,
    NAMES,
    UNKNOWN_ERROR,
    FakeLibraryProbe,
    RecordedProbe,
    recorded,
)

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
