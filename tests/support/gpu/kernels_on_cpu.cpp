/* The kernels as functions of a shared library: launch_NAME(grid, block, arguments...). */
#include "cuda_on_cpu.h"
#include "kernels_plain.cu" /* kernels.cu, where `extern "C" __global__` is `__global__` */

#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT void launch_fill_words(unsigned g, unsigned b, u64 *o, u64 s, u64 n) { launch(fill_words, g, b, o, s, n); }
EXPORT void launch_clear_words(unsigned g, unsigned b, u64 *o, u64 n) { launch(clear_words, g, b, o, n); }
EXPORT void launch_int8_product(unsigned g, unsigned b, const int *l, const int *r, int *p, u64 n) {
    launch(int8_product, g, b, l, r, p, n);
}
EXPORT void launch_fingerprint_tiles(unsigned g, unsigned b, const int4 *p, const u64 *s, u64 *o, u64 n) {
    launch(fingerprint_tiles, g, b, p, s, o, n);
}
EXPORT void launch_digest_rows(unsigned g, unsigned b, const u64 *w, u64 per, u64 n, u64 *o) {
    launch(digest_rows, g, b, w, per, n, o);
}
EXPORT void launch_digest_pairs(unsigned g, unsigned b, const u64 *w, u64 n, u64 *o) {
    launch(digest_pairs, g, b, w, n, o);
}
EXPORT void launch_fill_pages(unsigned g, unsigned b, u32 *o, const u32 *k, u64 n, u64 r) {
    launch(fill_pages, g, b, o, k, n, r);
}
EXPORT void launch_run_chains(unsigned g, unsigned b, const uint4 *p, u64 c, u64 s, u64 n, u64 *o) {
    launch(run_chains, g, b, p, c, s, n, o);
}
