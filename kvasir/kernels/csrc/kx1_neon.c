/* This instruction set's version of KX1 is not written yet. */
#include "kx1_sources.h"

const kx1_isa *const kx1_neon_isa = NULL;
