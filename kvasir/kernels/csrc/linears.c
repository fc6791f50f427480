/* KX1 of f32 rows: dense linears in place, and packing rows for the wire. See experts.h. */
#include "experts.h"

#include "pool.h"
#include "scratch.h"

#include <float.h>
#include <string.h>

#define TILE_ROWS 128 /* prepared rows that one task multiplies: their blocks stay in the L2 cache */
#define ROWS_PER_TASK 8
#define ADDED_OUTPUTS 32 /* outputs whose two terms are computed before they are added: 16 KB of stack */

typedef struct {
    const kx1_isa *isa;
    const float *rows; /* of this part */
    int64_t n_rows, cols, n_blocks;
    const kx1_linear *matrices; /* those of another n_terms are passed over */
    float *const *outputs;
    int n_matrices, n_terms;
    int64_t first_row; /* of this part in the call */
    char *prepared;    /* block-major within each row tile: its rows, then the residuals of its rows */
    int32_t *scale;
    int64_t tile, n_out_tiles; /* output rows a task, tasks of all matrices together */
} linear_job;

/* Rows of a part that are computed together, with their prepared forms */
typedef struct {
    int64_t first_row, n_rows, n_prepared;
    kx1_block *blocks; /* block b of prepared row t at b * n_prepared + t */
    int32_t *scale;
} row_tile;

static int64_t n_tiles(int64_t n_rows, int64_t tile) { return (n_rows + tile - 1) / tile; }
static int64_t at_most(int64_t value, int64_t limit) { return value < limit ? value : limit; }
static int64_t tile_rows(const linear_job *j) { return TILE_ROWS / j->n_terms; }

static row_tile tile_at(const linear_job *j, int64_t number) {
    int64_t first_row = number * tile_rows(j), n_rows = at_most(tile_rows(j), j->n_rows - first_row);
    int64_t first_prepared = first_row * j->n_terms;
    char *blocks = j->prepared + (size_t)(first_prepared * j->n_blocks) * kx1_block_size();
    return (row_tile){first_row, n_rows, n_rows * j->n_terms, (kx1_block *)blocks, j->scale + first_prepared};
}

static kx1_block *prepare(const linear_job *j, const row_tile *tile, int64_t t, const float *row) {
    kx1_block *x = (kx1_block *)((char *)tile->blocks + (size_t)t * kx1_block_size());
    tile->scale[t] = j->isa->quantise(row, j->cols, x, tile->n_prepared);
    return x;
}

static void prepare_rows(void *context, int64_t task) {
    const linear_job *j = context;
    float residual[KX1_MAX_COLS];
    int64_t stop = at_most((task + 1) * ROWS_PER_TASK, j->n_rows);
    for (int64_t at = task * ROWS_PER_TASK; at < stop; at++) {
        row_tile tile = tile_at(j, at / tile_rows(j));
        const float *row = j->rows + at * j->cols;
        const kx1_block *x = prepare(j, &tile, at - tile.first_row, row);
        if (j->n_terms == 1) continue;
        kx1_residual(row, j->cols, x, tile.n_prepared, residual);
        prepare(j, &tile, at - tile.first_row + tile.n_rows, residual);
    }
}

/* The sum of two finite values, as near as finite values come. */
static float finite_sum(float a, float b) {
    float sum = a + b;
    return sum > FLT_MAX ? FLT_MAX : sum < -FLT_MAX ? -FLT_MAX : sum;
}

/* Both terms of some outputs at once, so that the weights are read once, and then their sums. */
static void multiply_two_terms(const linear_job *j, const row_tile *tile, const kx1_linear *m, int64_t start,
                               int64_t stop, float *out) {
    float terms[TILE_ROWS * ADDED_OUTPUTS];
    const int64_t row_bytes = kx1_row_bytes(m->type, j->cols);
    for (int64_t r = start; r < stop; r += ADDED_OUTPUTS) {
        const int64_t n = at_most(ADDED_OUTPUTS, stop - r);
        j->isa->matmul(m->type, m->weights + r * row_bytes, 0, n, j->cols, m->exponent, tile->blocks, tile->scale,
                       tile->n_prepared, terms, n);
        const float *second = terms + tile->n_rows * n;
        for (int64_t t = 0; t < tile->n_rows; t++)
            for (int64_t i = 0; i < n; i++)
                out[t * m->n_out + r + i] = finite_sum(terms[t * n + i], second[t * n + i]);
    }
}

static int64_t out_tiles(const linear_job *j, const kx1_linear *m) {
    return m->n_terms == j->n_terms ? n_tiles(m->n_out, j->tile) : 0;
}

static void multiply_tile(void *context, int64_t task) {
    const linear_job *j = context;
    int64_t out_tile = task % j->n_out_tiles;
    int i = 0;
    for (int64_t n; out_tile >= (n = out_tiles(j, j->matrices + i)); i++) out_tile -= n;
    const kx1_linear *m = j->matrices + i;
    row_tile tile = tile_at(j, task / j->n_out_tiles);
    int64_t start = out_tile * j->tile, stop = at_most(start + j->tile, m->n_out);
    float *out = j->outputs[i] + (j->first_row + tile.first_row) * m->n_out;
    if (j->n_terms == 1)
        j->isa->matmul(m->type, m->weights, start, stop, j->cols, m->exponent, tile.blocks, tile.scale, tile.n_rows,
                       out, m->n_out);
    else multiply_two_terms(j, &tile, m, start, stop, out);
}

static int64_t all_outputs(const linear_job *j) {
    int64_t n_out = 0;
    for (int i = 0; i < j->n_matrices; i++) n_out += j->matrices[i].n_terms == j->n_terms ? j->matrices[i].n_out : 0;
    return n_out;
}

