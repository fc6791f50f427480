/* Lanes of WebAssembly's SIMD128: 4 weight rows, one in each 32-bit lane. See kx1_many.h for what each function is for.
 *
 * KX1_WASM_DOTS says how codes are multiplied:
 *   0   SIMD128 alone
 *   16  relaxed SIMD, sums of two products in 16 bits (one instruction on x86)
 *   32  relaxed SIMD, sums of four products added to 32 bits (one instruction on ARM and on recent x86)
 *
 * Relaxed products are exact here, on every engine: only an operand with its top bit set, or a sum beyond 16 bits, may
 * differ between engines. Codes of 0 to 63 are the operand that matters, activations -127 to 127 the other, and two
 * products are at most 2 * 63 * 127. Q8_0's codes have 8 bits, so no build multiplies them so. */
#ifndef KX1_LANES_H
#define KX1_LANES_H

#include "../kx1_block.h"

#include <wasm_simd128.h>

typedef v128_t lanes;
enum { LANES = 4 };
#define MOST_TOKENS 4 /* that one load of weights is shared by: engines for x86 have 16 registers */

#define DOTS_ARE_32_BITS (KX1_WASM_DOTS != 16)
#define CODES_ARE_UNSIGNED 0

#define LANES_SHIFT_LEFT wasm_i16x8_shl
#define LANES_SHIFT_RIGHT wasm_u16x8_shr

KX1_INLINE lanes lanes_zero(void) { return wasm_i32x4_const_splat(0); }
KX1_INLINE lanes lanes_bytes(int byte) { return wasm_i8x16_splat((int8_t)byte); }
KX1_INLINE lanes lanes_words(int32_t word) { return wasm_i32x4_splat(word); }
KX1_INLINE lanes lanes_load(const void *p) { return wasm_v128_load(p); }
KX1_INLINE void lanes_store(void *p, lanes v) { wasm_v128_store(p, v); }
KX1_INLINE lanes lanes_and(lanes a, lanes b) { return wasm_v128_and(a, b); }
KX1_INLINE lanes lanes_or(lanes a, lanes b) { return wasm_v128_or(a, b); }

KX1_INLINE lanes lanes_load_quarters(const uint8_t *p, int64_t row_bytes) {
    (void)row_bytes; /* one quarter only: the row at p */
    return lanes_load(p);
}

KX1_INLINE lanes lanes_zip_low32(lanes a, lanes b) { return wasm_i32x4_shuffle(a, b, 0, 4, 1, 5); }
KX1_INLINE lanes lanes_zip_high32(lanes a, lanes b) { return wasm_i32x4_shuffle(a, b, 2, 6, 3, 7); }
KX1_INLINE lanes lanes_zip_low64(lanes a, lanes b) { return wasm_i64x2_shuffle(a, b, 0, 2); }
KX1_INLINE lanes lanes_zip_high64(lanes a, lanes b) { return wasm_i64x2_shuffle(a, b, 1, 3); }

/* Bytes 0 and 2 of each lane, and bytes 1 and 3, as signed 16-bit numbers. */
KX1_INLINE lanes even_bytes(lanes v) { return wasm_i16x8_shr(wasm_i16x8_shl(v, 8), 8); }
KX1_INLINE lanes odd_bytes(lanes v) { return wasm_i16x8_shr(v, 8); }

/* Signed codes of 8 bits, in any build. */
KX1_INLINE lanes lanes_dot_signed(lanes sum, lanes codes, int32_t word) {
    const lanes x = lanes_words(word);
    const lanes even = wasm_i32x4_dot_i16x8(even_bytes(codes), even_bytes(x));
    return wasm_i32x4_add(sum, wasm_i32x4_add(even, wasm_i32x4_dot_i16x8(odd_bytes(codes), odd_bytes(x))));
}

#if KX1_WASM_DOTS == 16

