/* See sums.h and docs/reference/kx1.md.
 *
 * A pair's integer is the product of two f32 values times 2^-E, rounded half away from zero and cut to 2^26. In double
 * precision that is exact: the product has 48 significant bits, scaling by a power of two changes none, and one half is
 * added without rounding to all that is not cut (the lowest bit of a value below 2^26 is at most 47 places down). */
#include "sums.h"

#include "pool.h"

#include <math.h>
#include <string.h>

#define BLOCK 256
#define COLUMNS_PER_TASK 1024
#define LIMIT 67108864.0 /* 2^26 */

static int64_t at_most(int64_t value, int64_t limit) { return value < limit ? value : limit; }
static int64_t n_tiles(int64_t n, int64_t tile) { return (n + tile - 1) / tile; }

typedef struct {
    const float *outputs, *weights;
    const int32_t *pair_rows, *exponents;
    int64_t n_pairs, d;
    int32_t *sums;
} add_job;

static void add_pair(const float *restrict output, double factor, int64_t n, int32_t *restrict sum) {
    for (int64_t i = 0; i < n; i++) {
        double product = (double)output[i] * factor, size = fabs(product) + 0.5;
        if (fabsf(output[i]) < 0x1p-126f) size = 0.0; /* subnormal numbers count as 0, as everywhere in KX1 */
        size = size < LIMIT ? size : LIMIT;
        int32_t whole = (int32_t)size;
        sum[i] += product < 0.0 ? -whole : whole;
    }
}

static void add_columns(void *context, int64_t task) {
    const add_job *j = context;
    int64_t start = task * COLUMNS_PER_TASK, stop = at_most(start + COLUMNS_PER_TASK, j->d);
    for (int64_t p = 0; p < j->n_pairs; p++) {
        float weight = fabsf(j->weights[p]) < 0x1p-126f ? 0.0f : j->weights[p];
        double factor = ldexp((double)weight, -j->exponents[j->pair_rows[p]]);
        add_pair(j->outputs + p * j->d + start, factor, stop - start, j->sums + j->pair_rows[p] * j->d + start);
    }
}

void sums_add(const float *outputs, const float *weights, const int32_t *pair_rows, int64_t n_pairs,
              const int32_t *exponents, int64_t d, int32_t *sums, int n_threads) {
    add_job j = {outputs, weights, pair_rows, exponents, n_pairs, d, sums};
    pool_run(pool_threads(8 * n_pairs * d, n_threads), n_tiles(d, COLUMNS_PER_TASK), add_columns, &j);
}

/* The smallest width, in bits, that holds all values of a block */
static int width_of(const int32_t *values) {
    uint32_t bits = 0;
    for (int i = 0; i < BLOCK; i++) bits |= (uint32_t)(values[i] ^ (values[i] >> 31));
    uint32_t any = 0;
    for (int i = 0; i < BLOCK; i++) any |= (uint32_t)values[i];
    if (!any) return 0;
    return bits < 1u << 7 ? 8 : bits < 1u << 11 ? 12 : bits < 1u << 15 ? 16 : bits < 1u << 23 ? 24 : 32;
}

static void pack_block(const int32_t *values, int width, uint8_t *out) {
    if (width == 12) {
        for (int i = 0; i < BLOCK; i += 2) {
            uint32_t pair = ((uint32_t)values[i] & 0xfff) | ((uint32_t)values[i + 1] & 0xfff) << 12;
            *out++ = (uint8_t)pair, *out++ = (uint8_t)(pair >> 8), *out++ = (uint8_t)(pair >> 16);
        }
        return;
    }
    for (int i = 0; i < BLOCK; i++)
        for (int shift = 0; shift < width; shift += 8) *out++ = (uint8_t)((uint32_t)values[i] >> shift);
}

int64_t sums_pack(const int32_t *sums, int64_t n_rows, int64_t d, uint8_t *packed) {
    uint8_t *end = packed;
    for (int64_t b = 0; b < n_rows * d / BLOCK; b++) {
        int width = width_of(sums + b * BLOCK);
        *end++ = (uint8_t)width;
        pack_block(sums + b * BLOCK, width, end);
        end += BLOCK / 8 * width;
    }
    return end - packed;
}

static int32_t extended(uint32_t value, int width) {
    int unused = 32 - width;
    return (int32_t)(value << unused) >> unused;
}

static void unpack_block(const uint8_t *in, int width, int32_t *values) {
    if (width == 12) {
        for (int i = 0; i < BLOCK; i += 2, in += 3) {
            uint32_t pair = in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16;
            values[i] = extended(pair & 0xfff, 12), values[i + 1] = extended(pair >> 12, 12);
        }
        return;
    }
    for (int i = 0; i < BLOCK; i++) {
        uint32_t value = 0;
        for (int shift = 0; shift < width; shift += 8) value |= (uint32_t)*in++ << shift;
        values[i] = width ? extended(value, width) : 0;
    }
}

int sums_unpack(const uint8_t *packed, int64_t n_bytes, int64_t n_rows, int64_t d, int32_t *sums) {
    const uint8_t *end = packed + n_bytes;
    for (int64_t b = 0; b < n_rows * d / BLOCK; b++) {
        if (packed == end) return SUMS_BAD_LENGTH;
        int width = *packed++;
        if (width != 0 && width != 8 && width != 12 && width != 16 && width != 24 && width != 32) return SUMS_BAD_WIDTH;
        if (end - packed < BLOCK / 8 * width) return SUMS_BAD_LENGTH;
        unpack_block(packed, width, sums + b * BLOCK);
        if (width_of(sums + b * BLOCK) != width) return SUMS_BAD_WIDTH;
        packed += BLOCK / 8 * width;
    }
    return packed == end ? 0 : SUMS_BAD_LENGTH;
}

typedef struct {
    const int32_t *sums, *exponents;
    int64_t d;
    float *out;
} float_job;

/* The value of a 32-bit integer times a power of two is exact in double precision, so one rounding is left. */
static void float_row(void *context, int64_t row) {
    const float_job *j = context;
    double factor = ldexp(1.0, j->exponents[row]);
    const int32_t *sum = j->sums + row * j->d;
    float *out = j->out + row * j->d;
    for (int64_t i = 0; i < j->d; i++) {
        float value = (float)(sum[i] * factor);
        if (fabsf(value) < 0x1p-126f) value = 0.0f;
        if (isinf(value)) value = value < 0 ? -0x1.fffffep127f : 0x1.fffffep127f;
        out[i] = value;
    }
}

void sums_to_float(const int32_t *sums, const int32_t *exponents, int64_t n_rows, int64_t d, float *out,
                   int n_threads) {
    float_job j = {sums, exponents, d, out};
    pool_run(pool_threads(8 * n_rows * d, n_threads), n_rows, float_row, &j);
}
