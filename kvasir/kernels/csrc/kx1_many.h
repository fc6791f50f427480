/* The mat-mul for many rows (three or more): weights are unpacked once for all of them.
 *
 * One block of LANES weight rows is unpacked into a group that lives in the L1 cache, with one weight row in each
 * 32-bit lane. Then each activation word (four codes) is broadcast and multiplied with the matching column of the
 * group. So no sum runs across lanes, and several tokens share each load of weights.
 *
 * Included by the source of an instruction set, after its kx1_lanes_*.h. */
#ifndef KX1_MANY_H
#define KX1_MANY_H

#include "kx1_group.h"
#include "kx1_sources.h"

enum { TOKENS_IN_CHUNK = 256 }; /* their 64-bit sums for one group, 32 KB with 16 lanes, stay in the cache */

KX1_INLINE int32_t word_of(const kx1_block *x, int column) {
    int32_t word;
    memcpy(&word, x->code + 4 * column, sizeof word);
    return word;
}

/* How many columns may be summed before they are scaled. Without 32-bit dot products each step adds two products to
 * 16 bits: 16 * 15 * 127, 8 * 31 * 127 and 4 * 63 * 127 are the most that fit. Never more than a sub-block has. */
KX1_INLINE int columns_in_a_sum(int type) {
    if (type == KX1_Q6_K) return DOTS_ARE_32_BITS ? 4 : 2;
    return type == KX1_Q5_K && !DOTS_ARE_32_BITS ? 4 : 8;
}

/* S of step 3, for n_tokens tokens: sum of scale * multiplier * dot over the sub-blocks. Where dot products have 32
 * bits, Q6_K's offset of -32 is in the start value of each. */
KX1_INLINE void scaled_dots(const weight_group *g, const kx1_block *x, const int n_tokens, const int type, lanes *s) {
    const int sub_block_columns = type == KX1_Q6_K ? 4 : 8, step = columns_in_a_sum(type);
    KX1_UNROLL(8)
    for (int t = 0; t < n_tokens; t++) s[t] = lanes_zero();
    for (int j = 0; j < 64 / sub_block_columns; j++) {
        const int multiplier = type == KX1_Q6_K ? j / 2 : j;
        const lanes scale = lanes_load(g->scale[j]);
        lanes factor[MOST_TOKENS];
        KX1_UNROLL(8)
        for (int t = 0; t < n_tokens; t++) factor[t] = lanes_times_multiplier(scale, x[t].multiplier[multiplier]);
        KX1_UNROLL(2)
        for (int start = 0; start < sub_block_columns; start += step) {
            lanes dot[MOST_TOKENS];
            KX1_UNROLL(8)
            for (int t = 0; t < n_tokens; t++)
                dot[t] = type == KX1_Q6_K && DOTS_ARE_32_BITS ? lanes_words(x[t].minus_32_sum[j]) : lanes_zero();
            KX1_UNROLL(8)
            for (int i = start; i < start + step; i++) {
                const int column = sub_block_columns * j + i;
                const lanes codes = lanes_load(g->code[column]);
                KX1_UNROLL(8)
                for (int t = 0; t < n_tokens; t++) dot[t] = lanes_dot(dot[t], codes, word_of(x + t, column));
            }
            KX1_UNROLL(8)
            for (int t = 0; t < n_tokens; t++) s[t] = lanes_add_scaled(s[t], dot[t], factor[t]);
        }
    }
}

/* T of step 3: sum of minimum * multiplier * sum of codes; for Q6_K the same with its scales, 16 codes at a time. */
KX1_INLINE lanes scaled_sums(const weight_group *g, const kx1_block *x, const int type) {
    const int n_pairs = type == KX1_Q6_K ? 8 : 4;
    const kx1_pair *multiplier = type == KX1_Q6_K ? x->multiplier16 : x->multiplier32;
    const kx1_pair *sum = type == KX1_Q6_K ? x->sum16 : x->sum32;
    lanes total = lanes_zero();
    for (int i = 0; i < n_pairs; i++)
        total = lanes_add_pairs(total, lanes_multiply_pairs(lanes_load(g->pairs[i]), multiplier[i]), sum[i]);
    return total;
}

