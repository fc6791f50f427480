/* See scratch.h. The list of kept buffers is guarded by a flag that is only ever tried: a thread that finds it taken
 * goes to malloc or free instead of waiting. */
#include "scratch.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define ALIGNMENT 64

typedef struct { /* just below the bytes that the caller sees */
    void *block;
    size_t n_bytes;
} header;

static atomic_flag is_taken = ATOMIC_FLAG_INIT;
static void *kept[SCRATCH_KEPT];
static size_t kept_bytes;

static header *header_of(void *scratch) { return (header *)scratch - 1; }

static void *allocate(size_t n_bytes) {
    size_t overhead = sizeof(header) + ALIGNMENT;
    if (n_bytes > SIZE_MAX - overhead) return NULL;
    char *block = malloc(n_bytes + overhead);
    if (!block) return NULL;
    uintptr_t start = ((uintptr_t)block + overhead) & ~(uintptr_t)(ALIGNMENT - 1);
    *header_of((void *)start) = (header){block, n_bytes};
    return (void *)start;
}

static void release(void *scratch) { free(header_of(scratch)->block); }

/* The smallest kept buffer that is large enough; else NULL, and *too_small is one that may be freed for a larger. */
static void *take_kept(size_t n_bytes, void **too_small) {
    int best = -1, other = -1;
    for (int i = 0; i < SCRATCH_KEPT; i++) {
        if (!kept[i]) continue;
        size_t size = header_of(kept[i])->n_bytes;
        if (size < n_bytes) other = i;
        else if (best < 0 || size < header_of(kept[best])->n_bytes) best = i;
    }
    int taken = best >= 0 ? best : other;
    if (taken < 0) return NULL;
    void *scratch = kept[taken];
    kept[taken] = NULL;
    kept_bytes -= header_of(scratch)->n_bytes;
    if (best >= 0) return scratch;
    *too_small = scratch;
    return NULL;
}

void *scratch_take(size_t n_bytes) {
    void *scratch = NULL, *too_small = NULL;
    if (!atomic_flag_test_and_set(&is_taken)) {
        scratch = take_kept(n_bytes, &too_small);
        atomic_flag_clear(&is_taken);
    }
    if (too_small) release(too_small);
    return scratch ? scratch : allocate(n_bytes);
}

/* Whether the buffer was added to the kept ones */
static bool keep(void *scratch) {
    size_t n_bytes = header_of(scratch)->n_bytes;
    if (n_bytes > SCRATCH_KEPT_BYTES - kept_bytes) return false;
    for (int i = 0; i < SCRATCH_KEPT; i++)
        if (!kept[i]) {
            kept[i] = scratch;
            kept_bytes += n_bytes;
            return true;
        }
    return false;
}

void scratch_give(void *scratch) {
    if (!scratch) return;
    bool is_kept = false;
    if (!atomic_flag_test_and_set(&is_taken)) {
        is_kept = keep(scratch);
        atomic_flag_clear(&is_taken);
    }
    if (!is_kept) release(scratch);
}

void scratch_forget(void) {
    for (int i = 0; i < SCRATCH_KEPT; i++) kept[i] = NULL;
    kept_bytes = 0;
    atomic_flag_clear(&is_taken);
}
