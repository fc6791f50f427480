/* KX1 over many rows: the experts of a layer, and dense linears, spread over the thread pool.
 *
 * Every output value is computed by one call of kx1_isa.matmul from its own row and matrix, so no result depends on the
 * grouping, the tiles, the batch or the number of threads. */
#ifndef KV_EXPERTS_H
#define KV_EXPERTS_H

#include "kx1.h"

enum {
    KV_OK = 0,
    KV_NO_MEMORY = -1,
    KV_BAD_SHAPE = -2,      /* a size, type or exponent that KX1 does not have */
    KV_BAD_ROW_NUMBER = -3, /* a pair's row is not among the rows */
    KV_BAD_EXPERT_ID = -4,  /* a pair's expert is not among the experts */
    KV_BAD_CODE = -5,       /* code -128 in a packed row */
    KV_BAD_MULTIPLIER = -6, /* multiplier 0 in a packed row */
    KV_NOT_FINITE = -7,     /* infinity or NaN in an f32 row */
    KV_UNKNOWN_EXPONENT = -8, /* a pair's expert has a matrix whose exponent is negative: not yet found */
};

/* Working memory of one call, beside 16 bytes a pair and 4 bytes a row and an expert: prepared rows, and what is
 * computed from them. Larger calls are worked off in parts. */
#define KX1_ROWS_BYTES ((int64_t)32 << 20)
#define KX1_WORK_BYTES ((int64_t)32 << 20)

/* One matrix of every expert: expert e's at base + e * stride. */
typedef struct {
    int32_t type;
    const uint8_t *base;
    int64_t stride;
    const int32_t *exponents; /* [n_expert], from kx1_weight_exponent */
} kx1_stack;

typedef struct {
    kx1_stack gate, up, down;
    int64_t n_expert, d_model, d_ff;
} kx1_layer;

/* out[i] = expert pair_ids[i] of rows[pair_rows[i]]: packed rows [n_rows, d_model / 256 * 261], out [n_pairs, d_model].
 * Returns KV_OK or an error; out is then undefined. Everything is checked but the weights' addresses. */
int kx1_experts(const kx1_isa *isa, const kx1_layer *layer, const uint8_t *rows, int64_t n_rows,
                const int32_t *pair_rows, const int32_t *pair_ids, int64_t n_pairs, float *out, int n_threads);

typedef struct {
    int32_t type;
    int32_t exponent;
    int32_t n_terms; /* 1: KX1 of the row. 2: and of what its quantisation leaves, the two outputs added in f32 */
    const uint8_t *weights;
    int64_t n_out;
} kx1_linear;

/* outputs[i] [n_rows, n_out] = rows times matrix i, for each of several matrices of `cols` columns; rows f32
 * [n_rows, cols] are quantised once for all matrices of one n_terms. Returns KV_OK or an error. */
int kx1_linears(const kx1_isa *isa, const float *rows, int64_t n_rows, int64_t cols, const kx1_linear *matrices,
                int n_matrices, float *const *outputs, int n_threads);

/* KV_OK, or what is wrong with the first bad row; its number is then in *bad_row. */
int kx1_check_packed(const uint8_t *rows, int64_t n_rows, int64_t cols, int64_t *bad_row);

/* f32 rows to packed rows. Returns KV_OK, or KV_NOT_FINITE with the row's number in *bad_row. */
int kx1_pack_rows(const float *rows, int64_t n_rows, int64_t cols, uint8_t *packed, int64_t *bad_row, int n_threads);

#endif
