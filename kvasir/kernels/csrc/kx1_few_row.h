/* An activation row laid out for kx1_few.h, and the 256-bit pieces that AVX2 and AVX-512 share there. */
#ifndef KX1_FEW_ROW_H
#define KX1_FEW_ROW_H

#include "kx1_block.h"

#include <immintrin.h>

/* The blocks of a row, followed by the first ones again: any eight from a block of the row on lie side by side. */
enum { FEW_BLOCKS = KX1_MAX_BLOCKS + 8, FEW_VALUES = 8 * KX1_MAX_BLOCKS };

typedef struct {
    alignas(64) int8_t code[FEW_BLOCKS][KX1_BLOCK];
    alignas(64) kx1_pair sum16[FEW_BLOCKS][8];
    alignas(64) kx1_pair multiplier16[FEW_BLOCKS][8];
    alignas(64) kx1_pair sum32[FEW_BLOCKS][4];
    alignas(64) kx1_pair multiplier32[FEW_BLOCKS][4];
    alignas(64) int32_t multiplier[FEW_BLOCKS][8];
    alignas(64) int32_t shift[FEW_BLOCKS];
} few_row;

/* `order` says which sub-block of 32 codes comes where. */
static void few_row_fill(few_row *row, const kx1_block *x, int64_t n_blocks, int64_t stride, const uint8_t *order) {
    for (int64_t i = 0; i < n_blocks + 7; i++) {
        const kx1_block *block = x + i % n_blocks * stride;
        for (int j = 0; j < 8; j++) memcpy(row->code[i] + 32 * j, block->code + 32 * order[j], 32);
        memcpy(row->sum16[i], block->sum16, sizeof row->sum16[i]);
        memcpy(row->multiplier16[i], block->multiplier16, sizeof row->multiplier16[i]);
        memcpy(row->sum32[i], block->sum32, sizeof row->sum32[i]);
        memcpy(row->multiplier32[i], block->multiplier32, sizeof row->multiplier32[i]);
        memcpy(row->multiplier[i], block->multiplier, sizeof row->multiplier[i]);
        row->shift[i] = block->shift;
    }
}

/* Stops the compiler from moving loads of one quant block across another's. */
#define KEEP_FILE_ORDER() __asm__ volatile("" ::: "memory")

KX1_INLINE __m128i load128(const void *p) { return _mm_loadu_si128(p); }
KX1_INLINE __m256i load256(const void *p) { return _mm256_loadu_si256(p); }

/* The eight 6-bit scales of a Q4_K or Q5_K block, from its first 16 bytes, as 16-bit numbers. */
KX1_INLINE __m128i six_bit_scales(__m128i header) {
    const __m128i first = _mm_setr_epi8(4, -1, 5, -1, 6, -1, 7, -1, 12, -1, 13, -1, 14, -1, 15, -1);
    const __m128i upper = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 4, -1, 5, -1, 6, -1, 7, -1);
    const __m128i mask = _mm_setr_epi16(63, 63, 63, 63, 15, 15, 15, 15);
    const __m128i two = _mm_and_si128(_mm_srli_epi16(_mm_shuffle_epi8(header, upper), 2), _mm_set1_epi16(48));
    return _mm_or_si128(_mm_and_si128(_mm_shuffle_epi8(header, first), mask), two);
}

/* The sixteen scales of a Q6_K block as 16-bit numbers, in the order of sum16: even ones, then odd ones. So the two
 * scales of 32 codes are at the same place of either 128-bit half. */
KX1_INLINE __m256i q6_scales(const uint8_t *scales) {
    const __m128i even_odd = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(load128(scales), even_odd));
}

/* The half-precision scales at the end of eight Q6_K blocks. */
KX1_INLINE __m256i q6_halves(const uint8_t *w) {
    __m128i h = _mm_cvtsi32_si128(kx1_read16(w + 208));
    h = _mm_insert_epi16(h, kx1_read16(w + 208 + 210), 1);
    h = _mm_insert_epi16(h, kx1_read16(w + 208 + 2 * 210), 2);
    h = _mm_insert_epi16(h, kx1_read16(w + 208 + 3 * 210), 3);
    h = _mm_insert_epi16(h, kx1_read16(w + 208 + 4 * 210), 4);
    h = _mm_insert_epi16(h, kx1_read16(w + 208 + 5 * 210), 5);
    h = _mm_insert_epi16(h, kx1_read16(w + 208 + 6 * 210), 6);
    h = _mm_insert_epi16(h, kx1_read16(w + 208 + 7 * 210), 7);
    return _mm256_cvtepu16_epi32(h);
}

/* kx1_scale of eight halves in 32-bit lanes. A variable shift of 32 and more gives 0 by itself. */
KX1_INLINE __m256i scales_of_eight(__m256i halves, int32_t ew) {
    const __m256i exponent = _mm256_and_si256(_mm256_srli_epi32(halves, 10), _mm256_set1_epi32(31));
    const __m256i is_normal = _mm256_cmpgt_epi32(exponent, _mm256_setzero_si256()); /* -1 or 0 */
    const __m256i mantissa = _mm256_or_si256(_mm256_and_si256(halves, _mm256_set1_epi32(1023)),
                                             _mm256_and_si256(is_normal, _mm256_set1_epi32(1024)));
    const __m256i shift = _mm256_sub_epi32(_mm256_set1_epi32(ew), _mm256_add_epi32(exponent, is_normal));
    const __m256i magnitude = _mm256_srlv_epi32(_mm256_slli_epi32(mantissa, 10), shift);
    return _mm256_sign_epi32(magnitude, _mm256_or_si256(_mm256_slli_epi32(halves, 16), _mm256_set1_epi32(1)));
}

/* Eight vectors to a vector of their sums. */
KX1_INLINE __m256i sums_of_eight256(const __m256i *v) {
    const __m256i low = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    const __m256i high = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
}

KX1_INLINE __m256i odd_words(__m256i v) { return _mm256_srli_epi64(v, 32); }

/* Eight Q8_0 block groups of 256: here a lane is one of the eight scales of the same 256 weights. */
KX1_INLINE void few_blocks_q8(const uint8_t *w, int32_t ew, const few_row *row, int64_t block, const int n_tokens,
                              int64_t *value) {
    for (int i = 0; i < 8; i++, w += 272) {
        const int64_t b = block + i;
        alignas(32) int32_t halves[8];
        __m256i dot[2][8];
        KX1_UNROLL(8)
        for (int j = 0; j < 8; j++) {
            const __m256i codes = load256(w + 34 * j + 2), magnitude = _mm256_abs_epi8(codes);
            halves[j] = kx1_read16(w + 34 * j);
            KX1_UNROLL(2)
            for (int t = 0; t < n_tokens; t++) {
                const __m256i x = _mm256_sign_epi8(load256(row[t].code[b] + 32 * j), codes);
                dot[t][j] = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, x), _mm256_set1_epi16(1));
            }
        }
        const __m256i d = scales_of_eight(_mm256_load_si256((const void *)halves), ew);
        for (int t = 0; t < n_tokens; t++) {
            const __m256i s = _mm256_mullo_epi32(sums_of_eight256(dot[t]), load256(row[t].multiplier[b]));
            const __m256i products = _mm256_add_epi64(_mm256_mul_epi32(d, s),
                                                      _mm256_mul_epi32(odd_words(d), odd_words(s)));
            const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(products), _mm256_extracti128_si256(products, 1));
            value[t * FEW_VALUES + i] = (_mm_cvtsi128_si64(two) + _mm_extract_epi64(two, 1)) >> row[t].shift[b];
        }
    }
}

#endif
