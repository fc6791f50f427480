/* The mat-mul for one or two rows in WebAssembly: one weight row at a time, its quant blocks read strictly forwards.
 *
 * A vector is 16 codes of one row. Sub-block scales multiply whole vectors, and lanes are added up once a block. Loops
 * over a block stay rolled: engines put all loads of a straight piece of code first, and then spill them. Included
 * after kx1_lanes_simd128.h. */
#ifndef KX1_FEW_SIMD128_H
#define KX1_FEW_SIMD128_H

#include "../kx1_block.h"

enum { MOST_FEW_TOKENS = 2 };

#define KX1_ROLLED _Pragma("clang loop unroll(disable)")
#define KX1_UNROLLED _Pragma("clang loop unroll(full)")
#define KEEP_FILE_ORDER() __asm__ volatile("" ::: "memory")

KX1_INLINE uint32_t read32(const uint8_t *p) {
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* The 6-bit scales (bytes 0 to 7) and minimums (bytes 8 to 15) of a Q4_K or Q5_K block. */
KX1_INLINE lanes six_bit_header(const uint8_t *s) {
    const uint32_t a = read32(s), b = read32(s + 4), c = read32(s + 8);
    return wasm_u32x4_make(a & 0x3f3f3f3fu, (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u), b & 0x3f3f3f3fu,
                           (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u));
}

#if KX1_WASM_DOTS == 32

KX1_INLINE lanes dot_with(lanes codes, const int8_t *x) {
    return wasm_i32x4_relaxed_dot_i8x16_i7x16_add(lanes_load(x), codes, lanes_zero());
}
KX1_INLINE lanes dot_with_two(lanes codes, lanes codes2, const int8_t *x) {
    return wasm_i32x4_relaxed_dot_i8x16_i7x16_add(lanes_load(x + 16), codes2, dot_with(codes, x));
}
KX1_INLINE lanes add_dot(lanes sum, lanes dot, const int32_t *factor) {
    return wasm_i32x4_add(sum, wasm_i32x4_mul(dot, wasm_v128_load32_splat(factor)));
}
/* Eight 16-bit factors, each as add_dot reads it. */
KX1_INLINE void store_factors(int32_t *factor, lanes v) {
    lanes_store(factor, wasm_i32x4_extend_low_i16x8(v));
    lanes_store(factor + 4, wasm_i32x4_extend_high_i16x8(v));
}

#else

/* Eight 16-bit sums of two products. */
KX1_INLINE lanes dot_with(lanes codes, const int8_t *x) {
#if KX1_WASM_DOTS == 16
    return wasm_i16x8_relaxed_dot_i8x16_i7x16(lanes_load(x), codes);
#else
    const lanes low = wasm_i16x8_mul(wasm_u16x8_extend_low_u8x16(codes), wasm_i16x8_load8x8(x));
    return wasm_i16x8_add(low, wasm_i16x8_mul(wasm_u16x8_extend_high_u8x16(codes), wasm_i16x8_load8x8(x + 8)));
#endif
}
/* Of four products: at most 4 * 31 * 127 with the codes of Q5_K, which fits. */
KX1_INLINE lanes dot_with_two(lanes codes, lanes codes2, const int8_t *x) {
    return wasm_i16x8_add(dot_with(codes, x), dot_with(codes2, x + 16));
}
KX1_INLINE lanes add_dot(lanes sum, lanes dot, const int32_t *factor) {
    return wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(dot, wasm_v128_load32_splat(factor)));
}
KX1_INLINE void store_factors(int32_t *factor, lanes v) {
    lanes_store(factor, wasm_i16x8_shuffle(v, v, 0, 0, 1, 1, 2, 2, 3, 3));
    lanes_store(factor + 4, wasm_i16x8_shuffle(v, v, 4, 4, 5, 5, 6, 6, 7, 7));
}

#endif

KX1_INLINE lanes low_four(lanes v) { return wasm_v128_and(v, wasm_i8x16_const_splat(15)); }
KX1_INLINE lanes high_four(lanes v) { return low_four(wasm_u16x8_shr(v, 4)); }
KX1_INLINE lanes fifth_bit(lanes v) { return wasm_v128_and(v, wasm_i8x16_const_splat(16)); }