KX1_INLINE lanes lanes_dot(lanes sum, lanes codes, int32_t word) {
    return wasm_i16x8_add(sum, wasm_i16x8_relaxed_dot_i8x16_i7x16(lanes_words(word), codes));
}
/* A scale fills both 16-bit halves of its lane, so that one multiplication scales both half sums and adds them. */
KX1_INLINE lanes lanes_in_halves(lanes v) {
    return wasm_v128_or(wasm_v128_and(v, wasm_i32x4_const_splat(0xffff)), wasm_i32x4_shl(v, 16));
}
KX1_INLINE lanes lanes_times_multiplier(lanes scale, int32_t multiplier) {
    return wasm_i16x8_mul(scale, wasm_i16x8_splat((int16_t)multiplier));
}
KX1_INLINE lanes lanes_add_scaled(lanes sum, lanes dot, lanes scale) {
    return wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(dot, scale));
}

#else

KX1_INLINE lanes lanes_dot(lanes sum, lanes codes, int32_t word) {
#if KX1_WASM_DOTS == 32
    return wasm_i32x4_relaxed_dot_i8x16_i7x16_add(lanes_words(word), codes, sum);
#else
    return lanes_dot_signed(sum, codes, word);
#endif
}
KX1_INLINE lanes lanes_in_halves(lanes v) { return v; }
KX1_INLINE lanes lanes_times_multiplier(lanes scale, int32_t multiplier) { /* the upper halves of one are 0 */
    return wasm_i32x4_dot_i16x8(scale, lanes_words(multiplier));
}
KX1_INLINE lanes lanes_add_scaled(lanes sum, lanes dot, lanes scale) {
    return wasm_i32x4_add(sum, wasm_i32x4_mul(dot, scale));
}

#endif

KX1_INLINE lanes lanes_scale_unsigned(lanes scales, int byte) {
    return lanes_in_halves(wasm_v128_and(wasm_u32x4_shr(scales, 8 * byte), wasm_i32x4_const_splat(255)));
}
KX1_INLINE lanes lanes_scale_signed(lanes scales, int byte) {
    return lanes_in_halves(wasm_i32x4_shr(wasm_i32x4_shl(scales, 24 - 8 * byte), 24));
}
KX1_INLINE lanes lanes_multiply_pairs(lanes a, kx1_pair b) { return wasm_i16x8_mul(a, lanes_words(b)); }
KX1_INLINE lanes lanes_add_pairs(lanes sum, lanes a, kx1_pair b) {
    return wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(a, lanes_words(b)));
}
KX1_INLINE lanes lanes_high_bytes(lanes v) { return wasm_i16x8_shr(v, 8); }

KX1_INLINE lanes lanes_minus_32(lanes a, lanes b) { return wasm_i32x4_sub(a, wasm_i32x4_shl(b, 5)); } /* a - 32 b */
KX1_INLINE lanes lanes_multiply32(lanes a, int32_t b) { return wasm_i32x4_mul(a, lanes_words(b)); }

/* A 64-bit number for every lane: those of the low two lanes, then those of the high two. */
typedef struct {
    lanes low, high;
} wide;

KX1_INLINE wide wide_load(const int64_t *p) { return (wide){lanes_load(p), lanes_load(p + 2)}; }
KX1_INLINE void wide_store(int64_t *p, wide v) {
    lanes_store(p, v.low);
    lanes_store(p + 2, v.high);
}
KX1_INLINE wide wide_product(lanes a, lanes b) {
    return (wide){wasm_i64x2_extmul_low_i32x4(a, b), wasm_i64x2_extmul_high_i32x4(a, b)};
}
KX1_INLINE wide wide_add(wide a, wide b) {
    return (wide){wasm_i64x2_add(a.low, b.low), wasm_i64x2_add(a.high, b.high)};
}
KX1_INLINE wide wide_subtract(wide a, wide b) {
    return (wide){wasm_i64x2_sub(a.low, b.low), wasm_i64x2_sub(a.high, b.high)};
}
KX1_INLINE wide wide_floor_shift(wide v, int32_t shift) {
    if (shift == 0) return v; /* most often, and x86 has no such instruction */
    return (wide){wasm_i64x2_shr(v.low, (uint32_t)shift), wasm_i64x2_shr(v.high, (uint32_t)shift)};
}

KX1_INLINE void wide_store_f32(wide sums, int32_t exponent, float *out) {
    int64_t in_order[LANES];
    wide_store(in_order, sums);
    for (int r = 0; r < LANES; r++) kx1_store_f32(out + r, kx1_to_f32(in_order[r], exponent));
}

#endif
