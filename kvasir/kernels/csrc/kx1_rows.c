/* The packed form in which rows travel: 261 bytes per 256 values, without loss. Reads f32 rows and writes packed ones
 * for the sender; checks and unpacks for the kernel. Never trusts a byte that came from elsewhere. And what a prepared
 * row leaves of the row that it was made of. */
#include "kx1_block.h"

enum { PACKED_MULTIPLIERS = KX1_BLOCK, PACKED_EXPONENT = KX1_BLOCK + 4, EXPONENT_BASE = 13 };

static bool is_finite(const float *row, int64_t cols) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < cols; i++) {
        uint32_t bits;
        memcpy(&bits, row + i, sizeof bits);
        bad |= (uint32_t)((bits & 0x7f800000) == 0x7f800000);
    }
    return !bad;
}

int kx1_pack(const float *row, int64_t cols, uint8_t *packed) {
    const kx1_isa *isa = kx1_isa_best();
    if (!is_finite(row, cols)) return -1;
    for (int64_t b = 0; b < cols / KX1_BLOCK; b++, packed += KX1_PACKED_BLOCK) {
        kx1_block x;
        isa->quantise(row + b * KX1_BLOCK, KX1_BLOCK, &x, 1);
        memcpy(packed, x.code, KX1_BLOCK);
        for (int j = 0; j < 4; j++)
            packed[PACKED_MULTIPLIERS + j] = (uint8_t)(x.multiplier[2 * j] | x.multiplier[2 * j + 1] << 4);
        packed[PACKED_EXPONENT] = (uint8_t)(x.exponent ? x.exponent - EXPONENT_BASE : 0);
    }
    return 0;
}

/* Every exponent byte is possible: 0 for a block of zeros, else kb - 13 with kb from 14 to 268. A code of -128 or a
 * multiplier of 0 is not, and the sums of step 3 depend on it. */
int kx1_unpack(const uint8_t *packed, int64_t cols, kx1_block *x, int64_t stride, int32_t *kt) {
    const int64_t n_blocks = cols / KX1_BLOCK;
    int32_t largest = 0;
    for (int64_t b = 0; b < n_blocks; b++, packed += KX1_PACKED_BLOCK) {
        kx1_block *const block = x + b * stride;
        uint32_t bad = 0;
        memcpy(block->code, packed, KX1_BLOCK);
        for (int i = 0; i < KX1_BLOCK; i++) bad |= (uint32_t)(packed[i] == 0x80);
        if (bad) return -1;
        for (int j = 0; j < 8; j++) {
            block->multiplier[j] = packed[PACKED_MULTIPLIERS + j / 2] >> 4 * (j % 2) & 15;
            bad |= (uint32_t)(block->multiplier[j] == 0);
        }
        if (bad) return -2;
        const int32_t exponent = packed[PACKED_EXPONENT];
        block->exponent = exponent ? exponent + EXPONENT_BASE : 0;
        kx1_block_sums(block);
        largest = block->exponent > largest ? block->exponent : largest;
    }
    kx1_row_shifts(x, n_blocks, stride, largest);
    *kt = largest;
    return 0;
}

/* 2^(kb - 150) as a double, in which q * a * 2^(kb - 150) and its distance from an f32 value are exact but for values
 * far below the block's largest. (In f32 the product may exceed the largest value.) */
static double unit_of(int32_t exponent) {
    const uint64_t bits = (uint64_t)(exponent - 150 + 1023) << 52;
    double unit;
    memcpy(&unit, &bits, sizeof unit);
    return unit;
}

void kx1_residual(const float *row, int64_t cols, const kx1_block *x, int64_t stride, float *residual) {
    for (int64_t b = 0; b < cols / KX1_BLOCK; b++, row += KX1_BLOCK, residual += KX1_BLOCK) {
        const kx1_block *const block = x + b * stride;
        const double unit = unit_of(block->exponent);
        for (int j = 0; j < 8; j++) {
            const double step = unit * block->multiplier[j];
            for (int i = 32 * j; i < 32 * j + 32; i++) residual[i] = (float)(row[i] - step * block->code[i]);
        }
    }
}