/* The sums of two vectors' lanes. The halves of the last vector are added outside of it: V8 for ARM takes a vector
 * added to its own upper half for a sum of 64-bit lanes, and carries from a's sum into b's (seen in V8 13.6). */
typedef struct {
    int64_t a, b;
} two_sums;

KX1_INLINE two_sums sums_of(lanes a, lanes b) {
    const lanes four = wasm_i32x4_add(lanes_zip_low32(a, b), lanes_zip_high32(a, b)); /* a b a b */
    const int64_t first = wasm_i64x2_extract_lane(four, 0), second = wasm_i64x2_extract_lane(four, 1);
    return (two_sums){(int64_t)(int32_t)first + (int32_t)second, (first >> 32) + (second >> 32)};
}

KX1_INLINE void few_q45(const uint8_t *w, const bool five_bits, int32_t ew, const kx1_block *x, const int n_tokens,
                        int64_t *sums) {
    const uint8_t *low = w + (five_bits ? 48 : 16);
    const lanes header = six_bit_header(w + 4), scales = wasm_u16x8_extend_low_u8x16(header);
    const lanes as_sum32 = wasm_i8x16_shuffle(header, header, 8, 10, 9, 11, 12, 14, 13, 15, 8, 8, 8, 8, 8, 8, 8, 8);
    const lanes minimums = wasm_u16x8_extend_low_u8x16(as_sum32);
    lanes high = lanes_zero(), high2 = lanes_zero(), scaled[MOST_FEW_TOKENS], offset[MOST_FEW_TOKENS];
    alignas(16) int32_t factor[MOST_FEW_TOKENS][8];
    if (five_bits) high = lanes_load(w + 16), high2 = lanes_load(w + 32);
    KX1_UNROLLED
    for (int t = 0; t < n_tokens; t++) {
        store_factors(factor[t], wasm_i16x8_mul(scales, lanes_load(x[t].multiplier16)));
        const lanes weighted = wasm_i16x8_mul(minimums, lanes_load(x[t].multiplier32));
        offset[t] = wasm_i32x4_dot_i16x8(weighted, lanes_load(x[t].sum32));
        scaled[t] = lanes_zero();
    }
    KX1_ROLLED
    for (unsigned m = 0; m < 4; m++) { /* sub-blocks 2m and 2m + 1 */
        KEEP_FILE_ORDER();
        const lanes bytes = lanes_load(low + 32 * m), bytes2 = lanes_load(low + 32 * m + 16);
        lanes a = low_four(bytes), a2 = low_four(bytes2), b = high_four(bytes), b2 = high_four(bytes2);
        if (five_bits) { /* their bits are the lowest two of `high`, which is shifted on */
            a = lanes_or(a, fifth_bit(wasm_i16x8_shl(high, 4)));
            a2 = lanes_or(a2, fifth_bit(wasm_i16x8_shl(high2, 4)));
            b = lanes_or(b, fifth_bit(wasm_i16x8_shl(high, 3)));
            b2 = lanes_or(b2, fifth_bit(wasm_i16x8_shl(high2, 3)));
            high = wasm_u16x8_shr(high, 2);
            high2 = wasm_u16x8_shr(high2, 2);
        }
        KX1_UNROLLED
        for (int t = 0; t < n_tokens; t++) {
            const int8_t *code = x[t].code + 64 * m;
            scaled[t] = add_dot(scaled[t], dot_with_two(a, a2, code), factor[t] + 2 * m);
            scaled[t] = add_dot(scaled[t], dot_with_two(b, b2, code + 32), factor[t] + 2 * m + 1);
        }
    }
    const int64_t d = kx1_scale(kx1_read16(w), ew), dmin = kx1_scale(kx1_read16(w + 2), ew);
    for (int t = 0; t < n_tokens; t++) {
        const two_sums both = sums_of(scaled[t], offset[t]);
        sums[t] += (d * both.a - dmin * both.b) >> x[t].shift;
    }
}

