/* Lanes of AVX2: 8 weight rows, one in each 32-bit lane. See kx1_many.h for what each function is for. */
#ifndef KX1_LANES_H
#define KX1_LANES_H

#include "kx1_block.h"

#include <immintrin.h>

typedef __m256i lanes;
enum { LANES = 8 };
#define MOST_TOKENS 4 /* that one load of weights is shared by */

/* vpmaddubsw sums two products in each 16 bits of a lane, saturating: see columns_in_a_sum in kx1_many.h. */
#define DOTS_ARE_32_BITS 0
#define CODES_ARE_UNSIGNED 0

#define LANES_SHIFT_LEFT _mm256_slli_epi16
#define LANES_SHIFT_RIGHT _mm256_srli_epi16

KX1_INLINE lanes lanes_zero(void) { return _mm256_setzero_si256(); }
KX1_INLINE lanes lanes_bytes(int byte) { return _mm256_set1_epi8((char)byte); }
KX1_INLINE lanes lanes_words(int32_t word) { return _mm256_set1_epi32(word); }
KX1_INLINE lanes lanes_load(const void *p) { return _mm256_load_si256(p); }
KX1_INLINE void lanes_store(void *p, lanes v) { _mm256_store_si256(p, v); }
KX1_INLINE lanes lanes_and(lanes a, lanes b) { return _mm256_and_si256(a, b); }
KX1_INLINE lanes lanes_or(lanes a, lanes b) { return _mm256_or_si256(a, b); }

/* 16 bytes of rows 0 and 4 at p, each in a half. */
KX1_INLINE lanes lanes_load_quarters(const uint8_t *p, int64_t row_bytes) {
    const __m128i low = _mm_loadu_si128((const void *)p);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm_loadu_si128((const void *)(p + 4 * row_bytes)), 1);
}

KX1_INLINE lanes lanes_zip_low32(lanes a, lanes b) { return _mm256_unpacklo_epi32(a, b); }
KX1_INLINE lanes lanes_zip_high32(lanes a, lanes b) { return _mm256_unpackhi_epi32(a, b); }
KX1_INLINE lanes lanes_zip_low64(lanes a, lanes b) { return _mm256_unpacklo_epi64(a, b); }
KX1_INLINE lanes lanes_zip_high64(lanes a, lanes b) { return _mm256_unpackhi_epi64(a, b); }

KX1_INLINE lanes lanes_dot(lanes sum, lanes codes, int32_t word) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, lanes_words(word)));
}
/* Signed codes: the sign moves to the activations. |-128| is 128 as an unsigned byte, and 2 * 128 * 127 < 2^15. */
KX1_INLINE lanes lanes_dot_signed(lanes sum, lanes codes, int32_t word) {
    const lanes signed_words = _mm256_sign_epi8(lanes_words(word), codes);
    const lanes pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), signed_words);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* A scale fills both 16-bit halves of its lane, so that one vpmaddwd scales both half sums and adds them. */
KX1_INLINE lanes lanes_scale_unsigned(lanes scales, int byte) {
    const int32_t pick = (byte & 255) | (byte & 255) << 16 | (int32_t)0x80008000u;
    const lanes lane = _mm256_setr_epi8(0, 0, 0, 0, 4, 0, 4, 0, 8, 0, 8, 0, 12, 0, 12, 0,
                                        0, 0, 0, 0, 4, 0, 4, 0, 8, 0, 8, 0, 12, 0, 12, 0);
    return _mm256_shuffle_epi8(scales, _mm256_add_epi8(lanes_words(pick), lane));
}
KX1_INLINE lanes lanes_scale_signed(lanes scales, int byte) {
    return _mm256_srai_epi16(_mm256_slli_epi16(lanes_scale_unsigned(scales, byte), 8), 8);
}
KX1_INLINE lanes lanes_times_multiplier(lanes scale, int32_t multiplier) {
    return _mm256_mullo_epi16(scale, _mm256_set1_epi16((short)multiplier));
}
KX1_INLINE lanes lanes_add_scaled(lanes sum, lanes dot, lanes scale) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(dot, scale));
}
KX1_INLINE lanes lanes_multiply_pairs(lanes a, kx1_pair b) { return _mm256_mullo_epi16(a, lanes_words(b)); }
KX1_INLINE lanes lanes_add_pairs(lanes sum, lanes a, kx1_pair b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, lanes_words(b)));
}
KX1_INLINE lanes lanes_high_bytes(lanes v) { return _mm256_srai_epi16(v, 8); }

/* a - 32 b */
KX1_INLINE lanes lanes_minus_32(lanes a, lanes b) { return _mm256_sub_epi32(a, _mm256_slli_epi32(b, 5)); }
KX1_INLINE lanes lanes_multiply32(lanes a, int32_t b) { return _mm256_mullo_epi32(a, lanes_words(b)); }

