/* The one version that a WebAssembly build of KX1 runs. */
#ifndef KX1_SIMD128_H
#define KX1_SIMD128_H

#include "../kx1.h"

extern const kx1_isa *const kx1_simd128_isa;

#endif
