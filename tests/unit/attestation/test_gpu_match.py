"""Client, coordinator and provider decide alike whether a GPU slot has what a job asks for."""

import itertools

import pytest

from quorate_attestation import fits, gpu_match
from quorate_attestation.catalogue import Model, models
from quorate_protocol.messages.classes import CPUS, Host, Pool
from quorate_protocol.messages.job_spec import GpuRequest, Resources
from quorate_protocol.messages.offer import SlotOffer
from quorate_protocol.units import Small
from quorate_protocol.values import replace
from support.messages import a_spec
from support.offers import GPU_MACHINE, MACHINE, a_slot

GB = 10**9


@pytest.mark.rule("4.37")
@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("H100", {"h100", "h100 sxm", "h100 nvl", "h100 pcie"}),
        ("A100 80GB", {"a100 80gb", "a100 sxm 80gb", "a100 pcie 80gb"}),
        ("rtx 4090", {"rtx 4090"}),
        ("RTX 9999", {"rtx 9999"}),
        ("", set()),
    ],
)
def test_a_name_means_all_models_that_people_call_so(text: str, offered: set[str]) -> None:
    assert gpu_match.names_called(text) == offered


def test_the_compute_capability_is_the_machines() -> None:
    assert gpu_match.capability_of(GPU_MACHINE) == 89
    assert gpu_match.capability_of(replace(GPU_MACHINE, capability="12.0")) == 120
    assert gpu_match.capability_of(MACHINE) == 0


def has_all(slot: SlotOffer, wanted: GpuRequest) -> bool:
    """The same rule as a condition."""
    return (
        slot.pool.is_gpu
        and wanted.count <= slot.pool.gpus
        and wanted.vram_bytes_min <= slot.vram_bytes
        and (not wanted.model or slot.gpu.lower() in gpu_match.names_called(wanted.model))
        and wanted.compute_capability_min <= gpu_match.capability_of(slot.host)
        and wanted.cuda_min <= slot.cuda
    )


@pytest.mark.rule("2.41")
@pytest.mark.parametrize(
    ("asked", "fitting"),
    [
        (GpuRequest(1, "", 45 * GB), {"L40S", "2x L40S", "A100 SXM 80GB"}),
        (GpuRequest(2, "", 0), {"2x L40S"}),
        (GpuRequest(1, "", 0, 89), {"L40S", "2x L40S", "L4"}),
        (GpuRequest(1, "A100", 60 * GB), {"A100 SXM 80GB"}),
        (GpuRequest(1, "a100", 0), {"A100 SXM 80GB", "A100 PCIe 40GB"}),
        (GpuRequest(1, "A100 SXM 80GB 3g.40gb", 90 * GB), {"A100 SXM 80GB/3g.40gb"}),
        (GpuRequest(1, "Voodoo 9", 90 * GB), {"Voodoo 9"}),
        (None, {"cpu"}),
    ],
)
def test_which_pools_fit_follows_from_spec_and_catalogue(
    asked: GpuRequest | None, fitting: set[str]
) -> None:
    """A model that the catalogue lacks, as every partition, fits only by its name."""
    names = ("L40S", "L4", "A100 SXM 80GB", "A100 PCIe 40GB", "Voodoo 9")
    pools = [Pool(name, "", Small(1)) for name in names]
    pools += [Pool("L40S", "", Small(2)), Pool("A100 SXM 80GB", "3g.40gb", Small(1)), CPUS]
    spec = replace(a_spec("job"), resources=Resources(gpu=asked))
    found = fits.pools_that_fit(spec, pools)
    wanted = {pool for pool in pools if str(pool) in fitting}
    assert set(found) == wanted and list(found) == sorted(found, key=Pool.id)
    assert fits.are_pools_fitting(spec, found) and fits.are_pools_fitting(spec, (pools[1],))
    others = tuple(pool for pool in pools if pool not in found)
    assert not fits.are_pools_fitting(spec, (*found, *others))
    assert len(found) == 1 or not fits.are_pools_fitting(spec, found[::-1])


def host_of(model: Model) -> Host:
    return replace(GPU_MACHINE, capability=model.compute_capability, sm_count=model.sm_count)


@pytest.mark.rule("4.37")
def test_other_drivers_share_a_pool_and_its_jobs() -> None:
    """A class is no part of what a job asks for: jobs go to all machines of a pool."""
    asked = GpuRequest(1, "L40S", 40 * GB, 89)
    updated = replace(GPU_MACHINE, driver="570", architecture="aarch64", level="armv8")
    slots = [a_slot(Pool("L40S", "", Small(1)), 1, host=host) for host in (GPU_MACHINE, updated)]
    assert slots[0].host.digest() != slots[1].host.digest()
    assert slots[0].pool == slots[1].pool
    assert [gpu_match.shortfalls(slot, asked) for slot in slots] == [(), ()]


@pytest.mark.rule("4.37")
def test_shortfalls_are_empty_exactly_if_the_slot_has_all() -> None:
    slots = [
        a_slot(Pool(item.name, "", Small(size)), 1, vram_bytes=item.vram_bytes, host=host_of(item))
        for item, size in itertools.product(models()[::3], (1, 4))
    ]
    requests = [
        GpuRequest(*values)
        for values in itertools.product((1, 2, 8), ("", "H100", "L4"), (0, 40 * GB), (0, 80, 90))
    ]
    seen = set()
    for slot, wanted in itertools.product(slots, requests):
        lacks = gpu_match.shortfalls(slot, wanted)
        assert has_all(slot, wanted) == (not lacks)
        seen.add(len(lacks))
    assert seen == {0, 1, 2, 3, 4}, "each number of shortfalls was met"
    plain = a_slot(CPUS, 1)
    assert not has_all(plain, GpuRequest(1, "", 0))
    assert gpu_match.shortfalls(plain, GpuRequest(1, "", 0)) == ("it has no GPU",)


def test_slots_are_described_for_people() -> None:
    slot = a_slot(Pool("T4", "", Small(1)), 1, vram_bytes=16 * GB)
    assert gpu_match.describe_slot(slot) == "1x T4 16 GB (reported)"
    measured = replace(slot, attestation_level=Small(1))
    assert gpu_match.describe_slot(measured) == "1x T4 16 GB"
