/* Float row operations of one thread: each has one version for each instruction set, and all give the same bits.
 *
 * A dot product has 16 lanes: lane i sums the products of k = i modulo 16 in ascending order; the lanes are added 8, 4,
 * 2 and 1 apart. Elementwise operations round once a step. No result depends on how many rows are done together. */
#ifndef KV_ROWOPS_ISA_H
#define KV_ROWOPS_ISA_H

#include <stdint.h>

typedef struct {
    /* out[t * ld_out + r] = rows t < n of x times rows r < n_out of w, each `cols` long and ld_x or ld_w apart */
    void (*matmul)(const float *x, int64_t ld_x, int64_t n, const float *w, int64_t ld_w, int64_t n_out, int64_t cols,
                   float *out, int64_t ld_out);
    float (*sum_of_squares)(const float *x, int64_t n);
    void (*scale)(const float *x, float factor, const float *weight, float *out, int64_t n); /* weight may be NULL */
    void (*exp)(const float *x, float *out, int64_t n);
    void (*sigmoid)(const float *x, float *out, int64_t n);
    void (*silu)(const float *x, float *out, int64_t n);
    void (*softplus)(const float *x, float *out, int64_t n);
    void (*silu_mul)(const float *gate, const float *up, float *out, int64_t n);
    /* out = exp(x - max(x)); returns its sum */
    float (*exp_from_max)(const float *x, float *out, int64_t n);
    void (*divide)(float *x, float divisor, int64_t n);
    /* out[i * ld_out] += sum over j < n of p[i * ld_p + j] * rows[j * ld], d values each, for i < np; j ascending, each
     * product added by itself. It expects to go on with the rows that follow. */
    void (*accumulate)(const float *p, int64_t ld_p, int64_t np, int64_t n, const float *rows, int64_t ld, float *out,
                       int64_t ld_out, int64_t d);
    /* One token of the gated delta rule for n_rows rows of a head's state [n_rows, d_k]; v and out [n_rows] */
    void (*delta_step)(float *state, int64_t n_rows, int64_t d_k, const float *q, const float *k, const float *v,
                       float decay, float beta, float *out);
} rowops_isa;

extern const rowops_isa rowops_baseline_isa;
extern const rowops_isa *const rowops_avx2_isa;   /* NULL where it was compiled without its flags */
extern const rowops_isa *const rowops_avx512_isa;

#endif
