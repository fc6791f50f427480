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
    rowops_softmax(isa, x, ROWS, WIDTH, out, 1);
    print_digest("softmax", out, ROWS * WIDTH);
    for (int adjacent = 0; adjacent < 2; adjacent++) {
        rowops_rope(x, ROWS, 3, 100, w, w + 1000, 20, adjacent, out, 1);
        print_digest("rope", out, ROWS * WIDTH);
    }
    rowops_combine(x, w, ROWS, 3, 100, out, 1);
    print_digest("combine", out, ROWS * 100);
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
    run_stateful(&rowops_baseline_isa, out);
    return 0;
}
