/* Row operations that know no sequences: see rowops.h. */
#include "rowops.h"

#include "pool.h"

#include <math.h>
#include <string.h>

static int64_t at_most(int64_t value, int64_t limit) { return value < limit ? value : limit; }
static int64_t n_tiles(int64_t n, int64_t tile) { return (n + tile - 1) / tile; }

const rowops_isa *rowops_of(const kx1_isa *isa) {
    if (!strcmp(isa->name, "avx512") && rowops_avx512_isa) return rowops_avx512_isa;
    if (!strcmp(isa->name, "avx2") && rowops_avx2_isa) return rowops_avx2_isa;
    return &rowops_baseline_isa;
}

#define TILE_X_ROWS 64 /* rows of x that meet a tile of w while both are in the cache */

typedef struct {
    const rowops_isa *isa;
    const float *x, *w;
    int64_t n, cols, n_out, tile;
    float *out;
} matmul_job;

static void multiply_tile(void *context, int64_t task) {
    const matmul_job *j = context;
    int64_t start = task * j->tile, stop = at_most(start + j->tile, j->n_out);
    int64_t step = j->cols > 32768 ? 4 : 16; /* rows of w at a time: they stay in the L2 cache */
    for (int64_t t = 0; t < j->n; t += TILE_X_ROWS)
        for (int64_t r = start; r < stop; r += step)
            j->isa->matmul(j->x + t * j->cols, j->cols, at_most(TILE_X_ROWS, j->n - t), j->w + r * j->cols, j->cols,
                           at_most(step, stop - r), j->cols, j->out + t * j->n_out + r, j->n_out);
}

void rowops_matmul(const rowops_isa *isa, const float *x, int64_t n, int64_t cols, const float *w, int64_t n_out,
                   float *out, int n_threads) {
    n_threads = pool_threads(8 * n * cols * n_out, n_threads);
    matmul_job j = {isa, x, w, n, cols, n_out, pool_tile(n_out, 1, n_threads), out};
    pool_run(n_threads, n_tiles(n_out, j.tile), multiply_tile, &j);
}

#define VALUES_PER_TASK 32768

/* Rows of d values that one task takes */
static int64_t rows_per_task(int64_t d) { return d > VALUES_PER_TASK ? 1 : VALUES_PER_TASK / d; }

void rowops_norm_row(const rowops_isa *isa, const float *x, int64_t d, float factor, float eps, const float *weight,
                     float *out) {
    isa->scale(x, 1.0f / sqrtf(isa->sum_of_squares(x, d) * factor + eps), weight, out, d);
}

typedef struct {
    const rowops_isa *isa;
    const float *x, *weight;
    int64_t n, d, rows;
    float factor, eps, *out;
} norm_job;

static void norm_rows(void *context, int64_t task) {
    const norm_job *j = context;
    int64_t stop = at_most((task + 1) * j->rows, j->n);
    for (int64_t t = task * j->rows; t < stop; t++)
        rowops_norm_row(j->isa, j->x + t * j->d, j->d, j->factor, j->eps, j->weight, j->out + t * j->d);
}

void rowops_norm(const rowops_isa *isa, const float *x, int64_t n, int64_t d, float factor, float eps,
                 const float *weight, float *out, int n_threads) {
    norm_job j = {isa, x, weight, n, d, rows_per_task(d), factor, eps, out};
    pool_run(n_threads, n_tiles(n, j.rows), norm_rows, &j);
}

typedef struct {
    const rowops_isa *isa;
    int operation;
    const float *x, *y;
    int64_t n;
    float *out;
} elementwise_job;

static void elementwise_some(void *context, int64_t task) {
    const elementwise_job *j = context;
    int64_t start = task * VALUES_PER_TASK, n = at_most(VALUES_PER_TASK, j->n - start);
    const float *x = j->x + start;
    float *out = j->out + start;
    switch (j->operation) {
        case ROWOPS_EXP: j->isa->exp(x, out, n); break;
        case ROWOPS_SIGMOID: j->isa->sigmoid(x, out, n); break;
        case ROWOPS_SILU: j->isa->silu(x, out, n); break;
        case ROWOPS_SOFTPLUS: j->isa->softplus(x, out, n); break;
        default: j->isa->silu_mul(x, j->y + start, out, n);
    }
}

int rowops_elementwise(const rowops_isa *isa, int operation, const float *x, const float *y, int64_t n, float *out,
                       int n_threads) {
    if (operation < ROWOPS_EXP || operation > ROWOPS_SILU_MUL) return KV_BAD_SHAPE;
    elementwise_job j = {isa, operation, x, y, n, out};
    pool_run(n_threads, n_tiles(n, VALUES_PER_TASK), elementwise_some, &j);
    return KV_OK;
}

void rowops_rotate_head(const float *x, const float *cos, const float *sin, int64_t d_rot, int64_t d, int adjacent,
                        float *out) {
    if (adjacent)
        for (int64_t i = 0; i < d_rot; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            out[2 * i] = a * cos[i] - b * sin[i];
            out[2 * i + 1] = b * cos[i] + a * sin[i];
        }
    else
        for (int64_t i = 0; i < d_rot; i++) {
            float a = x[i], b = x[i + d_rot];
            out[i] = a * cos[i] - b * sin[i];
            out[i + d_rot] = b * cos[i] + a * sin[i];
        }
    if (out != x) memcpy(out + 2 * d_rot, x + 2 * d_rot, (size_t)(d - 2 * d_rot) * sizeof(float));
}

typedef struct {
    const float *partials, *weights;
    int64_t n, n_used, d;
    float *out;
} combine_job;

static void combine_row(void *context, int64_t t) {
    const combine_job *j = context;
    const float *weights = j->weights + t * j->n_used, *partials = j->partials + t * j->n_used * j->d;
    float *out = j->out + t * j->d;
    for (int64_t i = 0; i < j->d; i++) out[i] = weights[0] * partials[i];
    for (int64_t k = 1; k < j->n_used; k++)
        for (int64_t i = 0; i < j->d; i++) out[i] += weights[k] * partials[k * j->d + i];
}

void rowops_combine(const float *partials, const float *weights, int64_t n, int64_t n_used, int64_t d, float *out,
                    int n_threads) {
    combine_job j = {partials, weights, n, n_used, d, out};
    pool_run(pool_threads(64 * n * n_used * d, n_threads), n, combine_row, &j);
}
