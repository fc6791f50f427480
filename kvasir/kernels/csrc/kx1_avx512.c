/* KX1 for x86-64 with AVX-512 and VNNI. */
#include "kx1_sources.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512CD__) && defined(__AVX512DQ__) &&                 \
    defined(__AVX512VL__) && defined(__AVX512VNNI__)

#include "kx1_lanes_avx512.h"
#include "kx1_quantise.h"
#include "kx1_silu.h"
#include "kx1_few_avx512.h"
#include "kx1_few.h"
#include "kx1_many.h"
#include "kx1_matmul.h"

static const kx1_isa avx512 = {"avx512", quantise_row, matmul, silu_mul};
const kx1_isa *const kx1_avx512_isa = &avx512;

#else

const kx1_isa *const kx1_avx512_isa = NULL;

#endif
