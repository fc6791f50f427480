/* What each instruction set's source offers to kx1.c: its table, or NULL when it was compiled without its flags. */
#ifndef KX1_SOURCES_H
#define KX1_SOURCES_H

#include "kx1.h"

extern const kx1_isa *const kx1_scalar_isa;
extern const kx1_isa *const kx1_avx2_isa;
extern const kx1_isa *const kx1_avx512_isa;
extern const kx1_isa *const kx1_neon_isa;
extern const kx1_isa *const kx1_dotprod_isa;

/* The reference mat-mul: the vector versions use it for the rows that do not fill their lanes. */
void kx1_scalar_matmul(int type, const uint8_t *weights, int64_t row_start, int64_t row_stop, int64_t cols, int32_t ew,
                       const kx1_block *x, const int32_t *kt, int64_t n, float *out, int64_t ld_out);

#endif
