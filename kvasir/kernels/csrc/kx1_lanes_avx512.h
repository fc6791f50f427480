/* Lanes of AVX-512 with VNNI: 16 weight rows, one in each 32-bit lane. See kx1_many.h for what each function is for. */
#ifndef KX1_LANES_H
#define KX1_LANES_H

#include "kx1_block.h"

#include <immintrin.h>

typedef __m512i lanes;
enum { LANES = 16 };
#define MOST_TOKENS 8 /* that one load of weights is shared by */

/* vpdpbusd sums its products in 32 bits; its second operand is signed, its first unsigned. */
#define DOTS_ARE_32_BITS 1
#define CODES_ARE_UNSIGNED 1

#define LANES_SHIFT_LEFT _mm512_slli_epi16
#define LANES_SHIFT_RIGHT _mm512_srli_epi16

KX1_INLINE lanes lanes_zero(void) { return _mm512_setzero_si512(); }
KX1_INLINE lanes lanes_bytes(int byte) { return _mm512_set1_epi8((char)byte); }
KX1_INLINE lanes lanes_words(int32_t word) { return _mm512_set1_epi32(word); }
KX1_INLINE lanes lanes_load(const void *p) { return _mm512_load_si512(p); }
KX1_INLINE void lanes_store(void *p, lanes v) { _mm512_store_si512(p, v); }
KX1_INLINE lanes lanes_and(lanes a, lanes b) { return _mm512_and_si512(a, b); }
KX1_INLINE lanes lanes_or(lanes a, lanes b) { return _mm512_or_si512(a, b); }
KX1_INLINE lanes lanes_xor(lanes a, lanes b) { return _mm512_xor_si512(a, b); }

/* 16 bytes of rows 0, 4, 8 and 12 at p, each in a quarter. */
KX1_INLINE lanes lanes_load_quarters(const uint8_t *p, int64_t row_bytes) {
    lanes v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)p));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + 4 * row_bytes)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + 8 * row_bytes)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + 12 * row_bytes)), 3);
}

KX1_INLINE lanes lanes_zip_low32(lanes a, lanes b) { return _mm512_unpacklo_epi32(a, b); }
KX1_INLINE lanes lanes_zip_high32(lanes a, lanes b) { return _mm512_unpackhi_epi32(a, b); }
KX1_INLINE lanes lanes_zip_low64(lanes a, lanes b) { return _mm512_unpacklo_epi64(a, b); }
KX1_INLINE lanes lanes_zip_high64(lanes a, lanes b) { return _mm512_unpackhi_epi64(a, b); }

KX1_INLINE lanes lanes_dot(lanes sum, lanes codes, int32_t word) {
    return _mm512_dpbusd_epi32(sum, codes, lanes_words(word));
}
KX1_INLINE lanes lanes_dot_signed(lanes sum, lanes codes, int32_t word) { return lanes_dot(sum, codes, word); }

KX1_INLINE lanes lanes_scale_unsigned(lanes scales, int byte) {
    return lanes_and(_mm512_srlv_epi32(scales, lanes_words(8 * byte)), lanes_words(255));
}
KX1_INLINE lanes lanes_scale_signed(lanes scales, int byte) {
    return _mm512_srai_epi32(_mm512_sllv_epi32(scales, lanes_words(24 - 8 * byte)), 24);
}
KX1_INLINE lanes lanes_times_multiplier(lanes scale, int32_t multiplier) {
    return _mm512_madd_epi16(scale, lanes_words(multiplier)); /* one cycle where a 32-bit product takes two */
}
KX1_INLINE lanes lanes_add_scaled(lanes sum, lanes dot, lanes scale) {
    return _mm512_add_epi32(sum, _mm512_mullo_epi32(dot, scale));
}
KX1_INLINE lanes lanes_multiply_pairs(lanes a, kx1_pair b) { return _mm512_mullo_epi16(a, lanes_words(b)); }
KX1_INLINE lanes lanes_add_pairs(lanes sum, lanes a, kx1_pair b) {
    return _mm512_dpwssd_epi32(sum, a, lanes_words(b));
}
KX1_INLINE lanes lanes_high_bytes(lanes v) { return _mm512_srai_epi16(v, 8); }

