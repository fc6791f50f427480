/* Eight quant blocks for one or two rows with AVX-512 and VNNI: see kx1_few.h.
 *
 * Half the instructions of the AVX2 form, so that the core sees further ahead into memory. A vpdpbusd sums four
 * products: 4 * 63 * 127 fits in 16 bits, so two of them are packed and scaled by one vpdpwssd. */
#ifndef KX1_FEW_AVX512_H
#define KX1_FEW_AVX512_H

#include "kx1_few_row.h"

/* 64 bytes of Q4_K or Q5_K hold sub-blocks 0 and 2 in their low nibbles, 1 and 3 in the high ones. */
KX1_INLINE const uint8_t *few_code_order(int type) {
    static const uint8_t in_order[8] = {0, 1, 2, 3, 4, 5, 6, 7}, by_nibble[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    return type == KX1_Q4_K || type == KX1_Q5_K ? by_nibble : in_order;
}

KX1_INLINE __m512i load512(const void *p) { return _mm512_loadu_si512(p); }
KX1_INLINE __m512i in_quarters(__m128i v) { return _mm512_broadcast_i32x4(v); }

/* (a & mask) | b */
KX1_INLINE __m512i masked_or(__m512i a, __m512i mask, __m512i b) {
    return _mm512_ternarylogic_epi32(a, mask, b, 0xea);
}

KX1_INLINE __m512i two_halves(__m256i low, __m256i high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* 32 dot products of four codes each, as 16-bit numbers: each quarter has four of `low`, then four of `high`. */
KX1_INLINE __m512i packed_dots(__m512i low, __m512i high, const int8_t *x) {
    const __m512i zero = _mm512_setzero_si512();
    return _mm512_packs_epi32(_mm512_dpbusd_epi32(zero, low, load512(x)),
                              _mm512_dpbusd_epi32(zero, high, load512(x + 64)));
}

/* For a quarter: its 8 words are the word at `low` four times, then the word at `high` four times. */
KX1_INLINE __m128i words_for_quarter(int low, int high) {
    const short a = (short)(2 * low | (2 * low + 1) << 8), b = (short)(2 * high | (2 * high + 1) << 8);
    return _mm_setr_epi16(a, a, a, a, b, b, b, b);
}

KX1_INLINE __m512i add_neighbours32(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

KX1_INLINE __m512i add_neighbours64(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* Eight vectors to a vector of their sums. */
KX1_INLINE __m256i sums_of_eight512(const __m512i *v) {
    const __m512i low = add_neighbours64(add_neighbours32(v[0], v[1]), add_neighbours32(v[2], v[3]));
    const __m512i high = add_neighbours64(add_neighbours32(v[4], v[5]), add_neighbours32(v[6], v[7]));
    __m512i sum = _mm512_add_epi32(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xdd));
    sum = _mm512_shuffle_i32x4(sum, sum, 0xd8);
    return _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
}

/* value = (d * scaled - dmin * offset) >> shift in eight lanes. */
KX1_INLINE void store_values(__m256i d, __m256i scaled, __m256i dmin, __m256i offset, const int32_t *shift,
                             int64_t *value) {
    const __m512i product = _mm512_mul_epi32(_mm512_cvtepu32_epi64(d), _mm512_cvtepu32_epi64(scaled));
    const __m512i product2 = _mm512_mul_epi32(_mm512_cvtepu32_epi64(dmin), _mm512_cvtepu32_epi64(offset));
    const __m512i v = _mm512_sub_epi64(product, product2);
    _mm512_storeu_si512(value, _mm512_srav_epi64(v, _mm512_cvtepu32_epi64(load256(shift))));
}

/* 16 bytes of four blocks, each in a quarter. */
KX1_INLINE __m512i four_headers(const uint8_t *w, int64_t block_bytes) {
    __m512i v = _mm512_castsi128_si512(load128(w));
    v = _mm512_inserti32x4(v, load128(w + block_bytes), 1);
    v = _mm512_inserti32x4(v, load128(w + 2 * block_bytes), 2);
    return _mm512_inserti32x4(v, load128(w + 3 * block_bytes), 3);
}

/* The 6-bit minimums of four headers in the order of sum32: 0, 2, 1, 3, 4, 6, 5, 7. */
KX1_INLINE __m512i six_bit_minimums(__m512i headers) {
    const __m512i first = in_quarters(_mm_setr_epi8(8, -1, 10, -1, 9, -1, 11, -1, 12, -1, 14, -1, 13, -1, 15, -1));
    const __m512i upper = in_quarters(_mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 8, -1, 10, -1, 9, -1, 11, -1));
    const __m512i shift = in_quarters(_mm_setr_epi16(0, 0, 0, 0, 4, 4, 4, 4));
    const __m512i mask = in_quarters(_mm_setr_epi16(63, 63, 63, 63, 15, 15, 15, 15));
    const __m512i four = _mm512_and_si512(_mm512_srlv_epi16(_mm512_shuffle_epi8(headers, first), shift), mask);
    return masked_or(_mm512_srli_epi16(_mm512_shuffle_epi8(headers, upper), 2), _mm512_set1_epi16(48), four);
}

/* The fifth bits of half a Q5_K block at bit 4: of the sub-blocks in low nibbles, or of those in high ones. `high` has
 * the bits of sub-block j at bit j of each byte, in both halves. */
KX1_INLINE __m512i fifth_bits(__m512i high, int half, int is_high_nibble) {
    const int bit = 4 * half + is_high_nibble, up = 4 - bit, down = bit - 4; /* and two bits on in the upper half */
    if (half == 0)
        return _mm512_sllv_epi16(high, two_halves(_mm256_set1_epi16((short)up), _mm256_set1_epi16((short)(up - 2))));
    return _mm512_srlv_epi16(high, two_halves(_mm256_set1_epi16((short)down), _mm256_set1_epi16((short)(down + 2))));
}

KX1_INLINE void few_blocks_q45(const uint8_t *w, const bool five_bits, int32_t ew, const few_row *row, int64_t block,
                               const int n_tokens, int64_t *value) {
    const int64_t block_bytes = five_bits ? 176 : 144;
    const __m512i nibble = _mm512_set1_epi8(15), fifth = _mm512_set1_epi8(16);
    __m512i scaled[2][8], offset[2][2], headers[2];
    KX1_UNROLL(8)
    for (int i = 0; i < 8; i++) {
        KEEP_FILE_ORDER();
        const uint8_t *q = w + block_bytes * i, *bytes = q + (five_bits ? 48 : 16);
        const int64_t b = block + i;
        const __m128i scale = six_bit_scales(load128(q));
        const __m512i high = five_bits ? _mm512_broadcast_i64x4(load256(q + 16)) : nibble;
        __m512i scales[2];
        for (int t = 0; t < n_tokens; t++)
            scales[t] = in_quarters(_mm_mullo_epi16(scale, load128(row[t].multiplier16[b])));
        KX1_UNROLL(2)
        for (int h = 0; h < 2; h++) { /* sub-blocks 4h to 4h + 3 */
            const __m512i v = load512(bytes + 64 * h);
            __m512i low = _mm512_and_si512(v, nibble), upper = _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble);
            if (five_bits) {
                low = masked_or(fifth_bits(high, h, 0), fifth, low);
                upper = masked_or(fifth_bits(high, h, 1), fifth, upper);
            }
            const __m256i first = _mm256_broadcastsi128_si256(words_for_quarter(4 * h, 4 * h + 1));
            const __m256i second = _mm256_broadcastsi128_si256(words_for_quarter(4 * h + 2, 4 * h + 3));
            const __m512i pick = two_halves(first, second);
            KX1_UNROLL(2)
            for (int t = 0; t < n_tokens; t++) {
                const __m512i dots = packed_dots(low, upper, row[t].code[b] + 128 * h);
                const __m512i factor = _mm512_shuffle_epi8(scales[t], pick);
                scaled[t][i] = h ? _mm512_dpwssd_epi32(scaled[t][i], dots, factor) : _mm512_madd_epi16(dots, factor);
            }
        }
    }
    for (int i = 0; i < 2; i++) { /* minimums, four blocks at a time; their headers are in the cache now */
        headers[i] = four_headers(w + 4 * i * block_bytes, block_bytes);
        const __m512i minimums = six_bit_minimums(headers[i]);
        for (int t = 0; t < n_tokens; t++) {
            const __m512i m = _mm512_mullo_epi16(minimums, load512(row[t].multiplier32[block + 4 * i]));
            offset[t][i] = _mm512_madd_epi16(m, load512(row[t].sum32[block + 4 * i]));
        }
    }
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i sum_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m256i halves = _mm512_castsi512_si256(_mm512_permutex2var_epi32(headers[0], firsts, headers[1]));
    const __m256i d = scales_of_eight(_mm256_and_si256(halves, _mm256_set1_epi32(0xffff)), ew);
    const __m256i dmin = scales_of_eight(_mm256_srli_epi32(halves, 16), ew);
    for (int t = 0; t < n_tokens; t++) {
        __m512i sum = add_neighbours32(offset[t][0], offset[t][1]);
        sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, 0x4e));
        const __m256i offsets = _mm512_castsi512_si256(_mm512_permutexvar_epi32(sum_order, sum));
        store_values(d, sums_of_eight512(scaled[t]), dmin, offsets, row[t].shift + block, value + t * FEW_VALUES);
    }
}

