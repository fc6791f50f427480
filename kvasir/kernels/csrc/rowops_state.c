/* Row operations over a sequence's own state: attention, causal convolution, gated delta rule. See rowops.h. */
#include "rowops.h"

#include "pool.h"
#include "scratch.h"

#include <string.h>

static int64_t at_most(int64_t value, int64_t limit) { return value < limit ? value : limit; }
static int64_t n_tiles(int64_t n, int64_t tile) { return (n + tile - 1) / tile; }

#define ROWS_AT_ONCE 8  /* rows of a segment that share loaded keys and values */
#define KEYS_AT_ONCE 64 /* values that stay in the cache for the rows and heads that share them */
#define MAX_SCORES ((int64_t)1 << 21) /* of one task, where that is more than one row's */

typedef struct {
    const rowops_isa *isa;
    const attention_shape *shape;
    const float *q, *keys, *values;
    const segment *segments;
    float scale, *out;
    int64_t n_heads; /* of one task: all that share a key head, or some of these */
    int error;
} attention_job;

/* Some rows of a segment and some of the heads that share one key head */
typedef struct {
    const segment *segment;
    int64_t first_row, n_rows, first_head, n_heads;
    int64_t n_keys, ld;          /* keys of the last row; scores of a row and head are ld apart */
    const float *keys, *values;  /* of the key head, [n_ctx, d_head] and [n_ctx, d_value] */
    float *q, *scores, *sums, *out; /* [n_rows * n_heads] of [d_head], [ld], [] and [d_value] */
} attention_block;

static int64_t keys_of_row(const attention_block *block, int64_t t) { return block->n_keys - (block->n_rows - 1 - t); }

static int64_t first_head(const attention_job *j, const attention_block *block, int64_t t) {
    return (block->first_row + t) * j->shape->n_head + block->first_head;
}

/* Each row's and head's exp(scores - their maximum) over the keys that the row sees, and the sums of these. */
static void score_keys(const attention_job *j, const attention_block *block) {
    int64_t d = j->shape->d_head, n = block->n_rows * block->n_heads;
    for (int64_t t = 0; t < block->n_rows; t++)
        memcpy(block->q + t * block->n_heads * d, j->q + first_head(j, block, t) * d,
               (size_t)(block->n_heads * d) * sizeof(float));
    j->isa->matmul(block->q, d, n, block->keys, d, block->n_keys, d, block->scores, block->ld);
    for (int64_t i = 0; i < n; i++) {
        float *scores = block->scores + i * block->ld;
        int64_t n_keys = keys_of_row(block, i / block->n_heads);
        j->isa->scale(scores, j->scale, NULL, scores, n_keys);
        block->sums[i] = j->isa->exp_from_max(scores, scores, n_keys);
    }
}

/* Each row's and head's sum of values, weighted by scores / sum, in the order of the keys. */
static void add_values(const attention_job *j, const attention_block *block) {
    int64_t d = j->shape->d_value, n_heads = block->n_heads, n = block->n_rows * n_heads;
    memset(block->out, 0, (size_t)(n * d) * sizeof(float));
    for (int64_t k = 0; k < block->n_keys; k += KEYS_AT_ONCE) {
        int is_seen_by_all = k + KEYS_AT_ONCE <= keys_of_row(block, 0);
        int64_t n_rows = is_seen_by_all ? block->n_rows : 1;
        for (int64_t t = 0; t < block->n_rows; t += n_rows) {
            int64_t n_keys = at_most(KEYS_AT_ONCE, keys_of_row(block, t) - k), at = t * n_heads;
            if (n_keys > 0)
                j->isa->accumulate(block->scores + at * block->ld + k, block->ld, n_rows * n_heads, n_keys,
                                   block->values + k * d, d, block->out + at * d, d, d);
        }
    }
    for (int64_t i = 0; i < n; i++) j->isa->divide(block->out + i * d, block->sums[i], d);
    for (int64_t t = 0; t < block->n_rows; t++)
        memcpy(j->out + first_head(j, block, t) * d, block->out + t * n_heads * d,
               (size_t)(n_heads * d) * sizeof(float));
}

