"""Pools of GPU slots follow from the inventory."""

import pytest

from quorate_node.machine.gpu_slots import architecture_of, pool_of
from quorate_protocol.messages.classes import GPU_ARCHITECTURES, Pool
from quorate_protocol.messages.gpu_inventory import GpuInventory, GpuPath
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Small
from quorate_protocol.values import replace
from support.gpu.recorded_inventories import recorded


@pytest.mark.rule("2.18")
@pytest.mark.parametrize(
    ("name", "world_size", "expected"),
    [
        ("eight-h100-sxm", 8, Pool("hopper", "", "", 132, "", "550", Small(8))),
        ("four-rtx-4090", 1, Pool("ada", "", "", 128, "", "570")),
        ("one-t4", 1, Pool("turing", "", "", 40, "", "525")),
    ],
)
def test_a_slot_has_the_class_of_its_gpus(name: str, world_size: int, expected: Pool) -> None:
    inventory = recorded(name)
    found = pool_of(inventory, inventory.devices[0], world_size=world_size)
    assert found == expected


@pytest.mark.rule("2.18")
def test_a_partition_has_its_own_class() -> None:
    inventory = recorded("a100-mig")
    device = inventory.devices[0]
    found = pool_of(inventory, device, device.partitions[1])
    assert found == Pool("ampere", "", "", 14, "1g.10gb", "535")
    with pytest.raises(Refused, match="offer its partitions"):
        pool_of(inventory, device)


def test_a_gpu_older_than_every_class_is_refused_by_name() -> None:
    inventory = recorded("one-t4")
    old = replace(inventory.devices[0], model="Tesla P100", compute_capability="6.0")
    with pytest.raises(Refused, match="Tesla P100") as refused:
        pool_of(inventory, old)
    assert refused.value.code is Code.UNSUPPORTED


def test_architectures_are_those_of_the_protocol() -> None:
    found = {architecture_of(f"{major}.{minor}") for major in range(1, 14) for minor in range(10)}
    assert found - {""} <= set(GPU_ARCHITECTURES)


def test_bad_inventories_are_refused() -> None:
    good = recorded("four-rtx-4090")
    twice: GpuInventory = replace(good, devices=(good.devices[0], good.devices[0]), paths=())
    for bad in (
        replace(good, devices=good.devices * 17, paths=()),
        twice,
        replace(good, paths=(GpuPath(0, 9, "nvlink"),)),
        replace(good, paths=(GpuPath(0, 1, "wire"),)),
        replace(good, devices=(replace(good.devices[0], model="x" * 97),), paths=()),
        replace(good, version=2),
    ):
        with pytest.raises(Refused) as refused:
            bad.validate()
        assert refused.value.code is Code.MALFORMED
