/* Working memory that calls hand on to each other, so that a call does not map and clear fresh pages each time. */
#ifndef KV_SCRATCH_H
#define KV_SCRATCH_H

#include <stddef.h>

/* Buffers of finished calls that are kept: at most SCRATCH_KEPT of at most SCRATCH_KEPT_BYTES together. */
#define SCRATCH_KEPT 8
#define SCRATCH_KEPT_BYTES ((size_t)72 << 20)

/* At least n_bytes, 64-byte aligned, with any content; NULL when memory is out. Any thread may call. */
void *scratch_take(size_t n_bytes);
void scratch_give(void *scratch); /* NULL is allowed */

/* After fork(), in the child: forget what other threads may have been changing. */
void scratch_forget(void);

#endif
