"""Pools of GPU slots follow from the inventory."""

from pathlib import Path

import pytest

from quorate_node.base.config import Config
from quorate_node.base.gpu_settings import GpuLayout, GpuPrice
from quorate_node.machine.gpu_slots import check_offerable, lay_out
from quorate_protocol.messages.classes import GVISOR, Host, Pool
from quorate_protocol.messages.gpu_inventory import GpuInventory, GpuPath
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Price, Small
from quorate_protocol.values import replace
from support.gpu.recorded_inventories import recorded
from support.offers import MACHINE

SETTINGS = Config(
    home=Path("/"), coordinators=("http://127.0.0.1",), gpu_prices=(GpuPrice(Price(1_000_000)),)
)


@pytest.mark.rule("2.18")
@pytest.mark.parametrize(
    ("name", "size", "expected", "facts"),
    [
        ("eight-h100-sxm", 8, Pool("H100 SXM", "", Small(8)), ("9.0", 132, "550")),
        ("four-rtx-4090", 1, Pool("RTX 4090", "", Small(1)), ("8.9", 128, "570")),
        ("one-t4", 1, Pool("T4", "", Small(1)), ("7.5", 40, "525")),
        ("a100-mig", 1, Pool("A100 PCIe 80GB", "1g.10gb", Small(1)), ("8.0", 14, "535")),
    ],
)
def test_a_slot_is_of_the_pool_and_the_host_of_its_gpus(
    name: str, size: int, expected: Pool, facts: tuple[str, int, str]
) -> None:
    settings = replace(SETTINGS, gpu_slots=(GpuLayout(size=size),))
    found = {item.pool: item for item in lay_out(recorded(name), settings).classes}
    in_gvisor = Host("x86_64", "v3", GVISOR)
    assert found[expected].host(in_gvisor) == Host("x86_64", "v3", "", *facts)


@pytest.mark.rule("2.18", "2.39")
def test_a_driver_update_changes_the_class_and_neither_pool_nor_stake() -> None:
    before = recorded("eight-h100-sxm")
    after = replace(before, driver_version="570.86.10")
    (old,), (new,) = (lay_out(item, SETTINGS).classes for item in (before, after))
    assert old.pool == new.pool and old.groups == new.groups
    assert old.host(MACHINE).digest() != new.host(MACHINE).digest()


@pytest.mark.parametrize("capability", ["6.0", "", "x"])
def test_a_gpu_that_is_too_old_is_refused_by_name(capability: str) -> None:
    inventory = recorded("one-t4")
    old = replace(inventory.devices[0], model="Tesla P100", compute_capability=capability)
    with pytest.raises(Refused, match="Tesla P100") as refused:
        check_offerable(old)
    assert refused.value.code is Code.UNSUPPORTED


def test_a_whole_gpu_in_mig_mode_is_refused() -> None:
    with pytest.raises(Refused, match="offer its partitions"):
        check_offerable(recorded("a100-mig").devices[0])


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