/* Codes stay 0 to 63; the offset of -32 starts the sum. */
KX1_INLINE void few_q6(const uint8_t *w, int32_t ew, const kx1_block *x, const int n_tokens, int64_t *sums) {
    const lanes s = lanes_load(w + 192), upper = wasm_i8x16_const_splat(48);
    const lanes even = even_bytes(s), odd = odd_bytes(s); /* the order of sum16 */
    alignas(16) int32_t factor[MOST_FEW_TOKENS][2][8]; /* of even and odd sub-blocks */
    lanes scaled[MOST_FEW_TOKENS];
    KX1_UNROLLED
    for (int t = 0; t < n_tokens; t++) {
        const lanes a = lanes_load(x[t].multiplier16), even_a = wasm_i16x8_mul(even, a), odd_a = wasm_i16x8_mul(odd, a);
        store_factors(factor[t][0], even_a);
        store_factors(factor[t][1], odd_a);
        const lanes offset = wasm_i32x4_add(wasm_i32x4_dot_i16x8(even_a, lanes_load(x[t].sum16)),
                                            wasm_i32x4_dot_i16x8(odd_a, lanes_load(x[t].sum16 + 4)));
        scaled[t] = lanes_minus_32(lanes_zero(), offset);
    }
    KX1_ROLLED
    for (unsigned quarter = 0; quarter < 4; quarter++) { /* of the block: a half, 16 codes of each of its groups */
        KEEP_FILE_ORDER();
        const unsigned half = quarter / 2, part = quarter % 2;
        const lanes a = lanes_load(w + 64 * half + 16 * part), b = lanes_load(w + 64 * half + 32 + 16 * part);
        const lanes high = lanes_load(w + 128 + 32 * half + 16 * part);
        const lanes codes[4] = {
            lanes_or(low_four(a), lanes_and(wasm_i16x8_shl(high, 4), upper)),
            lanes_or(low_four(b), lanes_and(wasm_i16x8_shl(high, 2), upper)),
            lanes_or(high_four(a), lanes_and(high, upper)),
            lanes_or(high_four(b), lanes_and(wasm_u16x8_shr(high, 2), upper)),
        };
        KX1_UNROLLED
        for (int t = 0; t < n_tokens; t++) {
            const int8_t *code = x[t].code + 128 * half + 16 * part;
            KX1_UNROLLED
            for (unsigned group = 0; group < 4; group++)
                scaled[t] = add_dot(scaled[t], dot_with(codes[group], code + 32 * group),
                                    factor[t][part] + 4 * half + group);
        }
    }
    const int64_t d = kx1_scale(kx1_read16(w + 208), ew);
    for (int t = 0; t < n_tokens; t++)
        sums[t] += (d * sums_of(scaled[t], scaled[t]).a) >> x[t].shift;
}

/* 32 signed codes of 8 bits. */
KX1_INLINE lanes dot_signed(const uint8_t *codes, const int8_t *x) {
    lanes sum = lanes_zero();
    KX1_UNROLLED
    for (int i = 0; i < 32; i += 8)
        sum = wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(wasm_i16x8_load8x8(codes + i), wasm_i16x8_load8x8(x + i)));
    return sum;
}

