/* Sixteen f32 lanes in the vector registers that a source's flags give it: 1 of 16, 2 of 8 or 4 of 4 floats.
 *
 * Every operation is one IEEE operation a lane (the build forbids contraction into fused multiply-add), so the three
 * widths give the same bits. */
#ifndef KV_ROWOPS_LANES_H
#define KV_ROWOPS_LANES_H

#include <stdint.h>
#include <string.h>

#define LANES 16
#if defined(__AVX512F__)
#define VECTOR_LANES 16
#elif defined(__AVX2__)
#define VECTOR_LANES 8
#else
#define VECTOR_LANES 4
#endif
#define VECTORS (LANES / VECTOR_LANES)

#define INLINE static inline __attribute__((always_inline))

typedef float float_vector __attribute__((vector_size(VECTOR_LANES * 4)));
typedef int32_t int_vector __attribute__((vector_size(VECTOR_LANES * 4)));
typedef struct {
    float_vector v[VECTORS];
} lanes;

#define EACH_VECTOR(i) for (int i = 0; i < VECTORS; i++)

INLINE lanes lanes_of(float value) {
    lanes r;
    EACH_VECTOR(i) r.v[i] = value - (float_vector){0};
    return r;
}

INLINE lanes lanes_load(const float *from) {
    lanes r;
    EACH_VECTOR(i) memcpy(&r.v[i], from + i * VECTOR_LANES, sizeof r.v[i]);
    return r;
}

INLINE void lanes_store(float *to, lanes a) { EACH_VECTOR(i) memcpy(to + i * VECTOR_LANES, &a.v[i], sizeof a.v[i]); }

/* The first n < 16 lanes; the others are +0, which changes no sum. */
INLINE lanes lanes_load_first(const float *from, int64_t n) {
    float padded[LANES] = {0};
    for (int64_t i = 0; i < n; i++) padded[i] = from[i];
    return lanes_load(padded);
}

INLINE void lanes_store_first(float *to, lanes a, int64_t n) {
    float padded[LANES];
    lanes_store(padded, a);
    for (int64_t i = 0; i < n; i++) to[i] = padded[i];
}

INLINE lanes lanes_add(lanes a, lanes b) {
    EACH_VECTOR(i) a.v[i] += b.v[i];
    return a;
}

INLINE lanes lanes_sub(lanes a, lanes b) {
    EACH_VECTOR(i) a.v[i] -= b.v[i];
    return a;
}

INLINE lanes lanes_mul(lanes a, lanes b) {
    EACH_VECTOR(i) a.v[i] *= b.v[i];
    return a;
}

INLINE lanes lanes_div(lanes a, lanes b) {
    EACH_VECTOR(i) a.v[i] /= b.v[i];
    return a;
}

/* a where a > b, else b; NaN in a gives b */
INLINE lanes lanes_larger(lanes a, lanes b) {
    EACH_VECTOR(i) {
        int_vector is_larger = a.v[i] > b.v[i];
        a.v[i] = (float_vector)(((int_vector)a.v[i] & is_larger) | ((int_vector)b.v[i] & ~is_larger));
    }
    return a;
}

INLINE lanes lanes_negate(lanes a) {
    EACH_VECTOR(i) a.v[i] = -a.v[i];
    return a;
}

typedef float quad __attribute__((vector_size(16)));
#if VECTOR_LANES > 4
typedef float octet __attribute__((vector_size(32)));
#endif

#ifdef __clang__
#define QUAD_OF(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int32_t quad_places __attribute__((vector_size(16)));
#define QUAD_OF(a, b, i, j, k, l) __builtin_shuffle(a, b, (quad_places){i, j, k, l})
#endif

/* Lane i plus lane i + 8, then lane i plus lane i + 4: the first half of the one order of all sums over lanes. */
INLINE quad lanes_fold(lanes a) {
#if VECTOR_LANES == 4
    return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
#else
    octet half[2];
    memcpy(half, &a, sizeof half);
    half[0] += half[1];
    quad quarter[2];
    memcpy(quarter, half, sizeof quarter);
    return quarter[0] + quarter[1];
#endif
}

/* Lane i plus lane i + 8, then 4, 2 and 1 apart. */
INLINE float lanes_sum(lanes a) {
    quad q = lanes_fold(a);
    q += QUAD_OF(q, q, 2, 3, 0, 1);
    return q[0] + q[1];
}

/* lanes_sum of four at once */
INLINE quad lanes_sums(lanes a, lanes b, lanes c, lanes d) {
    quad p = lanes_fold(a), q = lanes_fold(b), r = lanes_fold(c), s = lanes_fold(d);
    quad pq = QUAD_OF(p, q, 0, 4, 1, 5) + QUAD_OF(p, q, 2, 6, 3, 7); /* p0 + p2, q0 + q2, p1 + p3, q1 + q3 */
    quad rs = QUAD_OF(r, s, 0, 4, 1, 5) + QUAD_OF(r, s, 2, 6, 3, 7);
    return QUAD_OF(pq, rs, 0, 1, 4, 5) + QUAD_OF(pq, rs, 2, 3, 6, 7);
}

/* exp(x) = 2^n * exp(r) with |r| <= ln(2) / 2, exp(r) = 1 + r + r^2 q(r); q is a minimax polynomial of degree 4. Within
 * 1.1 units in the last place; 0 and infinity beyond the range, also for infinite x; NaN stays NaN. */
INLINE lanes lanes_exp(lanes x) {
    const float round_bias = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    const int32_t round_bias_bits = 0x4b400000;
    EACH_VECTOR(i) {
        float_vector value = x.v[i];
        int_vector too_large = value > 89.0f, too_small = value < -104.0f;
        int_vector bits = (int_vector)value & ~too_large & ~too_small;
        bits |= (too_large & 0x42b20000) | (too_small & (int32_t)0xc2d00000); /* 89 and -104 */
        value = (float_vector)bits;
        float_vector shifted = value * 1.44269504f + round_bias;
        int_vector n = (int_vector)shifted - round_bias_bits;
        float_vector n_value = shifted - round_bias;
        float_vector r = (value - n_value * 0.693145751953125f) - n_value * 1.4286068e-06f; /* ln 2 in two parts */
        float_vector q = 0.001381166f * r + 0.008370135f;
        q = q * r + 0.041668527f;
        q = q * r + 0.16666509f;
        q = q * r + 0.49999994f;
        float_vector y = 1.0f + (r + (r * r) * q);
        int_vector half = n >> 1; /* 2^n in two factors: n may lie outside a float's exponents */
        y *= (float_vector)((half + 127) << 23);
        y *= (float_vector)((n - half + 127) << 23);
        x.v[i] = y;
    }
    return x;
}

/* log(1 + u) for 0 <= u <= 1, as 2 atanh(s) with s = u / (2 + u) */
INLINE lanes lanes_log1p(lanes u) {
    EACH_VECTOR(i) {
        float_vector s = u.v[i] / (2.0f + u.v[i]), z = s * s;
        float_vector h = 0.24308325f * z + 0.2142585f;
        h = h * z + 0.28617036f;
        h = h * z + 0.39998874f;
        h = h * z + 0.66666675f;
        u.v[i] = 2.0f * s + (s * z) * h;
    }
    return u;
}

#endif
