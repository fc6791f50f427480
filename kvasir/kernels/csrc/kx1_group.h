/* Unpacking one block of LANES weight rows into a group: columns of four codes, one row in each 32-bit lane.
 *
 * Included by kx1_many.h, after an instruction set's kx1_lanes_*.h. Reads nothing outside the block of each row. */
#ifndef KX1_GROUP_H
#define KX1_GROUP_H

#include "kx1_block.h"

typedef struct {
    alignas(64) uint8_t code[64][4 * LANES]; /* column c: codes 4c to 4c + 3 of every row */
    alignas(64) int32_t scale[16][LANES];    /* of each sub-block, in the form that lanes_add_scaled takes */
    alignas(64) int32_t pairs[8][LANES];     /* minimums (Q6_K: scales), two 16-bit numbers a lane */
    alignas(64) int32_t d[8][LANES];         /* step 2's fixed-point scales: one, or Q8_0's eight */
    alignas(64) int32_t dmin[LANES];
} weight_group;

/* 16 bytes of each row at p: column c holds bytes 4c to 4c + 3 of every row. */
KX1_INLINE void load_columns(const uint8_t *p, int64_t row_bytes, lanes *column) {
    const lanes a = lanes_load_quarters(p, row_bytes), b = lanes_load_quarters(p + row_bytes, row_bytes);
    const lanes c = lanes_load_quarters(p + 2 * row_bytes, row_bytes);
    const lanes d = lanes_load_quarters(p + 3 * row_bytes, row_bytes);
    const lanes ab_low = lanes_zip_low32(a, b), ab_high = lanes_zip_high32(a, b);
    const lanes cd_low = lanes_zip_low32(c, d), cd_high = lanes_zip_high32(c, d);
    column[0] = lanes_zip_low64(ab_low, cd_low);
    column[1] = lanes_zip_high64(ab_low, cd_low);
    column[2] = lanes_zip_low64(ab_high, cd_high);
    column[3] = lanes_zip_high64(ab_high, cd_high);
}

/* Bits `bit` and up of every byte moved to bit 4; the caller masks what else comes along. */
KX1_INLINE lanes moved_to_bit4(lanes v, int bit) {
    switch (bit) {
    case 0: return LANES_SHIFT_LEFT(v, 4);
    case 1: return LANES_SHIFT_LEFT(v, 3);
    case 2: return LANES_SHIFT_LEFT(v, 2);
    case 3: return LANES_SHIFT_LEFT(v, 1);
    case 4: return v;
    case 5: return LANES_SHIFT_RIGHT(v, 1);
    case 6: return LANES_SHIFT_RIGHT(v, 2);
    default: return LANES_SHIFT_RIGHT(v, 3);
    }
}

KX1_INLINE lanes low_nibbles(lanes v) {
    return lanes_and(v, lanes_bytes(15));
}

KX1_INLINE lanes high_nibbles(lanes v) {
    return lanes_and(LANES_SHIFT_RIGHT(v, 4), lanes_bytes(15));
}

/* The scales and minimums of Q4_K and Q5_K: 6 bits each, the upper ones of sub-blocks 4 to 7 beside the lower four. */
KX1_INLINE void unpack_header(const uint8_t *w, int64_t row_bytes, int32_t ew, weight_group *g) {
    alignas(64) int32_t halves[LANES];
    lanes c[4];
    load_columns(w, row_bytes, c);
    lanes_store(halves, c[0]);
    for (int r = 0; r < LANES; r++) g->d[0][r] = kx1_scale((uint32_t)halves[r] & 0xffff, ew);
    for (int r = 0; r < LANES; r++) g->dmin[r] = kx1_scale((uint32_t)halves[r] >> 16, ew);
    const lanes six = lanes_bytes(63), upper = lanes_bytes(48), even = lanes_words(0x00ff00ff);
    const lanes scales[2] = {
        lanes_and(c[1], six),
        lanes_or(low_nibbles(c[3]), lanes_and(LANES_SHIFT_RIGHT(c[1], 2), upper)),
    };
    const lanes minimums[2] = {
        lanes_and(c[2], six),
        lanes_or(high_nibbles(c[3]), lanes_and(LANES_SHIFT_RIGHT(c[2], 2), upper)),
    };
    KX1_UNROLL(8)
    for (int j = 0; j < 8; j++) lanes_store(g->scale[j], lanes_scale_unsigned(scales[j / 4], j % 4));
    for (int i = 0; i < 2; i++) {
        lanes_store(g->pairs[2 * i], lanes_and(minimums[i], even));
        lanes_store(g->pairs[2 * i + 1], LANES_SHIFT_RIGHT(minimums[i], 8));
    }
}

