/* KX1 of f32 rows: dense linears in place, and packing rows for the wire. See experts.h. */
#include "experts.h"

#include "pool.h"
#include "scratch.h"

#include <string.h>

#define TILE_ROWS 128 /* rows that one task multiplies: their blocks stay in the L2 cache */
#define ROWS_PER_TASK 8

typedef struct {
    const kx1_isa *isa;
    const float *rows; /* of this part */
    int64_t n_rows, cols, n_blocks;
    const kx1_linear *matrices;
    int n_matrices;
    int64_t first_row; /* of this part in the call */
    char *prepared;    /* block-major within each row tile */
    int32_t *scale;
    int64_t tile, n_out_tiles; /* output rows a task, tasks of all matrices together */
} linear_job;

static int64_t n_tiles(int64_t n_rows, int64_t tile) { return (n_rows + tile - 1) / tile; }
static int64_t at_most(int64_t value, int64_t limit) { return value < limit ? value : limit; }
static int64_t rows_in_tile(const linear_job *j, int64_t tile) { return at_most(TILE_ROWS, j->n_rows - tile * TILE_ROWS); }

static kx1_block *tile_blocks(const linear_job *j, int64_t tile) {
    return (kx1_block *)(j->prepared + (size_t)(tile * TILE_ROWS * j->n_blocks) * kx1_block_size());
}

static void quantise_rows(void *context, int64_t task) {
    linear_job *j = context;
    int64_t stop = at_most((task + 1) * ROWS_PER_TASK, j->n_rows);
    for (int64_t t = task * ROWS_PER_TASK; t < stop; t++) {
        int64_t tile = t / TILE_ROWS;
        char *x = (char *)tile_blocks(j, tile) + (size_t)(t % TILE_ROWS) * kx1_block_size();
        j->scale[t] = j->isa->quantise(j->rows + t * j->cols, j->cols, (kx1_block *)x, rows_in_tile(j, tile));
    }
}

static void multiply_tile(void *context, int64_t task) {
    linear_job *j = context;
    int64_t row_tile = task / j->n_out_tiles, out_tile = task % j->n_out_tiles;
    const kx1_linear *m = j->matrices;
    for (int64_t n; out_tile >= (n = n_tiles(m->n_out, j->tile)); m++) out_tile -= n;
    int64_t start = out_tile * j->tile, stop = at_most(start + j->tile, m->n_out);
    float *out = m->out + (j->first_row + row_tile * TILE_ROWS) * m->n_out;
    j->isa->matmul(m->type, m->weights, start, stop, j->cols, m->exponent, tile_blocks(j, row_tile),
                   j->scale + row_tile * TILE_ROWS, rows_in_tile(j, row_tile), out, m->n_out);
}

static void compute_rows(linear_job *j, int n_threads) {
    int64_t n_out = 0, n_row_tiles = n_tiles(j->n_rows, TILE_ROWS);
    for (int i = 0; i < j->n_matrices; i++) n_out += j->matrices[i].n_out;
    n_threads = pool_threads(j->n_rows * j->cols * n_out, n_threads);
    pool_run(n_threads, n_tiles(j->n_rows, ROWS_PER_TASK), quantise_rows, j);
    j->tile = pool_tile(n_out, n_row_tiles, n_threads);
    j->n_out_tiles = 0;
    for (int i = 0; i < j->n_matrices; i++) j->n_out_tiles += n_tiles(j->matrices[i].n_out, j->tile);
    pool_run(n_threads, n_row_tiles * j->n_out_tiles, multiply_tile, j);
}

static int check_linears(int64_t n_rows, int64_t cols, const kx1_linear *matrices, int n_matrices) {
    if (n_rows < 0 || n_rows > INT32_MAX) return KV_BAD_SHAPE;
    for (int i = 0; i < n_matrices; i++) {
        int64_t row = kx1_row_bytes(matrices[i].type, cols), n_out = matrices[i].n_out;
        if (row <= 0 || n_out <= 0 || n_out > INT32_MAX || matrices[i].exponent < 0 || matrices[i].exponent > 29)
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
                int n_matrices, int n_threads) {
    int error = check_linears(n_rows, cols, matrices, n_matrices);
    if (error || !n_rows || !n_matrices) return error;
    for (int64_t t = 0; t < n_rows; t++)
        if (!is_finite_row(rows + t * cols, cols)) return KV_NOT_FINITE;
    int64_t n_blocks = cols / KX1_BLOCK, row_bytes = n_blocks * (int64_t)kx1_block_size() + 4;
    int64_t part = at_most(KX1_ROWS_BYTES / row_bytes / TILE_ROWS * TILE_ROWS, n_tiles(n_rows, TILE_ROWS) * TILE_ROWS);
    char *memory = scratch_take((size_t)(at_most(part, n_rows) * row_bytes));
    if (!memory) return KV_NO_MEMORY;
    linear_job j = {.isa = isa, .cols = cols, .n_blocks = n_blocks, .matrices = matrices, .n_matrices = n_matrices,
                    .prepared = memory, .scale = (int32_t *)(memory + at_most(part, n_rows) * (row_bytes - 4))};
    for (; j.first_row < n_rows; j.first_row += part) {
        j.rows = rows + j.first_row * cols;
        j.n_rows = at_most(part, n_rows - j.first_row);
        compute_rows(&j, n_threads);
    }
    scratch_give(memory);
    return KV_OK;
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
