/* Eight quant blocks for one or two rows with AVX2: see kx1_few.h. */
#ifndef KX1_FEW_AVX2_H
#define KX1_FEW_AVX2_H

#include "kx1_few_row.h"

KX1_INLINE const uint8_t *few_code_order(int type) {
    static const uint8_t in_order[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    (void)type;
    return in_order;
}

/* The same 16 bits of either half, in all places. */
KX1_INLINE __m256i word_in_halves(__m256i words, int i) {
    return _mm256_shuffle_epi8(words, _mm256_set1_epi16((short)(2 * i | (2 * i + 1) << 8)));
}

KX1_INLINE __m256i two_loads128(const void *low, const void *high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(low)), load128(high), 1);
}

KX1_INLINE __m256i add_scaled(__m256i sum, __m256i dot, __m256i scale) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(dot, scale));
}

KX1_INLINE __m256i moved_to_bit4_256(__m256i v, int bit) {
    switch (bit) {
    case 0: return _mm256_slli_epi16(v, 4);
    case 1: return _mm256_slli_epi16(v, 3);
    case 2: return _mm256_slli_epi16(v, 2);
    case 3: return _mm256_slli_epi16(v, 1);
    case 4: return v;
    case 5: return _mm256_srli_epi16(v, 1);
    case 6: return _mm256_srli_epi16(v, 2);
    default: return _mm256_srli_epi16(v, 3);
    }
}

/* Arithmetic shift of 64-bit lanes, each by its own amount, which AVX2 lacks. */
KX1_INLINE __m256i floor_shift_each(__m256i v, __m256i shift) {
    const __m256i sign = _mm256_srlv_epi64(_mm256_set1_epi64x((long long)0x8000000000000000ull), shift);
    return _mm256_sub_epi64(_mm256_xor_si256(_mm256_srlv_epi64(v, shift), sign), sign);
}

/* value = (d * scaled - dmin * offset) >> shift in eight 32-bit lanes; the 64-bit products of even and odd lanes. */
KX1_INLINE void store_values(__m256i d, __m256i scaled, __m256i dmin, __m256i offset, const int32_t *shift,
                             int64_t *value) {
    const __m256i shifts = load256(shift), low_words = _mm256_set1_epi64x(0xffffffff);
    __m256i even = _mm256_mul_epi32(d, scaled), odd = _mm256_mul_epi32(odd_words(d), odd_words(scaled));
    even = _mm256_sub_epi64(even, _mm256_mul_epi32(dmin, offset));
    odd = _mm256_sub_epi64(odd, _mm256_mul_epi32(odd_words(dmin), odd_words(offset)));
    even = floor_shift_each(even, _mm256_and_si256(shifts, low_words));
    odd = floor_shift_each(odd, odd_words(shifts));
    const __m256i low = _mm256_unpacklo_epi64(even, odd), high = _mm256_unpackhi_epi64(even, odd);
    _mm256_storeu_si256((void *)value, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256((void *)(value + 4), _mm256_permute2x128_si256(low, high, 0x31));
}

/* The 6-bit minimums of two blocks' headers in the order of sum32: 0, 2, 1, 3, 4, 6, 5, 7. */
KX1_INLINE __m256i six_bit_minimums(__m256i headers) {
    const __m256i first = _mm256_broadcastsi128_si256( /* high bytes, so that a high product is a right shift */
        _mm_setr_epi8(-1, 8, -1, 10, -1, 9, -1, 11, 12, -1, 14, -1, 13, -1, 15, -1));
    const __m256i upper = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 8, -1, 10, -1, 9, -1, 11, -1));
    const __m256i factor = _mm256_broadcastsi128_si256(_mm_setr_epi16(256, 256, 256, 256, 4096, 4096, 4096, 4096));
    const __m256i mask = _mm256_broadcastsi128_si256(_mm_setr_epi16(63, 63, 63, 63, 15, 15, 15, 15));
    const __m256i four = _mm256_and_si256(_mm256_mulhi_epu16(_mm256_shuffle_epi8(headers, first), factor), mask);
    const __m256i two = _mm256_srli_epi16(_mm256_shuffle_epi8(headers, upper), 2);
    return _mm256_or_si256(four, _mm256_and_si256(two, _mm256_set1_epi16(48)));
}

