/* From router logits to the chosen experts and their weights. See rowops.h. */
#include "rowops.h"

#include "pool.h"
#include "scratch.h"

#include <math.h>

#define ROWS_PER_TASK 16
#define SIGMOID_SUM_EPS 1e-20f /* what the sigmoid routers of DeepSeek and GLM add to a sum that may be tiny */

typedef struct {
    const rowops_isa *isa;
    const router_form *form;
    const float *logits;
    int64_t n;
    int64_t *expert_ids;
    float *weights;
    int error;
} route_job;

/* The place of the largest value that is not taken, the first of equals; one that is not taken in any case. */
static int64_t largest(const float *values, const char *is_taken, int64_t n) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (!is_taken[i] && (best < 0 || values[i] > values[best])) best = i;
    return best;
}

/* The sum of a group's best two, the better one first. */
static float best_two(const float *values, int64_t n) {
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (values[i] > first) {
            second = first;
            first = values[i];
        } else if (values[i] > second) second = values[i];
    }
    return first + second;
}

/* Set all values outside the best groups to -infinity. */
static void leave_groups(const router_form *form, float *ranked, float *group, char *is_taken) {
    int64_t size = form->n_expert / form->n_group;
    for (int64_t g = 0; g < form->n_group; g++) {
        group[g] = best_two(ranked + g * size, size);
        is_taken[g] = 0;
    }
    for (int64_t i = 0; i < form->n_group_used; i++) is_taken[largest(group, is_taken, form->n_group)] = 1;
    for (int64_t g = 0; g < form->n_group; g++)
        for (int64_t i = g * size; !is_taken[g] && i < (g + 1) * size; i++) ranked[i] = -INFINITY;
}

static void weigh(const router_form *form, const float *scores, const int64_t *ids, float *weights) {
    float total = 0;
    for (int64_t k = 0; k < form->n_used; k++) {
        weights[k] = scores[ids[k]];
        total = k ? total + weights[k] : weights[k];
    }
    if (form->is_sigmoid) total += SIGMOID_SUM_EPS;
    for (int64_t k = 0; k < form->n_used; k++) {
        if (form->is_normalised) weights[k] /= total;
        if (form->weights_scale != 1.0f) weights[k] *= form->weights_scale;
    }
}

/* One row; `scores` and `ranked` [n_expert], `group` [n_group] and `is_taken` [n_expert] are its working memory. */
static void route_row(const route_job *j, int64_t row, float *scores, float *ranked, float *group, char *is_taken) {
    const router_form *form = j->form;
    const float *logits = j->logits + row * form->n_expert;
    int64_t *ids = j->expert_ids + row * form->n_used;
    if (form->is_sigmoid) j->isa->sigmoid(logits, scores, form->n_expert);
    else j->isa->divide(scores, j->isa->exp_from_max(logits, scores, form->n_expert), form->n_expert);
    for (int64_t i = 0; i < form->n_expert; i++)
        ranked[i] = form->selection_bias ? scores[i] + form->selection_bias[i] : scores[i];
    if (form->n_group > 1) leave_groups(form, ranked, group, is_taken);
    for (int64_t i = 0; i < form->n_expert; i++) is_taken[i] = 0;
    for (int64_t k = 0; k < form->n_used; k++) {
        ids[k] = largest(ranked, is_taken, form->n_expert);
        is_taken[ids[k]] = 1;
    }
    weigh(form, scores, ids, j->weights + row * form->n_used);
}

static void route_rows(void *context, int64_t task) {
    route_job *j = context;
    const int64_t n_expert = j->form->n_expert, n_group = j->form->n_group;
    float *scores = scratch_take((size_t)(2 * n_expert + n_group) * sizeof(float) + (size_t)n_expert);
    if (!scores) {
        __atomic_store_n(&j->error, KV_NO_MEMORY, __ATOMIC_RELAXED);
        return;
    }
    float *ranked = scores + n_expert, *group = ranked + n_expert;
    int64_t row = task * ROWS_PER_TASK, stop = row + ROWS_PER_TASK < j->n ? row + ROWS_PER_TASK : j->n;
    for (; row < stop; row++) route_row(j, row, scores, ranked, group, (char *)(group + n_group));
    scratch_give(scores);
}

int rowops_route(const rowops_isa *isa, const router_form *form, const float *logits, int64_t n, int64_t *expert_ids,
                 float *weights, int n_threads) {
    if (form->n_group < 1 || form->n_expert < 1 || form->n_expert % form->n_group || form->n_used > form->n_expert ||
        form->n_group_used > form->n_group)
        return KV_BAD_SHAPE;
    route_job j = {isa, form, logits, n, expert_ids, weights, KV_OK};
    n_threads = pool_threads(16 * n * form->n_expert * form->n_used, n_threads);
    pool_run(n_threads, (n + ROWS_PER_TASK - 1) / ROWS_PER_TASK, route_rows, &j);
    return j.error;
}
