/* The mat-mul for one or two rows on NEON: one weight row at a time, its quant blocks read strictly forwards.
 *
 * A vector is 16 codes of one row; a lane of a dot product has four of them, so sub-block scales multiply whole
 * vectors, and lanes are added up once a block. Included after kx1_lanes_neon.h. */
#ifndef KX1_FEW_NEON_H
#define KX1_FEW_NEON_H

#include "kx1_block.h"

enum { MOST_FEW_TOKENS = 2, FEW_WEIGHT_ROWS = 1 };

/* The 6-bit scales and minimums of Q4_K and Q5_K, from the twelve bytes that hold both: 4 + 4 of four words. */
typedef struct {
    uint8_t scale[8], minimum[8];
} six_bits;

KX1_INLINE six_bits unpack_six_bits(const uint8_t *s) {
    uint32_t word[3], scales[2], minimums[2];
    six_bits result;
    memcpy(word, s, sizeof word);
    scales[0] = word[0] & 0x3f3f3f3fu;
    scales[1] = (word[2] & 0x0f0f0f0fu) | (word[0] >> 2 & 0x30303030u);
    minimums[0] = word[1] & 0x3f3f3f3fu;
    minimums[1] = (word[2] >> 4 & 0x0f0f0f0fu) | (word[1] >> 2 & 0x30303030u);
    memcpy(result.scale, scales, sizeof scales);
    memcpy(result.minimum, minimums, sizeof minimums);
    return result;
}

KX1_INLINE lanes codes_at(const kx1_block *x, int i) {
    return lanes_load(x->code + i);
}

/* Bits `bit` and up of each byte of v at bit 4, masked. */
KX1_INLINE lanes bits_at_4(lanes v, int bit, int mask) {
    const int8x16_t by = vdupq_n_s8((int8_t)(4 - bit));
    return lanes_and(vreinterpretq_s32_u8(vshlq_u8(vreinterpretq_u8_s32(v), by)), lanes_bytes(mask));
}

KX1_INLINE lanes low_four(lanes v) { return lanes_and(v, lanes_bytes(15)); }
KX1_INLINE lanes high_four(lanes v) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(v), 4)); }

KX1_INLINE int64_t value_q45(const uint8_t *w, const bool five_bits, int32_t ew, const kx1_block *x) {
    const uint8_t *low = w + (five_bits ? 48 : 16);
    const six_bits six = unpack_six_bits(w + 4);
    lanes scaled = lanes_zero();
    int32_t offset = 0;
    KX1_UNROLL(4)
    for (int m = 0; m < 4; m++) { /* sub-blocks 2m and 2m + 1 */
        lanes dot = lanes_zero(), dot2 = lanes_zero();
        KX1_UNROLL(2)
        for (int half = 0; half < 2; half++) {
            const lanes bytes = lanes_load(low + 32 * m + 16 * half);
            lanes a = low_four(bytes), b = high_four(bytes);
            if (five_bits) {
                const lanes high = lanes_load(w + 16 + 16 * half);
                a = lanes_or(a, bits_at_4(high, 2 * m, 16));
                b = lanes_or(b, bits_at_4(high, 2 * m + 1, 16));
            }
            dot = lanes_dot_vectors(dot, a, codes_at(x, 64 * m + 16 * half));
            dot2 = lanes_dot_vectors(dot2, b, codes_at(x, 64 * m + 32 + 16 * half));
        }
        scaled = vmlaq_n_s32(scaled, dot, six.scale[2 * m] * x->multiplier[2 * m]);
        scaled = vmlaq_n_s32(scaled, dot2, six.scale[2 * m + 1] * x->multiplier[2 * m + 1]);
    }
    for (int j = 0; j < 8; j++) /* minus_128_sum is -128 times the sum of codes: exact */
        offset += six.minimum[j] * x->multiplier[j] * (x->minus_128_sum[j] / -128);
    return (int64_t)kx1_scale(kx1_read16(w), ew) * vaddvq_s32(scaled) -
           (int64_t)kx1_scale(kx1_read16(w + 2), ew) * offset;
}