KX1_INLINE void few_blocks_q45(const uint8_t *w, const bool five_bits, int32_t ew, const few_row *row, int64_t block,
                               const int n_tokens, int64_t *value) {
    const int64_t block_bytes = five_bits ? 176 : 144;
    const __m256i nibble = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16);
    __m256i scaled[2][8], offset[2][4], headers[4];
    KX1_UNROLL(8)
    for (int i = 0; i < 8; i++) {
        KEEP_FILE_ORDER();
        const uint8_t *q = w + block_bytes * i, *low = q + (five_bits ? 48 : 16);
        const int64_t b = block + i;
        const __m128i scale = six_bit_scales(load128(q));
        const __m256i high = five_bits ? load256(q + 16) : nibble;
        __m256i scales[2], first[2], second[2];
        for (int t = 0; t < n_tokens; t++) {
            scales[t] = _mm256_broadcastsi128_si256(_mm_mullo_epi16(scale, load128(row[t].multiplier16[b])));
            first[t] = second[t] = _mm256_setzero_si256();
        }
        KX1_UNROLL(4)
        for (int m = 0; m < 4; m++) { /* sub-blocks 2m and 2m + 1 */
            const __m256i v = load256(low + 32 * m);
            __m256i a = _mm256_and_si256(v, nibble), c = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
            if (five_bits) {
                a = _mm256_or_si256(a, _mm256_and_si256(moved_to_bit4_256(high, 2 * m), fifth));
                c = _mm256_or_si256(c, _mm256_and_si256(moved_to_bit4_256(high, 2 * m + 1), fifth));
            }
            KX1_UNROLL(2)
            for (int t = 0; t < n_tokens; t++) {
                const int8_t *x = row[t].code[b] + 64 * m;
                const __m256i dot = _mm256_maddubs_epi16(a, load256(x));
                const __m256i dot2 = _mm256_maddubs_epi16(c, load256(x + 32));
                first[t] = add_scaled(first[t], dot, word_in_halves(scales[t], 2 * m));
                second[t] = add_scaled(second[t], dot2, word_in_halves(scales[t], 2 * m + 1));
            }
        }
        for (int t = 0; t < n_tokens; t++) scaled[t][i] = _mm256_add_epi32(first[t], second[t]);
    }
    KX1_UNROLL(4)
    for (int i = 0; i < 4; i++) { /* minimums, two blocks at a time; their headers are in the cache now */
        headers[i] = two_loads128(w + 2 * i * block_bytes, w + (2 * i + 1) * block_bytes);
        const __m256i minimums = six_bit_minimums(headers[i]);
        for (int t = 0; t < n_tokens; t++) {
            const __m256i m = _mm256_mullo_epi16(minimums, load256(row[t].multiplier32[block + 2 * i]));
            offset[t][i] = _mm256_madd_epi16(m, load256(row[t].sum32[block + 2 * i]));
        }
    }
    /* Lanes hold blocks 0 2 4 6 1 3 5 7 after the additions of neighbours below. */
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i low_words = _mm256_unpacklo_epi64(_mm256_unpacklo_epi32(headers[0], headers[1]),
                                                    _mm256_unpacklo_epi32(headers[2], headers[3]));
    const __m256i halves = _mm256_permutevar8x32_epi32(low_words, in_order);
    const __m256i d = scales_of_eight(_mm256_and_si256(halves, _mm256_set1_epi32(0xffff)), ew);
    const __m256i dmin = scales_of_eight(_mm256_srli_epi32(halves, 16), ew);
    for (int t = 0; t < n_tokens; t++) {
        const __m256i sums = _mm256_hadd_epi32(_mm256_hadd_epi32(offset[t][0], offset[t][1]),
                                               _mm256_hadd_epi32(offset[t][2], offset[t][3]));
        store_values(d, sums_of_eight256(scaled[t]), dmin, _mm256_permutevar8x32_epi32(sums, in_order),
                     row[t].shift + block, value + t * FEW_VALUES);
    }
}

KX1_INLINE void few_blocks_q6(const uint8_t *w, int32_t ew, const few_row *row, int64_t block, const int n_tokens,
                              int64_t *value) {
    const __m256i nibble = _mm256_set1_epi8(15), upper = _mm256_set1_epi8(48), zero = _mm256_setzero_si256();
    __m256i scaled[2][8];
    KX1_UNROLL(8)
    for (int i = 0; i < 8; i++) {
        KEEP_FILE_ORDER();
        const uint8_t *q = w + 210 * i;
        const int64_t b = block + i;
        const __m256i low[4] = {load256(q), load256(q + 32), load256(q + 64), load256(q + 96)};
        const __m256i high[2] = {load256(q + 128), load256(q + 160)}, scale = q6_scales(q + 192);
        __m256i scales[2], sum[2];
        for (int t = 0; t < n_tokens; t++) { /* start with the offset of -32 */
            scales[t] = _mm256_mullo_epi16(scale, load256(row[t].multiplier16[b]));
            const __m256i offset = _mm256_madd_epi16(scales[t], load256(row[t].sum16[b]));
            sum[t] = _mm256_sub_epi32(zero, _mm256_slli_epi32(offset, 5));
        }
        KX1_UNROLL(8)
        for (int k = 0; k < 8; k++) { /* 32 codes: group k % 4 of half k / 4 */
            const __m256i bytes = low[2 * (k / 4) + k % 2];
            const __m256i four = _mm256_and_si256(k % 4 < 2 ? bytes : _mm256_srli_epi16(bytes, 4), nibble);
            const __m256i two = _mm256_and_si256(moved_to_bit4_256(high[k / 4], 2 * (k % 4)), upper);
            const __m256i codes = _mm256_or_si256(four, two);
            KX1_UNROLL(2)
            for (int t = 0; t < n_tokens; t++) {
                const __m256i dot = _mm256_maddubs_epi16(codes, load256(row[t].code[b] + 32 * k));
                sum[t] = add_scaled(sum[t], dot, word_in_halves(scales[t], k));
            }
        }
        for (int t = 0; t < n_tokens; t++) scaled[t][i] = sum[t];
    }
    const __m256i d = scales_of_eight(q6_halves(w), ew);
    for (int t = 0; t < n_tokens; t++)
        store_values(d, sums_of_eight256(scaled[t]), zero, zero, row[t].shift + block, value + t * FEW_VALUES);
}

#endif
