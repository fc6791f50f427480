/* See pool.h. One job at a time: its owner posts it by opening `state`, helpers join it while it is open, and the
 * owner closes it and waits only for those that have joined, never for helpers that have not woken up. */
#define _POSIX_C_SOURCE 200809L
#include "pool.h"

#include "scratch.h"

#include <stdatomic.h>
#include <stdbool.h>

int64_t pool_tile(int64_t n_rows, int64_t n_groups, int n_threads) {
    if (n_threads <= 1) return n_rows;
    int64_t tiles_per_group = (4 * (int64_t)n_threads + n_groups - 1) / n_groups;
    int64_t tile = (n_rows / tiles_per_group + 15) / 16 * 16;
    return tile < 32 ? 32 : tile;
}

int pool_threads(int64_t n_products, int n_threads) { return n_products < 1000000 ? 1 : n_threads; }

#ifndef _WIN32
#include <pthread.h>
#include <signal.h>
#include <time.h>

#define SPIN_NS 20000
#define HELPER_STACK_BYTES (1 << 20)

/* state: the job's number in the high bits, then whether it may be joined, then how many helpers have joined */
#define JOINED_MASK 0xffffu
#define OPEN 0x10000u
#define NEXT_JOB 0x20000u

static struct {
    atomic_flag is_busy;
    atomic_uint_fast64_t state;
    pool_task task;
    void *context;
    int64_t n_tasks;
    atomic_int max_helpers;
    atomic_int_fast64_t next_task;
    atomic_int n_sleeping;
    atomic_bool owner_sleeps;
    pthread_mutex_t lock;
    pthread_cond_t job_posted, job_left;
    atomic_int n_helpers; /* written by the owner alone */
} pool = {.is_busy = ATOMIC_FLAG_INIT,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .job_posted = PTHREAD_COND_INITIALIZER,
          .job_left = PTHREAD_COND_INITIALIZER};

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static uint_fast64_t job_of(uint_fast64_t state) { return state & ~(uint_fast64_t)(NEXT_JOB - 1); }

/* A helper joins a job once: coming back to one whose last tasks still run would be spinning on other threads. */
static bool is_joinable(uint_fast64_t state, uint_fast64_t served_job) {
    return (state & OPEN) && job_of(state) != served_job && (int)(state & JOINED_MASK) < atomic_load(&pool.max_helpers);
}

static bool is_left(uint_fast64_t state, uint_fast64_t unused) {
    (void)unused;
    return (state & JOINED_MASK) == 0;
}

/* Wait for a short while until `wanted(state, job)`; false when it did not happen. */
static bool spin_until(bool (*wanted)(uint_fast64_t, uint_fast64_t), uint_fast64_t job) {
    int64_t deadline = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 64; i++) {
            if (wanted(atomic_load(&pool.state), job)) return true;
            pause_briefly();
        }
    } while (now_ns() < deadline);
    return false;
}

static void run_tasks(pool_task task, void *context, int64_t n_tasks) {
    int64_t i;
    while ((i = atomic_fetch_add(&pool.next_task, 1)) < n_tasks) task(context, i);
}

/* Joins the posted job, and says in *served_job which one it was; false when there is none to join. */
static bool join_job(uint_fast64_t *served_job) {
    uint_fast64_t state = atomic_load(&pool.state);
    while (is_joinable(state, *served_job))
        if (atomic_compare_exchange_weak(&pool.state, &state, state + 1)) {
            *served_job = job_of(state);
            return true;
        }
    return false;
}

static void leave_job(void) {
    atomic_fetch_sub(&pool.state, 1);
    if (!atomic_load(&pool.owner_sleeps)) return;
    pthread_mutex_lock(&pool.lock);
    pthread_cond_signal(&pool.job_left);
    pthread_mutex_unlock(&pool.lock);
}

