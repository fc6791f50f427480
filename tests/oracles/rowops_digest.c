/* Runs every float row operation on fixed inputs and prints a digest of each result, for tests/unit/test_rowops_builds.py:
 * programs built for different machines must print the same. */
#include "rowops.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 25, WIDTH = 300, MOST = 20000 };

static float value(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state / 1073741824.0f; /* -2 to 2 */
}

static float *values(int n, uint32_t seed, float factor) {
    float *array = malloc((size_t)n * sizeof(float));
    for (int i = 0; i < n; i++) array[i] = value(&seed) * factor;
    return array;
}

static void print_digest(const char *name, const float *array, int n) {
    uint64_t hash = 1469598103934665603u;
    const unsigned char *bytes = (const unsigned char *)array;
    for (size_t i = 0; i < (size_t)n * sizeof(float); i++) hash = (hash ^ bytes[i]) * 1099511628211u;
    printf("%s %016llx\n", name, (unsigned long long)hash);
}

static void run_stateless(const rowops_isa *isa, float *out) {
    static const char *const names[] = {"exp", "sigmoid", "silu", "softplus", "silu_mul"};
    float *x = values(ROWS * WIDTH, 1, 1), *w = values(40 * WIDTH, 2, 1), *wide = values(ROWS * WIDTH, 3, 50);
    rowops_matmul(isa, x, ROWS, WIDTH, w, 40, out, 1);
    print_digest("matmul", out, ROWS * 40);
    for (int operation = ROWOPS_EXP; operation <= ROWOPS_SILU_MUL; operation++) {
        rowops_elementwise(isa, operation, wide, x, ROWS * WIDTH, out, 1);
        print_digest(names[operation], out, ROWS * WIDTH);
    }
    rowops_norm(isa, x, ROWS, WIDTH, 1.0f / WIDTH, 1e-6f, w, out, 1);
    print_digest("rms_norm", out, ROWS * WIDTH);
    rowops_combine(x, w, ROWS, 3, 100, out, 1);
    print_digest("combine", out, ROWS * 100);
}

static void run_router(const rowops_isa *isa, float *out) {
    float *logits = values(ROWS * 12, 11, 1), *bias = values(12, 12, 0.2f);
    for (int is_sigmoid = 0; is_sigmoid < 2; is_sigmoid++) {
        const router_form form = {.n_expert = 12, .n_used = 4, .n_group = is_sigmoid ? 3 : 1,
                                  .n_group_used = is_sigmoid ? 2 : 1, .is_sigmoid = is_sigmoid, .is_normalised = 1,
                                  .selection_bias = bias, .weights_scale = 1.5f};
        int64_t ids[ROWS * 4];
        if (rowops_route(isa, &form, logits, ROWS, ids, out, 1)) exit(1);
        print_digest("weights", out, ROWS * 4);
        for (int i = 0; i < ROWS * 4; i++) out[i] = (float)ids[i];
        print_digest("experts", out, ROWS * 4);
    }
}

static void run_heads(const rowops_isa *isa, float *out) {
    const segment segments[] = {{1, 0, 20, 5}, {0, 20, 5, 0}};
    float *rows = values(ROWS * 144, 13, 1), *weights = values(80, 14, 1), *turns = values(40 * 16, 15, 0.5f);
    for (int adjacent = 0; adjacent < 2; adjacent++) {
        const heads_shape shape = {.n_ctx = 40, .n_head = 4, .n_kv_head = 2, .d_head = 20, .d_value = 36,
                                   .n_query_norm = adjacent ? 20 : 80, .n_key_norm = adjacent ? 0 : 40, .d_rot = 8,
                                   .adjacent_pairs = adjacent};
        const heads_input input = {rows, rows + 7, rows + 9, weights, weights, turns, turns + 320, 1e-6f, 0.3f};
        float *keys = values(2 * 40 * 40, 5, 1), *kept = values(2 * 40 * 72, 6, 1);
        if (rowops_attend(isa, &shape, &input, keys, kept, segments, 2, out, 1)) exit(1);
        print_digest("heads", out, ROWS * 4 * 36);
        print_digest("keys", keys, 2 * 40 * 40);
        print_digest("values", kept, 2 * 40 * 72);
    }
}

static void run_stateful(const rowops_isa *isa, float *out) {
    const segment segments[] = {{1, 0, 20, 5}, {0, 20, 5, 0}};
    const attention_shape attention = {.n_ctx = 40, .n_head = 4, .n_kv_head = 2, .d_head = 20, .d_value = 36};
    const delta_shape delta = {.n_key_head = 2, .n_value_head = 4, .d_key = 24, .d_value = 40};
    float *q = values(ROWS * 80, 4, 0.3f), *keys = values(2 * 40 * 40, 5, 1), *kept = values(2 * 40 * 72, 6, 1);
    if (rowops_attention(isa, &attention, q, keys, kept, segments, 2, 0.3f, out, 1)) exit(1);
    print_digest("attention", out, ROWS * 4 * 36);
    float *state = values(2 * 3 * 100, 7, 1), *x = values(ROWS * 160, 8, 1), *gates = values(ROWS * 4, 9, 0.4f);
    rowops_conv(x, 100, keys, 4, state, segments, 2, out, 1);
    print_digest("conv", out, ROWS * 100);
    print_digest("conv state", state, 600);
    state = values(2 * 4 * 40 * 24, 10, 1);
    rowops_delta_rule(isa, &delta, q, q, x, gates, gates, state, segments, 2, out, 1);
    print_digest("delta rule", out, ROWS * 160);
    print_digest("delta state", state, 2 * 4 * 40 * 24);
}

int main(void) {
    float *out = malloc(MOST * sizeof(float));
    run_stateless(&rowops_baseline_isa, out);
    run_router(&rowops_baseline_isa, out);
    run_heads(&rowops_baseline_isa, out);
    run_stateful(&rowops_baseline_isa, out);
    return 0;
}
