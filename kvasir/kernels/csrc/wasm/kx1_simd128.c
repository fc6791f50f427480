/* KX1 for WebAssembly with SIMD128. KX1_WASM_DOTS chooses among three versions: see kx1_lanes_simd128.h. */
#include "kx1_simd128.h"

#include "kx1_lanes_simd128.h"
#include "../kx1_quantise.h"
#include "../kx1_silu.h"
#include "kx1_few_simd128.h"
#include "../kx1_many.h"
#include "../kx1_matmul.h"

static const kx1_isa simd128 = {"simd128", quantise_row, matmul, silu_mul};
const kx1_isa *const kx1_simd128_isa = &simd128;
