"""A GPU as a `Device`: NVIDIA's driver by its C library, kernels by NVRTC, products by cuBLAS.

The driver's library comes with the driver. NVRTC comes with the extra `cuda12`. cuBLAS is used
where it is installed; without it a kernel computes the products, many times slower.
Functions and constants: https://docs.nvidia.com/cuda/cuda-driver-api/ and
https://docs.nvidia.com/cuda/cublas/.
"""

import ctypes
import importlib

from quorate_attestation.catalogue import CPU
from quorate_attestation.challenge import GpuClaim
from quorate_attestation.provers.engine import Engine
from quorate_attestation.provers.kernel_engine import KernelEngine, kernel_source
from quorate_attestation.provers.numpy_engine import NumpyEngine
from quorate_protocol.refusals import Unavailable

DRIVER_LIBRARY = "libcuda.so.1"
BLOCK = 256
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
_OUT_OF_MEMORY = 2
_R_8I, _R_32I, _COMPUTE_32I = 3, 10, 72
_OP_N, _OP_T, _GEMM_DEFAULT = 0, 1, -1
_RETRY_SECONDS = 60.0

_Pointer = ctypes.c_void_p
_Word = ctypes.c_uint64


def compile_kernels(capability: str) -> bytes:
    """Needs no GPU. Raises Unavailable if the extra `cuda12` is not installed."""
    try:
        core = importlib.import_module("cuda.core")
        options = core.ProgramOptions(arch=f"sm_{capability.replace('.', '')}")
        return bytes(core.Program(kernel_source(), "c++", options).compile("cubin").code)
    except ImportError as error:
        raise Unavailable(
            f"GPU kernels: {error}; install them with pip install 'quorate[cuda12]'"
        ) from error


class Driver:
    """NVIDIA's driver library."""

    def __init__(self, path: str = DRIVER_LIBRARY) -> None:
        """Raises Unavailable if the library or a GPU is absent."""
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise Unavailable(f"GPU: {error}; install NVIDIA's driver", _RETRY_SECONDS) from error
        self.call("cuInit", ctypes.c_uint(0))

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function of the library. Raises Unavailable with its name if it fails."""
        result = self._library[name](*arguments)
        if result == _OUT_OF_MEMORY:
            raise Unavailable(f"GPU: {name}: out of memory; stop what uses it", _RETRY_SECONDS)
        if result:
            raise Unavailable(f"GPU: {name} failed with error {result}", _RETRY_SECONDS)

    def device_of(self, uuid: str) -> int:
        """Of a GPU or MIG partition. Raises Unavailable if there is none."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        wanted = uuid.partition("-")[2].replace("-", "").lower()
        for number in range(count.value):
            device, found = ctypes.c_int(), (ctypes.c_ubyte * 16)()
            self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
            self.call("cuDeviceGetUuid_v2", found, device)
            if bytes(found).hex() == wanted:
                return device.value
        raise Unavailable(f"GPU {uuid}: the driver does not show it", _RETRY_SECONDS)

    def capability_of(self, device: int) -> str:
        """Such as "9.0"."""
        found = []
        for attribute in (_MAJOR, _MINOR):
            value = ctypes.c_int()
            self.call(
                "cuDeviceGetAttribute",
                ctypes.byref(value),
                ctypes.c_int(attribute),
                ctypes.c_int(device),
            )
            found.append(value.value)
        return f"{found[0]}.{found[1]}"


