#include "shared/xxh3.h"

#include <string.h>
#ifdef __SSE2__
#include <cpuid.h>
#include <immintrin.h>
#endif

#define P32_1 0x9E3779B1U
#define P32_2 0x85EBCA77U
#define P32_3 0xC2B2AE3DU
#define P64_1 0x9E3779B185EBCA87ULL
#define P64_2 0xC2B2AE3D27D4EB4FULL
#define P64_3 0x165667B19E3779F9ULL
#define P64_4 0x85EBCA77C2B2AE63ULL
#define P64_5 0x27D4EB2F165667C5ULL
#define MIX_1 0x165667919E3779F9ULL
#define MIX_2 0x9FB21C651E98DF25ULL
#define STRIPE 64

/* The specification's default secret. */
static const unsigned char secret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static uint32_t get32(const unsigned char *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v; /* both supported machines are little-endian */
}

static uint64_t get64(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static uint64_t rotate(uint64_t v, int n) { return (v << n) | (v >> (64 - n)); }

static uint64_t fold_product(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t avalanche(uint64_t h) {
    h = (h ^ (h >> 37)) * MIX_1;
    return h ^ (h >> 32);
}

static uint64_t avalanche_64(uint64_t h) {
    h = (h ^ (h >> 33)) * P64_2;
    h = (h ^ (h >> 29)) * P64_3;
    return h ^ (h >> 32);
}

static uint64_t mix16(const unsigned char *in, const unsigned char *sec) {
    return fold_product(get64(in) ^ get64(sec), get64(in + 8) ^ get64(sec + 8));
}

static uint64_t hash_upto_16(const unsigned char *in, size_t len) {
    if (len > 8) {
        uint64_t lo = get64(in) ^ (get64(secret + 24) ^ get64(secret + 32));
        uint64_t hi = get64(in + len - 8) ^ (get64(secret + 40) ^ get64(secret + 48));
        return avalanche(len + __builtin_bswap64(lo) + hi + fold_product(lo, hi));
    }
    if (len >= 4) {
        uint64_t both = get32(in + len - 4) + ((uint64_t)get32(in) << 32);
        uint64_t h = both ^ (get64(secret + 8) ^ get64(secret + 16));
        h ^= rotate(h, 49) ^ rotate(h, 24);
        h *= MIX_2;
        h ^= (h >> 35) + len;
        h *= MIX_2;
        return h ^ (h >> 28);
    }
    if (len > 0) {
        uint32_t bytes =
            (uint32_t)in[0] << 16 | (uint32_t)in[len >> 1] << 24 | in[len - 1] | (uint32_t)len << 8;
        return avalanche_64((uint64_t)bytes ^ (get32(secret) ^ get32(secret + 4)));
    }
    return avalanche_64(get64(secret + 56) ^ get64(secret + 64));
}

static uint64_t hash_upto_128(const unsigned char *in, size_t len) {
    uint64_t acc = len * P64_1;
    for (int i = (int)((len - 1) / 32); i >= 0; i--) {
        acc += mix16(in + 16 * i, secret + 32 * i);
        acc += mix16(in + len - 16 * (i + 1), secret + 32 * i + 16);
    }
    return avalanche(acc);
}

static uint64_t hash_upto_240(const unsigned char *in, size_t len) {
    uint64_t acc = len * P64_1;
    int rounds = (int)(len / 16);
    for (int i = 0; i < 8; i++)
        acc += mix16(in + 16 * i, secret + 16 * i);
    acc = avalanche(acc);
    for (int i = 8; i < rounds; i++)
        acc += mix16(in + 16 * i, secret + 16 * (i - 8) + 3);
    acc += mix16(in + len - 16, secret + 136 - 17);
    return avalanche(acc);
}

/* Functions for long inputs keep the eight sums in local variables, so that the compiler keeps them
 * in vector registers. Sums behind a pointer could not stay in registers, because the pointer might
 * alias the input. */
#ifdef __SSE2__
#define VECTORS 4
typedef __m128i sums[VECTORS];

static inline __m128i vector(const unsigned char *p, int i) {
    return _mm_loadu_si128((const __m128i *)p + i);
}

/* The loop uses intrinsics: one instruction can multiply the two halves of a number, but the
 * compiler does not recognize that. The loop is unrolled. Otherwise, the compiler would keep the
 * sums in memory, to access them by index. Each addition would then wait until the previous result
 * is stored. */
static inline void accumulate(sums acc, const unsigned char *in, const unsigned char *sec) {
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; i++) {
        __m128i value = vector(in, i), keyed = _mm_xor_si128(value, vector(sec, i));
        __m128i product = _mm_mul_epu32(keyed, _mm_shuffle_epi32(keyed, 0x31));
        __m128i sum = _mm_add_epi64(product, _mm_shuffle_epi32(value, 0x4e));
        acc[i] = _mm_add_epi64(acc[i], sum);
    }
}

static inline void scramble(sums acc) {
    const __m128i prime = _mm_set1_epi64x(P32_1);
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; i++) {
        __m128i v = _mm_xor_si128(acc[i], _mm_srli_epi64(acc[i], 47));
        v = _mm_xor_si128(v, vector(secret + sizeof secret - STRIPE, i));
        __m128i high = _mm_mul_epu32(_mm_srli_epi64(v, 32), prime);
        acc[i] = _mm_add_epi64(_mm_mul_epu32(v, prime), _mm_slli_epi64(high, 32));
    }
}
#else
typedef uint64_t sums[8];

