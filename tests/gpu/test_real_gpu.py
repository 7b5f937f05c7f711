"""The real thing: a GPU's proof equals the reference, and passes the check. It prints figures."""

import time

import pytest

from quorate_attestation import seeds
from quorate_attestation.arithmetic.proof_check import SecretKeeper, check
from quorate_attestation.catalogue import model_of_driver_name
from quorate_attestation.challenge import STAGES
from quorate_attestation.parameters import ORDER_MAX, Parameters
from quorate_attestation.proof_document import StageShown
from quorate_attestation.provers.cuda_device import open_gpu
from quorate_attestation.provers.kernel_engine import KernelEngine
from quorate_attestation.provers.prover import Prover
from quorate_node.base.config import Settings
from quorate_node.base.gpu_settings import GpuPrice
from quorate_node.machine.gpu_slots import check_offerable, lay_out
from quorate_node.machine.nvml_probe import NvmlProbe, uuids_of
from quorate_protocol.messages.gpu_inventory import GpuDevice
from quorate_protocol.units import Price
from support.attestation.challenges import DOMAIN, challenge, finish, nonces, prove
from support.offers import MACHINE

pytestmark = pytest.mark.gpu
LARGE = Parameters(
    order=ORDER_MAX,
    rounds=16,
    tiles=1024,
    pages=1 << 22,
    page_rounds=256,
    chains=1 << 22,
    batches=8,
    chains_opened=128,
)


def first_gpu() -> GpuDevice:
    inventory = NvmlProbe().inventory()
    inventory.validate()
    return inventory.devices[0]


def test_the_inventory_of_this_machine_is_whole() -> None:
    inventory, device = NvmlProbe().inventory(), first_gpu()
    assert inventory.driver_version and inventory.cuda_version
    assert device.vram_bytes > 1 << 30 and device.sm_count > 0
    model = model_of_driver_name(device.model)
    print(f"{device.model}: {model.name if model else 'not in the catalogue'}, {device}")
    if not device.is_mig_enabled:
        assert model is None or model.sm_count == check_offerable(device)


def test_each_gpu_of_this_machine_is_in_one_run_slot() -> None:
    inventory = NvmlProbe().inventory()
    found = lay_out(
        inventory, Settings(("http://127.0.0.1",), gpu_prices=(GpuPrice(Price(1_000_000)),))
    )
    for item in found.classes:
        host = item.host(MACHINE)
        host.validate(is_gpu=True)
        print(f"{len(item.groups)} slots of {item.pool} on {host}")
    print(found.problems)
    slots = [uuid for item in found.classes for group in item.groups for uuid in group]
    assert slots and len(set(slots)) == len(slots) and set(slots) <= uuids_of(inventory)


def test_a_gpu_gives_the_reference_proof() -> None:
    opened, uuid = challenge(), first_gpu().uuid
    assert prove(opened, make=lambda: KernelEngine(open_gpu(uuid))) == prove(opened)


def test_a_large_challenge_passes_the_check() -> None:
    opened, uuid = challenge(LARGE), first_gpu().uuid
    engine = KernelEngine(open_gpu(uuid))
    prover = Prover(engine, LARGE, opened.right_seed(), opened.base_seed(DOMAIN, 0))
    stages, seconds = [], []
    for stage in range(STAGES):
        sent = nonces(len(opened.verifiers), f"stage {stage}")
        began = time.perf_counter()
        stages.append(StageShown(sent, prover.commit(sent)))
        seconds.append(time.perf_counter() - began)
    proof = finish(prover, opened, 0, tuple(stages))
    prover.close()
    check(proof, DOMAIN, SecretKeeper(b"\x01" * 32))
    print(f"int8 operations per second: {LARGE.int8_operations / seconds[1]:.3e}")
    print(f"memory bytes per second: {LARGE.pass_bytes / seconds[2]:.3e}")
    print(f"seconds of the stages: {[round(each, 3) for each in seconds]}; {seeds.TAG!r}")
