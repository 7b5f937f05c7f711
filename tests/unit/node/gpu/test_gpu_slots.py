"""The owner's choices and the machine's GPUs give run slots; CPU slots get what these leave."""

import itertools
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quorate_node.base import gpu_settings
from quorate_node.base.config import Config
from quorate_node.base.gpu_settings import EVERY_GPU, GpuLayout, GpuPrice
from quorate_node.base.settings import PUBLIC_URL_MAX, REGION_MAX
from quorate_node.core.terms import RunSlots
from quorate_node.machine.gpu_slots import LaidOut, lay_out
from quorate_node.machine.host_probe import read_gpus
from quorate_node.machine.run_slots import divide
from quorate_protocol.limits import OFFER_BYTES_MAX
from quorate_protocol.messages.gpu_inventory import PATHS, GpuInventory, GpuPath
from quorate_protocol.messages.job_spec import image_digest
from quorate_protocol.messages.offer import IMAGES_MAX, Hardware, check_form
from quorate_protocol.messages.ports import Sandbox
from quorate_protocol.refusals import Code, Refused
from quorate_protocol.units import Address, Price, UnixSeconds
from quorate_protocol.values import replace
from support.gpu.recorded_inventories import NAMES, RecordedProbe, recorded
from support.markets.provider_world import make_terms
from support.offers import MACHINE, an_offer

GIB = 1 << 30
PRICED = (GpuPrice(Price(1_000_000)),)
HARDWARE = Hardware(64, 1000 * GIB, 1 << 41)


CONFIG = Config(home=Path("/"), coordinators=("http://127.0.0.1",), slots=2, gpu_prices=PRICED)


def laid(name: str, *texts: str, prices: tuple[GpuPrice, ...] = PRICED) -> LaidOut:
    layouts = gpu_settings.layouts_of(list(texts))
    return lay_out(recorded(name), replace(CONFIG, gpu_slots=layouts, gpu_prices=prices))


def divided(name: str, slots: int, *texts: str) -> tuple[RunSlots, ...]:
    return divide(replace(CONFIG, slots=slots), HARDWARE, MACHINE, laid(name, *texts).classes)


def test_each_gpu_is_a_slot_unless_the_owner_says_otherwise() -> None:
    [one] = laid("eight-h100-sxm").classes
    assert len(one.groups) == 8 and one.pool.gpus == 1 and one.price == 1_000_000
    assert one.pool.gpu == "H100 SXM" and len({uuid for [uuid] in one.groups}) == 8
    assert laid("eight-h100-sxm", "none") == LaidOut((), ())


@pytest.mark.rule("0.3")
def test_a_slot_of_several_gpus_costs_as_much_as_its_gpus() -> None:
    [four] = laid("eight-h100-sxm", "2x3").classes
    assert len(four.groups) == 3 and four.pool.gpus == 2 and four.price == 2_000_000
    mixed = laid("eight-h100-sxm", "H100:4x1", "1").classes
    assert [(item.pool.gpus, len(item.groups)) for item in mixed] == [(4, 1), (1, 4)]
    named = [uuid for item in mixed for group in item.groups for uuid in group]
    assert len(set(named)) == len(named) == 8, "no GPU is in two slots"


def test_a_slot_has_the_gpus_with_the_fastest_paths() -> None:
    inventory = recorded("four-rtx-4090")
    # GPUs 0 and 1, and 2 and 3, share a host bridge. Swap two devices, so that order does not help.
    first, second, third, fourth = inventory.devices
    paths = tuple(
        replace(
            path, kind="host-bridge" if (path.first, path.second) in {(0, 2), (1, 3)} else "system"
        )
        for path in inventory.paths
    )
    swapped = replace(inventory, devices=(first, third, second, fourth), paths=paths)
    [pairs] = lay_out(swapped, replace(CONFIG, gpu_slots=(GpuLayout(size=2),))).classes
    assert pairs.groups == ((first.uuid, second.uuid), (third.uuid, fourth.uuid))


def test_partitions_are_slots_of_their_own_and_the_whole_gpu_is_none() -> None:
    inventory = recorded("a100-mig")
    split, whole = inventory.devices
    found = laid("a100-mig").classes
    uuids = {uuid for item in found for group in item.groups for uuid in group}
    assert uuids == {whole.uuid, *(part.uuid for part in split.partitions)}
    names = {str(item.pool) for item in found}
    assert len(names) == len(found), "a partition has another name than the whole GPU"
    [pair] = laid("a100-mig", "2").problems or [""]
    assert "2x" not in pair and not laid("a100-mig", "2").classes, "one whole GPU makes no pair"