KX1_INLINE void unpack_q45(const uint8_t *w, int64_t row_bytes, int32_t ew, const bool five_bits, weight_group *g) {
    const uint8_t *low = five_bits ? w + 48 : w + 16;
    const lanes fifth = lanes_bytes(16);
    unpack_header(w, row_bytes, ew, g);
    KX1_UNROLL(2)
    for (int half = 0; half < 2; half++) { /* 16 of the 32 codes of each sub-block */
        lanes high[4];
        if (five_bits) load_columns(w + 16 + 16 * half, row_bytes, high);
        KX1_UNROLL(4)
        for (int m = 0; m < 4; m++) { /* sub-blocks 2m and 2m + 1 */
            lanes c[4];
            load_columns(low + 32 * m + 16 * half, row_bytes, c);
            KX1_UNROLL(4)
            for (int i = 0; i < 4; i++) {
                lanes first = low_nibbles(c[i]), second = high_nibbles(c[i]);
                if (five_bits) {
                    first = lanes_or(first, lanes_and(moved_to_bit4(high[i], 2 * m), fifth));
                    second = lanes_or(second, lanes_and(moved_to_bit4(high[i], 2 * m + 1), fifth));
                }
                lanes_store(g->code[16 * m + 4 * half + i], first);
                lanes_store(g->code[16 * m + 8 + 4 * half + i], second);
            }
        }
    }
}

/* Codes stay 0 to 63; the offset of -32 is taken off the sums (see kx1_many.h). */
KX1_INLINE void unpack_q6(const uint8_t *w, int64_t row_bytes, int32_t ew, weight_group *g) {
    const lanes upper = lanes_bytes(48);
    lanes scales[4];
    load_columns(w + 192, row_bytes, scales);
    for (int r = 0; r < LANES; r++) g->d[0][r] = kx1_scale(kx1_read16(w + 208 + r * row_bytes), ew);
    KX1_UNROLL(4)
    for (int i = 0; i < 4; i++) {
        KX1_UNROLL(4)
        for (int j = 0; j < 4; j++) lanes_store(g->scale[4 * i + j], lanes_scale_signed(scales[i], j));
        lanes_store(g->pairs[i], lanes_high_bytes(LANES_SHIFT_LEFT(scales[i], 8)));
        lanes_store(g->pairs[4 + i], lanes_high_bytes(scales[i]));
    }
    KX1_UNROLL(4)
    for (int quarter = 0; quarter < 4; quarter++) { /* half of the block, and half of the codes in each group of 32 */
        const int half = quarter / 2, part = quarter % 2;
        lanes high[4];
        load_columns(w + 128 + 32 * half + 16 * part, row_bytes, high);
        KX1_UNROLL(2)
        for (int group = 0; group < 2; group++) { /* groups `group` and `group` + 2 share their bytes */
            const int column = 32 * half + 8 * group + 4 * part;
            lanes c[4];
            load_columns(w + 64 * half + 32 * group + 16 * part, row_bytes, c);
            KX1_UNROLL(4)
            for (int i = 0; i < 4; i++) {
                const lanes top = lanes_and(moved_to_bit4(high[i], 2 * group), upper);
                const lanes top2 = lanes_and(moved_to_bit4(high[i], 2 * group + 4), upper);
                lanes_store(g->code[column + i], lanes_or(low_nibbles(c[i]), top));
                lanes_store(g->code[column + 16 + i], lanes_or(high_nibbles(c[i]), top2));
            }
        }
    }
}

KX1_INLINE void unpack_q8(const uint8_t *w, int64_t row_bytes, int32_t ew, weight_group *g) {
    for (int j = 0; j < 8; j++, w += 34) {
        for (int r = 0; r < LANES; r++) g->d[j][r] = kx1_scale(kx1_read16(w + r * row_bytes), ew);
        for (int half = 0; half < 2; half++) {
            lanes c[4];
            load_columns(w + 2 + 16 * half, row_bytes, c);
            for (int i = 0; i < 4; i++) {
#if CODES_ARE_UNSIGNED
                c[i] = lanes_xor(c[i], lanes_bytes(-128)); /* plus 128: taken off again by minus_128_sum */
#endif
                lanes_store(g->code[8 * j + 4 * half + i], c[i]);
            }
        }
    }
}

KX1_INLINE void unpack_group(const int type, const uint8_t *w, int64_t row_bytes, int32_t ew, weight_group *g) {
    switch (type) {
    case KX1_Q4_K: unpack_q45(w, row_bytes, ew, false, g); break;
    case KX1_Q5_K: unpack_q45(w, row_bytes, ew, true, g); break;
    case KX1_Q6_K: unpack_q6(w, row_bytes, ew, g); break;
    default: unpack_q8(w, row_bytes, ew, g); break;
    }
}

#endif
