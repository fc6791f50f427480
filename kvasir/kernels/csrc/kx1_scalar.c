/* KX1 in plain C: the reference that every other version must equal, to the bit, and what runs where no vector
 * version does. Written for reading, not for speed.
 *
 * Bit budget (what makes overflow impossible for any file bytes and any finite row). |code| <= 127, multiplier <= 15.
 *   Q4_K  S <= 8 sub-blocks * 63 * 15 * (32 * 15 * 127)  = 4.6e8
 *   Q5_K  S <= 8 sub-blocks * 63 * 15 * (32 * 31 * 127)  = 9.6e8; codes have 5 bits, scales and minimums 6 as in Q4_K
 *   both  T <= 8 sub-blocks * 63 * 15 * (32 * 127)       = 3.1e7
 *   Q6_K  S <= 16 sub-blocks * 128 * 15 * (16 * 32 * 127) = 2.0e9 < 2^31
 *   Q8_0  multiplier * dot <= 15 * (32 * 128 * 127)       = 7.8e6 a sub-block, of 8
 * so S and T fit in 32 bits. A scale is less than 2^21, a block value less than 4.2e15 (Q6_K; Q5_K 2.1e15), and the
 * sum of the 64 blocks of the widest row less than 2.7e17 < 2^62. */
#include "kx1_quantise.h"
#include "kx1_silu.h"
#include "kx1_sources.h"

/* The 6-bit scale and minimum of sub-block j in the 12 bytes that Q4_K and Q5_K share. */
static int32_t scale6(const uint8_t *s, int j) {
    return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
}

static int32_t minimum6(const uint8_t *s, int j) {
    return j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

/* Value i of sub-block j. Bytes hold the low bits of sub-blocks 2m and 2m + 1; the fifth bits of all are in `high`. */
static int32_t code4(const uint8_t *low, int j, int i) {
    const uint8_t byte = low[32 * (j / 2) + i];
    return j % 2 ? byte >> 4 : byte & 15;
}

static int32_t code5(const uint8_t *low, const uint8_t *high, int j, int i) {
    return code4(low, j, i) | (high[i] >> j & 1) << 4;
}

/* Value k of a Q6_K block: two halves of 128, each four groups of 32 with their low four bits in 64 bytes (groups 0
 * and 1 in low nibbles, 2 and 3 in high ones) and their high two bits in 32 bytes. */
static int32_t code6(const uint8_t *low, const uint8_t *high, int k) {
    const int half = k / 128, group = k % 128 / 32, i = k % 32;
    const uint8_t byte = low[64 * half + 32 * (group % 2) + i];
    return ((group < 2 ? byte & 15 : byte >> 4) | (high[32 * half + i] >> 2 * group & 3) << 4) - 32;
}

/* d[2] dmin[2] scales[12] {high[32] in Q5_K} low[128] */
static int64_t block_value_q45(const uint8_t *w, bool five_bits, int32_t ew, const kx1_block *x) {
    const uint8_t *high = w + 16, *low = five_bits ? w + 48 : w + 16;
    int32_t scaled = 0, offset = 0;
    for (int j = 0; j < 8; j++) {
        int32_t dot = 0, sum = 0;
        for (int i = 0; i < 32; i++) {
            const int32_t code = x->code[32 * j + i];
            dot += (five_bits ? code5(low, high, j, i) : code4(low, j, i)) * code;
            sum += code;
        }
        scaled += scale6(w + 4, j) * x->multiplier[j] * dot;
        offset += minimum6(w + 4, j) * x->multiplier[j] * sum;
    }
    return (int64_t)kx1_scale(kx1_read16(w), ew) * scaled - (int64_t)kx1_scale(kx1_read16(w + 2), ew) * offset;
}

/* low[128] high[64] scales[16] d[2] */
static int64_t block_value_q6(const uint8_t *w, int32_t ew, const kx1_block *x) {
    int32_t scaled = 0;
    for (int j = 0; j < 16; j++) {
        int32_t dot = 0;
        for (int i = 0; i < 16; i++) dot += code6(w, w + 128, 16 * j + i) * x->code[16 * j + i];
        scaled += (int8_t)w[192 + j] * x->multiplier[j / 2] * dot;
    }
    return (int64_t)kx1_scale(kx1_read16(w + 208), ew) * scaled;
}

/* eight times d[2] codes[32] */
static int64_t block_value_q8(const uint8_t *w, int32_t ew, const kx1_block *x) {
    int64_t value = 0;
    for (int j = 0; j < 8; j++, w += 34) {
        int32_t dot = 0;
        for (int i = 0; i < 32; i++) dot += (int8_t)w[2 + i] * x->code[32 * j + i];
        value += (int64_t)kx1_scale(kx1_read16(w), ew) * (x->multiplier[j] * dot);
    }
    return value;
}

/* Step 3: the value of one block of weights and one of activations. */
static int64_t block_value(int type, const uint8_t *w, int32_t ew, const kx1_block *x) {
    switch (type) {
    case KX1_Q4_K: return block_value_q45(w, false, ew, x);
    case KX1_Q5_K: return block_value_q45(w, true, ew, x);
    case KX1_Q6_K: return block_value_q6(w, ew, x);
    default: return block_value_q8(w, ew, x);
    }
}

/* The shift is arithmetic (floor), on complete blocks only: floor is not additive. C leaves >> of negative numbers to
 * the compiler; kx1.c refuses to compile where it is not arithmetic. */
void kx1_scalar_matmul(int type, const uint8_t *weights, int64_t row_start, int64_t row_stop, int64_t cols, int32_t ew,
                       const kx1_block *x, const int32_t *kt, int64_t n, float *out, int64_t ld_out) {
    const int64_t n_blocks = cols / KX1_BLOCK, block_bytes = kx1_row_bytes(type, KX1_BLOCK);
    for (int64_t t = 0; t < n; t++) {
        for (int64_t r = row_start; r < row_stop; r++) {
            const uint8_t *row = weights + r * n_blocks * block_bytes;
            int64_t sum = 0;
            for (int64_t b = 0; b < n_blocks; b++) {
                const kx1_block *block = x + b * n + t;
                sum += block_value(type, row + b * block_bytes, ew, block) >> block->shift;
            }
            kx1_store_f32(out + t * ld_out + r, kx1_to_f32(sum, kx1_output_exponent(ew, kt[t])));
        }
    }
}

static void silu_mul(const float *gate, const float *up, float *h, int64_t n) {
    silu_mul_row(gate, up, h, n, divide_integer);
}

static const kx1_isa scalar = {"scalar", quantise_row, kx1_scalar_matmul, silu_mul};
const kx1_isa *const kx1_scalar_isa = &scalar;