/* A 64-bit number for every lane: those of the even lanes, then those of the odd ones. */
typedef struct {
    __m256i even, odd;
} wide;

KX1_INLINE wide wide_load(const int64_t *p) { return (wide){lanes_load(p), lanes_load(p + 4)}; }
KX1_INLINE void wide_store(int64_t *p, wide v) {
    lanes_store(p, v.even);
    lanes_store(p + 4, v.odd);
}
KX1_INLINE wide wide_product(lanes a, lanes b) {
    return (wide){_mm256_mul_epi32(a, b), _mm256_mul_epi32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32))};
}
KX1_INLINE wide wide_add(wide a, wide b) {
    return (wide){_mm256_add_epi64(a.even, b.even), _mm256_add_epi64(a.odd, b.odd)};
}
KX1_INLINE wide wide_subtract(wide a, wide b) {
    return (wide){_mm256_sub_epi64(a.even, b.even), _mm256_sub_epi64(a.odd, b.odd)};
}

/* AVX2 has no arithmetic shift of 64 bits. A block value is less than 2^53, so with 2^62 added it is positive, and
 * 2^62 is a multiple of 2^shift; a shift of 63 gives what 62 gives, 0 or -1. */
KX1_INLINE wide wide_floor_shift(wide v, int32_t shift) {
    const int32_t amount = shift > 62 ? 62 : shift;
    const __m128i by = _mm_cvtsi32_si128(amount);
    const __m256i bias = _mm256_set1_epi64x(1ll << 62), shifted_bias = _mm256_set1_epi64x((1ll << 62) >> amount);
    return (wide){_mm256_sub_epi64(_mm256_srl_epi64(_mm256_add_epi64(v.even, bias), by), shifted_bias),
                  _mm256_sub_epi64(_mm256_srl_epi64(_mm256_add_epi64(v.odd, bias), by), shifted_bias)};
}

/* kx1_to_f32 of four sums, in 64-bit lanes. AVX2 counts no leading zeros: they are shifted out by halves. */
KX1_INLINE __m256i to_f32_four(__m256i sums, int32_t exponent) {
    const __m256i zero = _mm256_setzero_si256(), negative = _mm256_cmpgt_epi64(zero, sums);
    __m256i top = _mm256_sub_epi64(_mm256_xor_si256(sums, negative), negative);
    __m256i field = _mm256_set1_epi64x(190 + exponent - 1); /* 190 - leading zeros + exponent - 1 */
    KX1_UNROLL(6)
    for (int bits = 32; bits > 0; bits >>= 1) {
        const __m256i is_low = _mm256_cmpeq_epi64(_mm256_srl_epi64(top, _mm_cvtsi32_si128(64 - bits)), zero);
        top = _mm256_blendv_epi8(top, _mm256_sll_epi64(top, _mm_cvtsi32_si128(bits)), is_low);
        field = _mm256_sub_epi64(field, _mm256_and_si256(is_low, _mm256_set1_epi64x(bits)));
    }
    const __m256i tie = _mm256_and_si256(_mm256_srli_epi64(top, 40), _mm256_set1_epi64x(1));
    const __m256i half = _mm256_add_epi64(_mm256_set1_epi64x((1ll << 38) - 1), tie);
    const __m256i rounded = _mm256_srli_epi64(_mm256_add_epi64(_mm256_srli_epi64(top, 1), half), 39);
    const __m256i f32 = _mm256_add_epi64(_mm256_slli_epi64(field, 23), rounded), most = _mm256_set1_epi64x(0x7f7fffff);
    const __m256i is_zero = _mm256_or_si256(_mm256_cmpgt_epi64(_mm256_set1_epi64x(0x800000), f32),
                                            _mm256_cmpeq_epi64(sums, zero));
    const __m256i magnitude = _mm256_blendv_epi8(f32, most, _mm256_cmpgt_epi64(f32, most));
    const __m256i sign = _mm256_and_si256(negative, _mm256_set1_epi64x(0x80000000ll));
    return _mm256_andnot_si256(is_zero, _mm256_or_si256(magnitude, sign));
}

KX1_INLINE void wide_store_f32(wide sums, int32_t exponent, float *out) {
    const __m256i even = to_f32_four(sums.even, exponent), odd = to_f32_four(sums.odd, exponent);
    _mm256_storeu_si256((void *)out, _mm256_or_si256(even, _mm256_slli_epi64(odd, 32)));
}

/* Eight sums in order. */
KX1_INLINE void store_f32_eight(const int64_t *sums, int32_t exponent, float *out) {
    for (int r = 0; r < 8; r++) kx1_store_f32(out + r, kx1_to_f32(sums[r], exponent));
}

#endif
