/* What the shared library shows: a thin layer over the other sources for ctypes (kvasir/kernels/native.py). */
#include "api.h"

#include "pool.h"

int kv_api_version(void) { return KV_API_VERSION; }

const kx1_isa *kv_isa_named(const char *name) { return kx1_isa_named(name); }
const kx1_isa *kv_isa_at(int i) { return kx1_isa_at(i); }
const char *kv_isa_name(const kx1_isa *isa) { return isa->name; }

int kv_n_helpers(void) { return pool_n_helpers(); }

int64_t kv_kx1_row_bytes(int type, int64_t cols) { return kx1_row_bytes(type, cols); }

int32_t kv_kx1_weight_exponent(int type, const uint8_t *weights, int64_t rows, int64_t cols) {
    return kx1_weight_exponent(type, weights, rows, cols);
}

int kv_kx1_experts(const kx1_isa *isa, const kx1_layer *layer, const uint8_t *rows, int64_t n_rows,
                   const int32_t *pair_rows, const int32_t *pair_ids, int64_t n_pairs, float *out, int n_threads) {
    return kx1_experts(isa, layer, rows, n_rows, pair_rows, pair_ids, n_pairs, out, n_threads);
}

int kv_kx1_linears(const kx1_isa *isa, const float *rows, int64_t n_rows, int64_t cols, const kx1_linear *matrices,
                   int n_matrices, float *const *outputs, int n_threads) {
    return kx1_linears(isa, rows, n_rows, cols, matrices, n_matrices, outputs, n_threads);
}

int kv_kx1_check_packed(const uint8_t *rows, int64_t n_rows, int64_t cols, int64_t *bad_row) {
    return kx1_check_packed(rows, n_rows, cols, bad_row);
}

int kv_kx1_pack_rows(const float *rows, int64_t n_rows, int64_t cols, uint8_t *packed, int64_t *bad_row,
                     int n_threads) {
    return kx1_pack_rows(rows, n_rows, cols, packed, bad_row, n_threads);
}

void kv_kx1_silu_mul(const kx1_isa *isa, const float *gate, const float *up, float *h, int64_t n) {
    isa->silu_mul(gate, up, h, n);
}

void kv_sums_add(const float *outputs, const float *weights, const int32_t *pair_rows, int64_t n_pairs,
                 const int32_t *exponents, int64_t d, int32_t *sums, int n_threads) {
    sums_add(outputs, weights, pair_rows, n_pairs, exponents, d, sums, n_threads);
}

int64_t kv_sums_pack(const int32_t *sums, int64_t n_rows, int64_t d, uint8_t *packed) {
    return sums_pack(sums, n_rows, d, packed);
}

int kv_sums_unpack(const uint8_t *packed, int64_t n_bytes, int64_t n_rows, int64_t d, int32_t *sums) {
    return sums_unpack(packed, n_bytes, n_rows, d, sums);
}

void kv_sums_to_float(const int32_t *sums, const int32_t *exponents, int64_t n_rows, int64_t d, float *out,
                      int n_threads) {
    sums_to_float(sums, exponents, n_rows, d, out, n_threads);
}

void kv_matmul(const kx1_isa *isa, const float *x, int64_t n, int64_t cols, const float *w, int64_t n_out, float *out,
               int n_threads) {
    rowops_matmul(rowops_of(isa), x, n, cols, w, n_out, out, n_threads);
}

void kv_norm(const kx1_isa *isa, const float *x, int64_t n, int64_t d, float factor, float eps, const float *weight,
             float *out, int n_threads) {
    rowops_norm(rowops_of(isa), x, n, d, factor, eps, weight, out, n_threads);
}

int kv_elementwise(const kx1_isa *isa, int operation, const float *x, const float *y, int64_t n, float *out,
                   int n_threads) {
    return rowops_elementwise(rowops_of(isa), operation, x, y, n, out, n_threads);
}

void kv_combine(const float *partials, const float *weights, int64_t n, int64_t n_used, int64_t d, float *out,
                int n_threads) {
    rowops_combine(partials, weights, n, n_used, d, out, n_threads);
}

int kv_attention(const kx1_isa *isa, const attention_shape *shape, const float *q, const float *keys,
                 const float *values, const segment *segments, int64_t n_segments, float scale, float *out,
                 int n_threads) {
    return rowops_attention(rowops_of(isa), shape, q, keys, values, segments, n_segments, scale, out, n_threads);
}

int kv_attend(const kx1_isa *isa, const heads_shape *shape, const heads_input *input, float *keys, float *values,
              const segment *segments, int64_t n_segments, float *out, int n_threads) {
    return rowops_attend(rowops_of(isa), shape, input, keys, values, segments, n_segments, out, n_threads);
}

int kv_route(const kx1_isa *isa, const router_form *form, const float *logits, int64_t n, int64_t *expert_ids,
             float *weights, int n_threads) {
    return rowops_route(rowops_of(isa), form, logits, n, expert_ids, weights, n_threads);
}

void kv_conv(const float *x, int64_t channels, const float *weight, int64_t width, float *state,
             const segment *segments, int64_t n_segments, float *out, int n_threads) {
    rowops_conv(x, channels, weight, width, state, segments, n_segments, out, n_threads);
}

void kv_delta_rule(const kx1_isa *isa, const delta_shape *shape, const float *q, const float *k, const float *v,
                   const float *decay, const float *beta, float *state, const segment *segments, int64_t n_segments,
                   float *out, int n_threads) {
    rowops_delta_rule(rowops_of(isa), shape, q, k, v, decay, beta, state, segments, n_segments, out, n_threads);
}
