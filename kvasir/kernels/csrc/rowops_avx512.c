/* Float row operations with AVX-512. */
#include "rowops_isa.h"

#include <stddef.h>

#ifdef __AVX512F__
#include "rowops_body.h"

static const rowops_isa table = ROWOPS_TABLE;
const rowops_isa *const rowops_avx512_isa = &table;
#else
const rowops_isa *const rowops_avx512_isa = NULL;
#endif
