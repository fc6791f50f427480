/* Step 1 of KX1: one row of f32 to blocks of codes, multipliers and exponents, on the bit patterns alone.
 *
 * Included once by the source of each instruction set: plain loops that its compiler turns into its own vectors. */
#ifndef KX1_QUANTISE_H
#define KX1_QUANTISE_H

#include "kx1_block.h"

/* The mantissa with its hidden bit; subnormal numbers count as 0. */
KX1_INLINE uint32_t mantissa_of(uint32_t magnitude) {
    return magnitude >> 23 ? (magnitude & 0x7fffff) | 0x800000 : 0;
}

KX1_INLINE uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* Quantise 256 values. 15 * 127 * 2^s is the largest value that s leaves room for: s is 13, or 14 when the block's
 * largest mantissa would not fit, so that no code exceeds 127 and no multiplier 15. */
KX1_INLINE void quantise_block(const uint32_t *bits, kx1_block *x) {
    uint32_t largest[8], block_largest = 0;
    for (int j = 0; j < 8; j++) {
        uint32_t most = 0;
        for (int i = 0; i < 32; i++) {
            const uint32_t magnitude = bits[32 * j + i] & 0x7fffffff;
            most = magnitude > most ? magnitude : most;
        }
        largest[j] = most;
        block_largest = most > block_largest ? most : block_largest;
    }
    const uint32_t exponent = block_largest >> 23;
    const uint32_t s = 13 + (mantissa_of(block_largest) > (15u * 127u << 13));
    const uint32_t half = 1u << (s + 10);
    for (int j = 0; j < 8; j++) {
        const uint32_t below = min_u32(exponent - (largest[j] >> 23), 31);
        const uint32_t wanted = (((mantissa_of(largest[j]) >> below) + (127u << s) - 1) >> s) / 127;
        const uint32_t multiplier = wanted ? wanted : 1;
        const uint32_t inverse = 524288 / multiplier;
        x->multiplier[j] = (int32_t)multiplier;
        for (int i = 0; i < 32; i++) {
            const uint32_t value = bits[32 * j + i], magnitude = value & 0x7fffffff;
            const uint32_t shift = min_u32(8 + exponent - (magnitude >> 23), 31);
            const int32_t code = (int32_t)(((mantissa_of(magnitude) >> shift) * inverse + half) >> (s + 11));
            x->code[32 * j + i] = (int8_t)(value >> 31 ? -code : code);
        }
    }
    x->exponent = exponent ? (int32_t)(exponent + s) : 0;
}

static int32_t quantise_row(const float *row, int64_t cols, kx1_block *x, int64_t stride) {
    const int64_t n_blocks = cols / KX1_BLOCK;
    int32_t kt = 0;
    for (int64_t b = 0; b < n_blocks; b++) {
        uint32_t bits[KX1_BLOCK];
        kx1_block *const block = x + b * stride;
        memcpy(bits, row + b * KX1_BLOCK, sizeof bits);
        quantise_block(bits, block);
        kx1_block_sums(block);
        kt = block->exponent > kt ? block->exponent : kt;
    }
    kx1_row_shifts(x, n_blocks, stride, kt);
    return kt;
}

#endif
