/* The kernels of a prover. Every argument has 64 bits. No kernel uses shared memory or a barrier, so
 * threads may also run one after the other (tests/support/gpu). The meaning of each is in
 * arithmetic/word_stream.py, arithmetic/pages.py and digest_tree.py. */
typedef unsigned int u32;
typedef unsigned long long u64;

#define THREAD ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define GAMMA 0x9E3779B97F4A7C15ull

__device__ inline u64 mix(u64 x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}
__device__ inline u32 rotate_left(u32 x, int bits) { return (x << bits) | (x >> (32 - bits)); }
__device__ inline u32 swap_bytes(u32 x) {
    return (x << 24) | ((x & 0xFF00u) << 8) | ((x >> 8) & 0xFF00u) | (x >> 24);
}

extern "C" __global__ void fill_words(u64 *out, u64 seed, u64 count) {
    u64 i = THREAD;
    if (i < count) out[i] = mix(seed + i * GAMMA);
}

extern "C" __global__ void clear_words(u64 *out, u64 count) {
    u64 i = THREAD;
    if (i < count) out[i] = 0;
}

/* One thread computes 4 x 4 entries of C = left x transposed(right); rows have `order` int8 entries.
 * It stands in where cuBLAS is absent. */
extern "C" __global__ void int8_product(const int *left, const int *right, int *product, u64 order) {
    u64 side = order / 4, i = THREAD;
    if (i >= side * side) return;
    u64 row = i / side * 4, column = i % side * 4, words = order / 4;
    int sums[4][4] = {};
    for (u64 k = 0; k < words; k++) {
        int a[4], b[4];
        for (int r = 0; r < 4; r++) {
            a[r] = left[(row + r) * words + k];
            b[r] = right[(column + r) * words + k];
        }
        for (int r = 0; r < 4; r++)
            for (int c = 0; c < 4; c++) sums[r][c] = __dp4a(a[r], b[c], sums[r][c]);
    }
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++) product[(row + r) * order + column + c] = sums[r][c];
}

/* Eight neighbouring threads read one tile of 256 entries, 16 bytes each at a time; `out` starts at 0. */
extern "C" __global__ void fingerprint_tiles(const int4 *product, const u64 *salt, u64 *out, u64 tiles) {
    u64 i = THREAD, tile = i / 8;
    if (tile >= tiles) return;
    u64 sum = 0;
    for (u64 at = i % 8; at < 64; at += 8) {
        int4 four = product[tile * 64 + at];
        const u64 *with = salt + at * 4;
        sum += mix((u64)(long long)four.x + with[0]) + mix((u64)(long long)four.y + with[1]);
        sum += mix((u64)(long long)four.z + with[2]) + mix((u64)(long long)four.w + with[3]);
    }
    atomicAdd(out + tile, sum);
}

__device__ inline u32 sha256_constant(int i) {
    const u32 table[64] = {
        0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u, 0xab1c5ed5u,
        0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu, 0x9bdc06a7u, 0xc19bf174u,
        0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu, 0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau,
        0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u, 0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u,
        0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu, 0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u,
        0xa2bfe8a1u, 0xa81a664bu, 0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u,
        0x19a4c116u, 0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
        0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u, 0xc67178f2u};
    return table[i];
}

