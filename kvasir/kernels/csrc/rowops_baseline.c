/* Float row operations for the least CPU of this architecture (SSE2, NEON). */
#include "rowops_body.h"

const rowops_isa rowops_baseline_isa = ROWOPS_TABLE;
