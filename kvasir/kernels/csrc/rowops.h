/* Float row operations over many rows, spread over the thread pool: what the backbone and the float kernel compute
 * besides KX1. A row's result is a function of that row (and its sequence's state) alone: see rowops_isa.h.
 *
 * Arrays are contiguous f32 unless a comment says otherwise. Shapes are the caller's care. */
#ifndef KV_ROWOPS_H
#define KV_ROWOPS_H

#include "experts.h"
#include "rowops_isa.h"

/* The float operations that belong to a KX1 build */
const rowops_isa *rowops_of(const kx1_isa *isa);

/* x [n, cols] times each row of w [n_out, cols] -> out [n, n_out] */
void rowops_matmul(const rowops_isa *isa, const float *x, int64_t n, int64_t cols, const float *w, int64_t n_out,
                   float *out, int n_threads);

/* x [n, d]: out = x / sqrt(sum(x^2) * factor + eps) * weight[d]; weight may be NULL */
void rowops_norm(const rowops_isa *isa, const float *x, int64_t n, int64_t d, float factor, float eps,
                 const float *weight, float *out, int n_threads);

/* The same for one row, on the calling thread */
void rowops_norm_row(const rowops_isa *isa, const float *x, int64_t d, float factor, float eps, const float *weight,
                     float *out);

enum { ROWOPS_EXP, ROWOPS_SIGMOID, ROWOPS_SILU, ROWOPS_SOFTPLUS, ROWOPS_SILU_MUL };
/* out[i] = operation(x[i]), or silu(x[i]) * y[i] */
int rowops_elementwise(const rowops_isa *isa, int operation, const float *x, const float *y, int64_t n, float *out,
                       int n_threads);

/* Rotate the first 2 * d_rot of a head's d values: pairs are (i, i + d_rot), or (2i, 2i + 1) if adjacent. On the calling
 * thread; out may be x. */
void rowops_rotate_head(const float *x, const float *cos, const float *sin, int64_t d_rot, int64_t d, int adjacent,
                        float *out);

/* How the experts of a row are chosen: see route in backbone/engine/ops/router.py. */
typedef struct {
    int64_t n_expert, n_used, n_group, n_group_used;
    int64_t is_sigmoid, is_normalised; /* scores are sigmoids, else a softmax; weights are divided by their sum */
    const float *selection_bias;       /* [n_expert] or NULL */
    float weights_scale;
} router_form;

/* logits [n, n_expert] -> expert_ids and weights [n, n_used], best first, the lower id among equals. KV_OK,
 * KV_NO_MEMORY, or KV_BAD_SHAPE for a form that does not fit together. Ids are valid whatever the logits are. */
int rowops_route(const rowops_isa *isa, const router_form *form, const float *logits, int64_t n, int64_t *expert_ids,
                 float *weights, int n_threads);

/* out[t] = sum over j of weights[t, j] * partials[t, j], j ascending: partials [n, n_used, d] */
void rowops_combine(const float *partials, const float *weights, int64_t n, int64_t n_used, int64_t d, float *out,
                    int n_threads);

/* Consecutive rows of one sequence; no two segments of a call have the same slot. */
typedef struct {
    int64_t slot, first_row, n_rows, position;
} segment;

typedef struct {
    int64_t n_ctx, n_head, n_kv_head, d_head, d_value;
} attention_shape;

/* Causal attention of q [rows, n_head, d_head] over keys [n_slot, n_kv_head, n_ctx, d_head] and values
 * [n_slot, n_kv_head, n_ctx, d_value] at 0 to each row's own position -> out [rows, n_head, d_value].
 * KV_OK or KV_NO_MEMORY. */
int rowops_attention(const rowops_isa *isa, const attention_shape *shape, const float *q, const float *keys,
                     const float *values, const segment *segments, int64_t n_segments, float scale, float *out,
                     int n_threads);

typedef struct {
    int64_t n_ctx, n_head, n_kv_head, d_head, d_value;
    int64_t n_query_norm, n_key_norm; /* values under one norm: d_head, or all heads of a row; 0: no norm */
    int64_t d_rot, adjacent_pairs;    /* as in rowops_rotate_head */
} heads_shape;

typedef struct {
    const float *query, *key, *value;   /* [rows, n_head * d_head], [rows, n_kv_head * d_head or d_value] */
    const float *query_norm, *key_norm; /* weights, [n_query_norm] and [n_key_norm] */
    const float *cos, *sin;             /* [n_ctx, d_rot] by position */
    float eps, scale;
} heads_input;

/* Normalise and rotate queries and keys, put keys and values into the cache at their rows' positions, attend as
 * rowops_attention does. */
int rowops_attend(const rowops_isa *isa, const heads_shape *shape, const heads_input *input, float *keys, float *values,
                  const segment *segments, int64_t n_segments, float *out, int n_threads);

/* x [rows, channels], weight [channels, width], state [n_slot, width - 1, channels]: the width - 1 rows before. */
void rowops_conv(const float *x, int64_t channels, const float *weight, int64_t width, float *state,
                 const segment *segments, int64_t n_segments, float *out, int n_threads);
#define ROWOPS_MAX_CONV_WIDTH 16

typedef struct {
    int64_t n_key_head, n_value_head, d_key, d_value;
} delta_shape;

/* The gated delta rule, token after token: see delta_rule in backbone/engine/ops/interface.py. decay is exp(log_decay). */
void rowops_delta_rule(const rowops_isa *isa, const delta_shape *shape, const float *q, const float *k, const float *v,
                       const float *decay, const float *beta, float *state, const segment *segments,
                       int64_t n_segments, float *out, int n_threads);

#endif
