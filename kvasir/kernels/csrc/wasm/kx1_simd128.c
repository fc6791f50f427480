/* KX1 for WebAssembly with SIMD128. KX1_WASM_DOTS chooses among three versions: see kx1_lanes_simd128.h.
 *
 * WebAssembly has no prefetch. Many rows are therefore multiplied by one group of weight rows at a time: many_matmul
 * first reads what it is given strictly forwards, which the processor's own prefetcher follows. */
#include "kx1_simd128.h"

#include "kx1_lanes_simd128.h"
#include "../kx1_quantise.h"
#include "../kx1_silu.h"
#include "kx1_few_simd128.h"
#include "../kx1_many.h"

static void matmul(int type, const uint8_t *weights, int64_t row_start, int64_t row_stop, int64_t cols, int32_t ew,
                   const kx1_block *x, const int32_t *kt, int64_t n, float *out, int64_t ld_out) {
    const int64_t n_blocks = cols / KX1_BLOCK, full = row_stop - (row_stop - row_start) % LANES;
    if (n <= MOST_FEW_TOKENS) {
        few_matmul(type, weights, row_start, row_stop, n_blocks, ew, x, kt, n, out, ld_out);
        return;
    }
    for (int64_t r = row_start; r < full; r += LANES)
        many_matmul(type, weights, r, r + LANES, n_blocks, ew, x, kt, n, out, ld_out);
    if (full < row_stop) kx1_scalar_matmul(type, weights, full, row_stop, cols, ew, x, kt, n, out, ld_out);
}

static void silu_mul(const float *gate, const float *up, float *h, int64_t n) {
    silu_mul_row(gate, up, h, n, divide_f64);
}

static const kx1_isa simd128 = {"simd128", quantise_row, matmul, silu_mul};
const kx1_isa *const kx1_simd128_isa = &simd128;
