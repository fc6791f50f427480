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

/* nx * nw dot products at once, so that a loaded row serves several; nx and nw are constants after inlining. The `cols`
 * values at `next` are brought near meanwhile. */
INLINE void dot_tile(const float *x, int64_t ld_x, const float *w, int64_t ld_w, int64_t cols, float *out,
                     int64_t ld_out, int nx, int nw, const float *next) {
    lanes sum[TILE_X][TILE_W_OF_ONE];
    for (int t = 0; t < nx; t++)
        for (int r = 0; r < nw; r++) sum[t][r] = lanes_of(0.0f);
    int64_t k = 0;
    for (; k + LANES <= cols; k += LANES) {
        __builtin_prefetch(next + k);
        for (int t = 0; t < nx; t++) {
            lanes a = lanes_load(x + t * ld_x + k);
            for (int r = 0; r < nw; r++) sum[t][r] = lanes_add(sum[t][r], lanes_mul(a, lanes_load(w + r * ld_w + k)));
        }
    }
    if (k < cols)
        for (int t = 0; t < nx; t++) {
            lanes a = lanes_load_first(x + t * ld_x + k, cols - k);
            for (int r = 0; r < nw; r++)
                sum[t][r] = lanes_add(sum[t][r], lanes_mul(a, lanes_load_first(w + r * ld_w + k, cols - k)));
        }
    for (int t = 0; t < nx; t++)
        if (nw == 4) {
            quad sums = lanes_sums(sum[t][0], sum[t][1], sum[t][2], sum[t][3]);
            memcpy(out + t * ld_out, &sums, sizeof sums);
        } else
            for (int r = 0; r < nw; r++) out[t * ld_out + r] = lanes_sum(sum[t][r]);
}

/* n rows of x times TILE_W rows of w; `ahead` of the rows behind those are brought near. */
static void dot_rows(const float *x, int64_t ld_x, int64_t n, const float *w, int64_t ld_w, int64_t ahead, int64_t cols,
                     float *out, int64_t ld_out) {
    int64_t t = 0, tile = 0;
    for (; t + TILE_X <= n; t += TILE_X, tile++)
        dot_tile(x + t * ld_x, ld_x, w, ld_w, cols, out + t * ld_out, ld_out, TILE_X, TILE_W,
                 tile < ahead ? w + (TILE_W + tile) * ld_w : w);
    for (; t < n; t++, tile++)
        dot_tile(x + t * ld_x, ld_x, w, ld_w, cols, out + t * ld_out, ld_out, 1, TILE_W,
                 tile < ahead ? w + (TILE_W + tile) * ld_w : w);
}