static inline void accumulate(sums acc, const unsigned char *in, const unsigned char *sec) {
    for (int i = 0; i < 8; i++) {
        uint64_t value = get64(in + 8 * i), keyed = value ^ get64(sec + 8 * i);
        acc[i ^ 1] += value;
        acc[i] += (uint64_t)(uint32_t)keyed * (keyed >> 32);
    }
}

static inline void scramble(sums acc) {
    for (int i = 0; i < 8; i++) {
        uint64_t v = acc[i];
        acc[i] = (v ^ (v >> 47) ^ get64(secret + sizeof secret - STRIPE + 8 * i)) * P32_1;
    }
}
#endif

static void eat_blocks(uint64_t state[8], const unsigned char *in, size_t blocks) {
    sums acc;
    memcpy(acc, state, sizeof acc);
    for (; blocks; blocks--, in += XXH3_BLOCK) {
        for (int n = 0; n < XXH3_BLOCK / STRIPE; n++)
            accumulate(acc, in + STRIPE * n, secret + 8 * n);
        scramble(acc);
    }
    memcpy(state, acc, sizeof acc);
}

#ifdef __SSE2__
#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i wide(const unsigned char *p, int i) {
    return _mm256_loadu_si256((const __m256i *)p + i);
}

AVX2 static inline __m256i accumulate_wide(__m256i acc, __m256i value, __m256i key) {
    __m256i keyed = _mm256_xor_si256(value, key);
    __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
    return _mm256_add_epi64(_mm256_add_epi64(acc, _mm256_shuffle_epi32(value, 0x4e)), product);
}

AVX2 static inline __m256i scramble_wide(__m256i acc, __m256i key) {
    const __m256i prime = _mm256_set1_epi64x(P32_1);
    __m256i v = _mm256_xor_si256(_mm256_xor_si256(acc, _mm256_srli_epi64(acc, 47)), key);
    __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(v, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(v, prime), _mm256_slli_epi64(high, 32));
}

AVX2 static void eat_blocks_wide(uint64_t state[8], const unsigned char *in, size_t blocks) {
    const unsigned char *last = secret + sizeof secret - STRIPE;
    __m256i low = _mm256_loadu_si256((const __m256i *)state);
    __m256i high = _mm256_loadu_si256((const __m256i *)state + 1);
    for (; blocks; blocks--, in += XXH3_BLOCK) {
#pragma GCC unroll 16
        for (int n = 0; n < XXH3_BLOCK / STRIPE; n++) {
            low = accumulate_wide(low, wide(in + STRIPE * n, 0), wide(secret + 8 * n, 0));
            high = accumulate_wide(high, wide(in + STRIPE * n, 1), wide(secret + 8 * n, 1));
        }
        low = scramble_wide(low, wide(last, 0));
        high = scramble_wide(high, wide(last, 1));
    }
    _mm256_storeu_si256((__m256i *)state, low);
    _mm256_storeu_si256((__m256i *)state + 1, high);
}

/* Returns whether the processor and the operating system support AVX2. Does not use
 * __builtin_cpu_supports, because that adds a constructor to the preload library. The constructor
 * would run cpuid in every process of a job. On a virtual machine, cpuid takes as long as the rest
 * of the library's start. */