/* a - 32 b */
KX1_INLINE lanes lanes_minus_32(lanes a, lanes b) { return _mm512_sub_epi32(a, _mm512_slli_epi32(b, 5)); }
KX1_INLINE lanes lanes_multiply32(lanes a, int32_t b) { return _mm512_mullo_epi32(a, lanes_words(b)); }

/* A 64-bit number for every lane: those of the even lanes, then those of the odd ones. */
typedef struct {
    __m512i even, odd;
} wide;

KX1_INLINE wide wide_load(const int64_t *p) { return (wide){_mm512_load_si512(p), _mm512_load_si512(p + 8)}; }
KX1_INLINE void wide_store(int64_t *p, wide v) {
    _mm512_store_si512(p, v.even);
    _mm512_store_si512(p + 8, v.odd);
}
KX1_INLINE wide wide_product(lanes a, lanes b) {
    return (wide){_mm512_mul_epi32(a, b), _mm512_mul_epi32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32))};
}
KX1_INLINE wide wide_add(wide a, wide b) {
    return (wide){_mm512_add_epi64(a.even, b.even), _mm512_add_epi64(a.odd, b.odd)};
}
KX1_INLINE wide wide_subtract(wide a, wide b) {
    return (wide){_mm512_sub_epi64(a.even, b.even), _mm512_sub_epi64(a.odd, b.odd)};
}
KX1_INLINE wide wide_floor_shift(wide v, int32_t shift) {
    const __m128i by = _mm_cvtsi32_si128(shift);
    return (wide){_mm512_sra_epi64(v.even, by), _mm512_sra_epi64(v.odd, by)};
}

/* kx1_to_f32 of eight sums, in 64-bit lanes. */
KX1_INLINE __m512i to_f32_eight(__m512i sums, int32_t exponent) {
    const __m512i least = _mm512_set1_epi64(0x800000), most = _mm512_set1_epi64(0x7f7fffff);
    const __m512i magnitude = _mm512_abs_epi64(sums), lead = _mm512_lzcnt_epi64(magnitude);
    const __m512i top = _mm512_sllv_epi64(magnitude, lead);
    const __m512i tie = _mm512_and_si512(_mm512_srli_epi64(top, 40), _mm512_set1_epi64(1));
    const __m512i half = _mm512_add_epi64(_mm512_set1_epi64((1ll << 38) - 1), tie);
    const __m512i rounded = _mm512_srli_epi64(_mm512_add_epi64(_mm512_srli_epi64(top, 1), half), 39);
    const __m512i field = _mm512_sub_epi64(_mm512_set1_epi64(190 + exponent - 1), lead);
    const __m512i bits = _mm512_add_epi64(_mm512_slli_epi64(field, 23), rounded);
    const __mmask8 is_number = _mm512_cmpge_epi64_mask(bits, least) & _mm512_test_epi64_mask(sums, sums);
    const __m512i sign = _mm512_slli_epi64(_mm512_srli_epi64(sums, 63), 31);
    return _mm512_maskz_or_epi64(is_number, _mm512_min_epi64(bits, most), sign);
}

KX1_INLINE void wide_store_f32(wide sums, int32_t exponent, float *out) {
    const __m512i even = to_f32_eight(sums.even, exponent), odd = to_f32_eight(sums.odd, exponent);
    _mm512_storeu_si512(out, _mm512_or_si512(even, _mm512_slli_epi64(odd, 32)));
}

/* Eight sums in order. */
KX1_INLINE void store_f32_eight(const int64_t *sums, int32_t exponent, float *out) {
    const __m512i bits = to_f32_eight(_mm512_loadu_si512(sums), exponent);
    _mm256_storeu_si256((void *)out, _mm512_cvtepi64_epi32(bits));
}

#endif