def test_gpus_without_a_price_are_named_with_the_remedy() -> None:
    found = laid("one-t4", prices=())
    assert not found.classes and "--gpu-price" in found.problems[0] and "T4" in found.problems[0]
    other = laid("one-t4", prices=(GpuPrice(Price(1), "H100"),))
    assert not other.classes and other.problems == found.problems


def test_the_price_of_a_model_comes_before_the_general_one() -> None:
    prices = (GpuPrice(Price(5), "h100"), GpuPrice(Price(7)))
    assert laid("eight-h100-sxm", prices=prices).classes[0].price == 5
    assert laid("one-t4", prices=prices).classes[0].price == 7


def test_more_slots_than_gpus_are_named() -> None:
    found = laid("four-rtx-4090", "RTX 4090:2x3")
    assert len(found.classes[0].groups) == 2
    assert "asks for 3 slots" in found.problems[0] and "for 2" in found.problems[0]


def test_a_gpu_that_the_driver_lists_four_times_is_refused() -> None:
    """A driver that is honest about UUIDs cannot make four GPUs of one. A forged one can: 10.1."""
    inventory = recorded("one-t4")
    four: GpuInventory = replace(inventory, devices=inventory.devices * 4)
    with pytest.raises(Refused, match="UUID occurs twice"):
        four.validate()
    assert read_gpus(RecordedProbe(four)) == GpuInventory(), "no slot is made of such a report"
    assert read_gpus(RecordedProbe(inventory)) == inventory


@pytest.mark.rule("4.34")
def test_cpu_slots_get_what_gpu_slots_leave() -> None:
    cpu, gpu = divided("four-rtx-4090", 2, "2")
    part = 64_000 // 5  # four GPUs and the CPU slots
    assert gpu.resources.cpu_millis == 2 * part and len(gpu.groups) == 2
    assert cpu.resources.cpu_millis == (64_000 - 4 * part) // 2
    room = sum(item.resources.memory_bytes * item.offer.count for item in (cpu, gpu))
    assert 0.89 * HARDWARE.memory_bytes < room <= 0.9 * HARDWARE.memory_bytes
    [alone] = divided("four-rtx-4090", 0)
    assert alone.resources.cpu_millis == 16_000, "all cores are for GPU slots"
    with pytest.raises(Refused, match="--gpu-price"):
        divided("four-rtx-4090", 0, "none")


def partitioned(count: int) -> GpuInventory:
    """A machine whose A100s have partitions of as many pools."""
    device = recorded("a100-mig").devices[0]
    part = device.partitions[0]
    devices = tuple(
        replace(
            device,
            uuid=f"GPU-{number}",
            partitions=(replace(part, uuid=f"MIG-{number}", profile=f"{number + 1}g.10gb"),),
        )
        for number in range(count)
    )
    return replace(recorded("a100-mig"), devices=devices, paths=())


@pytest.mark.parametrize(("images", "pools"), [(0, 5), (5, 5), (IMAGES_MAX, 3)])
def test_more_pools_than_an_offer_can_hold_are_named(images: int, pools: int) -> None:
    found = lay_out(partitioned(8), replace(CONFIG, images=image_names(images)))
    assert len(found.classes) == pools and "a second provider" in found.problems[0]


def test_unequal_gpus_are_not_offered_in_one_pool() -> None:
    """An offer says one compute capability and one count of SMs for all slots of a pool."""
    inventory = recorded("four-rtx-4090")
    unknown = [replace(device, model="Some GPU") for device in inventory.devices]
    odd = replace(unknown[1], sm_count=unknown[1].sm_count - 2)
    found = lay_out(replace(inventory, devices=(unknown[0], odd, *unknown[2:])), CONFIG)
    assert [len(item.groups) for item in found.classes] == [3]
    assert "with equal GPUs; run a second provider" in found.problems[0]


def test_options_are_read_and_bad_ones_name_the_form() -> None:
    assert gpu_settings.layouts_of([]) == EVERY_GPU and gpu_settings.layouts_of(["none"]) == ()
    assert gpu_settings.layouts_of(["H100 SXM:8", "2x4"]) == (
        GpuLayout("H100 SXM", 8, 0),
        GpuLayout("", 2, 4),
    )
    assert gpu_settings.prices_of(["1.20", "H100=2.5"]) == (
        GpuPrice(Price(1_200_000)),
        GpuPrice(Price(2_500_000), "H100"),
    )
    for bad in ("", "x4", "2x0", "H100", "H100:", "1000", "-1", "2x4x2"):
        with pytest.raises(Refused, match="gpu-slots") as refused:
            gpu_settings.layouts_of([bad])
        assert refused.value.code is Code.MALFORMED
    for bad in ("", "free", "=2", "1.1234567", "-1", "1e3"):
        with pytest.raises(Refused, match="gpu-price"):
            gpu_settings.prices_of([bad])