static void attend(attention_job *j, attention_block *block) {
    int64_t n = block->n_rows * block->n_heads, d = j->shape->d_head, d_value = j->shape->d_value;
    block->n_keys = block->segment->position + (block->first_row - block->segment->first_row) + block->n_rows;
    block->ld = (block->n_keys + 15) / 16 * 16 | 16; /* an odd number of cache lines: rows share no cache sets */
    block->q = scratch_take((size_t)(n * (d + block->ld + d_value + 1)) * sizeof(float));
    if (!block->q) {
        __atomic_store_n(&j->error, KV_NO_MEMORY, __ATOMIC_RELAXED);
        return;
    }
    block->scores = block->q + n * d;
    block->out = block->scores + n * block->ld;
    block->sums = block->out + n * d_value;
    score_keys(j, block);
    add_values(j, block);
    scratch_give(block->q);
}

/* Later rows first: they take longest. Segments are few, so they are simply walked. */
static void attend_task(void *context, int64_t task) {
    attention_job *j = context;
    const attention_shape *shape = j->shape;
    int64_t parts = shape->n_head / j->n_heads, place = task / parts, head = task % parts * j->n_heads;
    const segment *s = j->segments;
    while (place >= n_tiles(s->n_rows, ROWS_AT_ONCE)) place -= n_tiles((s++)->n_rows, ROWS_AT_ONCE);
    int64_t start = (n_tiles(s->n_rows, ROWS_AT_ONCE) - 1 - place) * ROWS_AT_ONCE;
    int64_t stop = at_most(start + ROWS_AT_ONCE, s->n_rows);
    int64_t step = MAX_SCORES / (j->n_heads * (s->position + s->n_rows));
    int64_t first_key = (s->slot * shape->n_kv_head + head / (shape->n_head / shape->n_kv_head)) * shape->n_ctx;
    if (step < 1) step = 1;
    for (int64_t t = start; t < stop; t += step) {
        attention_block block = {.segment = s, .first_row = s->first_row + t, .n_rows = at_most(step, stop - t),
                                 .first_head = head, .n_heads = j->n_heads,
                                 .keys = j->keys + first_key * shape->d_head,
                                 .values = j->values + first_key * shape->d_value};
        attend(j, &block);
    }
}

int rowops_attention(const rowops_isa *isa, const attention_shape *shape, const float *q, const float *keys,
                     const float *values, const segment *segments, int64_t n_segments, float scale, float *out,
                     int n_threads) {
    attention_job j = {isa, shape, q, keys, values, segments, scale, out, shape->n_head / shape->n_kv_head, KV_OK};
    int64_t n_products = 0, n_blocks = 0;
    for (int64_t i = 0; i < n_segments; i++) {
        n_blocks += n_tiles(segments[i].n_rows, ROWS_AT_ONCE);
        n_products += segments[i].n_rows * (segments[i].position + segments[i].n_rows);
    }
    n_threads = pool_threads(8 * n_products * shape->n_head * (shape->d_head + shape->d_value), n_threads);
    /* few tasks for many threads: heads part company and each task reads the keys again, in fours as they compute */
    while (n_blocks * shape->n_head / j.n_heads < 2 * n_threads && j.n_heads % 8 == 0) j.n_heads /= 2;
    pool_run(n_threads, n_blocks * (shape->n_head / j.n_heads), attend_task, &j);
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
    pool_run(pool_threads(64 * n_rows * channels * width, n_threads), n_segments * n_tiles(channels, CHANNELS_PER_TASK),
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
    pool_run(pool_threads(4 * n_products, n_threads), n_segments * shape->n_value_head * j.parts, step_state, &j);
}
