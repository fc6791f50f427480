/* The functions that the shared library exports. Sizes and addresses are checked by the caller (native.py, kx1.py) but
 * for what the comments in experts.h say. */
#ifndef KV_API_H
#define KV_API_H

#include "experts.h"
#include "rowops.h"
#include "sums.h"

#ifdef _WIN32
#define KV_API __declspec(dllexport)
#else
#define KV_API __attribute__((visibility("default")))
#endif

#define KV_API_VERSION 6 /* raise it with every change of a signature or a struct */

KV_API int kv_api_version(void);

KV_API const kx1_isa *kv_isa_named(const char *name); /* NULL when it cannot run here */
KV_API const kx1_isa *kv_isa_at(int i);               /* best first; NULL after the last */
KV_API const char *kv_isa_name(const kx1_isa *isa);

KV_API int kv_n_helpers(void);

KV_API int64_t kv_kx1_row_bytes(int type, int64_t cols);
KV_API int32_t kv_kx1_weight_exponent(int type, const uint8_t *weights, int64_t rows, int64_t cols);
KV_API int kv_kx1_experts(const kx1_isa *isa, const kx1_layer *layer, const uint8_t *rows, int64_t n_rows,
                          const int32_t *pair_rows, const int32_t *pair_ids, int64_t n_pairs, float *out,
                          int n_threads);
KV_API int kv_kx1_linears(const kx1_isa *isa, const float *rows, int64_t n_rows, int64_t cols,
                          const kx1_linear *matrices, int n_matrices, float *const *outputs, int n_threads);
KV_API int kv_kx1_check_packed(const uint8_t *rows, int64_t n_rows, int64_t cols, int64_t *bad_row);
KV_API int kv_kx1_pack_rows(const float *rows, int64_t n_rows, int64_t cols, uint8_t *packed, int64_t *bad_row,
                            int n_threads);
KV_API void kv_kx1_silu_mul(const kx1_isa *isa, const float *gate, const float *up, float *h, int64_t n);

/* Sums of weighted outputs. See sums.h. */
KV_API void kv_sums_add(const float *outputs, const float *weights, const int32_t *pair_rows, int64_t n_pairs,
                        const int32_t *exponents, int64_t d, int32_t *sums, int n_threads);
KV_API int64_t kv_sums_pack(const int32_t *sums, int64_t n_rows, int64_t d, uint8_t *packed);
KV_API int kv_sums_unpack(const uint8_t *packed, int64_t n_bytes, int64_t n_rows, int64_t d, int32_t *sums);
KV_API void kv_sums_to_float(const int32_t *sums, const int32_t *exponents, int64_t n_rows, int64_t d, float *out,
                             int n_threads);

/* Float rows; isa is a KX1 build, whose float operations are used. See rowops.h. */
KV_API void kv_matmul(const kx1_isa *isa, const float *x, int64_t n, int64_t cols, const float *w, int64_t n_out,
                      float *out, int n_threads);
KV_API void kv_norm(const kx1_isa *isa, const float *x, int64_t n, int64_t d, float factor, float eps,
                    const float *weight, float *out, int n_threads);
KV_API int kv_elementwise(const kx1_isa *isa, int operation, const float *x, const float *y, int64_t n, float *out,
                          int n_threads);
KV_API void kv_combine(const float *partials, const float *weights, int64_t n, int64_t n_used, int64_t d, float *out,
                       int n_threads);
KV_API int kv_attention(const kx1_isa *isa, const attention_shape *shape, const float *q, const float *keys,
                        const float *values, const segment *segments, int64_t n_segments, float scale, float *out,
                        int n_threads);
KV_API int kv_attend(const kx1_isa *isa, const heads_shape *shape, const heads_input *input, float *keys, float *values,
                     const segment *segments, int64_t n_segments, float *out, int n_threads);
KV_API int kv_route(const kx1_isa *isa, const router_form *form, const float *logits, int64_t n, int64_t *expert_ids,
                    float *weights, int n_threads);
KV_API void kv_conv(const float *x, int64_t channels, const float *weight, int64_t width, float *state,
                    const segment *segments, int64_t n_segments, float *out, int n_threads);
KV_API void kv_delta_rule(const kx1_isa *isa, const delta_shape *shape, const float *q, const float *k, const float *v,
                          const float *decay, const float *beta, float *state, const segment *segments,
                          int64_t n_segments, float *out, int n_threads);

#endif
