/* Row operations over a sequence's own state: attention, causal convolution, gated delta rule. See rowops.h. */
#include "rowops.h"

#include "pool.h"
#include "scratch.h"

#include <string.h>

static int64_t at_most(int64_t value, int64_t limit) { return value < limit ? value : limit; }
static int64_t n_tiles(int64_t n, int64_t tile) { return (n + tile - 1) / tile; }

typedef struct {
    const rowops_isa *isa;
    const attention_shape *shape;
    const float *q, *keys, *values;
    const segment *segments;
    int64_t n_segments, n_rows;
    float scale, *out;
    int error;
} attention_job;

#define KEYS_AT_ONCE 64 /* values that stay in the L1 cache for the heads that share them */

/* The heads of one row that share a key head: each one's scores, their softmax, its sum of values in key order. */
static void attend(const attention_job *j, const segment *s, int64_t row, int64_t kv_head, float *scores) {
    const attention_shape *shape = j->shape;
    int64_t group = shape->n_head / shape->n_kv_head, n_keys = s->position + (row - s->first_row) + 1;
    int64_t first_head = row * shape->n_head + kv_head * group, first_key = s->slot * shape->n_ctx * shape->n_kv_head + kv_head;
    int64_t ld_key = shape->n_kv_head * shape->d_head, ld_value = shape->n_kv_head * shape->d_value;
    const float *values = j->values + first_key * shape->d_value;
    float *out = j->out + first_head * shape->d_value, sums[group];
    j->isa->matmul(j->q + first_head * shape->d_head, shape->d_head, group, j->keys + first_key * shape->d_head, ld_key,
                   n_keys, shape->d_head, scores, n_keys);
    for (int64_t h = 0; h < group; h++) {
        j->isa->scale(scores + h * n_keys, j->scale, NULL, scores + h * n_keys, n_keys);
        sums[h] = j->isa->exp_from_max(scores + h * n_keys, scores + h * n_keys, n_keys);
    }
    memset(out, 0, (size_t)(group * shape->d_value) * sizeof(float));
    for (int64_t k = 0; k < n_keys; k += KEYS_AT_ONCE)
        for (int64_t h = 0; h < group; h++)
            j->isa->accumulate(scores + h * n_keys + k, at_most(KEYS_AT_ONCE, n_keys - k), values + k * ld_value,
                               ld_value, out + h * shape->d_value, shape->d_value);
    for (int64_t h = 0; h < group; h++) j->isa->divide(out + h * shape->d_value, sums[h], shape->d_value);
}

/* Rows of a later position first: they take longest. Segments are few, so they are simply walked. */
static void attend_task(void *context, int64_t task) {
    attention_job *j = context;
    int64_t n_kv_head = j->shape->n_kv_head, place = task / n_kv_head;
    const segment *s = j->segments;
    while (place >= s->n_rows) place -= (s++)->n_rows;
    int64_t row = s->first_row + s->n_rows - 1 - place, group = j->shape->n_head / n_kv_head;
    int64_t n_keys = s->position + (row - s->first_row) + 1;
    float *scores = scratch_take((size_t)(group * n_keys) * sizeof(float));
    if (scores) attend(j, s, row, task % n_kv_head, scores);
    else __atomic_store_n(&j->error, KV_NO_MEMORY, __ATOMIC_RELAXED);
    scratch_give(scores);
}

int rowops_attention(const rowops_isa *isa, const attention_shape *shape, const float *q, const float *keys,
                     const float *values, const segment *segments, int64_t n_segments, float scale, float *out,
                     int n_threads) {
    attention_job j = {isa, shape, q, keys, values, segments, n_segments, 0, scale, out, KV_OK};
    int64_t n_products = 0;
    for (int64_t i = 0; i < n_segments; i++) {
        j.n_rows += segments[i].n_rows;
        n_products += segments[i].n_rows * (segments[i].position + segments[i].n_rows);
    }
    n_products *= shape->n_head * (shape->d_head + shape->d_value);
    pool_run(threads_for(8 * n_products, n_threads), j.n_rows * shape->n_kv_head, attend_task, &j);
    return j.error;
}

#define CHANNELS_PER_TASK 256

typedef struct {
    const float *x, *weight;
    int64_t channels, width;
    float *state, *out;
    const segment *segments;
} conv_job;