KX1_INLINE void few_blocks_q6(const uint8_t *w, int32_t ew, const few_row *row, int64_t block, const int n_tokens,
                              int64_t *value) {
    const __m512i nibble = _mm512_set1_epi8(15), upper = _mm512_set1_epi8(48);
    /* The high bits of groups 0 and 1 go up by 4 and 2, those of groups 2 and 3 down by 0 and 2. */
    const __m512i up = two_halves(_mm256_set1_epi16(4), _mm256_set1_epi16(2));
    const __m512i down = two_halves(_mm256_setzero_si256(), _mm256_set1_epi16(2));
    /* Scale 2g + p of group g is word g + 8p (see q6_scales). Quarters: groups 0 and 2 with p = 0, then 1; 1 and 3. */
    const __m512i pick = _mm512_set_epi16(11, 11, 11, 11, 9, 9, 9, 9, 3, 3, 3, 3, 1, 1, 1, 1,
                                          10, 10, 10, 10, 8, 8, 8, 8, 2, 2, 2, 2, 0, 0, 0, 0);
    const __m512i pick2 = _mm512_add_epi16(pick, _mm512_set1_epi16(4));
    const __m256i zero = _mm256_setzero_si256();
    __m512i scaled[2][8];
    KX1_UNROLL(8)
    for (int i = 0; i < 8; i++) {
        KEEP_FILE_ORDER();
        const uint8_t *q = w + 210 * i;
        const int64_t b = block + i;
        const __m512i low[2] = {load512(q), load512(q + 64)};
        __m512i dots[2][2];
        KX1_UNROLL(2)
        for (int h = 0; h < 2; h++) { /* 128 codes */
            const __m512i high = _mm512_broadcast_i64x4(load256(q + 128 + 32 * h));
            const __m512i first = masked_or(_mm512_sllv_epi16(high, up), upper, _mm512_and_si512(low[h], nibble));
            const __m512i second = masked_or(_mm512_srlv_epi16(high, down), upper,
                                             _mm512_and_si512(_mm512_srli_epi16(low[h], 4), nibble));
            KX1_UNROLL(2)
            for (int t = 0; t < n_tokens; t++) dots[t][h] = packed_dots(first, second, row[t].code[b] + 128 * h);
        }
        const __m256i scale = q6_scales(q + 192);
        for (int t = 0; t < n_tokens; t++) { /* start with the offset of -32 */
            const __m256i scales = _mm256_mullo_epi16(scale, load256(row[t].multiplier16[b]));
            const __m256i offset = _mm256_slli_epi32(_mm256_madd_epi16(scales, load256(row[t].sum16[b])), 5);
            const __m512i wide = _mm512_castsi256_si512(scales);
            __m512i sum = _mm512_zextsi256_si512(_mm256_sub_epi32(zero, offset));
            sum = _mm512_dpwssd_epi32(sum, dots[t][0], _mm512_permutexvar_epi16(pick, wide));
            scaled[t][i] = _mm512_dpwssd_epi32(sum, dots[t][1], _mm512_permutexvar_epi16(pick2, wide));
        }
    }
    const __m256i d = scales_of_eight(q6_halves(w), ew);
    for (int t = 0; t < n_tokens; t++)
        store_values(d, sums_of_eight512(scaled[t]), zero, zero, row[t].shift + block, value + t * FEW_VALUES);
}

#endif
