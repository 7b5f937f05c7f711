"""Every engine gives the same bytes: numpy, and the GPU's kernels compiled for the CPU."""

import ctypes
import hashlib
from pathlib import Path

import pytest

from quorate_attestation import digest_tree
from quorate_attestation.arithmetic.proof_check import SecretKeeper, check
from quorate_attestation.catalogue import Model, models
from quorate_attestation.parameters import Parameters, parameters_for
from quorate_attestation.provers.engine import Engine
from quorate_attestation.provers.kernel_engine import KernelEngine
from quorate_attestation.provers.numpy_engine import NumpyEngine
from support.attestation.challenges import DOMAIN, SMALL, challenge, prove
from support.gpu.cpu_device import CpuDevice

CONTEXT_BYTES = 450 << 20  # of the driver itself
OTHER = Parameters(
    order=512,
    rounds=3,
    tiles=40,
    pages=777,
    page_rounds=5,
    chains=1024,
    batches=3,
    chains_opened=16,
)


@pytest.mark.cc
@pytest.mark.rule("10.7")
@pytest.mark.parametrize("parameters", [SMALL, OTHER])
def test_kernels_and_numpy_give_the_same_proof(parameters: Parameters, tmp_path: Path) -> None:
    opened = challenge(parameters)
    ours = prove(opened, make=lambda: KernelEngine(CpuDevice(tmp_path)))
    assert ours == prove(opened)
    check(ours, DOMAIN, SecretKeeper(b"\x01" * 32))


@pytest.mark.cc
@pytest.mark.parametrize("words", [1, 2, 4, 5, 6, 7, 8, 13, 14, 15, 32, 64])
def test_the_sha256_kernel_is_sha256(words: int, tmp_path: Path) -> None:
    device = CpuDevice(tmp_path)
    data = hashlib.shake_128(b"row").digest(2 * 8 * words)
    rows, out = device.allocate(len(data)), device.allocate(64)
    device.write(rows, data)
    device.launch("digest_rows", 2, rows, words, 2, out)
    expected = b"".join(digest_tree.leaf(part) for part in (data[: 8 * words], data[8 * words :]))
    assert device.read(out, 64) == expected
    assert ctypes.sizeof(ctypes.c_uint64) == 8


@pytest.mark.parametrize("make", [NumpyEngine])
def test_an_engine_can_begin_again_after_it_closed(make: type[Engine]) -> None:
    engine = make()
    engine.begin(SMALL, 1)
    first = engine.multiply(2, 3)
    engine.close()
    engine.begin(SMALL, 1)
    assert engine.multiply(2, 3) == first


class CountingDevice:
    """A device of which only the memory is counted."""

    def __init__(self) -> None:
        self.used = 0

    def allocate(self, size: int) -> int:
        self.used += size
        return self.used

    def write(self, address: int, data: bytes) -> None: ...

    def read(self, address: int, size: int) -> bytes:
        return bytes(size)

    def launch(self, kernel: str, threads: int, *arguments: int) -> None: ...

    def multiply(self, left: int, right: int, product: int, order: int) -> bool:
        return True

    def close(self) -> None: ...


@pytest.mark.parametrize("model", models(), ids=lambda model: model.name)
def test_matrices_and_pages_fit_into_the_memory_of_every_model(model: Model) -> None:
    """Drivers report 6 % less than the datasheet where memory has error correction."""
    for reported in (model.vram_bytes, model.vram_bytes * 94 // 100):
        device = CountingDevice()
        KernelEngine(device).begin(parameters_for(model, reported), 1)
        assert device.used + CONTEXT_BYTES < reported