KX1_INLINE int64_t value_q6(const uint8_t *w, int32_t ew, const kx1_block *x) {
    lanes scaled = lanes_zero();
    KX1_UNROLL(2)
    for (int half = 0; half < 2; half++) {
        KX1_UNROLL(4)
        for (int group = 0; group < 4; group++) {
            KX1_UNROLL(2)
            for (int part = 0; part < 2; part++) { /* 16 codes */
                const int j = 8 * half + 2 * group + part;
                const lanes bytes = lanes_load(w + 64 * half + 32 * (group % 2) + 16 * part);
                const lanes high = lanes_load(w + 128 + 32 * half + 16 * part);
                const lanes four = group < 2 ? low_four(bytes) : high_four(bytes);
                const lanes six = lanes_or(four, bits_at_4(high, 2 * group, 48));
                const lanes codes = vreinterpretq_s32_s8(vsubq_s8(vreinterpretq_s8_s32(six), vdupq_n_s8(32)));
                const lanes dot = lanes_dot_vectors(lanes_zero(), codes, codes_at(x, 16 * j));
                scaled = vmlaq_n_s32(scaled, dot, (int8_t)w[192 + j] * x->multiplier[j / 2]);
            }
        }
    }
    return (int64_t)kx1_scale(kx1_read16(w + 208), ew) * vaddvq_s32(scaled);
}

KX1_INLINE int64_t value_q8(const uint8_t *w, int32_t ew, const kx1_block *x) {
    int64_t value = 0;
    for (int j = 0; j < 8; j++, w += 34) {
        lanes dot = lanes_dot_vectors(lanes_zero(), lanes_load(w + 2), codes_at(x, 32 * j));
        dot = lanes_dot_vectors(dot, lanes_load(w + 18), codes_at(x, 32 * j + 16));
        value += (int64_t)kx1_scale(kx1_read16(w), ew) * (vaddvq_s32(dot) * x->multiplier[j]);
    }
    return value;
}

KX1_INLINE int64_t few_value(const int type, const uint8_t *w, int32_t ew, const kx1_block *x) {
    switch (type) {
    case KX1_Q4_K: return value_q45(w, false, ew, x);
    case KX1_Q5_K: return value_q45(w, true, ew, x);
    case KX1_Q6_K: return value_q6(w, ew, x);
    default: return value_q8(w, ew, x);
    }
}

KX1_INLINE void few_rows(const int type, const int64_t block_bytes, const uint8_t *weights, int64_t row_start,
                         int64_t row_stop, int64_t n_blocks, int32_t ew, const kx1_block *x, const int32_t *kt,
                         int64_t n, float *out, int64_t ld_out) {
    const uint8_t *w = weights + row_start * n_blocks * block_bytes;
    for (int64_t r = row_start; r < row_stop; r++) {
        int64_t sums[MOST_FEW_TOKENS] = {0};
        for (int64_t b = 0; b < n_blocks; b++, w += block_bytes) {
            for (int64_t t = 0; t < n; t++) {
                const kx1_block *block = x + b * n + t;
                sums[t] += few_value(type, w, ew, block) >> block->shift;
            }
        }
        for (int64_t t = 0; t < n; t++)
            kx1_store_f32(out + t * ld_out + r, kx1_to_f32(sums[t], kx1_output_exponent(ew, kt[t])));
    }
}

/* n is at most MOST_FEW_TOKENS. */
KX1_INLINE void few_matmul(int type, const uint8_t *weights, int64_t row_start, int64_t row_stop, int64_t n_blocks,
                           int32_t ew, const kx1_block *x, const int32_t *kt, int64_t n, float *out, int64_t ld_out) {
    switch (type) {
    case KX1_Q4_K: few_rows(KX1_Q4_K, 144, weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    case KX1_Q5_K: few_rows(KX1_Q5_K, 176, weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    case KX1_Q6_K: few_rows(KX1_Q6_K, 210, weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    default: few_rows(KX1_Q8_0, 272, weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    }
}

#endif
