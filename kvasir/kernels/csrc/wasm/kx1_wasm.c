/* What a WebAssembly build of KX1 exports: memory for the host, and one expert at a time over packed rows.
 *
 * The host is wasm_instance.js. It checks types, widths and weights; packed rows are checked here. All addresses and
 * sizes are 32 bits wide, so that the host needs no BigInt. An instance runs on one thread. */
#include "kx1_simd128.h"

#include "../kx1_block.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT(name) __attribute__((export_name(name)))

enum { ALIGNMENT = 64 };

typedef struct {
    int32_t type, exponent;
    const uint8_t *weights;
} matrix;

/* As the host writes it: eleven words. */
typedef struct {
    int32_t d_model, d_ff;
    matrix gate, up, down;
} expert;

/* Working memory for n rows */
typedef struct {
    kx1_block *x, *h_blocks;
    int32_t *x_scale, *h_scale;
    float *gate, *up;
    size_t n_bytes;
} work;

static size_t place(size_t *end, size_t n_bytes) {
    const size_t start = *end;
    *end += (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return start;
}

static work work_at(uint8_t *memory, int32_t d_model, int32_t d_ff, int32_t n) {
    const size_t rows = (size_t)n;
    size_t end = 0;
    work w;
    w.x = (kx1_block *)(memory + place(&end, rows * (size_t)(d_model / KX1_BLOCK) * kx1_block_size()));
    w.h_blocks = (kx1_block *)(memory + place(&end, rows * (size_t)(d_ff / KX1_BLOCK) * kx1_block_size()));
    w.x_scale = (int32_t *)(memory + place(&end, rows * sizeof(int32_t)));
    w.h_scale = (int32_t *)(memory + place(&end, rows * sizeof(int32_t)));
    w.gate = (float *)(memory + place(&end, rows * (size_t)d_ff * sizeof(float)));
    w.up = (float *)(memory + place(&end, rows * (size_t)d_ff * sizeof(float)));
    w.n_bytes = end;
    return w;
}

/* NULL when memory is out. */
EXPORT("allocate") void *kx1_wasm_allocate(uint32_t n_bytes) {
    if (n_bytes > UINT32_MAX - ALIGNMENT) return NULL;
    return aligned_alloc(ALIGNMENT, (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

EXPORT("release") void kx1_wasm_release(void *memory) { free(memory); }

EXPORT("weight_exponent")
int32_t kx1_wasm_weight_exponent(int32_t type, const uint8_t *weights, int32_t rows, int32_t cols) {
    return kx1_weight_exponent(type, weights, rows, cols);
}

EXPORT("work_bytes") uint32_t kx1_wasm_work_bytes(int32_t d_model, int32_t d_ff, int32_t n) {
    return (uint32_t)work_at(NULL, d_model, d_ff, n).n_bytes;
}

/* f32 rows to packed ones: 0, or -1 when a value is not finite. */
EXPORT("pack_rows") int32_t kx1_wasm_pack_rows(const float *rows, int32_t n, int32_t cols, uint8_t *packed) {
    for (int32_t t = 0; t < n; t++) {
        const int error = kx1_pack(rows + t * cols, cols, packed + t * (cols / KX1_BLOCK) * KX1_PACKED_BLOCK);
        if (error) return error;
    }
    return 0;
}

static void multiply(const matrix *m, int32_t n_out, int32_t cols, const kx1_block *x, const int32_t *scale, int32_t n,
                     float *out) {
    kx1_simd128_isa->matmul(m->type, m->weights, 0, n_out, cols, m->exponent, x, scale, n, out, n_out);
}

/* Steps 2 to 4 of n packed rows with one matrix: out [n, n_out]. Returns as compute_expert does. */
EXPORT("compute_matrix")
int32_t kx1_wasm_compute_matrix(const matrix *m, int32_t n_out, int32_t cols, const uint8_t *rows, int32_t n,
                                uint8_t *memory, float *out) {
    const work w = work_at(memory, cols, 0, n);
    for (int32_t t = 0; t < n; t++) {
        const uint8_t *packed = rows + t * (cols / KX1_BLOCK) * KX1_PACKED_BLOCK;
        const int error = kx1_unpack(packed, cols, w.x + t, n, w.x_scale + t);
        if (error) return error;
    }
    multiply(m, n_out, cols, w.x, w.x_scale, n, out);
    return 0;
}

/* out[t] = the expert of packed row t. `memory` has work_bytes. Returns 0, -1 for a code of -128, or -2 for a
 * multiplier of 0. */
EXPORT("compute_expert")
int32_t kx1_wasm_compute_expert(const expert *e, const uint8_t *rows, int32_t n, uint8_t *memory, float *out) {
    const work w = work_at(memory, e->d_model, e->d_ff, n);
    const int32_t row_bytes = e->d_model / KX1_BLOCK * KX1_PACKED_BLOCK;
    for (int32_t t = 0; t < n; t++) {
        const int error = kx1_unpack(rows + t * row_bytes, e->d_model, w.x + t, n, w.x_scale + t);
        if (error) return error;
    }
    multiply(&e->gate, e->d_ff, e->d_model, w.x, w.x_scale, n, w.gate);
    multiply(&e->up, e->d_ff, e->d_model, w.x, w.x_scale, n, w.up);
    kx1_simd128_isa->silu_mul(w.gate, w.up, w.gate, (int64_t)n * e->d_ff);
    for (int32_t t = 0; t < n; t++)
        w.h_scale[t] = kx1_simd128_isa->quantise(w.gate + t * e->d_ff, e->d_ff, w.h_blocks + t, n);
    multiply(&e->down, e->d_model, e->d_ff, w.h_blocks, w.h_scale, n, out);
    return 0;
}

EXPORT("silu_mul") void kx1_wasm_silu_mul(const float *gate, const float *up, float *h, int32_t n) {
    kx1_simd128_isa->silu_mul(gate, up, h, n);
}
