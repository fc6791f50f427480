/* The table of KX1's versions, the choice among them, and what does not depend on the instruction set.
 *
 * A version may run only if the CPU has its instructions and, for AVX, the operating system saves its registers. */
#include "kx1_block.h"
#include "kx1_sources.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

_Static_assert((-5 >> 1) == -3, "right shifts of negative numbers must be arithmetic");
_Static_assert(sizeof(kx1_block) == 512 && _Alignof(kx1_block) == 64, "a block is eight cache lines");

#if defined(__x86_64__) || defined(_M_X64)

static bool has_all(uint32_t have, uint32_t wanted) {
    return (have & wanted) == wanted;
}

/* Which registers the operating system saves when it switches threads (XCR0). */
static uint32_t saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* What find_x86_level found, plus 1: a virtual machine may take microseconds for each cpuid. */
static _Atomic int known_x86_level;

/* Which x86 version fits: 0 none, 1 AVX2, 2 AVX-512 with VNNI. The second asks for all that the compiler may use
 * under x86-64-v4, not only for what the sources name. */
static int find_x86_level(void) {
    uint32_t a, b, c, d, b7, c7, c_extended;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    if (!has_all(c, bit_OSXSAVE | bit_AVX | bit_SSE4_2 | bit_POPCNT) || !has_all(saved_state(), 0x06)) return 0;
    const uint32_t c1 = c;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d) || !has_all(b7, bit_AVX2)) return 0;
    if (!__get_cpuid(0x80000001, &a, &b, &c_extended, &d)) return 1;
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
    const bool is_v4 = has_all(b7, avx512 | bit_BMI | bit_BMI2) && has_all(c1, bit_FMA | bit_F16C | bit_MOVBE) &&
                       has_all(c_extended, bit_LZCNT);
    return is_v4 && has_all(c7, bit_AVX512VNNI) && has_all(saved_state(), 0xe6) ? 2 : 1;
}

static int x86_level(void) {
    int level = known_x86_level;
    if (level == 0) known_x86_level = level = find_x86_level() + 1;
    return level - 1;
}

#endif

#if defined(__aarch64__)

static bool has_dotprod(void) {
#if defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1; /* HWCAP_ASIMDDP */
#elif defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, NULL, 0) == 0 && has;
#else
    return false;
#endif
}

#endif

static bool cpu_can_run(const kx1_isa *isa) {
    if (isa == NULL) return false;
#if defined(__x86_64__) || defined(_M_X64)
    if (isa == kx1_avx2_isa) return x86_level() >= 1;
    if (isa == kx1_avx512_isa) return x86_level() >= 2;
#endif
#if defined(__aarch64__)
    if (isa == kx1_dotprod_isa) return has_dotprod();
#endif
    return true;
}

const kx1_isa *kx1_isa_at(int i) {
    const kx1_isa *const best_first[] = {kx1_avx512_isa, kx1_avx2_isa, kx1_dotprod_isa, kx1_neon_isa, kx1_scalar_isa};
    for (size_t k = 0; k < sizeof best_first / sizeof *best_first; k++) {
        if (cpu_can_run(best_first[k]) && i-- == 0) return best_first[k];
    }
    return NULL;
}

const kx1_isa *kx1_isa_best(void) {
    return kx1_isa_at(0);
}

const kx1_isa *kx1_isa_named(const char *name) {
    const kx1_isa *isa;
    for (int i = 0; (isa = kx1_isa_at(i)) != NULL; i++) {
        if (strcmp(isa->name, name) == 0) return isa;
    }
    return NULL;
}

size_t kx1_block_size(void) {
    return sizeof(kx1_block);
}

/* Bytes of 256 weights: one quant block of the K types, eight of Q8_0. */
static int64_t block_bytes(int type) {
    switch (type) {
    case KX1_Q4_K: return 144;
    case KX1_Q5_K: return 176;
    case KX1_Q6_K: return 210;
    case KX1_Q8_0: return 8 * 34;
    default: return 0;
    }
}

int64_t kx1_row_bytes(int type, int64_t cols) {
    if (cols <= 0 || cols > KX1_MAX_COLS || cols % KX1_BLOCK) return 0;
    return cols / KX1_BLOCK * block_bytes(type);
}

static int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* The exponent field of the half-precision number at p. */
static int32_t exponent_field(const uint8_t *p) {
    return p[1] >> 2 & 31;
}

/* The largest exponent field among the scales of 256 weights. */
static int32_t block_exponent(int type, const uint8_t *w) {
    if (type == KX1_Q6_K) return exponent_field(w + 208);
    if (type != KX1_Q8_0) return larger(exponent_field(w), exponent_field(w + 2));
    int32_t most = 0;
    for (int j = 0; j < 8; j++) most = larger(most, exponent_field(w + 34 * j));
    return most;
}

int32_t kx1_weight_exponent(int type, const uint8_t *weights, int64_t rows, int64_t cols) {
    const int64_t bytes = block_bytes(type), n_blocks = rows * (cols / KX1_BLOCK);
    int32_t most = 0;
    for (int64_t i = 0; i < n_blocks; i++) most = larger(most, block_exponent(type, weights + i * bytes));
    if (most == 31) return -1;
    return most ? most - 1 : 0;
}