__device__ inline void sha256_block(u32 state[8], u32 w[16]) {
    u32 s[8];
    for (int i = 0; i < 8; i++) s[i] = state[i];
    for (int i = 0; i < 64; i++) {
        if (i >= 16) {
            u32 x = w[(i + 1) & 15], y = w[(i + 14) & 15];
            w[i & 15] += (rotate_left(x, 25) ^ rotate_left(x, 14) ^ (x >> 3)) + w[(i + 9) & 15] +
                         (rotate_left(y, 15) ^ rotate_left(y, 13) ^ (y >> 10));
        }
        u32 big1 = rotate_left(s[4], 26) ^ rotate_left(s[4], 21) ^ rotate_left(s[4], 7);
        u32 big0 = rotate_left(s[0], 30) ^ rotate_left(s[0], 19) ^ rotate_left(s[0], 10);
        u32 first = s[7] + big1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + sha256_constant(i) + w[i & 15];
        u32 second = big0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        for (int j = 7; j > 0; j--) s[j] = s[j - 1];
        s[4] += first;
        s[0] = first + second;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

/* SHA-256 of the word `tag` and `count` further words, all little-endian. */
__device__ inline void sha256_words(u64 tag, const u64 *words, u64 count, u64 *out) {
    u32 state[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                    0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    u32 w[16];
    u64 blocks = (count + 1) / 8 + 1; /* one word for the end and one for the length fit in the last */
    if ((count + 1) % 8 == 7) blocks++;
    for (u64 block = 0; block < blocks; block++) {
        for (int i = 0; i < 8; i++) {
            u64 at = block * 8 + i, word = 0;
            if (at == 0) word = tag;
            else if (at <= count) word = words[at - 1];
            else if (at == count + 1) word = 0x80;
            w[2 * i] = swap_bytes((u32)word);
            w[2 * i + 1] = swap_bytes((u32)(word >> 32));
        }
        if (block == blocks - 1) {
            w[14] = (u32)((count + 1) >> 26);
            w[15] = (u32)((count + 1) << 6);
        }
        sha256_block(state, w);
    }
    for (int i = 0; i < 4; i++)
        out[i] = swap_bytes(state[2 * i]) | (u64)swap_bytes(state[2 * i + 1]) << 32;
}

extern "C" __global__ void digest_rows(const u64 *words, u64 words_a_row, u64 rows, u64 *out) {
    u64 i = THREAD;
    if (i < rows) sha256_words(0, words + i * words_a_row, words_a_row, out + 4 * i);
}

extern "C" __global__ void digest_pairs(const u64 *below, u64 pairs, u64 *out) {
    u64 i = THREAD;
    if (i < pairs) sha256_words(1, below + 8 * i, 8, out + 4 * i);
}

#define QUARTER(a, b, c, d) \
    a += b; d = rotate_left(d ^ a, 16); c += d; b = rotate_left(b ^ c, 12); \
    a += b; d = rotate_left(d ^ a, 8); c += d; b = rotate_left(b ^ c, 7);

/* One thread makes one block of 64 bytes. */
extern "C" __global__ void fill_pages(u32 *out, const u32 *key, u64 blocks, u64 rounds) {
    u64 counter = THREAD;
    if (counter >= blocks) return;
    u32 first[16] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u};
    u32 x[16];
    for (int i = 0; i < 8; i++) first[4 + i] = key[i];
    first[12] = (u32)counter;
    first[13] = (u32)(counter >> 32);
    first[14] = 0;
    first[15] = 0x67707570u;
    for (int i = 0; i < 16; i++) x[i] = first[i];
    for (u64 r = 0; r < rounds; r++) {
        QUARTER(x[0], x[4], x[8], x[12]) QUARTER(x[1], x[5], x[9], x[13])
        QUARTER(x[2], x[6], x[10], x[14]) QUARTER(x[3], x[7], x[11], x[15])
        QUARTER(x[0], x[5], x[10], x[15]) QUARTER(x[1], x[6], x[11], x[12])
        QUARTER(x[2], x[7], x[8], x[13]) QUARTER(x[3], x[4], x[9], x[14])
    }
    for (int i = 0; i < 16; i++) out[16 * counter + i] = x[i] + first[i];
}

__device__ inline u32 page_key(u32 low, u32 high, u32 index) {
    u32 x = low ^ (index * 0x9E3779B1u);
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return x ^ (x >> 16) ^ high;
}

extern "C" __global__ void run_chains(const uint4 *pages, u64 page_count, u64 seed, u64 chains, u64 *out) {
    u64 i = THREAD;
    if (i >= chains) return;
    u64 state = mix(seed + i * GAMMA);
    for (int step = 0; step < 16; step++) {
        u32 low = (u32)state, high = (u32)(state >> 32);
        const uint4 *page = pages + (((u64)high * page_count) >> 32) * 64;
        u64 sum = 0;
        for (u32 at = 0; at < 64; at++) {
            uint4 four = page[at];
            u32 a = four.x + page_key(low, high, 4 * at), b = four.y + page_key(low, high, 4 * at + 1);
            u32 c = four.z + page_key(low, high, 4 * at + 2), d = four.w + page_key(low, high, 4 * at + 3);
            sum += (u64)a * b + (u64)c * d;
        }
        state = mix(state + sum);
    }
    out[i] = state;
}
