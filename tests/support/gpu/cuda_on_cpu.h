/* Lets a C++ compiler compile kernels.cu: the words of CUDA C that it uses, and a loop over threads.
 * Threads run one after the other, which is right for kernels without shared memory and barriers. */
#include <stdint.h>
#define __global__ static
#define __device__ static
struct Index { unsigned x, y, z; };
static thread_local Index threadIdx, blockIdx, blockDim;
struct int4 { int x, y, z, w; };
struct uint4 { unsigned x, y, z, w; };
static inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long value) {
    unsigned long long before = *at;
    *at += value;
    return before;
}
static inline int __dp4a(int a, int b, int sum) {
    for (int shift = 0; shift < 32; shift += 8)
        sum += (int)(int8_t)(a >> shift) * (int)(int8_t)(b >> shift);
    return sum;
}
template <typename... Declared>
static void launch(void (*kernel)(Declared...), unsigned grid, unsigned block, Declared... arguments) {
    blockDim = {block, 1, 1};
    for (unsigned b = 0; b < grid; b++)
        for (unsigned t = 0; t < block; t++) {
            blockIdx = {b, 0, 0};
            threadIdx = {t, 0, 0};
            kernel(arguments...);
        }
}
