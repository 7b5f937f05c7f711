"""Computes on the GPU of its container with nothing but the driver's library, and writes the bits.

`quorate node selftest` runs it in an image with Python and compares two of its results. It runs
alone in that image: only the standard library. Functions:
https://docs.nvidia.com/cuda/cuda-driver-api/.
"""

import ctypes
import os
import sys

THREADS, BLOCKS, ROUNDS = 256, 256, 4096
PTX = b"""
.version 6.3
.target sm_75
.address_size 64
.visible .entry chain(.param .u64 sums, .param .u32 rounds)
{
    .reg .pred %more;
    .reg .b32 %left, %block, %size, %thread, %place;
    .reg .f32 %x, %wave;
    .reg .b64 %base, %offset;
    ld.param.u64 %base, [sums];
    ld.param.u32 %left, [rounds];
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %place, %block, %size, %thread;
    cvt.rn.f32.u32 %x, %place;
again:
    fma.rn.f32 %x, %x, 0f3F7D70A4, 0f3DCCCCCD;
    sin.approx.f32 %wave, %x;
    add.rn.f32 %x, %x, %wave;
    sub.u32 %left, %left, 1;
    setp.ne.u32 %more, %left, 0;
    @%more bra again;
    cvta.to.global.u64 %base, %base;
    mul.wide.u32 %offset, %place, 4;
    add.u64 %base, %base, %offset;
    st.global.f32 [%base], %x;
    ret;
}
"""


def compute() -> bytes:
    """Returns the final value of each thread's chain, as float32."""
    library = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        result = library[name](*arguments)
        if result:
            sys.exit(f"{name} failed with error {result}")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, kernel, sums = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    found = (ctypes.c_float * (THREADS * BLOCKS))()
    size = ctypes.c_size_t(ctypes.sizeof(found))
    call("cuInit", ctypes.c_uint(0))
    call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX))
    call("cuModuleGetFunction", ctypes.byref(kernel), module, ctypes.c_char_p(b"chain"))
    call("cuMemAlloc_v2", ctypes.byref(sums), size)
    rounds = ctypes.c_uint(ROUNDS)
    places = (ctypes.addressof(sums), ctypes.addressof(rounds))
    arguments = (ctypes.c_void_p * len(places))(*places)
    shape = [ctypes.c_uint(number) for number in (BLOCKS, 1, 1, THREADS, 1, 1, 0)]
    call("cuLaunchKernel", kernel, *shape, None, arguments, None)
    call("cuMemcpyDtoH_v2", found, sums, size)
    return bytes(found)


if __name__ == "__main__":
    with open(os.path.join(os.environ["QUORATE_OUTPUTS"], "result"), "wb") as file:
        file.write(compute())