KX1_INLINE void few_q8(const uint8_t *w, int32_t ew, const kx1_block *x, const int n_tokens, int64_t *sums) {
    lanes value[MOST_FEW_TOKENS] = {lanes_zero(), lanes_zero()};
    KX1_ROLLED
    for (unsigned half = 0; half < 2; half++, w += 4 * 34) { /* four sub-blocks, a lane for each */
        alignas(16) int32_t scale[4];
        lanes dot[MOST_FEW_TOKENS][4];
        KX1_UNROLLED
        for (unsigned j = 0; j < 4; j++) {
            KEEP_FILE_ORDER();
            scale[j] = kx1_scale(kx1_read16(w + 34 * j), ew);
            KX1_UNROLLED
            for (int t = 0; t < n_tokens; t++) dot[t][j] = dot_signed(w + 34 * j + 2, x[t].code + 128 * half + 32 * j);
        }
        const lanes d = lanes_load(scale);
        KX1_UNROLLED
        for (int t = 0; t < n_tokens; t++) {
            const lanes *v = dot[t];
            const lanes first = wasm_i32x4_add(lanes_zip_low32(v[0], v[1]), lanes_zip_high32(v[0], v[1]));
            const lanes last = wasm_i32x4_add(lanes_zip_low32(v[2], v[3]), lanes_zip_high32(v[2], v[3]));
            const lanes four = wasm_i32x4_add(lanes_zip_low64(first, last), lanes_zip_high64(first, last));
            const wide product = wide_product(d, wasm_i32x4_mul(four, lanes_load(x[t].multiplier + 4 * half)));
            value[t] = wasm_i64x2_add(value[t], wasm_i64x2_add(product.low, product.high));
        }
    }
    for (int t = 0; t < n_tokens; t++)
        sums[t] += (wasm_i64x2_extract_lane(value[t], 0) + wasm_i64x2_extract_lane(value[t], 1)) >> x[t].shift;
}

KX1_INLINE void few_block(const int type, const uint8_t *w, int32_t ew, const kx1_block *x, const int n_tokens,
                          int64_t *sums) {
    switch (type) {
    case KX1_Q4_K: few_q45(w, false, ew, x, n_tokens, sums); break;
    case KX1_Q5_K: few_q45(w, true, ew, x, n_tokens, sums); break;
    case KX1_Q6_K: few_q6(w, ew, x, n_tokens, sums); break;
    default: few_q8(w, ew, x, n_tokens, sums); break;
    }
}

KX1_INLINE void few_rows(const int type, const unsigned block_bytes, const int n_tokens, const uint8_t *weights,
                         int64_t row_start, int64_t row_stop, unsigned n_blocks, int32_t ew, const kx1_block *x,
                         const int32_t *kt, float *out, int64_t ld_out) {
    const uint8_t *w = weights + row_start * n_blocks * block_bytes;
    for (int64_t r = row_start; r < row_stop; r++) {
        int64_t sums[MOST_FEW_TOKENS] = {0};
        for (unsigned b = 0; b < n_blocks; b++, w += block_bytes)
            few_block(type, w, ew, x + b * (unsigned)n_tokens, n_tokens, sums);
        for (int t = 0; t < n_tokens; t++)
            kx1_store_f32(out + t * ld_out + r, kx1_to_f32(sums[t], kx1_output_exponent(ew, kt[t])));
    }
}

#define FEW_ROWS(name, type, block_bytes)                                                                              \
    static void name(const uint8_t *weights, int64_t row_start, int64_t row_stop, int64_t n_blocks, int32_t ew,        \
                     const kx1_block *x, const int32_t *kt, int64_t n, float *out, int64_t ld_out) {                   \
        const unsigned blocks = (unsigned)n_blocks;                                                                    \
        if (n == 1) few_rows(type, block_bytes, 1, weights, row_start, row_stop, blocks, ew, x, kt, out, ld_out);      \
        else few_rows(type, block_bytes, 2, weights, row_start, row_stop, blocks, ew, x, kt, out, ld_out);             \
    }
FEW_ROWS(few_rows_q4, KX1_Q4_K, 144)
FEW_ROWS(few_rows_q5, KX1_Q5_K, 176)
FEW_ROWS(few_rows_q6, KX1_Q6_K, 210)
FEW_ROWS(few_rows_q8, KX1_Q8_0, 272)

/* n is at most MOST_FEW_TOKENS. */
KX1_INLINE void few_matmul(int type, const uint8_t *weights, int64_t row_start, int64_t row_stop, int64_t n_blocks,
                           int32_t ew, const kx1_block *x, const int32_t *kt, int64_t n, float *out, int64_t ld_out) {
    switch (type) {
    case KX1_Q4_K: few_rows_q4(weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    case KX1_Q5_K: few_rows_q5(weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    case KX1_Q6_K: few_rows_q6(weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    default: few_rows_q8(weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    }
}

#endif