class CudaDevice:
    """Implements `Device` on one GPU. All its calls must come from one thread."""

    def __init__(self, driver: Driver, device: int, kernels: bytes, uses_cublas: bool) -> None:
        """The kernels must be compiled for the device's compute capability."""
        self._driver, self._call, self._device = driver, driver.call, device
        context, self._module = _Pointer(), _Pointer()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
        self._call("cuCtxSetCurrent", context)
        self._call("cuModuleLoadData", ctypes.byref(self._module), ctypes.c_char_p(kernels))
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._kept: list[int] = []
        self._blas = _Blas() if uses_cublas else None

    def allocate(self, size: int) -> int:
        """Raises Unavailable if memory is short."""
        address = _Word()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self._kept.append(address.value)
        return address.value

    def write(self, address: int, data: bytes) -> None:
        self._call(
            "cuMemcpyHtoD_v2", _Word(address), ctypes.c_char_p(data), ctypes.c_size_t(len(data))
        )

    def read(self, address: int, size: int) -> bytes:
        """Waits for all kernels first."""
        found = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", found, _Word(address), ctypes.c_size_t(size))
        return found.raw

    def launch(self, kernel: str, threads: int, *arguments: int) -> None:
        """With at least so many threads."""
        words = [_Word(argument) for argument in arguments]
        pointers = (_Pointer * len(words))(*(ctypes.addressof(word) for word in words))
        one, block = ctypes.c_uint(1), ctypes.c_uint(BLOCK)
        grid = ctypes.c_uint(-(-threads // BLOCK))
        sizes = (grid, one, one, block, one, one, ctypes.c_uint(0))
        nothing = _Pointer()
        self._call("cuLaunchKernel", self._function(kernel), *sizes, nothing, pointers, nothing)

    def _function(self, kernel: str) -> ctypes.c_void_p:
        if kernel not in self._functions:
            found = _Pointer()
            name = ctypes.c_char_p(kernel.encode())
            self._call("cuModuleGetFunction", ctypes.byref(found), self._module, name)
            self._functions[kernel] = found
        return self._functions[kernel]

    def multiply(self, left: int, right: int, product: int, order: int) -> bool:
        """Left × transposed(right); False without cuBLAS."""
        return self._blas is not None and self._blas.multiply(left, right, product, order)

    def close(self) -> None:
        for address in self._kept:
            self._call("cuMemFree_v2", _Word(address))
        self._kept.clear()
        self._call("cuModuleUnload", self._module)
        self._call("cuDevicePrimaryCtxRelease_v2", ctypes.c_int(self._device))


class _Blas:
    """cuBLAS of the current context. A product that it does not support is left to the kernel."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        self._handle = _Pointer()
        try:
            pathfinder = importlib.import_module("cuda.pathfinder")
            path = pathfinder.load_nvidia_dynamic_lib("cublas").abs_path
            library = ctypes.CDLL(path)
        except (ImportError, OSError, RuntimeError):
            return  # not re-raised: the kernel stands in
        if library.cublasCreate_v2(ctypes.byref(self._handle)) == 0:
            self._library = library

    def multiply(self, left: int, right: int, product: int, order: int) -> bool:
        """cuBLAS counts columns first: the product's transpose is transposed(right) times left."""
        if self._library is None:
            return False
        side, one, zero = ctypes.c_int(order), ctypes.c_int32(1), ctypes.c_int32(0)
        status = self._library.cublasGemmEx(
            self._handle,
            *(ctypes.c_int(_OP_T), ctypes.c_int(_OP_N), side, side, side),
            *(ctypes.byref(one), _Word(right), ctypes.c_int(_R_8I), side),
            *(_Word(left), ctypes.c_int(_R_8I), side),
            *(ctypes.byref(zero), _Word(product), ctypes.c_int(_R_32I), side),
            *(ctypes.c_int(_COMPUTE_32I), ctypes.c_int(_GEMM_DEFAULT)),
        )
        return bool(status == 0)


def open_gpu(uuid: str) -> CudaDevice:
    """Raises Unavailable with the remedy if driver, GPU or compiler is absent."""
    driver = Driver()
    device = driver.device_of(uuid)
    kernels = compile_kernels(driver.capability_of(device))
    return CudaDevice(driver, device, kernels, uses_cublas=True)


def engine_of(claim: GpuClaim) -> Engine:
    """Raises Unavailable with the remedy. A GPU is never answered for by the CPU."""
    return NumpyEngine() if claim.model == CPU.name else KernelEngine(open_gpu(claim.uuid))
