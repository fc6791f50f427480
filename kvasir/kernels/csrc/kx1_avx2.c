/* KX1 for x86-64 with AVX2. */
#include "kx1_sources.h"

#if defined(__AVX2__)

#include "kx1_lanes_avx2.h"
#include "kx1_quantise.h"
#include "kx1_silu.h"
#include "kx1_few_avx2.h"
#include "kx1_few.h"
#include "kx1_many.h"
#include "kx1_matmul.h"

static const kx1_isa avx2 = {"avx2", quantise_row, matmul, silu_mul};
const kx1_isa *const kx1_avx2_isa = &avx2;

#else

const kx1_isa *const kx1_avx2_isa = NULL;

#endif
