/* One prepared block of activations, and the small integer functions that every version of KX1 shares.
 *
 * Included by the KX1 sources only. Everything here is inline, so that each instruction set compiles its own. */
#ifndef KX1_BLOCK_H
#define KX1_BLOCK_H

#include "kx1.h"

#include <stdalign.h>
#include <stdbool.h>
#include <string.h>

/* Loops are unrolled and specialised by inlining with constant arguments: the accumulators must stay in registers. */
#define KX1_INLINE static inline __attribute__((always_inline))
#define KX1_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define KX1_UNROLL(n) KX1_PRAGMA(clang loop unroll_count(n))
#else
#define KX1_UNROLL(n) KX1_PRAGMA(GCC unroll n)
#endif

enum { KX1_MAX_BLOCKS = KX1_MAX_COLS / KX1_BLOCK };

/* Two 16-bit numbers in a word, as the multiply-add instructions of x86 take them, low half first. */
typedef int32_t kx1_pair;

/* 512 bytes. `code`, `multiplier`, `exponent` and `shift` are the specification's q, a, kb and sh; the rest are sums
 * of the codes that the kernels would otherwise form once for each weight row.
 *
 * The pairs hold every second number (0, 2 and 1, 3 and so on), because that is how bytes fall out of 32-bit lanes. */
struct kx1_block {
    alignas(64) int8_t code[KX1_BLOCK];
    int32_t minus_32_sum[16];   /* -32 * sum of 16 codes: where the dot product of Q6_K's unsigned codes starts */
    int32_t minus_128_sum[8];   /* -128 * sum of 32 codes: the same for Q8_0's codes, made unsigned */
    int32_t multiplier[8];      /* a_j */
    kx1_pair sum16[8];          /* sums of 16 codes: (0,2) (4,6) (8,10) (12,14) (1,3) (5,7) (9,11) (13,15) */
    kx1_pair multiplier16[8];   /* the multipliers of those sums: (0,1) (2,3) (4,5) (6,7), twice */
    kx1_pair sum32[4];          /* sums of 32 codes: (0,2) (1,3) (4,6) (5,7) */
    kx1_pair multiplier32[4];   /* the multipliers of those sums */
    int32_t shift;              /* sh: how far a block value is shifted before it joins the row's sum */
    int32_t exponent;           /* kb */
};

KX1_INLINE kx1_pair kx1_pair_of(int32_t low, int32_t high) {
    return (kx1_pair)(((uint32_t)low & 0xffffu) | ((uint32_t)high << 16));
}

KX1_INLINE uint16_t kx1_read16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

/* Fill what follows from the codes and multipliers of a block. */
KX1_INLINE void kx1_block_sums(kx1_block *x) {
    int32_t sum16[16], sum32[8];
    const int32_t *a = x->multiplier;
    for (int j = 0; j < 16; j++) {
        int32_t sum = 0;
        for (int i = 0; i < 16; i++) sum += x->code[16 * j + i];
        sum16[j] = sum;
        x->minus_32_sum[j] = -32 * sum;
    }
    for (int j = 0; j < 8; j++) {
        sum32[j] = sum16[2 * j] + sum16[2 * j + 1];
        x->minus_128_sum[j] = -128 * sum32[j];
    }
    for (int j = 0; j < 4; j++) {
        x->sum16[j] = kx1_pair_of(sum16[4 * j], sum16[4 * j + 2]);
        x->sum16[4 + j] = kx1_pair_of(sum16[4 * j + 1], sum16[4 * j + 3]);
        x->multiplier16[j] = x->multiplier16[4 + j] = kx1_pair_of(a[2 * j], a[2 * j + 1]);
    }
    for (int j = 0; j < 4; j++) {
        const int first = (j & 1) + 4 * (j >> 1);
        x->sum32[j] = kx1_pair_of(sum32[first], sum32[first + 2]);
        x->multiplier32[j] = kx1_pair_of(a[first], a[first + 2]);
    }
}

/* The shift of each block of a row below the row's largest exponent. */
KX1_INLINE void kx1_row_shifts(kx1_block *x, int64_t n_blocks, int64_t stride, int32_t kt) {
    for (int64_t b = 0; b < n_blocks; b++) {
        const int32_t shift = kt - x[b * stride].exponent;
        x[b * stride].shift = shift > 63 ? 63 : shift;
    }
}

/* Step 2: a half-precision scale as a signed 21-bit integer under the matrix's exponent ew. */
KX1_INLINE int32_t kx1_scale(uint32_t half, int32_t ew) {
    int32_t exponent = (int32_t)(half >> 10) & 31;
    int32_t mantissa = (int32_t)(half & 1023) | (exponent ? 1024 : 0);
    exponent -= exponent != 0;
    const uint32_t shift = (uint32_t)(ew - exponent);
    mantissa = (int32_t)(((uint32_t)mantissa << 10) >> (shift > 31 ? 31 : shift));
    return half & 0x8000 ? -mantissa : mantissa;
}

/* The power of two that a row's sum is in units of (step 4). */
KX1_INLINE int32_t kx1_output_exponent(int32_t ew, int32_t kt) {
    return ew - 34 + kt - 150;
}

/* Step 4: the f32 bits of sum * 2^exponent, |sum| < 2^62. A C cast would follow the thread's rounding mode.
 *
 * The magnitude is normalised to bit 63; 24 bits of it are kept. A carry out of the rounding runs into the exponent
 * field by itself, as f32 bits are made for. Subnormal results become +0, overflow the largest finite value. */
KX1_INLINE uint32_t kx1_to_f32(int64_t sum, int32_t exponent) {
    if (sum == 0) return 0;
    const uint32_t sign = (uint32_t)((uint64_t)sum >> 63) << 31;
    const uint64_t magnitude = sum < 0 ? 0 - (uint64_t)sum : (uint64_t)sum;
    const int lead = __builtin_clzll(magnitude);
    const uint64_t top = magnitude << lead;
    const uint64_t rounded = ((top >> 1) + ((1ull << 38) - 1) + (top >> 40 & 1)) >> 39;
    const int64_t bits = (190 - lead + exponent - 1) * (int64_t)0x800000 + (int64_t)rounded;
    if (bits < 0x800000) return 0;
    return sign | (bits > 0x7f7fffff ? 0x7f7fffffu : (uint32_t)bits);
}

KX1_INLINE void kx1_store_f32(float *out, uint32_t bits) {
    memcpy(out, &bits, sizeof bits);
}

#endif
