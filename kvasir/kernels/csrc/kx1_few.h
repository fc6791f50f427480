/* The mat-mul for one or two rows on x86: bound by how fast weights come from memory, so they are read once and
 * strictly forwards.
 *
 * Eight quant blocks at a time, in file order, whatever weight row they belong to: a lane of the result is a block.
 * What is cheap to do once for eight blocks (adding up lanes, block scales, minimums) is done after them.
 * Reading headers ahead, several streams, or loads that the compiler moved between blocks cost 10 to 50 %. Included
 * after kx1_few_avx2.h or kx1_few_avx512.h, which define few_blocks_q45, few_blocks_q6 and few_code_order. */
#ifndef KX1_FEW_H
#define KX1_FEW_H

#include "kx1_few_row.h"
#include "kx1_sources.h"

/* Values of eight consecutive quant blocks of `type`, shifted, for the activation blocks from `block` on:
 * token t's at value + t * FEW_VALUES. */
KX1_INLINE void few_blocks(const int type, const uint8_t *w, int32_t ew, const few_row *row, int64_t block,
                           const int n_tokens, int64_t *value) {
    switch (type) {
    case KX1_Q4_K: few_blocks_q45(w, false, ew, row, block, n_tokens, value); break;
    case KX1_Q5_K: few_blocks_q45(w, true, ew, row, block, n_tokens, value); break;
    case KX1_Q6_K: few_blocks_q6(w, ew, row, block, n_tokens, value); break;
    default: few_blocks_q8(w, ew, row, block, n_tokens, value); break;
    }
}

/* Eight weight rows at a time: their blocks are a whole number of eights. */
KX1_INLINE void few_rows(const int type, const int64_t block_bytes, const int n_tokens, const uint8_t *weights,
                         int64_t row_start, int64_t row_stop, int64_t n_blocks, int32_t ew, const kx1_block *x,
                         const int32_t *kt, float *out, int64_t ld_out) {
    few_row row[2];
    int64_t value[2 * FEW_VALUES];
    const uint8_t *w = weights + row_start * n_blocks * block_bytes;
    for (int t = 0; t < n_tokens; t++) few_row_fill(row + t, x + t, n_blocks, n_tokens, few_code_order(type));
    for (int64_t r = row_start; r < row_stop; r += 8) {
        int64_t block = 0; /* of the activations: weight rows follow each other without a gap */
        for (int64_t i = 0; i < 8 * n_blocks; i += 8, w += 8 * block_bytes) {
            few_blocks(type, w, ew, row, block, n_tokens, value + i);
            block = (block + 8) % n_blocks;
        }
        for (int t = 0; t < n_tokens; t++) {
            int64_t sums[8];
            for (int k = 0; k < 8; k++) {
                sums[k] = 0;
                for (int64_t b = 0; b < n_blocks; b++) sums[k] += value[t * FEW_VALUES + k * n_blocks + b];
            }
            store_f32_eight(sums, kx1_output_exponent(ew, kt[t]), out + t * ld_out + r);
        }
    }
}

#define FEW_ROWS(name, type, block_bytes)                                                                              \
    static void name(const uint8_t *weights, int64_t row_start, int64_t row_stop, int64_t n_blocks, int32_t ew,        \
                     const kx1_block *x, const int32_t *kt, int64_t n, float *out, int64_t ld_out) {                   \
        if (n == 1)                                                                                                    \
            few_rows(type, block_bytes, 1, weights, row_start, row_stop, n_blocks, ew, x, kt, out, ld_out);            \
        else                                                                                                           \
            few_rows(type, block_bytes, 2, weights, row_start, row_stop, n_blocks, ew, x, kt, out, ld_out);            \
    }
FEW_ROWS(few_q4, KX1_Q4_K, 144)
FEW_ROWS(few_q5, KX1_Q5_K, 176)
FEW_ROWS(few_q6, KX1_Q6_K, 210)
FEW_ROWS(few_q8, KX1_Q8_0, 272)

enum { MOST_FEW_TOKENS = 2, FEW_WEIGHT_ROWS = 8 };

/* row_stop - row_start is a multiple of FEW_WEIGHT_ROWS, n at most MOST_FEW_TOKENS. */
KX1_INLINE void few_matmul(int type, const uint8_t *weights, int64_t row_start, int64_t row_stop, int64_t n_blocks,
                           int32_t ew, const kx1_block *x, const int32_t *kt, int64_t n, float *out, int64_t ld_out) {
    switch (type) {
    case KX1_Q4_K: few_q4(weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    case KX1_Q5_K: few_q5(weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    case KX1_Q6_K: few_q6(weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    default: few_q8(weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out); break;
    }
}

#endif
