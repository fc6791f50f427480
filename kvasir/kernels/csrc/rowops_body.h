/* The functions of rowops_isa.h in terms of lanes; each rowops_*.c includes this once, with its own flags. */
#include "rowops_isa.h"
#include "rowops_lanes.h"

#if VECTOR_LANES == 16
#define TILE_X 4
#define TILE_W 4
#elif VECTOR_LANES == 8
#define TILE_X 2
#define TILE_W 2
#else
#define TILE_X 1
#define TILE_W 2
#endif
#define TILE_W_OF_ONE 4 /* rows of w beside a single row of x */

/* nx * nw dot products at once, so that a loaded row serves several; nx and nw are constants after inlining. */
INLINE void dot_tile(const float *x, int64_t ld_x, const float *w, int64_t ld_w, int64_t cols, float *out,
                     int64_t ld_out, int nx, int nw) {
    lanes sum[TILE_X][TILE_W_OF_ONE];
    for (int t = 0; t < nx; t++)
        for (int r = 0; r < nw; r++) sum[t][r] = lanes_of(0.0f);
    int64_t k = 0;
    for (; k + LANES <= cols; k += LANES)
        for (int t = 0; t < nx; t++) {
            lanes a = lanes_load(x + t * ld_x + k);
            for (int r = 0; r < nw; r++) sum[t][r] = lanes_add(sum[t][r], lanes_mul(a, lanes_load(w + r * ld_w + k)));
        }
    if (k < cols)
        for (int t = 0; t < nx; t++) {
            lanes a = lanes_load_first(x + t * ld_x + k, cols - k);
            for (int r = 0; r < nw; r++)
                sum[t][r] = lanes_add(sum[t][r], lanes_mul(a, lanes_load_first(w + r * ld_w + k, cols - k)));
        }
    for (int t = 0; t < nx; t++)
        for (int r = 0; r < nw; r++) out[t * ld_out + r] = lanes_sum(sum[t][r]);
}

static void dot_rows(const float *x, int64_t ld_x, int64_t n, const float *w, int64_t ld_w, int64_t cols, float *out,
                     int64_t ld_out) {
    int64_t t = 0;
    for (; t + TILE_X <= n; t += TILE_X)
        dot_tile(x + t * ld_x, ld_x, w, ld_w, cols, out + t * ld_out, ld_out, TILE_X, TILE_W);
    for (; t < n; t++) dot_tile(x + t * ld_x, ld_x, w, ld_w, cols, out + t * ld_out, ld_out, 1, TILE_W);
}

static void matmul(const float *x, int64_t ld_x, int64_t n, const float *w, int64_t ld_w, int64_t n_out, int64_t cols,
                   float *out, int64_t ld_out) {
    int64_t r = 0;
    if (n < TILE_X || n == 1)
        for (; r + TILE_W_OF_ONE <= n_out; r += TILE_W_OF_ONE)
            for (int64_t t = 0; t < n; t++)
                dot_tile(x + t * ld_x, ld_x, w + r * ld_w, ld_w, cols, out + t * ld_out + r, ld_out, 1, TILE_W_OF_ONE);
    for (; r + TILE_W <= n_out; r += TILE_W) dot_rows(x, ld_x, n, w + r * ld_w, ld_w, cols, out + r, ld_out);
    for (; r < n_out; r++)
        for (int64_t t = 0; t < n; t++)
            dot_tile(x + t * ld_x, ld_x, w + r * ld_w, ld_w, cols, out + t * ld_out + r, ld_out, 1, 1);
}

static float sum_of_squares(const float *x, int64_t n) {
    lanes sum = lanes_of(0.0f);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes a = lanes_load(x + i);
        sum = lanes_add(sum, lanes_mul(a, a));
    }
    if (i < n) {
        lanes a = lanes_load_first(x + i, n - i);
        sum = lanes_add(sum, lanes_mul(a, a));
    }
    return lanes_sum(sum);
}

static void scale(const float *x, float factor, const float *weight, float *out, int64_t n) {
    if (weight)
        for (int64_t i = 0; i < n; i++) out[i] = x[i] * factor * weight[i];
    else
        for (int64_t i = 0; i < n; i++) out[i] = x[i] * factor;
}

static void divide(float *x, float divisor, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] /= divisor;
}

INLINE lanes lanes_sigmoid(lanes x) {
    lanes one = lanes_of(1.0f);
    return lanes_div(one, lanes_add(one, lanes_exp(lanes_negate(x))));
}

INLINE lanes lanes_silu(lanes x) { return lanes_div(x, lanes_add(lanes_of(1.0f), lanes_exp(lanes_negate(x)))); }

/* max(x, 0) + log(1 + exp(-|x|)) */
INLINE lanes lanes_softplus(lanes x) {
    lanes minus_abs = lanes_negate(lanes_larger(x, lanes_negate(x)));
    return lanes_add(lanes_larger(x, lanes_of(0.0f)), lanes_log1p(lanes_exp(minus_abs)));
}

#define ELEMENTWISE(name, function)                                                                           \
    static void name(const float *x, float *out, int64_t n) {                                                 \
        int64_t i = 0;                                                                                         \
        for (; i + LANES <= n; i += LANES) lanes_store(out + i, function(lanes_load(x + i)));                  \
        if (i < n) lanes_store_first(out + i, function(lanes_load_first(x + i, n - i)), n - i);                \
    }

ELEMENTWISE(exp_row, lanes_exp)
ELEMENTWISE(sigmoid_row, lanes_sigmoid)
ELEMENTWISE(silu_row, lanes_silu)
ELEMENTWISE(softplus_row, lanes_softplus)