/* Add block values to the sums of one token. Only complete blocks are shifted: floor is not additive. */
KX1_INLINE void add_values(wide value, const kx1_block *x, int64_t *sums) {
    wide_store(sums, wide_add(wide_load(sums), wide_floor_shift(value, x->shift)));
}

/* Step 3 for the K types: add the block values of n_tokens tokens to their sums. */
KX1_INLINE void add_k_block(const weight_group *g, const kx1_block *x, const int n_tokens, const int type,
                            int64_t *sums) {
    lanes scaled[MOST_TOKENS];
    scaled_dots(g, x, n_tokens, type, scaled);
    const lanes d = lanes_load(g->d[0]), dmin = type == KX1_Q6_K ? lanes_zero() : lanes_load(g->dmin);
    KX1_UNROLL(8)
    for (int t = 0; t < n_tokens; t++) {
        lanes s = scaled[t];
        if (type == KX1_Q6_K && !DOTS_ARE_32_BITS) s = lanes_minus_32(s, scaled_sums(g, x + t, type));
        wide value = wide_product(d, s);
        if (type != KX1_Q6_K) value = wide_subtract(value, wide_product(dmin, scaled_sums(g, x + t, type)));
        add_values(value, x + t, sums + t * LANES);
    }
}

/* The same for Q8_0, whose eight sub-blocks have a scale each. */
KX1_INLINE void add_q8_block(const weight_group *g, const kx1_block *x, const int n_tokens, int64_t *sums) {
    wide value[MOST_TOKENS];
    KX1_UNROLL(8)
    for (int t = 0; t < n_tokens; t++) value[t] = wide_product(lanes_zero(), lanes_zero());
    for (int j = 0; j < 8; j++) {
        const lanes d = lanes_load(g->d[j]);
        lanes dot[MOST_TOKENS];
        KX1_UNROLL(8)
        for (int t = 0; t < n_tokens; t++)
            dot[t] = CODES_ARE_UNSIGNED ? lanes_words(x[t].minus_128_sum[j]) : lanes_zero();
        KX1_UNROLL(8)
        for (int i = 0; i < 8; i++) {
            const lanes codes = lanes_load(g->code[8 * j + i]);
            KX1_UNROLL(8)
            for (int t = 0; t < n_tokens; t++) dot[t] = lanes_dot_signed(dot[t], codes, word_of(x + t, 8 * j + i));
        }
        KX1_UNROLL(8)
        for (int t = 0; t < n_tokens; t++) {
            const wide product = wide_product(d, lanes_multiply32(dot[t], x[t].multiplier[j]));
            value[t] = wide_add(value[t], product);
        }
    }
    KX1_UNROLL(8)
    for (int t = 0; t < n_tokens; t++) add_values(value[t], x + t, sums + t * LANES);
}

KX1_INLINE void add_block(const weight_group *g, const kx1_block *x, const int n_tokens, const int type,
                          int64_t *sums) {
    if (type == KX1_Q8_0) add_q8_block(g, x, n_tokens, sums);
    else add_k_block(g, x, n_tokens, type, sums);
}

/* Tokens in equal shares of MOST_TOKENS at most, with code for each size: a remainder of one would take as long as a
 * share of four, because nothing hides the latency of its sums. From n_tokens >= 3, no share is smaller than 3, or than
 * 2 where MOST_TOKENS is 4. */
KX1_INLINE void add_tokens(const weight_group *g, const kx1_block *x, int64_t n_tokens, const int type, int64_t *sums) {
    const int64_t n_shares = (n_tokens + MOST_TOKENS - 1) / MOST_TOKENS;
    int64_t t = 0;
    for (int64_t i = 1; i <= n_shares; i++) {
        const int64_t stop = n_tokens * i / n_shares;
        const kx1_block *const xt = x + t;
        int64_t *const sum = sums + t * LANES;
        switch (stop - t) {
#if MOST_TOKENS == 4
        case 2: add_block(g, xt, 2, type, sum); break;
        case 3: add_block(g, xt, 3, type, sum); break;
        default: add_block(g, xt, 4, type, sum); break;
#else
        case 3: add_block(g, xt, 3, type, sum); break;
        case 4: add_block(g, xt, 4, type, sum); break;
        case 5: add_block(g, xt, 5, type, sum); break;
        case 6: add_block(g, xt, 6, type, sum); break;
        case 7: add_block(g, xt, 7, type, sum); break;
        default: add_block(g, xt, 8, type, sum); break;
#endif
        }
        t = stop;
    }
}