/* The row that lies `back` rows before row t of the segment: one of its own, or of the state. */
static const float *row_before(const conv_job *j, const segment *s, const float *state, int64_t t, int64_t back) {
    int64_t at = t - back;
    if (at >= 0) return j->x + (s->first_row + at) * j->channels;
    return state + (j->width - 1 + at) * j->channels;
}

static void keep_last_rows(const conv_job *j, const segment *s, float *state, int64_t start, int64_t n) {
    for (int64_t i = 0; i < j->width - 1; i++) /* ascending: a state row is read before it is overwritten */
        memmove(state + i * j->channels + start, row_before(j, s, state, s->n_rows, j->width - 1 - i) + start,
                (size_t)n * sizeof(float));
}

static void convolve_channels(void *context, int64_t task) {
    const conv_job *j = context;
    int64_t parts = n_tiles(j->channels, CHANNELS_PER_TASK), start = task % parts * CHANNELS_PER_TASK;
    int64_t n = at_most(CHANNELS_PER_TASK, j->channels - start);
    const segment *s = j->segments + task / parts;
    float *state = j->state + s->slot * (j->width - 1) * j->channels, taps[ROWOPS_MAX_CONV_WIDTH][CHANNELS_PER_TASK];
    for (int64_t w = 0; w < j->width; w++)
        for (int64_t c = 0; c < n; c++) taps[w][c] = j->weight[(start + c) * j->width + w];
    for (int64_t t = 0; t < s->n_rows; t++) {
        float *out = j->out + (s->first_row + t) * j->channels + start;
        for (int64_t w = 0; w < j->width; w++) {
            const float *x = row_before(j, s, state, t, j->width - 1 - w) + start;
            if (w == 0)
                for (int64_t c = 0; c < n; c++) out[c] = taps[0][c] * x[c];
            else
                for (int64_t c = 0; c < n; c++) out[c] += taps[w][c] * x[c];
        }
    }
    keep_last_rows(j, s, state, start, n);
}

void rowops_conv(const float *x, int64_t channels, const float *weight, int64_t width, float *state,
                 const segment *segments, int64_t n_segments, float *out, int n_threads) {
    conv_job j = {x, weight, channels, width, state, out, segments};
    int64_t n_rows = 0;
    for (int64_t i = 0; i < n_segments; i++) n_rows += segments[i].n_rows;
    pool_run(threads_for(64 * n_rows * channels * width, n_threads), n_segments * n_tiles(channels, CHANNELS_PER_TASK),
             convolve_channels, &j);
}

#define STATE_ROWS_PER_TASK 32

typedef struct {
    const rowops_isa *isa;
    const delta_shape *shape;
    const float *q, *k, *v, *decay, *beta;
    float *state, *out;
    const segment *segments;
    int64_t parts; /* tasks of one head */
} delta_job;

static void step_state(void *context, int64_t task) {
    const delta_job *j = context;
    const delta_shape *shape = j->shape;
    int64_t start = task % j->parts * STATE_ROWS_PER_TASK, head = task / j->parts % shape->n_value_head;
    const segment *s = j->segments + task / j->parts / shape->n_value_head;
    int64_t n = at_most(STATE_ROWS_PER_TASK, shape->d_value - start), key_head = head % shape->n_key_head;
    float *state = j->state + ((s->slot * shape->n_value_head + head) * shape->d_value + start) * shape->d_key;
    for (int64_t row = s->first_row; row < s->first_row + s->n_rows; row++) {
        int64_t key = (row * shape->n_key_head + key_head) * shape->d_key, gate = row * shape->n_value_head + head;
        int64_t value = gate * shape->d_value + start;
        j->isa->delta_step(state, n, shape->d_key, j->q + key, j->k + key, j->v + value, j->decay[gate], j->beta[gate],
                           j->out + value);
    }
}

void rowops_delta_rule(const rowops_isa *isa, const delta_shape *shape, const float *q, const float *k, const float *v,
                       const float *decay, const float *beta, float *state, const segment *segments,
                       int64_t n_segments, float *out, int n_threads) {
    delta_job j = {isa, shape, q, k, v, decay, beta, state, out, segments, n_tiles(shape->d_value, STATE_ROWS_PER_TASK)};
    int64_t n_rows = 0;
    for (int64_t i = 0; i < n_segments; i++) n_rows += segments[i].n_rows;
    int64_t n_products = 4 * n_rows * shape->n_value_head * shape->d_value * shape->d_key;
    pool_run(threads_for(4 * n_products, n_threads), n_segments * shape->n_value_head * j.parts, step_state, &j);
}
