/* Replays recorded KX1 cases with every version that the machine can run, and compares bits.
 *
 * Linked with csrc/kx1*.c, however they were compiled (other optimisation, sanitizers, another architecture under an
 * emulator). The file of cases is written by tests/oracles/kx1_replay.py: the numbers are little-endian int64, then the
 * arrays. Weights lie between two pages that cannot be read, so a read past either end kills the process. */
#define _DEFAULT_SOURCE
#include "kx1.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MATMUL = 0, SILU_MUL = 1 };

static void fail(const char *version, const char *what, int64_t number) {
    printf("%s: case %lld: %s\n", version, (long long)number, what);
    exit(1);
}

static void *allocate(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == NULL) exit(2);
    return p;
}

static void *read_array(FILE *file, size_t bytes) {
    void *p = malloc(bytes);
    if (p == NULL || fread(p, 1, bytes, file) != bytes) exit(2);
    return p;
}

static int64_t read_number(FILE *file) {
    int64_t number;
    if (fread(&number, sizeof number, 1, file) != 1) exit(2);
    return number;
}

/* A copy of the bytes that ends where a page ends (or starts where one starts), beside pages without access. */
static uint8_t *guarded_copy(const uint8_t *bytes, size_t n, int at_end) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (n + page - 1) / page * page;
    uint8_t *all = mmap(NULL, inner + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) exit(2);
    uint8_t *copy = all + page + (at_end ? inner - n : 0);
    memcpy(copy, bytes, n);
    if (mprotect(all, page, PROT_NONE) || mprotect(all + page + inner, page, PROT_NONE)) exit(2);
    return copy;
}

typedef struct {
    int type;
    int32_t ew;
    int64_t number, n_out, cols, n;
    const uint8_t *weights;
    const float *rows, *expected; /* [n, cols], [n, n_out] */
    const uint8_t *packed;        /* [n, cols / 256 * 261] */
} matmul_case;

/* Compare the mat-mul of rows first to first + n - 1, prepared from f32 and from packed rows. */
static void replay_rows(const kx1_isa *isa, const matmul_case *c, int64_t first, int64_t n) {
    const size_t n_blocks = (size_t)(c->cols / KX1_BLOCK), packed_bytes = n_blocks * KX1_PACKED_BLOCK;
    const size_t out_bytes = (size_t)(n * c->n_out) * sizeof(float);
    kx1_block *x = allocate((size_t)n * n_blocks * kx1_block_size());
    int32_t *kt = malloc((size_t)n * sizeof *kt);
    float *out = malloc(out_bytes);
    if (kt == NULL || out == NULL) exit(2);
    for (int from_packed = 0; from_packed < 2; from_packed++) {
        for (int64_t t = 0; t < n; t++) {
            kx1_block *xt = (kx1_block *)((char *)x + (size_t)t * kx1_block_size());
            const uint8_t *packed = c->packed + (size_t)(first + t) * packed_bytes;
            if (!from_packed) kt[t] = isa->quantise(c->rows + (first + t) * c->cols, c->cols, xt, n);
            else if (kx1_unpack(packed, c->cols, xt, n, kt + t) != 0) fail(isa->name, "unpacking refused", c->number);
        }
        memset(out, 0xff, out_bytes);
        isa->matmul(c->type, c->weights, 0, c->n_out, c->cols, c->ew, x, kt, n, out, c->n_out);
        if (memcmp(out, c->expected + first * c->n_out, out_bytes) != 0) fail(isa->name, "mat-mul differs", c->number);
    }
    free(x);
    free(kt);
    free(out);
}

static void replay_matmul(const kx1_isa *isa, const matmul_case *c) {
    for (int64_t n = 1; n <= c->n; n++) replay_rows(isa, c, c->n - n, n);
}

static void check_packing(const matmul_case *c) {
    const size_t bytes = (size_t)(c->cols / KX1_BLOCK * KX1_PACKED_BLOCK);
    uint8_t *packed = malloc(bytes);
    if (packed == NULL) exit(2);
    for (int64_t t = 0; t < c->n; t++) {
        if (kx1_pack(c->rows + t * c->cols, c->cols, packed) != 0) fail("pack", "refused", c->number);
        if (memcmp(packed, c->packed + (size_t)t * bytes, bytes) != 0) fail("pack", "differs", c->number);
    }
    free(packed);
    const int32_t ew = kx1_weight_exponent(c->type, c->weights, c->n_out, c->cols);
    if (ew != c->ew) fail("weight exponent", "differs", c->number);
}

static void replay(FILE *file, int64_t number, int at_end) {
    const int64_t kind = read_number(file);
    if (kind == MATMUL) {
        matmul_case c = {.number = number, .type = (int)read_number(file)};
        c.n_out = read_number(file), c.cols = read_number(file), c.n = read_number(file);
        c.ew = (int32_t)read_number(file);
        const size_t weight_bytes = (size_t)(c.n_out * kx1_row_bytes(c.type, c.cols));
        c.weights = guarded_copy(read_array(file, weight_bytes), weight_bytes, at_end);
        c.rows = read_array(file, (size_t)(c.n * c.cols) * sizeof(float));
        c.packed = read_array(file, (size_t)(c.n * (c.cols / KX1_BLOCK) * KX1_PACKED_BLOCK));
        c.expected = read_array(file, (size_t)(c.n * c.n_out) * sizeof(float));
        check_packing(&c);
        for (int i = 0; kx1_isa_at(i) != NULL; i++) replay_matmul(kx1_isa_at(i), &c);
    } else {
        const int64_t n = read_number(file);
        const size_t bytes = (size_t)n * sizeof(float);
        const float *gate = read_array(file, bytes), *up = read_array(file, bytes), *expected = read_array(file, bytes);
        float *h = malloc(bytes);
        if (h == NULL) exit(2);
        for (int i = 0; kx1_isa_at(i) != NULL; i++) {
            const kx1_isa *isa = kx1_isa_at(i);
            isa->silu_mul(gate, up, h, n);
            if (memcmp(h, expected, bytes) != 0) fail(isa->name, "silu differs", number);
            memcpy(h, gate, bytes); /* and in place */
            isa->silu_mul(h, up, h, n);
            if (memcmp(h, expected, bytes) != 0) fail(isa->name, "silu in place differs", number);
        }
        free(h);
    }
}

int main(int argc, char **argv) {
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL) return 2;
    const int64_t n_cases = read_number(file);
    for (int64_t number = 0; number < n_cases; number++) replay(file, number, number % 2 == 0);
    printf("%lld cases equal:", (long long)n_cases);
    for (int i = 0; kx1_isa_at(i) != NULL; i++) printf(" %s", kx1_isa_at(i)->name);
    printf("\n");
    return 0;
}