static void matmul(const float *x, int64_t ld_x, int64_t n, const float *w, int64_t ld_w, int64_t n_out, int64_t cols,
                   float *out, int64_t ld_out) {
    int64_t r = 0;
    if (n < TILE_X || n == 1)
        for (; r + TILE_W_OF_ONE <= n_out; r += TILE_W_OF_ONE)
            for (int64_t t = 0; t < n; t++)
                dot_tile(x + t * ld_x, ld_x, w + r * ld_w, ld_w, cols, out + t * ld_out + r, ld_out, 1, TILE_W_OF_ONE,
                         w + r * ld_w);
    for (; r + TILE_W <= n_out; r += TILE_W) {
        int64_t left = n_out - r - TILE_W;
        dot_rows(x, ld_x, n, w + r * ld_w, ld_w, left < TILE_W ? left : TILE_W, cols, out + r, ld_out);
    }
    for (; r < n_out; r++)
        for (int64_t t = 0; t < n; t++)
            dot_tile(x + t * ld_x, ld_x, w + r * ld_w, ld_w, cols, out + t * ld_out + r, ld_out, 1, 1, w + r * ld_w);
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

#if VECTOR_LANES == 16
#define SUMMED 4 /* weighted sums of the same rows at once, so that a loaded value serves several */
#define SUMMED_GROUPS 4 /* of 16 values of each, in registers while the rows go by */
#elif VECTOR_LANES == 8
#define SUMMED 2
#define SUMMED_GROUPS 2
#else
#define SUMMED 1
#define SUMMED_GROUPS 1
#endif

/* The next `groups` times 16 values of np sums; each takes its rows in order, whatever is done together. The same
 * values of the n rows from `next` are brought near meanwhile. */
INLINE void sum_tile(const float *p, int64_t ld_p, int64_t n, const float *rows, int64_t ld, float *out, int64_t ld_out,
                     int np, int groups, const float *next) {
    lanes sum[SUMMED][2 * SUMMED_GROUPS];
    for (int i = 0; i < np; i++)
        for (int g = 0; g < groups; g++) sum[i][g] = lanes_load(out + i * ld_out + g * LANES);
    for (int64_t j = 0; j < n; j++) {
        for (int g = 0; g < groups; g++) __builtin_prefetch(next + j * ld + g * LANES);
        for (int i = 0; i < np; i++) {
            lanes factor = lanes_of(p[i * ld_p + j]);
            for (int g = 0; g < groups; g++)
                sum[i][g] = lanes_add(sum[i][g], lanes_mul(factor, lanes_load(rows + j * ld + g * LANES)));
        }
    }
    for (int i = 0; i < np; i++)
        for (int g = 0; g < groups; g++) lanes_store(out + i * ld_out + g * LANES, sum[i][g]);
}

INLINE void sum_columns(const float *p, int64_t ld_p, int64_t np, int64_t n, const float *rows, int64_t ld, float *out,
                        int64_t ld_out, int groups) {
    const float *next = rows + n * ld;
    int64_t i = 0;
    for (; i + SUMMED <= np; i += SUMMED, next = rows)
        sum_tile(p + i * ld_p, ld_p, n, rows, ld, out + i * ld_out, ld_out, SUMMED, groups, next);
    for (; i < np; i++, next = rows)
        sum_tile(p + i * ld_p, ld_p, n, rows, ld, out + i * ld_out, ld_out, 1, groups, next);
}

static void accumulate(const float *p, int64_t ld_p, int64_t np, int64_t n, const float *rows, int64_t ld, float *out,
                       int64_t ld_out, int64_t d) {
    int64_t at = 0;
    if (np < SUMMED || np == 1)
        for (; at + 2 * SUMMED_GROUPS * LANES <= d; at += 2 * SUMMED_GROUPS * LANES)
            for (int64_t i = 0; i < np; i++)
                sum_tile(p + i * ld_p, ld_p, n, rows + at, ld, out + i * ld_out + at, ld_out, 1, 2 * SUMMED_GROUPS,
                         rows + at + n * ld);
    for (; at + SUMMED_GROUPS * LANES <= d; at += SUMMED_GROUPS * LANES)
        sum_columns(p, ld_p, np, n, rows + at, ld, out + at, ld_out, SUMMED_GROUPS);
    for (; at + LANES <= d; at += LANES) sum_columns(p, ld_p, np, n, rows + at, ld, out + at, ld_out, 1);
    for (int64_t i = 0; i < np; i++)
        for (int64_t c = at; c < d; c++)
            for (int64_t j = 0; j < n; j++) out[i * ld_out + c] += p[i * ld_p + j] * rows[j * ld + c];
}

/* S = decay * S; d = (v - S k) * beta; S = S + d k; out = S q, for n (at most 4) rows of S */
INLINE void delta_rows(float *s, int n, int64_t d_k, const float *q, const float *k, const float *v, float decay,
                       float beta, float *out) {
    const lanes factor = lanes_of(decay), none = lanes_of(0.0f);
    const int64_t whole = d_k / LANES * LANES, rest = d_k - whole;
    lanes sum[4] = {none, none, none, none}, d[4];
    for (int64_t i = 0; i < whole; i += LANES)
        for (int r = 0; r < n; r++)
            sum[r] = lanes_add(sum[r], lanes_mul(lanes_mul(factor, lanes_load(s + r * d_k + i)), lanes_load(k + i)));
    for (int r = 0; r < n && rest; r++) {
        lanes a = lanes_mul(factor, lanes_load_first(s + r * d_k + whole, rest));
        sum[r] = lanes_add(sum[r], lanes_mul(a, lanes_load_first(k + whole, rest)));
    }
    quad sums = lanes_sums(sum[0], sum[1], sum[2], sum[3]);
    for (int r = 0; r < n; r++) {
        d[r] = lanes_of((v[r] - sums[r]) * beta);
        sum[r] = none;
    }
    for (int64_t i = 0; i < whole; i += LANES)
        for (int r = 0; r < n; r++) {
            lanes a = lanes_mul(factor, lanes_load(s + r * d_k + i));
            a = lanes_add(a, lanes_mul(d[r], lanes_load(k + i)));
            lanes_store(s + r * d_k + i, a);
            sum[r] = lanes_add(sum[r], lanes_mul(a, lanes_load(q + i)));
        }
    for (int r = 0; r < n && rest; r++) {
        lanes a = lanes_mul(factor, lanes_load_first(s + r * d_k + whole, rest));
        a = lanes_add(a, lanes_mul(d[r], lanes_load_first(k + whole, rest)));
        lanes_store_first(s + r * d_k + whole, a, rest);
        sum[r] = lanes_add(sum[r], lanes_mul(a, lanes_load_first(q + whole, rest)));
    }
    sums = lanes_sums(sum[0], sum[1], sum[2], sum[3]);
    for (int r = 0; r < n; r++) out[r] = sums[r];
}

static void delta_step(float *state, int64_t n_rows, int64_t d_k, const float *q, const float *k, const float *v,
                       float decay, float beta, float *out) {
    int64_t j = 0;
    if (d_k == 128) /* a constant width needs no rest */
        for (; j + 4 <= n_rows; j += 4) delta_rows(state + j * 128, 4, 128, q, k, v + j, decay, beta, out + j);
    for (; j + 4 <= n_rows; j += 4) delta_rows(state + j * d_k, 4, d_k, q, k, v + j, decay, beta, out + j);
    for (; j < n_rows; j++) delta_rows(state + j * d_k, 1, d_k, q, k, v + j, decay, beta, out + j);
}

#define ROWOPS_TABLE                                                                                               \
    {                                                                                                              \
        .matmul = matmul, .sum_of_squares = sum_of_squares, .scale = scale, .exp = exp_row, .sigmoid = sigmoid_row, \
        .silu = silu_row, .softplus = softplus_row, .silu_mul = silu_mul, .exp_from_max = exp_from_max,             \
        .divide = divide, .accumulate = accumulate, .delta_step = delta_step,                                       \
    }
