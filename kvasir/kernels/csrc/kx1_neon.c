/* KX1 for any aarch64: NEON without the dot product instructions. */
#include "kx1_sources.h"

#if defined(__aarch64__) && !defined(__ARM_FEATURE_DOTPROD)

#include "kx1_lanes_neon.h"
#include "kx1_quantise.h"
#include "kx1_silu.h"
#include "kx1_few_neon.h"
#include "kx1_many.h"
#include "kx1_matmul.h"

static const kx1_isa neon = {"neon", quantise_row, matmul, silu_mul};
const kx1_isa *const kx1_neon_isa = &neon;

#else

const kx1_isa *const kx1_neon_isa = NULL;

#endif
