/* A stand-in for NVIDIA's libnvidia-ml.so.1: it reports the GPUs of inventory.h, which a test writes.
 * Prototypes follow https://docs.nvidia.com/deploy/nvml-api/. A handle is a pointer into the tables. */
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, GPU_IS_LOST = 15 };
typedef struct { const char *uuid, *profile; unsigned sm_count; unsigned long long vram_bytes; } Partition;
typedef struct {
    const char *model, *uuid, *pci_address;
    unsigned long long vram_bytes;
    unsigned cores, major, minor, pcie_generation, pcie_lanes, nvlinks;
    int is_mig_enabled, is_lost;
    unsigned partition_count;
    Partition partitions[8];
} Device;
#include "inventory.h" /* DRIVER_VERSION, CUDA_VERSION, INIT_RESULT, DEVICE_COUNT, devices, levels, linked */

static int text(const char *from, char *to, unsigned length) {
    snprintf(to, length, "%s", from);
    return SUCCESS;
}
static Device *device(void *handle) {
    for (int i = 0; i < DEVICE_COUNT; i++)
        if (handle == &devices[i]) return &devices[i];
    return 0;
}
static Partition *partition(void *handle) {
    for (int i = 0; i < DEVICE_COUNT; i++)
        for (unsigned j = 0; j < devices[i].partition_count; j++)
            if (handle == &devices[i].partitions[j]) return &devices[i].partitions[j];
    return 0;
}

/* A test writes what changes into a file: lines "DEVICE KIND VALUE MORE". Kinds: c and g are processes
 * that compute and draw, with their memory; t degrees, e millijoules, p the power limit; r allows root's calls. */
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } Process;
static unsigned found(void *handle, char kind, unsigned long long *values, unsigned long long *more, unsigned most) {
    FILE *file = fopen(USE_FILE, "r");
    unsigned count = 0;
    int index;
    char is;
    unsigned long long value, other;
    while (file && count < most && fscanf(file, "%d %c %llu %llu", &index, &is, &value, &other) == 4)
        if (is == kind && device(handle) == &devices[index]) values[count] = value, more[count++] = other;
    if (file) fclose(file);
    return count;
}
static int processes(void *handle, char kind, unsigned *count, Process *to) {
    unsigned long long pids[16], bytes[16];
    unsigned number = found(handle, kind, pids, bytes, 16);
    int fits = number <= *count;
    *count = number;
    if (!fits) return 7; /* INSUFFICIENT_SIZE */
    for (unsigned i = 0; i < number; i++) to[i] = (Process){pids[i], bytes[i], -1, -1};
    return SUCCESS;
}
static int figure(void *handle, char kind, unsigned long long *value) {
    unsigned long long more;
    return found(handle, kind, value, &more, 1) ? SUCCESS : NOT_SUPPORTED;
}
static int small(void *handle, char kind, unsigned *value) {
    unsigned long long wide = 0;
    int result = figure(handle, kind, &wide);
    *value = wide;
    return result;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *to) { return processes(handle, 'c', count, to); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, Process *to) { return processes(handle, 'g', count, to); }
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *value) { (void)sensor; return small(handle, 't', value); }
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *value) { return figure(handle, 'e', value); }
int nvmlDeviceGetPowerManagementLimit(void *handle, unsigned *value) { return small(handle, 'p', value); }
int nvmlDeviceSetPowerManagementLimit(void *handle, unsigned value) {
    unsigned root;
    (void)value;
    return small(handle, 'r', &root) == SUCCESS ? SUCCESS : 4; /* NO_PERMISSION */
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return INIT_RESULT; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int result) { return result == GPU_IS_LOST ? "GPU is lost" : "error"; }
int nvmlSystemGetDriverVersion(char *to, unsigned length) { return text(DRIVER_VERSION, to, length); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA_VERSION; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = DEVICE_COUNT; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= DEVICE_COUNT) return INVALID_ARGUMENT;
    if (devices[index].is_lost) return GPU_IS_LOST;
    *handle = &devices[index];
    return SUCCESS;
}
int nvmlDeviceGetName(void *handle, char *to, unsigned length) {
    if (device(handle)) return text(device(handle)->model, to, length);
    char whole[128];
    snprintf(whole, sizeof whole, "NVIDIA Fake MIG %s", partition(handle)->profile);
    return text(whole, to, length);
}
int nvmlDeviceGetUUID(void *handle, char *to, unsigned length) {
    return text(device(handle) ? device(handle)->uuid : partition(handle)->uuid, to, length);
}
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long total_free_used[3]) {
    total_free_used[0] = total_free_used[1] = device(handle)->vram_bytes;
    total_free_used[2] = 0;
    return SUCCESS;
}
int nvmlDeviceGetNumGpuCores(void *handle, unsigned *cores) { *cores = device(handle)->cores; return SUCCESS; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    *major = device(handle)->major;
    *minor = device(handle)->minor;
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(void *handle, void *info) {
    memset(info, 0, 68); /* busId is the last member, 32 bytes, after 16 + 5 * 4 */
    return text(device(handle)->pci_address, (char *)info + 36, 32);
}
int nvmlDeviceGetMaxPcieLinkGeneration(void *handle, unsigned *value) {
    *value = device(handle)->pcie_generation;
    return *value ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetMaxPcieLinkWidth(void *handle, unsigned *value) {
    *value = device(handle)->pcie_lanes;
    return *value ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *is_active) {
    if (!device(handle)->nvlinks) return NOT_SUPPORTED;
    *is_active = link < device(handle)->nvlinks;
    return SUCCESS;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    if (device(handle)->major < 8) return NOT_SUPPORTED;
    *current = *pending = device(handle)->is_mig_enabled;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { (void)handle; *count = 7; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **part) {
    if (index >= device(handle)->partition_count) return NOT_FOUND;
    *part = &device(handle)->partitions[index];
    return SUCCESS;
}
int nvmlDeviceGetAttributes_v2(void *handle, struct { unsigned counts[8]; unsigned long long memory_mb; } *to) {
    memset(to, 0, sizeof *to);
    to->counts[0] = partition(handle)->sm_count;
    to->memory_mb = partition(handle)->vram_bytes >> 20;
    return SUCCESS;
}
int nvmlDeviceGetTopologyCommonAncestor(void *first, void *second, unsigned *level) {
    *level = levels[device(first) - devices][device(second) - devices];
    return SUCCESS;
}
int nvmlDeviceGetP2PStatus(void *first, void *second, int index, unsigned *status) {
    (void)index;
    *status = linked[device(first) - devices][device(second) - devices] ? 0 : 4;
    return SUCCESS;
}
