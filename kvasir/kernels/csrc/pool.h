/* The one thread pool of this library.
 *
 * Helpers spin for a few microseconds and then sleep; nobody ever spins for longer than that on another thread, so a
 * machine with fewer free cores than threads gets slower, but does not collapse. The helpers of a process are made
 * when first wanted and live until it ends. A forked child starts with none and makes its own. */
#ifndef KV_POOL_H
#define KV_POOL_H

#include <stdint.h>

#define POOL_MAX_THREADS 256

typedef void (*pool_task)(void *context, int64_t task);

/* Call task(context, i) once for each 0 <= i < n_tasks, on the calling thread and up to n_threads - 1 helpers, and
 * return when all are done. Tasks start in ascending order and must not depend on each other.
 *
 * Safe to call from several threads at once and from inside a task: the pool serves one call at a time, and a call
 * that finds it busy runs its tasks on its own thread alone. n_threads <= 1 never creates a thread. */
void pool_run(int n_threads, int64_t n_tasks, pool_task task, void *context);

/* Rows that one task should take, so that `n_threads` threads get several tasks each of `n_groups` groups of `n_rows`
 * rows: a multiple of 16, at least 32; all rows when there is one thread. */
int64_t pool_tile(int64_t n_rows, int64_t n_groups, int n_threads);

/* 1 for work of so few multiplications that waking another thread costs more than it gains, else n_threads. */
int pool_threads(int64_t n_products, int n_threads);

/* Helper threads that exist in this process now. */
int pool_n_helpers(void);

#endif