static void silu_mul(const float *gate, const float *up, float *out, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store(out + i, lanes_mul(lanes_silu(lanes_load(gate + i)), lanes_load(up + i)));
    if (i < n) {
        lanes h = lanes_mul(lanes_silu(lanes_load_first(gate + i, n - i)), lanes_load_first(up + i, n - i));
        lanes_store_first(out + i, h, n - i);
    }
}

static float largest_of(const float *x, int64_t n) {
    lanes best = lanes_of(x[0]);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) best = lanes_larger(lanes_load(x + i), best);
    float all[LANES], largest = x[0];
    lanes_store(all, best);
    for (int j = 0; j < LANES; j++) largest = all[j] > largest ? all[j] : largest;
    for (; i < n; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

static float exp_from_max(const float *x, float *out, int64_t n) {
    lanes largest = lanes_of(largest_of(x, n)), sum = lanes_of(0.0f);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes e = lanes_exp(lanes_sub(lanes_load(x + i), largest));
        sum = lanes_add(sum, e);
        lanes_store(out + i, e);
    }
    if (i < n) {
        lanes_store_first(out + i, lanes_exp(lanes_sub(lanes_load_first(x + i, n - i), largest)), n - i);
        sum = lanes_add(sum, lanes_load_first(out + i, n - i));
    }
    return lanes_sum(sum);
}

#define ACCUMULATED (VECTOR_LANES / 2) /* groups of 16 values in 8 registers while the rows go by */

/* The next `groups` times 16 values of out; each value takes its rows in order, whatever the number of groups. */
INLINE void accumulate_groups(const float *p, int64_t n, const float *rows, int64_t ld, float *out, int groups) {
    lanes sum[ACCUMULATED];
    for (int g = 0; g < groups; g++) sum[g] = lanes_load(out + g * LANES);
    for (int64_t j = 0; j < n; j++) {
        lanes factor = lanes_of(p[j]);
        for (int g = 0; g < groups; g++)
            sum[g] = lanes_add(sum[g], lanes_mul(factor, lanes_load(rows + j * ld + g * LANES)));
    }
    for (int g = 0; g < groups; g++) lanes_store(out + g * LANES, sum[g]);
}

static void accumulate(const float *p, int64_t n, const float *rows, int64_t ld, float *out, int64_t d) {
    int64_t i = 0;
    for (; i + ACCUMULATED * LANES <= d; i += ACCUMULATED * LANES)
        accumulate_groups(p, n, rows + i, ld, out + i, ACCUMULATED);
    for (; i + ACCUMULATED / 2 * LANES <= d; i += ACCUMULATED / 2 * LANES)
        accumulate_groups(p, n, rows + i, ld, out + i, ACCUMULATED / 2);
    for (; i + LANES <= d; i += LANES) accumulate_groups(p, n, rows + i, ld, out + i, 1);
    for (; i < d; i++)
        for (int64_t j = 0; j < n; j++) out[i] += p[j] * rows[j * ld + i];
}

/* S = decay * S; d = (v - S k) * beta; S = S + d k; out = S q, row by row of S */
INLINE void delta_row(float *s, int64_t d_k, const float *q, const float *k, float v, float decay, float beta,
                      float *out) {
    lanes factor = lanes_of(decay), sum = lanes_of(0.0f);
    int64_t i = 0, whole = d_k / LANES * LANES;
    for (; i < whole; i += LANES) {
        lanes a = lanes_mul(factor, lanes_load(s + i));
        lanes_store(s + i, a);
        sum = lanes_add(sum, lanes_mul(a, lanes_load(k + i)));
    }
    if (i < d_k) {
        lanes a = lanes_mul(factor, lanes_load_first(s + i, d_k - i));
        lanes_store_first(s + i, a, d_k - i);
        sum = lanes_add(sum, lanes_mul(a, lanes_load_first(k + i, d_k - i)));
    }
    lanes d = lanes_of((v - lanes_sum(sum)) * beta);
    sum = lanes_of(0.0f);
    for (i = 0; i < whole; i += LANES) {
        lanes a = lanes_add(lanes_load(s + i), lanes_mul(d, lanes_load(k + i)));
        lanes_store(s + i, a);
        sum = lanes_add(sum, lanes_mul(a, lanes_load(q + i)));
    }
    if (i < d_k) {
        lanes a = lanes_add(lanes_load_first(s + i, d_k - i), lanes_mul(d, lanes_load_first(k + i, d_k - i)));
        lanes_store_first(s + i, a, d_k - i);
        sum = lanes_add(sum, lanes_mul(a, lanes_load_first(q + i, d_k - i)));
    }
    *out = lanes_sum(sum);
}

static void delta_step(float *state, int64_t n_rows, int64_t d_k, const float *q, const float *k, const float *v,
                       float decay, float beta, float *out) {
    if (d_k == 128) /* a constant width lets the row stay in registers */
        for (int64_t j = 0; j < n_rows; j++) delta_row(state + j * 128, 128, q, k, v[j], decay, beta, out + j);
    else
        for (int64_t j = 0; j < n_rows; j++) delta_row(state + j * d_k, d_k, q, k, v[j], decay, beta, out + j);
}

#define ROWOPS_TABLE                                                                                               \
    {                                                                                                              \
        .matmul = matmul, .sum_of_squares = sum_of_squares, .scale = scale, .exp = exp_row, .sigmoid = sigmoid_row, \
        .silu = silu_row, .softplus = softplus_row, .silu_mul = silu_mul, .exp_from_max = exp_from_max,             \
        .divide = divide, .accumulate = accumulate, .delta_step = delta_step,                                       \
    }