/* Bring the weights of the first group near, strictly forwards: the unpacking reads LANES rows side by side. */
KX1_INLINE void read_forwards(const uint8_t *p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) (void)*(const volatile uint8_t *)(p + i);
}

/* Row groups of one type for up to TOKENS_IN_CHUNK tokens; x is the first token's first block of n in each. */
KX1_INLINE void many_chunk(const int type, const int64_t block_bytes, const uint8_t *weights, int64_t row_start,
                           int64_t row_stop, int64_t n_blocks, int32_t ew, const kx1_block *x, const int32_t *kt,
                           int64_t n, int64_t n_tokens, float *out, int64_t ld_out) {
    const int64_t row_bytes = n_blocks * block_bytes;
    alignas(64) int64_t sums[TOKENS_IN_CHUNK * LANES];
    weight_group g;
    read_forwards(weights + row_start * row_bytes, LANES * row_bytes);
    for (int64_t r = row_start; r < row_stop; r += LANES) {
        const bool is_last = r + LANES >= row_stop;
        memset(sums, 0, (size_t)n_tokens * LANES * sizeof *sums);
        for (int64_t b = 0; b < n_blocks; b++) {
            const uint8_t *w = weights + r * row_bytes + b * block_bytes;
            const kx1_block *xb = x + b * n;
            /* The next group, to the second level cache, in file order. */
            const uint8_t *next = weights + (r + LANES) * row_bytes + b * LANES * block_bytes;
            for (int64_t i = 0; i < LANES * block_bytes && !is_last; i += 64) __builtin_prefetch(next + i, 0, 2);
            unpack_group(type, w, row_bytes, ew, &g);
            add_tokens(&g, xb, n_tokens, type, sums);
        }
        for (int64_t t = 0; t < n_tokens; t++)
            wide_store_f32(wide_load(sums + t * LANES), kx1_output_exponent(ew, kt[t]), out + t * ld_out + r);
    }
}

#define MANY_ROWS(name, type, block_bytes)                                                                             \
    static void name(const uint8_t *weights, int64_t row_start, int64_t row_stop, int64_t n_blocks, int32_t ew,        \
                     const kx1_block *x, const int32_t *kt, int64_t n, float *out, int64_t ld_out) {                   \
        const int64_t n_chunks = (n + TOKENS_IN_CHUNK - 1) / TOKENS_IN_CHUNK; /* equal ones: none is too small */      \
        for (int64_t i = 0; i < n_chunks; i++) {                                                                       \
            const int64_t t = n * i / n_chunks, stop = n * (i + 1) / n_chunks;                                         \
            many_chunk(type, block_bytes, weights, row_start, row_stop, n_blocks, ew, x + t, kt + t, n, stop - t,      \
                       out + t * ld_out, ld_out);                                                                      \
        }                                                                                                              \
    }
MANY_ROWS(many_q4, KX1_Q4_K, 144)
MANY_ROWS(many_q5, KX1_Q5_K, 176)
MANY_ROWS(many_q6, KX1_Q6_K, 210)
MANY_ROWS(many_q8, KX1_Q8_0, 272)

/* row_stop - row_start is a multiple of LANES, n is 3 or more. */
KX1_INLINE void many_matmul(int type, const uint8_t *weights, int64_t row_start, int64_t row_stop, int64_t n_blocks,
                            int32_t ew, const kx1_block *x, const int32_t *kt, int64_t n, float *out, int64_t ld_out) {
    if (row_start >= row_stop) return;
    switch (type) {
    case KX1_Q4_K: many_q4(weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    case KX1_Q5_K: many_q5(weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    case KX1_Q6_K: many_q6(weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    default: many_q8(weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    }
}

#endif