static void sleep_until_posted(uint_fast64_t served_job) {
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.n_sleeping, 1);
    while (!is_joinable(atomic_load(&pool.state), served_job)) pthread_cond_wait(&pool.job_posted, &pool.lock);
    atomic_fetch_sub(&pool.n_sleeping, 1);
    pthread_mutex_unlock(&pool.lock);
}

static void *helper_main(void *unused) {
    (void)unused;
    for (uint_fast64_t served_job = 0;;) {
        if (!spin_until(is_joinable, served_job)) sleep_until_posted(served_job);
        if (!join_job(&served_job)) continue;
        run_tasks(pool.task, pool.context, pool.n_tasks);
        leave_job();
    }
    return NULL;
}

/* Only the thread that called fork() lives on in the child, so everything may be set back. */
static void forget_in_child(void) {
    atomic_flag_clear(&pool.is_busy);
    atomic_store(&pool.state, 0);
    atomic_store(&pool.n_sleeping, 0);
    atomic_store(&pool.n_helpers, 0);
    atomic_store(&pool.owner_sleeps, false);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.job_posted, NULL);
    pthread_cond_init(&pool.job_left, NULL);
    scratch_forget();
}

/* Signals stay with the program's own threads. */
static void create_helpers(int wanted) {
    static bool handles_fork;
    if (!handles_fork) handles_fork = pthread_atfork(NULL, NULL, forget_in_child) == 0;
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, HELPER_STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (pthread_t thread; atomic_load(&pool.n_helpers) < wanted; atomic_fetch_add(&pool.n_helpers, 1))
        if (pthread_create(&thread, &attributes, helper_main, NULL)) break;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

static void post_job(void) {
    atomic_store(&pool.next_task, 0);
    atomic_store(&pool.state, job_of(atomic_load(&pool.state)) + NEXT_JOB + OPEN);
    int max_helpers = atomic_load(&pool.max_helpers), n_sleeping = atomic_load(&pool.n_sleeping);
    if (!n_sleeping) return;
    pthread_mutex_lock(&pool.lock);
    if (n_sleeping <= max_helpers) pthread_cond_broadcast(&pool.job_posted);
    else
        for (int i = 0; i < max_helpers; i++) pthread_cond_signal(&pool.job_posted);
    pthread_mutex_unlock(&pool.lock);
}

static void close_job(void) {
    atomic_fetch_and(&pool.state, ~(uint_fast64_t)OPEN);
    if (spin_until(is_left, 0)) return;
    pthread_mutex_lock(&pool.lock);
    atomic_store(&pool.owner_sleeps, true);
    while (!is_left(atomic_load(&pool.state), 0)) pthread_cond_wait(&pool.job_left, &pool.lock);
    atomic_store(&pool.owner_sleeps, false);
    pthread_mutex_unlock(&pool.lock);
}

void pool_run(int n_threads, int64_t n_tasks, pool_task task, void *context) {
    int wanted = (n_threads < POOL_MAX_THREADS ? n_threads : POOL_MAX_THREADS) - 1;
    if (wanted >= n_tasks) wanted = (int)n_tasks - 1;
    if (wanted <= 0 || atomic_flag_test_and_set(&pool.is_busy)) {
        for (int64_t i = 0; i < n_tasks; i++) task(context, i);
        return;
    }
    if (atomic_load(&pool.n_helpers) < wanted) create_helpers(wanted);
    pool.task = task;
    pool.context = context;
    pool.n_tasks = n_tasks;
    atomic_store(&pool.max_helpers, wanted);
    post_job();
    run_tasks(task, context, n_tasks);
    close_job();
    atomic_flag_clear(&pool.is_busy);
}

int pool_n_helpers(void) { return atomic_load(&pool.n_helpers); }

#else /* Windows: no pthreads in the toolchains that build this; every call runs on its own thread. */

void pool_run(int n_threads, int64_t n_tasks, pool_task task, void *context) {
    (void)n_threads;
    for (int64_t i = 0; i < n_tasks; i++) task(context, i);
}

int pool_n_helpers(void) { return 0; }

#endif