static int has_avx2(void) {
    static int known; /* atomic; 1: no AVX2, 2: AVX2, 0: not known yet */
    int answer = __atomic_load_n(&known, __ATOMIC_RELAXED);
    unsigned a, b, c, d, saved = 0;
    if (answer)
        return answer > 1;
    if (__get_cpuid(1, &a, &b, &c, &d) && c & bit_OSXSAVE)
        __asm__("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
    /* the two bits of XCR0 that show that the system saves the xmm and the ymm registers */
    const unsigned registers = 6;
    answer = (saved & registers) == registers && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
             (b & bit_AVX2) != 0;
    __atomic_store_n(&known, answer + 1, __ATOMIC_RELAXED);
    return answer;
}
#endif

/* Hashes many blocks, with AVX2 if the processor supports it. Only monarch_xxh3_add calls this
 * function, because complete files are hashed only as streams. */
static void eat_many(uint64_t state[8], const unsigned char *in, size_t blocks) {
#ifdef __SSE2__
    if (has_avx2()) {
        eat_blocks_wide(state, in, blocks);
        return;
    }
#endif
    eat_blocks(state, in, blocks);
}

/* Hashes the end of the input: the `len` bytes at `in` (1 to 1024). Returns the hash of the
 * complete input. If `len` is less than 64, the 64 bytes before `in` must be readable too. */
static uint64_t finish(const uint64_t state[8], const unsigned char *in, size_t len,
                       uint64_t total) {
    uint64_t acc[8], h = total * P64_1;
    sums all;
    memcpy(all, state, sizeof all);
    for (size_t n = 0; n < (len - 1) / STRIPE; n++)
        accumulate(all, in + STRIPE * n, secret + 8 * n);
    accumulate(all, in + len - STRIPE, secret + sizeof secret - STRIPE - 7);
    memcpy(acc, all, sizeof acc);
    for (int i = 0; i < 4; i++)
        h += fold_product(acc[2 * i] ^ get64(secret + 11 + 16 * i),
                          acc[2 * i + 1] ^ get64(secret + 11 + 16 * i + 8));
    return avalanche(h);
}

static const uint64_t first_acc[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};

uint64_t monarch_xxh3(const void *data, size_t len) {
    const unsigned char *in = data;
    if (len <= 16)
        return hash_upto_16(in, len);
    if (len <= 128)
        return hash_upto_128(in, len);
    if (len <= 240)
        return hash_upto_240(in, len);
    uint64_t acc[8];
    size_t blocks = (len - 1) / XXH3_BLOCK;
    memcpy(acc, first_acc, sizeof acc);
    eat_blocks(acc, in, blocks);
    return finish(acc, in + blocks * XXH3_BLOCK, len - blocks * XXH3_BLOCK, len);
}

void monarch_xxh3_begin(struct xxh3_stream *s) {
    memcpy(s->acc, first_acc, sizeof first_acc);
    s->total = 0;
    s->held = 0;
}

void monarch_xxh3_add(struct xxh3_stream *s, const void *data, size_t len) {
    const unsigned char *in = data;
    s->total += len;
    while (len) {
        /* The input's last block is hashed differently, so a full block is not hashed until more
         * bytes follow. */
        if (s->held == XXH3_BLOCK) {
            eat_blocks(s->acc, s->hold + 64, 1);
            memcpy(s->hold, s->hold + XXH3_BLOCK, 64);
            s->held = 0;
        }
        if (s->held == 0 && len > XXH3_BLOCK) {
            size_t blocks = (len - 1) / XXH3_BLOCK;
            eat_many(s->acc, in, blocks);
            in += blocks * XXH3_BLOCK;
            len -= blocks * XXH3_BLOCK;
            memcpy(s->hold, in - 64, 64);
        }
        size_t n = XXH3_BLOCK - s->held < len ? XXH3_BLOCK - s->held : len;
        memcpy(s->hold + 64 + s->held, in, n);
        s->held += n;
        in += n;
        len -= n;
    }
}

uint64_t monarch_xxh3_end(const struct xxh3_stream *s) {
    if (s->total <= 240)
        return monarch_xxh3(s->hold + 64, (size_t)s->total);
    return finish(s->acc, s->hold + 64, s->held, s->total);
}
