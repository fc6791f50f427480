/* The mat-mul of a vector version: few rows, many rows, and what does not fill its lanes. Included last. */
#ifndef KX1_MATMUL_H
#define KX1_MATMUL_H

#include "kx1_sources.h"

static void matmul(int type, const uint8_t *weights, int64_t row_start, int64_t row_stop, int64_t cols, int32_t ew,
                   const kx1_block *x, const int32_t *kt, int64_t n, float *out, int64_t ld_out) {
    const int64_t n_blocks = cols / KX1_BLOCK;
    const bool is_few = n <= MOST_FEW_TOKENS;
    const int64_t full = row_stop - (row_stop - row_start) % (is_few ? FEW_WEIGHT_ROWS : LANES);
    if (is_few) few_matmul(type, weights, row_start, full, n_blocks, ew, x, kt, n, out, ld_out);
    else many_matmul(type, weights, row_start, full, n_blocks, ew, x, kt, n, out, ld_out);
    if (full < row_stop) kx1_scalar_matmul(type, weights, full, row_stop, cols, ew, x, kt, n, out, ld_out);
}

static void silu_mul(const float *gate, const float *up, float *h, int64_t n) {
    silu_mul_row(gate, up, h, n, divide_f64);
}

#endif
