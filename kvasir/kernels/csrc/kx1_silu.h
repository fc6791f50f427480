/* Step 5 of KX1: h = silu(gate) * up on f32 bit patterns, in unsigned 32-bit integers.
 *
 * silu(g) * u = g * u * sigmoid(g). With x = |g|, P = 2^-f of the fraction f and n the whole part of x * log2(e):
 * 2^-x = P >> n, and sigmoid(g) is 1 / (1 + 2^-x) for g >= 0, or 2^-x / (1 + 2^-x) for g < 0. Largest relative error
 * 1.3e-4 for g in [-31, 31], well below what step 1 loses of its result. Included once by each instruction set. */
#ifndef KX1_SILU_H
#define KX1_SILU_H

#include "kx1_block.h"

/* (2^32 - 1) / divisor in integers. */
KX1_INLINE uint32_t divide_integer(uint32_t divisor) {
    return 0xffffffffu / divisor;
}

/* The same by an f64 division, which processors have in vectors. Exact in every rounding mode, for divisors
 * 2^16 <= d < 2^17 (all that occur): both operands are exact in f64. If the quotient x is whole, its f64 is x. If not,
 * x is at least 1/d > 2^-17 away from the next whole number, and the f64 result, x < 2^16, is less than one unit in
 * the last place, 2^-37, away from x; so it lies on the same side of that number, and truncation gives the floor. */
KX1_INLINE uint32_t divide_f64(uint32_t divisor) {
    return (uint32_t)(int32_t)(4294967295.0 / (double)(int32_t)divisor);
}

/* 1 when p has no bit 31: how far it is to be shifted to be normalised. */
KX1_INLINE uint32_t missing_top_bit(uint32_t p) {
    return p < 0x80000000u;
}

KX1_INLINE uint32_t silu_mul_bits(uint32_t g, uint32_t u, uint32_t (*divide)(uint32_t)) {
    const uint32_t g_exponent = g >> 23 & 255, u_exponent = u >> 23 & 255;
    const uint32_t g_mantissa = (g & 0x7fffff) | 0x800000, u_mantissa = ((u & 0x7fffff) | 0x800000) >> 8;
    const uint32_t negative = 0u - (g >> 31), huge = 0u - (uint32_t)(g_exponent > 131); /* masks; huge: |g| >= 32 */
    /* x = |g| in Q5.19, then times log2(e) (378194 in Q18) in two parts, so that 32 bits are enough: Q25. */
    const uint32_t shift = 131 - g_exponent > 31 ? 31 : 131 - g_exponent;
    const uint32_t x = ((g_mantissa >> shift) & ~huge) | (0xffffff & huge);
    const uint32_t y = (x >> 12) * 378194u + (((x & 4095) * 378194u) >> 12);
    const uint32_t whole = y >> 25, fraction = y >> 9 & 0xffff;
    /* 2^-fraction, Q16, by Horner's rule with alternating signs. */
    uint32_t power = 449;
    power = 3489 - ((fraction * power) >> 16);
    power = 15692 - ((fraction * power) >> 16);
    power = 45419 - ((fraction * power) >> 16);
    power = 65535 - ((fraction * power) >> 16);
    const uint32_t reciprocal = divide(65536 + (power >> (whole > 31 ? 31 : whole)));
    const uint32_t sigmoid = ((power * reciprocal >> 16) & negative) | (reciprocal & ~negative);
    const uint32_t halvings = whole & negative;
    /* 16 x 16 bits, normalised (the first product may miss two top bits), then times u the same way. */
    uint32_t p = (g_mantissa >> 8) * sigmoid;
    const uint32_t lift1 = missing_top_bit(p);
    p <<= lift1;
    const uint32_t lift2 = missing_top_bit(p);
    p <<= lift2;
    uint32_t h = (p >> 16) * u_mantissa;
    const uint32_t lift3 = missing_top_bit(h);
    h <<= lift3;
    const int32_t exponent = (int32_t)(g_exponent + u_exponent) - 126 - (int32_t)(halvings + lift1 + lift2 + lift3);
    const uint32_t zero = 0u - ((uint32_t)(g_exponent == 0) | (uint32_t)(u_exponent == 0) | (uint32_t)(exponent <= 0) |
                                (negative & huge & 1));
    const uint32_t over = 0u - (uint32_t)(exponent >= 255);
    const uint32_t bits = ((((uint32_t)exponent << 23) | (h >> 8 & 0x7fffff)) & ~over) | (0x7f7fffff & over);
    return (bits | ((g ^ u) & 0x80000000u)) & ~zero;
}

/* Sixteen at a time through small arrays of bits: a form that compilers turn into vectors. */
KX1_INLINE void silu_mul_row(const float *gate, const float *up, float *h, int64_t n, uint32_t (*divide)(uint32_t)) {
    enum { STEP = 16 };
    for (int64_t i = 0; i < n; i += STEP) {
        uint32_t g[STEP] = {0}, u[STEP] = {0}, product[STEP];
        const size_t bytes = (size_t)(n - i < STEP ? n - i : STEP) * sizeof(float);
        if (bytes == sizeof g) { /* a constant size, so that the copy is a register move */
            memcpy(g, gate + i, sizeof g);
            memcpy(u, up + i, sizeof u);
        } else {
            memcpy(g, gate + i, bytes);
            memcpy(u, up + i, bytes);
        }
        for (int l = 0; l < STEP; l++) product[l] = silu_mul_bits(g[l], u[l], divide);
        if (bytes == sizeof g) memcpy(h + i, product, sizeof product);
        else memcpy(h + i, product, bytes);
    }
}

#endif
