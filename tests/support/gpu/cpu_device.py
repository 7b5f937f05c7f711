"""A device whose kernels are compiled by the system's C++ compiler and run on the CPU."""

import ctypes
import subprocess
from functools import cache
from pathlib import Path

from quorate_attestation.provers.kernel_engine import kernel_source

HERE = Path(__file__).parent
BLOCK = 64


@cache
def library(folder: Path, source: str = "kernels_on_cpu") -> Path:
    """A shared library of one of the C++ files beside this one, compiled once a folder."""
    plain = kernel_source().replace('extern "C" __global__', "__global__")
    (folder / "kernels_plain.cu").write_text(plain)
    made = folder / f"{source}.so"
    flags = ["-x", "c++", "-std=c++17", "-O2", "-Wall", "-Werror", "-shared", "-fPIC"]
    places = [f"-I{folder}", f"-I{HERE}", "-o", str(made), str(HERE / f"{source}.cpp")]
    subprocess.run(["cc", *flags, *places], check=True)
    return made


class CpuDevice:
    """Implements `Device` in the memory of this process."""

    def __init__(self, folder: Path) -> None:
        """Compiles the kernels in this folder."""
        self._library = ctypes.CDLL(str(library(folder)))
        self._kept: list[ctypes.Array[ctypes.c_uint64]] = []

    def allocate(self, size: int) -> int:
        """Returns the address of new memory, filled with zeros."""
        self._kept.append((ctypes.c_uint64 * (size // 8 + 1))())
        return ctypes.addressof(self._kept[-1])

    def write(self, address: int, data: bytes) -> None:
        """Copies bytes to an address."""
        ctypes.memmove(address, data, len(data))

    def read(self, address: int, size: int) -> bytes:
        """Returns the bytes at an address."""
        return ctypes.string_at(address, size)

    def launch(self, kernel: str, threads: int, *arguments: int) -> None:
        """Runs a kernel, one thread after the other."""
        words = [ctypes.c_uint64(argument) for argument in arguments]
        grid = ctypes.c_uint(-(-threads // BLOCK))
        self._library[f"launch_{kernel}"](grid, ctypes.c_uint(BLOCK), *words)

    def multiply(self, left: int, right: int, product: int, order: int) -> bool:
        """There is no library, so the kernel computes the product."""
        return False

    def close(self) -> None:
        """Releases all memory."""
        self._kept.clear()