static void compute_rows(linear_job *j, int n_threads) {
    int64_t n_out = all_outputs(j), n_row_tiles = n_tiles(j->n_rows, tile_rows(j));
    n_threads = pool_threads(j->n_rows * j->cols * n_out * j->n_terms, n_threads);
    pool_run(n_threads, n_tiles(j->n_rows, ROWS_PER_TASK), prepare_rows, j);
    j->tile = pool_tile(n_out, n_row_tiles, n_threads);
    j->n_out_tiles = 0;
    for (int i = 0; i < j->n_matrices; i++) j->n_out_tiles += out_tiles(j, j->matrices + i);
    pool_run(n_threads, n_row_tiles * j->n_out_tiles, multiply_tile, j);
}

/* The matrices of j's n_terms, as many rows at a time as KX1_ROWS_BYTES hold. */
static int compute_parts(linear_job *j, const float *rows, int64_t n_rows, int n_threads) {
    int64_t bytes = j->n_terms * (j->n_blocks * (int64_t)kx1_block_size() + (int64_t)sizeof *j->scale);
    int64_t part = at_most(KX1_ROWS_BYTES / bytes / TILE_ROWS * TILE_ROWS, n_rows);
    j->prepared = scratch_take((size_t)(part * bytes));
    if (!j->prepared) return KV_NO_MEMORY;
    j->scale = (int32_t *)(j->prepared + (size_t)(part * j->n_terms * j->n_blocks) * kx1_block_size());
    for (j->first_row = 0; j->first_row < n_rows; j->first_row += part) {
        j->rows = rows + j->first_row * j->cols;
        j->n_rows = at_most(part, n_rows - j->first_row);
        compute_rows(j, n_threads);
    }
    scratch_give(j->prepared);
    return KV_OK;
}

static int check_linears(int64_t n_rows, int64_t cols, const kx1_linear *matrices, int n_matrices) {
    if (n_rows < 0 || n_rows > INT32_MAX) return KV_BAD_SHAPE;
    for (int i = 0; i < n_matrices; i++) {
        int64_t row = kx1_row_bytes(matrices[i].type, cols), n_out = matrices[i].n_out;
        if (row <= 0 || n_out <= 0 || n_out > INT32_MAX || matrices[i].exponent < 0 || matrices[i].exponent > 29 ||
            matrices[i].n_terms < 1 || matrices[i].n_terms > 2)
            return KV_BAD_SHAPE;
    }
    return KV_OK;
}

static int is_finite_row(const float *row, int64_t cols) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < cols; i++) {
        uint32_t bits;
        memcpy(&bits, row + i, sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest < 0x7f800000u;
}

int kx1_linears(const kx1_isa *isa, const float *rows, int64_t n_rows, int64_t cols, const kx1_linear *matrices,
                int n_matrices, float *const *outputs, int n_threads) {
    int error = check_linears(n_rows, cols, matrices, n_matrices);
    if (error || !n_rows || !n_matrices) return error;
    for (int64_t t = 0; t < n_rows; t++)
        if (!is_finite_row(rows + t * cols, cols)) return KV_NOT_FINITE;
    for (int n_terms = 1; n_terms <= 2 && !error; n_terms++) {
        linear_job j = {.isa = isa, .cols = cols, .n_blocks = cols / KX1_BLOCK, .matrices = matrices,
                        .outputs = outputs, .n_matrices = n_matrices, .n_terms = n_terms};
        if (all_outputs(&j)) error = compute_parts(&j, rows, n_rows, n_threads);
    }
    return error;
}

/* A code or multiplier that the packed form does not have, within one block */
static int check_block(const uint8_t *block) {
    if (memchr(block, 0x80, KX1_BLOCK)) return KV_BAD_CODE;
    for (int i = 0; i < 4; i++)
        if (!(block[KX1_BLOCK + i] & 15) || !(block[KX1_BLOCK + i] >> 4)) return KV_BAD_MULTIPLIER;
    return KV_OK;
}

int kx1_check_packed(const uint8_t *rows, int64_t n_rows, int64_t cols, int64_t *bad_row) {
    int64_t n_blocks = cols / KX1_BLOCK;
    for (int64_t b = 0; b < n_rows * n_blocks; b++) {
        int error = check_block(rows + b * KX1_PACKED_BLOCK);
        *bad_row = b / n_blocks;
        if (error) return error;
    }
    return KV_OK;
}

typedef struct {
    const float *rows;
    int64_t n_rows, cols;
    uint8_t *packed;
} pack_job;

static void pack_some(void *context, int64_t task) {
    pack_job *j = context;
    int64_t stop = at_most((task + 1) * ROWS_PER_TASK, j->n_rows);
    for (int64_t t = task * ROWS_PER_TASK; t < stop; t++)
        kx1_pack(j->rows + t * j->cols, j->cols, j->packed + t * (j->cols / KX1_BLOCK) * KX1_PACKED_BLOCK);
}

int kx1_pack_rows(const float *rows, int64_t n_rows, int64_t cols, uint8_t *packed, int64_t *bad_row, int n_threads) {
    if (n_rows < 0 || cols <= 0 || cols % KX1_BLOCK || cols > KX1_MAX_COLS) return KV_BAD_SHAPE;
    for (int64_t t = 0; t < n_rows; t++)
        if (!is_finite_row(rows + t * cols, cols)) {
            *bad_row = t;
            return KV_NOT_FINITE;
        }
    pack_job j = {rows, n_rows, cols, packed};
    pool_run(pool_threads(16 * n_rows * cols, n_threads), n_tiles(n_rows, ROWS_PER_TASK), pack_some, &j);
    return KV_OK;
}
