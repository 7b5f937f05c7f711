/* A stand-in for libcuda.so.1 with one device: memory of the process, and the kernels on the CPU.
 * Prototypes follow https://docs.nvidia.com/cuda/cuda-driver-api/. A function is a kernel's name. */
#include <stdlib.h>
#include <string.h>
#include "kernels_on_cpu.cpp"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500 };
static const size_t MEMORY = 64u << 20;
static const unsigned char UUID[16] = {0x12, 0x34, 0x56, 0x78, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static size_t used, sizes[64];
static void *blocks[64];

EXPORT int cuInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
EXPORT int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
EXPORT int cuDeviceGet(int *device, int number) { *device = number; return number ? INVALID_VALUE : SUCCESS; }
EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int) { memcpy(uuid, UUID, 16); return SUCCESS; }
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int) {
    *value = attribute == 75 ? 9 : 0;
    return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int) { *context = &used; return SUCCESS; }
EXPORT int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
EXPORT int cuCtxSetCurrent(void *context) { return context == &used ? SUCCESS : INVALID_VALUE; }
EXPORT int cuModuleLoadData(void **module, const void *image) { *module = &sizes; return image ? SUCCESS : INVALID_VALUE; }
EXPORT int cuModuleUnload(void *) { return SUCCESS; }
EXPORT size_t fake_used() { return used; }
EXPORT int cuMemAlloc_v2(u64 *address, size_t size) {
    if (used + size > MEMORY) return OUT_OF_MEMORY;
    for (int i = 0; i < 64; i++)
        if (!blocks[i]) {
            blocks[i] = malloc(size);
            sizes[i] = size;
            used += size;
            *address = (u64)blocks[i];
            return SUCCESS;
        }
    return OUT_OF_MEMORY;
}
EXPORT int cuMemFree_v2(u64 address) {
    for (int i = 0; i < 64; i++)
        if (blocks[i] == (void *)address) {
            free(blocks[i]);
            blocks[i] = 0;
            used -= sizes[i];
            return SUCCESS;
        }
    return INVALID_VALUE;
}
EXPORT int cuMemcpyHtoD_v2(u64 to, const void *from, size_t size) { memcpy((void *)to, from, size); return SUCCESS; }
EXPORT int cuMemcpyDtoH_v2(void *to, u64 from, size_t size) { memcpy(to, (void *)from, size); return SUCCESS; }

static const char *const names[] = {"fill_words",  "clear_words",  "int8_product", "fingerprint_tiles",
                                    "digest_rows", "digest_pairs", "fill_pages",   "run_chains"};
EXPORT int cuModuleGetFunction(const char **function, void *, const char *name) {
    for (const char *known : names)
        if (!strcmp(known, name)) {
            *function = known;
            return SUCCESS;
        }
    return NOT_FOUND;
}
#define ARGUMENT(i, type) *(type *)parameters[i]
EXPORT int cuLaunchKernel(const char *function, unsigned g, unsigned gy, unsigned gz, unsigned b, unsigned by,
                          unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
    if (gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || stream || extra || !g) return INVALID_VALUE;
    u64 a[8] = {};
    const int counts[] = {3, 2, 4, 4, 4, 3, 4, 5};
    int kernel = 0;
    while (names[kernel] != function) kernel++;
    for (int i = 0; i < counts[kernel]; i++) a[i] = ARGUMENT(i, u64);
    switch (kernel) {
        case 0: launch_fill_words(g, b, (u64 *)a[0], a[1], a[2]); break;
        case 1: launch_clear_words(g, b, (u64 *)a[0], a[1]); break;
        case 2: launch_int8_product(g, b, (int *)a[0], (int *)a[1], (int *)a[2], a[3]); break;
        case 3: launch_fingerprint_tiles(g, b, (int4 *)a[0], (u64 *)a[1], (u64 *)a[2], a[3]); break;
        case 4: launch_digest_rows(g, b, (u64 *)a[0], a[1], a[2], (u64 *)a[3]); break;
        case 5: launch_digest_pairs(g, b, (u64 *)a[0], a[1], (u64 *)a[2]); break;
        case 6: launch_fill_pages(g, b, (u32 *)a[0], (u32 *)a[1], a[2], a[3]); break;
        case 7: launch_run_chains(g, b, (uint4 *)a[0], a[1], a[2], a[3], (u64 *)a[4]); break;
    }
    return SUCCESS;
}
