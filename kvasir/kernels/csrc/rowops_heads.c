/* Projected rows to attended heads: norms, rotation, the cache, attention. See rowops.h. */
#include "rowops.h"

#include "pool.h"
#include "scratch.h"

#include <string.h>

#define ROWS_PER_TASK 8

typedef struct {
    const rowops_isa *isa;
    const heads_shape *shape;
    const heads_input *input;
    const segment *segments;
    int64_t n_rows;
    float *query, *key, *keys, *values; /* the first two of these rows, the others the cache */
} heads_job;

/* n_head heads of a row, normalised unless n_norm is 0, and rotated. */
static void turn_heads(const heads_job *j, const float *x, int64_t n_head, const float *norm, int64_t n_norm,
                       int64_t position, float *out) {
    const int64_t d_rot = j->shape->d_rot, d_head = j->shape->d_head, d = n_head * d_head;
    for (int64_t at = 0; n_norm && at < d; at += n_norm)
        rowops_norm_row(j->isa, x + at, n_norm, (float)(1.0 / (double)n_norm), j->input->eps, norm, out + at);
    const float *from = n_norm ? out : x;
    for (int64_t at = 0; at < d; at += d_head)
        rowops_rotate_head(from + at, j->input->cos + position * d_rot, j->input->sin + position * d_rot, d_rot, d_head,
                           (int)j->shape->adjacent_pairs, out + at);
}

static void turn_row(const heads_job *j, int64_t row, int64_t slot, int64_t position) {
    const heads_shape *s = j->shape;
    const int64_t d_query = s->n_head * s->d_head, d_key = s->n_kv_head * s->d_head;
    turn_heads(j, j->input->query + row * d_query, s->n_head, j->input->query_norm, s->n_query_norm, position,
               j->query + row * d_query);
    turn_heads(j, j->input->key + row * d_key, s->n_kv_head, j->input->key_norm, s->n_key_norm, position,
               j->key + row * d_key);
    for (int64_t head = 0; head < s->n_kv_head; head++) {
        const int64_t at = (slot * s->n_kv_head + head) * s->n_ctx + position, from = row * s->n_kv_head + head;
        memcpy(j->keys + at * s->d_head, j->key + from * s->d_head, (size_t)s->d_head * sizeof(float));
        memcpy(j->values + at * s->d_value, j->input->value + from * s->d_value, (size_t)s->d_value * sizeof(float));
    }
}

static void turn_rows(void *context, int64_t task) {
    const heads_job *j = context;
    int64_t row = task * ROWS_PER_TASK, stop = row + ROWS_PER_TASK < j->n_rows ? row + ROWS_PER_TASK : j->n_rows;
    for (const segment *s = j->segments; row < stop; s++)
        for (; row < stop && row < s->first_row + s->n_rows; row++)
            turn_row(j, row, s->slot, s->position + row - s->first_row);
}

int rowops_attend(const rowops_isa *isa, const heads_shape *shape, const heads_input *input, float *keys, float *values,
                  const segment *segments, int64_t n_segments, float *out, int n_threads) {
    heads_job j = {isa, shape, input, segments, 0, NULL, NULL, keys, values};
    for (int64_t i = 0; i < n_segments; i++) j.n_rows += segments[i].n_rows;
    int64_t d = (shape->n_head + shape->n_kv_head) * shape->d_head;
    j.query = scratch_take((size_t)(j.n_rows * d) * sizeof(float));
    if (!j.query) return KV_NO_MEMORY;
    j.key = j.query + j.n_rows * shape->n_head * shape->d_head;
    pool_run(pool_threads(64 * j.n_rows * d, n_threads), (j.n_rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK, turn_rows, &j);
    attention_shape attention = {shape->n_ctx, shape->n_head, shape->n_kv_head, shape->d_head, shape->d_value};
    int error = rowops_attention(isa, &attention, j.query, keys, values, segments, n_segments, input->scale, out,
                                 n_threads);
    scratch_give(j.query);
    return error;
}