@pytest.mark.parametrize(
    ("layouts", "prices", "floor", "says"),
    [
        ((GpuLayout(size=65),), (), 0, "1 to 64 GPUs"),
        ((GpuLayout(size=0),), (), 0, "1 to 64 GPUs"),
        ((GpuLayout(count=30_000),), (), 0, "at most 255 slots"),
        ((GpuLayout("a\nb"),), (), 0, "no name of a GPU"),
        (EVERY_GPU * 17, (), 0, "at most 16"),
        (EVERY_GPU, (GpuPrice(Price(0)),), 0, "not above 0"),
        (EVERY_GPU, (GpuPrice(Price(1 << 62)),), 0, "at most"),
        (EVERY_GPU, (GpuPrice(Price(10)),), 11, "below the price floor"),
    ],
)
def test_choices_that_cannot_be_offered_are_refused(
    layouts: tuple[GpuLayout, ...], prices: tuple[GpuPrice, ...], floor: int, says: str
) -> None:
    with pytest.raises(Refused, match=says):
        gpu_settings.check(layouts, prices, Price(floor))


@st.composite
def machines(draw: st.DrawFn) -> GpuInventory:
    """Machines with GPUs of several models, some in MIG mode."""
    kinds = [recorded(name).devices[0] for name in NAMES]
    paths = st.sampled_from(PATHS)
    devices, count = [], draw(st.integers(1, 10))
    for number in range(count):
        kind = draw(st.sampled_from(kinds))
        parts = tuple(
            replace(part, uuid=f"MIG-{number}-{place}", sm_count=14 + draw(st.integers(0, 30)))
            for place, part in enumerate(kind.partitions)
        )
        devices.append(replace(kind, uuid=f"GPU-{number}", partitions=parts))
    pairs = itertools.combinations(range(count), 2)
    found = tuple(GpuPath(first, second, draw(paths)) for first, second in pairs)
    return replace(recorded("one-t4"), devices=tuple(devices), paths=found)


layouts = st.builds(
    GpuLayout,
    st.sampled_from(["", "H100", "4090", "A100", "T4", "nothing"]),
    st.integers(1, 4),
    st.integers(0, 3),
)


def image_names(count: int) -> tuple[str, ...]:
    return tuple(f"example@sha256:{number:064x}" for number in range(count))


@pytest.mark.rule("I2", "4.34")
@settings(max_examples=150, deadline=None)
@given(
    machines(),
    st.lists(layouts, max_size=4).map(tuple),
    st.booleans(),
    st.builds(image_names, st.integers(0, IMAGES_MAX)),
    st.text(max_size=REGION_MAX),
    st.integers(0, PUBLIC_URL_MAX),
)
@example(partitioned(5), EVERY_GPU, True, image_names(IMAGES_MAX), "eu", 0)
@example(partitioned(8), EVERY_GPU, True, image_names(IMAGES_MAX), "é" * REGION_MAX, PUBLIC_URL_MAX)
def test_whatever_the_owner_wants_the_slots_can_be_offered_and_share_no_gpu(
    inventory: GpuInventory,
    wanted: tuple[GpuLayout, ...],
    is_priced: bool,
    images: tuple[str, ...],
    region: str,
    url_characters: int,
) -> None:
    config = replace(
        CONFIG,
        gpu_slots=wanted,
        gpu_prices=PRICED if is_priced else (),
        images=images,
        region=region,
        public_url="u" * url_characters,
    )
    found = lay_out(inventory, config)
    classes = divide(config, HARDWARE, MACHINE, found.classes)
    terms = replace(make_terms(), classes=classes)
    terms.check_gpus()
    names = {device.uuid: device.model for device in inventory.devices}
    for item in found.classes:
        for group in item.groups:
            assert len({names.get(uuid) for uuid in group}) == 1, "a slot has GPUs of one model"
            assert len(group) == 1 or all(uuid in names for uuid in group), "no slot of partitions"
    offer = replace(
        an_offer(Address(b"\x01" * 20), 1, UnixSeconds(10**9), terms.slots),
        sandboxes=(Sandbox.DOCKER_RUNSC.value,),
        region=region,
        addresses=(config.public_url or "http://255.255.255.255:65535",),
        images=tuple(image_digest(name) for name in images),
    )
    check_form(offer)
    assert len(offer.encode()) <= OFFER_BYTES_MAX
