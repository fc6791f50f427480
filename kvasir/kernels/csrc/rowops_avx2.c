/* Float row operations with AVX2. */
#include "rowops_isa.h"

#include <stddef.h>

#ifdef __AVX2__
#include "rowops_body.h"

static const rowops_isa table = ROWOPS_TABLE;
const rowops_isa *const rowops_avx2_isa = &table;
#else
const rowops_isa *const rowops_avx2_isa = NULL;
#endif
