"""The GPU's device speaks the driver's interface; the kernels compile for every architecture."""

import ctypes
from pathlib import Path

import pytest

from quorate_attestation.arithmetic.proof_check import SecretKeeper, check
from quorate_attestation.catalogue import models
from quorate_attestation.provers.cuda_device import CudaDevice, Driver, compile_kernels
from quorate_attestation.provers.kernel_engine import KernelEngine
from quorate_protocol.refusals import Unavailable
from quorate_protocol.values import replace
from support.attestation.challenges import DOMAIN, SMALL, challenge, prove
from support.gpu.cpu_device import library

UUID = "GPU-12345678-0102-0304-0506-0708090a0b0c"


def a_driver(folder: Path) -> Driver:
    return Driver(str(library(folder, "fake_cuda")))


def a_device(folder: Path) -> CudaDevice:
    driver = a_driver(folder)
    return CudaDevice(driver, driver.device_of(UUID), b"cubin", uses_cublas=False)


@pytest.mark.cc
def test_a_device_gives_the_reference_proof_and_frees_its_memory(tmp_path: Path) -> None:
    opened = challenge()
    proof = prove(opened, make=lambda: KernelEngine(a_device(tmp_path)))
    assert proof == prove(opened)
    check(proof, DOMAIN, SecretKeeper(b"\x01" * 32))
    fake = ctypes.CDLL(str(library(tmp_path, "fake_cuda")))
    assert fake.fake_used() == 0


@pytest.mark.cc
def test_a_device_is_found_by_its_uuid(tmp_path: Path) -> None:
    driver = a_driver(tmp_path)
    assert driver.capability_of(driver.device_of(UUID)) == "9.0"
    assert driver.device_of(UUID.replace("GPU-", "MIG-")) == 0
    with pytest.raises(Unavailable, match="does not show it"):
        driver.device_of("GPU-00000000-0102-0304-0506-0708090a0b0c")


@pytest.mark.cc
def test_too_little_memory_is_named(tmp_path: Path) -> None:
    engine = KernelEngine(a_device(tmp_path))
    with pytest.raises(Unavailable, match="out of memory"):
        engine.begin(replace(SMALL, pages=1 << 17), 1)
    engine.close()


def test_a_machine_without_a_driver_says_what_to_install() -> None:
    with pytest.raises(Unavailable, match="install NVIDIA's driver"):
        Driver("libcuda-that-is-absent.so.1")


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "capability", sorted({model.compute_capability for model in models()} | {"10.3"}, key=float)
)
def test_the_kernels_compile_for_every_architecture(capability: str) -> None:
    assert compile_kernels(capability)[:4] == b"\x7fELF"
