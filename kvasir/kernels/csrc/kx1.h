/* KX1: one expert, the same bits on every device. Integers only; see docs/reference/kx1.md for the specification.
 *
 * Everything here computes on one thread, allocates nothing and uses less than 96 KB of stack. experts.c spreads the
 * work over the pool.
 *
 * How to build. All of these sources, on every target, with -std=c11 -O3 -ffp-contract=off -fPIC and:
 *
 *   source          target    its own flags
 *   kx1.c           all       none
 *   kx1_rows.c      all       none
 *   kx1_scalar.c    all       none
 *   kx1_avx2.c      x86-64    -mavx2 -mtune=haswell
 *   kx1_avx512.c    x86-64    -march=x86-64-v4 -mavx512vnni -mprefer-vector-width=512
 *   kx1_neon.c      aarch64   none
 *   kx1_dotprod.c   aarch64   -march=armv8.2-a+dotprod (or -mcpu=generic+dotprod)
 *
 * A source whose flags are not given (because the target is another one, or the compiler does not know them) compiles
 * to an empty entry of the table below, so the same list builds everywhere. Nothing but kx1_isa_best() and
 * kx1_isa_named() decides which version runs: they ask the CPU and the operating system, not the compiler. */
#ifndef KX1_H
#define KX1_H

#include <stddef.h>
#include <stdint.h>

#define KX1_BLOCK 256          /* activations in a block */
#define KX1_PACKED_BLOCK 261   /* bytes of a packed block: 256 codes, 8 four-bit multipliers, 1 exponent */
#define KX1_MAX_COLS 16384

/* ggml's numbers of the tensor types that KX1 computes */
enum { KX1_Q8_0 = 8, KX1_Q4_K = 12, KX1_Q5_K = 13, KX1_Q6_K = 14 };

typedef struct kx1_block kx1_block; /* one prepared block of 256 activations; 64-byte aligned, a multiple of 64 bytes */
size_t kx1_block_size(void);

/* A row of `cols` activations is cols/256 blocks, `stride` blocks apart: n rows prepared for one matrix are stored
 * block-major, block b of row t at x[b * n + t], so a row is prepared with x + t and stride n. */

/* The functions that have one version for each instruction set. All versions give the same bits. */
typedef struct {
    const char *name; /* "scalar", "avx2", "avx512", "neon" (any aarch64), "dotprod" (aarch64 with sdot) */
    /* Step 1: quantise one f32 row; returns the row's exponent kt. The row must be finite. */
    int32_t (*quantise)(const float *row, int64_t cols, kx1_block *x, int64_t stride);
    /* Steps 2 to 4: out[t * ld_out + r] for matrix rows row_start <= r < row_stop and n prepared rows. */
    void (*matmul)(int type, const uint8_t *weights, int64_t row_start, int64_t row_stop, int64_t cols, int32_t ew,
                   const kx1_block *x, const int32_t *kt, int64_t n, float *out, int64_t ld_out);
    /* Step 5: h = silu(gate) * up. h may be gate. */
    void (*silu_mul)(const float *gate, const float *up, float *h, int64_t n);
} kx1_isa;

const kx1_isa *kx1_isa_named(const char *name); /* NULL when unknown, not built, or not supported by this CPU */
const kx1_isa *kx1_isa_at(int i); /* the i-th version that this CPU can run, best first; NULL after the last */
const kx1_isa *kx1_isa_best(void);              /* KVASIR_ISA in the environment is read by the caller, not here */

/* Largest exponent field of a matrix's scales, less one (step 2); -1 when a scale is infinite or NaN. */
int32_t kx1_weight_exponent(int type, const uint8_t *weights, int64_t rows, int64_t cols);
/* Bytes of one weight row, 0 when the type is unknown or cols is not a multiple of 256 or over KX1_MAX_COLS. */
int64_t kx1_row_bytes(int type, int64_t cols);

/* residual = row - what its prepared blocks stand for, rounded once; always finite. */
void kx1_residual(const float *row, int64_t cols, const kx1_block *x, int64_t stride, float *residual);

/* The packed form in which rows travel: per block 256 codes, 4 bytes of multipliers (a_0 in the low nibble of the
 * first byte), 1 byte of exponent (0, or kb - 13). */
int kx1_pack(const float *row, int64_t cols, uint8_t *packed);                 /* 0, or -1: a value is not finite */
/* 0, or -1: a code is -128, or -2: a multiplier is 0 */
int kx1_unpack(const uint8_t *packed, int64_t cols, kx1_block *x, int64_t stride, int32_t *kt);

#endif
