/* Sums of weighted outputs as integers, packed: docs/reference/kx1.md, "Step 7". Integer sums associate, so who
 * computed which pair of a row cannot change a bit of the total. */
#ifndef KV_SUMS_H
#define KV_SUMS_H

#include <stdint.h>

#define SUMS_BAD_WIDTH (-20)   /* a width that does not exist, or that is wider than the block's values need */
#define SUMS_BAD_LENGTH (-21)  /* the packed bytes end early, or go on behind the last block */

/* sums[pair_rows[i]] += the pair's integers, for every pair: outputs [n_pairs, d] f32, weights [n_pairs] f32 and finite,
 * exponents [n_rows], sums [n_rows, d] i32. The caller sees to it that no row has more pairs than its sum can hold. */
void sums_add(const float *outputs, const float *weights, const int32_t *pair_rows, int64_t n_pairs,
              const int32_t *exponents, int64_t d, int32_t *sums, int n_threads);

/* Pack [n_rows, d] values, d a multiple of 256; returns the bytes written, at most n_rows * d / 256 * 1025. */
int64_t sums_pack(const int32_t *sums, int64_t n_rows, int64_t d, uint8_t *packed);

/* The reverse: 0, or an error of those above. Only the smallest width of each block is accepted. */
int sums_unpack(const uint8_t *packed, int64_t n_bytes, int64_t n_rows, int64_t d, int32_t *sums);

/* out[i] = sums[i] * 2^exponents[row], rounded to nearest even, as step 4 of KX1 rounds. */
void sums_to_float(const int32_t *sums, const int32_t *exponents, int64_t n_rows, int64_t d, float *out, int n_threads);

#endif
