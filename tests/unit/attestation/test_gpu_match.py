"""Client, coordinator and provider decide alike whether a GPU slot has what a job asks for."""

import itertools

import pytest

from quorate_attestation import gpu_match
from quorate_attestation.catalogue import models
from quorate_protocol.messages.classes import CPUS, GPU_ARCHITECTURES, Pool
from quorate_protocol.messages.job_spec import GpuRequest
from quorate_protocol.messages.offer import SlotOffer
from quorate_protocol.units import Small
from quorate_protocol.values import replace
from support.offers import a_slot

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


def test_a_model_outside_the_catalogue_has_the_least_of_its_architecture() -> None:
    assert gpu_match.capability_of("RTX 4090", "ada") == 89
    assert gpu_match.capability_of("RTX 3090", "ampere") == 86, "not the least of its architecture"
    assert gpu_match.capability_of("RTX 9999", "ada") == 89
    assert gpu_match.capability_of("RTX 9999", "volta") == 0
    known = [name for name in GPU_ARCHITECTURES if gpu_match.capability_of("", name)]
    assert known == ["turing", "ampere", "ada", "hopper", "blackwell"], "AMD has no such number"


def has_all(slot: SlotOffer, wanted: GpuRequest) -> bool:
    """The same rule as a condition."""
    return (
        slot.pool.is_gpu
        and wanted.count <= slot.pool.gpus
        and wanted.vram_bytes_min <= slot.vram_bytes
        and (not wanted.model or slot.gpu.lower() in gpu_match.names_called(wanted.model))
        and wanted.compute_capability_min
        <= gpu_match.capability_of(slot.gpu, slot.host.architecture)
        and wanted.cuda_min <= slot.cuda
    )


@pytest.mark.rule("4.37")
def test_shortfalls_are_empty_exactly_if_the_slot_has_all() -> None:
    hosts = [Pool(model.name, "", Small(size)) for model in models()[::5] for size in (1, 4)]
    slots = [
        a_slot(host, 1, gpu=model.name, vram_bytes=model.vram_bytes)
        for host, model in itertools.product(hosts, models()[::7])
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
