/* Lanes of NEON: 4 weight rows, one in each 32-bit lane; with the dot product instructions where the compiler has
 * them, else with widening multiplies. See kx1_many.h for what each function is for. */
#ifndef KX1_LANES_H
#define KX1_LANES_H

#include "kx1_block.h"

#include <arm_neon.h>

typedef int32x4_t lanes;
enum { LANES = 4 };
#define MOST_TOKENS 8 /* that one load of weights is shared by */

#define DOTS_ARE_32_BITS 1
#define CODES_ARE_UNSIGNED 0

#define LANES_SHIFT_LEFT(v, n) vreinterpretq_s32_s16(vshlq_n_s16(vreinterpretq_s16_s32(v), n))
#define LANES_SHIFT_RIGHT(v, n) vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(v), n))

KX1_INLINE lanes lanes_zero(void) { return vdupq_n_s32(0); }
KX1_INLINE lanes lanes_bytes(int byte) { return vreinterpretq_s32_s8(vdupq_n_s8((int8_t)byte)); }
KX1_INLINE lanes lanes_words(int32_t word) { return vdupq_n_s32(word); }
KX1_INLINE lanes lanes_load(const void *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
KX1_INLINE void lanes_store(void *p, lanes v) { vst1q_u8(p, vreinterpretq_u8_s32(v)); }
KX1_INLINE lanes lanes_and(lanes a, lanes b) { return vandq_s32(a, b); }
KX1_INLINE lanes lanes_or(lanes a, lanes b) { return vorrq_s32(a, b); }

KX1_INLINE lanes lanes_load_quarters(const uint8_t *p, int64_t row_bytes) {
    (void)row_bytes; /* one quarter only: the row at p */
    return lanes_load(p);
}

KX1_INLINE lanes lanes_zip_low32(lanes a, lanes b) { return vzip1q_s32(a, b); }
KX1_INLINE lanes lanes_zip_high32(lanes a, lanes b) { return vzip2q_s32(a, b); }
KX1_INLINE lanes lanes_zip_low64(lanes a, lanes b) {
    return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
KX1_INLINE lanes lanes_zip_high64(lanes a, lanes b) {
    return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}

/* Add the four products of signed bytes in each lane. Codes are at most 63 or are -128..127 against -127..127: two
 * products fit in 16 bits. */
KX1_INLINE lanes lanes_dot_vectors(lanes sum, lanes a, lanes b) {
    const int8x16_t x = vreinterpretq_s8_s32(a), y = vreinterpretq_s8_s32(b);
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sum, x, y);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(y)), high = vmull_high_s8(x, y);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
#endif
}
KX1_INLINE lanes lanes_dot(lanes sum, lanes codes, int32_t word) {
    return lanes_dot_vectors(sum, codes, lanes_words(word));
}
KX1_INLINE lanes lanes_dot_signed(lanes sum, lanes codes, int32_t word) { return lanes_dot(sum, codes, word); }

KX1_INLINE lanes lanes_scale_unsigned(lanes scales, int byte) {
    const uint32x4_t moved = vshlq_u32(vreinterpretq_u32_s32(scales), vdupq_n_s32(-8 * byte));
    return vandq_s32(vreinterpretq_s32_u32(moved), vdupq_n_s32(255));
}
KX1_INLINE lanes lanes_scale_signed(lanes scales, int byte) {
    return vshrq_n_s32(vshlq_s32(scales, vdupq_n_s32(24 - 8 * byte)), 24);
}
KX1_INLINE lanes lanes_times_multiplier(lanes scale, int32_t multiplier) { return vmulq_n_s32(scale, multiplier); }
KX1_INLINE lanes lanes_add_scaled(lanes sum, lanes dot, lanes scale) { return vmlaq_s32(sum, dot, scale); }
KX1_INLINE lanes lanes_multiply_pairs(lanes a, kx1_pair b) {
    return vreinterpretq_s32_s16(vmulq_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(lanes_words(b))));
}
KX1_INLINE lanes lanes_add_pairs(lanes sum, lanes a, kx1_pair b) {
    const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(lanes_words(b));
    return vaddq_s32(sum, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
}
KX1_INLINE lanes lanes_high_bytes(lanes v) {
    return vreinterpretq_s32_s16(vshrq_n_s16(vreinterpretq_s16_s32(v), 8));
}

KX1_INLINE lanes lanes_minus_32(lanes a, lanes b) { return vsubq_s32(a, vshlq_n_s32(b, 5)); } /* a - 32 b */
KX1_INLINE lanes lanes_multiply32(lanes a, int32_t b) { return vmulq_n_s32(a, b); }

/* A 64-bit number for every lane: those of the low two lanes, then those of the high two. */
typedef struct {
    int64x2_t low, high;
} wide;

KX1_INLINE wide wide_load(const int64_t *p) { return (wide){vld1q_s64(p), vld1q_s64(p + 2)}; }
KX1_INLINE void wide_store(int64_t *p, wide v) {
    vst1q_s64(p, v.low);
    vst1q_s64(p + 2, v.high);
}
KX1_INLINE wide wide_product(lanes a, lanes b) {
    return (wide){vmull_s32(vget_low_s32(a), vget_low_s32(b)), vmull_high_s32(a, b)};
}
KX1_INLINE wide wide_add(wide a, wide b) { return (wide){vaddq_s64(a.low, b.low), vaddq_s64(a.high, b.high)}; }
KX1_INLINE wide wide_subtract(wide a, wide b) { return (wide){vsubq_s64(a.low, b.low), vsubq_s64(a.high, b.high)}; }
KX1_INLINE wide wide_floor_shift(wide v, int32_t shift) { /* a left shift by a negative amount is arithmetic */
    const int64x2_t by = vdupq_n_s64(-(int64_t)shift);
    return (wide){vshlq_s64(v.low, by), vshlq_s64(v.high, by)};
}

KX1_INLINE void wide_store_f32(wide sums, int32_t exponent, float *out) {
    int64_t in_order[LANES];
    wide_store(in_order, sums);
    for (int r = 0; r < LANES; r++) kx1_store_f32(out + r, kx1_to_f32(in_order[r], exponent));
}

#endif
